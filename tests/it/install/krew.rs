//! The krew manifest of `kubectl quartermaster`, by the rules of krew's own validation.

use std::fs;

use super::*;

/// Content of the files that replace the programs.
const PROGRAMS: [(&str, &str); 2] = [("amd64", "one"), ("arm64", "another")];

async fn package(version: &str, folder: &Path) -> (bool, String) {
    for (architecture, content) in PROGRAMS {
        fs::write(
            folder.join(format!("quartermaster-{architecture}")),
            content,
        )
        .unwrap();
    }
    let mut command = tree_command("bash");
    command.args(["hack/krew/package.sh", version, "https://example.com/it"]);
    result_of(&command.arg(folder).output().await.unwrap())
}

async fn stdout(program: &str, arguments: &[&OsStr]) -> String {
    let output = tree_command(program).args(arguments).output().await;
    String::from_utf8(output.unwrap().stdout).unwrap()
}

#[tokio::test]
async fn krew_manifest_is_valid_and_matches_the_archives() {
    let folder = Folder::new().unwrap();
    let (well, output) = package("v1.2.3", folder.path()).await;
    assert!(well, "{output}");
    let text = fs::read_to_string(folder.path().join("quartermaster.yaml")).unwrap();
    let manifest: Value = serde_saphyr::from_str(&text).unwrap();
    assert_eq!(
        (&manifest["apiVersion"], &manifest["kind"]),
        (
            &json!("krew.googlecontainertools.github.com/v1alpha2"),
            &json!("Plugin")
        )
    );
    assert_eq!(manifest["metadata"]["name"], "quartermaster");
    let spec = &manifest["spec"];
    assert_eq!(spec["version"], "v1.2.3");
    let short = spec["shortDescription"].as_str().unwrap();
    assert!(short.len() <= 50 && !short.to_lowercase().contains("kubectl"));
    let left = ["VERSION", "REPOSITORY", "SHA256"];
    assert!(!left.iter().any(|word| text.contains(word)), "{text}");

    let platforms = spec["platforms"].as_array().unwrap();
    assert_eq!(platforms.len(), PROGRAMS.len());
    for (platform, (architecture, content)) in platforms.iter().zip(PROGRAMS) {
        let labels = json!({ "os": "linux", "arch": architecture });
        assert_eq!(platform["selector"]["matchLabels"], labels);
        let address = platform["uri"].as_str().unwrap();
        let file = address
            .strip_prefix("https://example.com/it/releases/download/v1.2.3/")
            .unwrap();
        let archive = folder.path().join(file);
        let sum = stdout("sha256sum", &[archive.as_os_str()]).await;
        assert_eq!(sum.split(' ').next().unwrap(), platform["sha256"]);
        let program = platform["bin"].as_str().unwrap();
        let extract = ["-xzOf".as_ref(), archive.as_os_str(), program.as_ref()];
        assert_eq!(stdout("tar", &extract).await, content);
        let list = stdout("tar", &["-tzf".as_ref(), archive.as_os_str()]).await;
        assert_eq!(list, format!("LICENSE\n{program}\n"));
    }
}

#[tokio::test]
async fn krew_package_rejects_a_version_without_its_v() {
    let folder = Folder::new().unwrap();
    let (well, output) = package("1.2.3", folder.path()).await;
    assert!(
        !well && output.contains("write a version such as v0.1.0"),
        "{output}"
    );
}
