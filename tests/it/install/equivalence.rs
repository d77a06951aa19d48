//! Every way of installing creates the same objects.

use testbed::control_plane::binaries;

use super::*;

/// Returns the objects that kubectl builds from a folder of `config/`.
pub async fn kustomized(folder: &str) -> BTreeMap<String, Value> {
    let mut kubectl = tree_command(binaries().await.unwrap().join("kubectl").to_str().unwrap());
    let output = kubectl.args(["kustomize", folder]).output().await.unwrap();
    let (done, printed) = result_of(&output);
    assert!(done, "{printed}");
    as_stored(objects(&printed))
}

/// kubectl 1.36 treats policies as namespaced. The apiserver drops the namespace.
fn as_stored(rendered: BTreeMap<String, Value>) -> BTreeMap<String, Value> {
    let stored = rendered.into_values().map(|mut object| {
        if object["apiVersion"] == "admissionregistration.k8s.io/v1" {
            object["metadata"]
                .as_object_mut()
                .unwrap()
                .remove("namespace");
        }
        named(object)
    });
    stored.collect()
}

#[tokio::test]
async fn deploy_is_current() {
    let kubectl = binaries().await.unwrap().join("kubectl");
    let files = xtask::flat::deploy(Path::new(ROOT), kubectl.as_os_str()).unwrap();
    for (name, text) in &files {
        let committed = std::fs::read_to_string(Path::new(ROOT).join(name)).unwrap_or_default();
        assert!(
            committed == *text,
            "{name} is outdated: run `make manifests`"
        );
    }
    for file in std::fs::read_dir(Path::new(ROOT).join("deploy")).unwrap() {
        let name = format!("deploy/{}", file.unwrap().file_name().to_string_lossy());
        assert!(
            files.iter().any(|(current, _)| *current == name),
            "{name} is not generated any more: remove it"
        );
    }
}

#[tokio::test]
async fn deploy_matches_config_default() {
    let (from_deploy, from_config) = (
        objects(&folder("deploy")),
        kustomized("config/default").await,
    );
    assert!(from_deploy.len() > 30, "{:?}", from_deploy.keys());
    assert_eq!(
        from_deploy.keys().collect::<Vec<_>>(),
        from_config.keys().collect::<Vec<_>>()
    );
    for (name, object) in &from_deploy {
        assert_eq!(object, &from_config[name], "{name}");
    }
    let first = folder("deploy").find("kind: Namespace").unwrap();
    assert!(
        folder("deploy")
            .find("namespace: quartermaster-system")
            .unwrap()
            > first,
        "objects of the namespace follow it"
    );
}

/// The policies must check objects before any can be stored.
#[tokio::test]
async fn policies_are_installed_before_the_crds() {
    let mut kubectl = tree_command(binaries().await.unwrap().join("kubectl").to_str().unwrap());
    let (done, built) = result_of(
        &kubectl
            .args(["kustomize", "config/default"])
            .output()
            .await
            .unwrap(),
    );
    assert!(done, "{built}");
    let mut local = tree_command(binaries().await.unwrap().join("kubectl").to_str().unwrap());
    let (done, local) = result_of(
        &local
            .args(["kustomize", "config/local"])
            .output()
            .await
            .unwrap(),
    );
    assert!(done, "{local}");
    for manifests in [built, local, folder("deploy")] {
        let last_policy = manifests
            .rfind("\nkind: ValidatingAdmissionPolicyBinding")
            .unwrap();
        let first_crd = manifests.find("\nkind: CustomResourceDefinition").unwrap();
        let namespace = manifests.find("kind: Namespace\n").unwrap();
        assert!(last_policy < first_crd && namespace < first_crd);
    }
}

#[tokio::test]
async fn installer_matches_config_default_with_another_image() {
    let dist = Folder::new().unwrap();
    let image = "registry.example.com:5000/team/quartermaster:1.2.3";
    let kubectl = format!(
        "KUBECTL={}",
        binaries().await.unwrap().join("kubectl").display()
    );
    let (dist_flag, image_flag) = (
        format!("DIST={}", dist.path().join("new").display()),
        format!("IMG={image}"),
    );
    let output = tree_command("make")
        .args(["build-installer", &kubectl, &dist_flag, &image_flag])
        .output();
    let (done, printed) = result_of(&output.await.unwrap());
    assert!(done, "{printed}");
    let mut rendered =
        objects(&std::fs::read_to_string(dist.path().join("new/install.yaml")).unwrap());
    let deployment = format!("apps/v1 Deployment quartermaster-system/{DEPLOYMENT}");
    let container =
        &mut rendered.get_mut(&deployment).unwrap()["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(container["image"], image);
    container["image"] = "quartermaster:latest".into();
    assert_eq!(as_stored(rendered), kustomized("config/default").await);
}

#[tokio::test]
async fn monitor_selects_the_service() {
    let installed = kustomized("config/default").await;
    let service = &installed["v1 Service quartermaster-system/quartermaster-controller-manager-metrics-service"];
    let rendered = kustomized("config/prometheus").await;
    let kinds: Vec<_> = rendered
        .values()
        .map(|object| object["kind"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["PrometheusRule", "ServiceMonitor"]);
    let monitor = rendered
        .values()
        .find(|object| object["kind"] == "ServiceMonitor")
        .unwrap();
    for (key, value) in monitor["spec"]["selector"]["matchLabels"]
        .as_object()
        .unwrap()
    {
        assert_eq!(&service["metadata"]["labels"][key], value, "{key}");
    }
    assert_eq!(
        monitor["spec"]["endpoints"][0]["port"],
        service["spec"]["ports"][0]["name"]
    );
    // The Prometheus operator gives the job the Service's name.
    let rules = rendered
        .values()
        .find(|object| object["kind"] == "PrometheusRule")
        .unwrap();
    assert_alerts_are_of_the_job_of(rules, service);
}

/// Asserts that each alert selects the job that the Prometheus operator derives from this Service.
pub fn assert_alerts_are_of_the_job_of(rules: &Value, service: &Value) {
    let job = format!("job=\"{}\"", service["metadata"]["name"].as_str().unwrap());
    let rules = rules["spec"]["groups"][0]["rules"].as_array().unwrap();
    assert_eq!(rules.len(), 10);
    for rule in rules {
        let expression = rule["expr"].as_str().unwrap();
        assert!(expression.contains(&job), "{expression}");
        assert_eq!(
            expression.matches("job=").count(),
            expression.matches(&job).count(),
            "{expression}"
        );
    }
}

/// Returns the objects of the overlay that a page shows.
pub async fn overlay_of(page: &str) -> BTreeMap<String, Value> {
    let page = std::fs::read_to_string(Path::new(ROOT).join(page)).unwrap();
    let shown: Vec<_> = page
        .lines()
        .skip_while(|line| line.trim_start() != "apiVersion: kustomize.config.k8s.io/v1beta1")
        .take_while(|line| !line.trim_start().starts_with("```"))
        .collect();
    let indent = shown[0].len() - shown[0].trim_start().len();
    let folder = Folder::new().unwrap();
    let up = "../".repeat(
        std::fs::canonicalize(folder.path())
            .unwrap()
            .components()
            .count()
            - 1,
    );
    let base = format!("- {up}{}/config/default", ROOT.trim_start_matches('/'));
    let overlay = shown
        .iter()
        .map(|line| line.get(indent..).unwrap_or_default().to_owned() + "\n")
        .collect::<String>()
        .replace("- ../config/default", &base);
    std::fs::write(folder.path().join("kustomization.yaml"), overlay).unwrap();
    kustomized(folder.path().to_str().unwrap()).await
}

/// The overlay for the user's own certificate.
#[tokio::test]
async fn certificate_is_mounted_as_the_page_shows() {
    let rendered = overlay_of("docs/security/metrics.md").await;
    let pod = &rendered[&format!("apps/v1 Deployment quartermaster-system/{DEPLOYMENT}")]["spec"]["template"]
        ["spec"];
    let container = &pod["containers"][0];
    let path = container["volumeMounts"][0]["mountPath"].as_str().unwrap();
    let args = container["args"].as_array().unwrap();
    assert!(args.contains(&"--metrics-secure".into()));
    assert_eq!(args.last().unwrap(), &format!("--metrics-cert-path={path}"));
    assert_eq!(
        pod["volumes"][0]["name"],
        container["volumeMounts"][0]["name"]
    );
    assert_eq!(rendered.len(), kustomized("config/default").await.len());
}
