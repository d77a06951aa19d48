//! The manifests that the pages show.

use std::fs;

use qm_api::{AppService, ContactPoint, MyApp, MyIngress, TrackedField};
use qm_notify::message::{Body, View, check_template, template};
use quartermaster::controllers::{app_service, my_app, my_ingress};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{pages, root};

/// Returns every `yaml` block of the operator's kinds in a page, whatever its indent.
fn manifests_of_pages() -> Vec<Value> {
    let mut manifests = Vec::new();
    for (path, page) in pages() {
        for block in page
            .split("```yaml\n")
            .skip(1)
            .filter_map(|rest| rest.split("```").next())
        {
            let object: Value = serde_saphyr::from_str(block)
                .unwrap_or_else(|error| panic!("{}: {error}\n{block}", path.display()));
            manifests.push(object);
        }
    }
    manifests.retain(|object| {
        ["tg.azamaton.ru/v1", "demo.rtfm.co.ua/v1", "kosmos.io/v1"]
            .iter()
            .any(|version| object["apiVersion"] == *version)
    });
    assert!(manifests.len() >= 8);
    manifests
}

/// Returns whether `read` has all of `written`: deserialisation drops a field that the types do not have.
fn is_within(written: &Value, read: &Value) -> bool {
    match (written, read) {
        (Value::Object(written), Value::Object(read)) => written
            .iter()
            .all(|(name, value)| read.get(name).is_some_and(|read| is_within(value, read))),
        _ => written == read,
    }
}

fn parse<K: DeserializeOwned + Serialize>(object: &Value) -> K {
    let parsed: K = serde_json::from_value(object.clone())
        .unwrap_or_else(|error| panic!("{error}: {object:#}"));
    let read = serde_json::to_value(&parsed).unwrap();
    assert!(
        is_within(object, &read),
        "a field is not known: {object:#}\n{read:#}"
    );
    parsed
}

/// Returns a view in which every text needs escapes somewhere.
fn view() -> View {
    let text = "a \"quoted\" <b> & 'c' \\ \n\u{1}ä";
    View {
        kind: "Deployment".into(),
        name: "web".into(),
        namespace: "shop".into(),
        action: "Updated".into(),
        value: Some(text.into()),
        ..View::default()
    }
}

#[test]
fn every_manifest_parses_and_its_templates_render() {
    for object in manifests_of_pages() {
        match object["kind"].as_str().unwrap() {
            "ContactPoint" => {
                let point: ContactPoint = parse(&object);
                let Some(hook) = point.spec.webhook_spec else {
                    continue;
                };
                let Some(body) = Body::of(&hook).unwrap() else {
                    continue;
                };
                let text = view().text();
                let rendered = body
                    .render("event", &view(), &[view(), view()], &text)
                    .unwrap()
                    .to_string();
                assert!(rendered.len() > 20, "{rendered}");
                if hook.content_type.is_none() {
                    let rendered: Value = serde_json::from_str(&rendered)
                        .unwrap_or_else(|error| panic!("{error}: {rendered}"));
                    // A repeated entry may come with others, which the service must not take for a repetition.
                    for key in ["dedup_key", "alias"] {
                        let id = rendered.get(key);
                        assert!(id.is_none_or(|id| id == "event"), "{rendered}");
                    }
                }
            }
            "TrackedField" => {
                let field: TrackedField = parse(&object);
                let Some(source) = &field.spec.notification.template else {
                    continue;
                };
                assert_eq!(check_template(source), Ok(()));
                let context = field.spec.notification.context.keys();
                let view = View {
                    context: context.map(|name| (name.clone(), name.clone())).collect(),
                    ..view()
                };
                let rendered = template::message(source, &view).unwrap();
                let value = view.value.unwrap();
                let expected = if view.context.is_empty() {
                    format!("shop/web: nothing -> {value}")
                } else {
                    format!("web runs {value} (cause), owner")
                };
                assert_eq!(rendered, expected);
            }
            "AppService" => {
                let app: AppService = parse(&object);
                assert!(app_service::validate::check(&app).is_ok());
            }
            "MyApp" => {
                let app: MyApp = parse(&object);
                assert!(my_app::build::validate(&app).is_ok());
            }
            "MyIngress" => {
                let ingress: MyIngress = parse(&object);
                assert_eq!(my_ingress::build::check(&ingress), Ok(()));
            }
            // Other kinds have no rule outside of their schema.
            _ => {}
        }
    }
}

/// A newcomer's nodes pull the images of the samples: containerd 2 rejects images as old as document 002's.
#[test]
fn no_sample_has_an_image_that_nodes_reject() {
    let mut images = Vec::new();
    for folder in ["config/samples", "example"] {
        for file in fs::read_dir(root().join(folder))
            .unwrap()
            .map(|file| file.unwrap().path())
        {
            let sample: Value =
                serde_saphyr::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
            images.extend(sample["spec"]["image"].as_str().map(str::to_owned));
        }
    }
    images.extend(
        manifests_of_pages()
            .iter()
            .filter_map(|object| object["spec"]["image"].as_str().map(str::to_owned)),
    );
    assert!(
        images.len() >= 6 && !images.contains(&"nginx:1.7.9".to_owned()),
        "{images:?}"
    );
}

/// The README shows the sample that its first command applies.
#[test]
fn first_manifest_is_the_sample() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let (_, block) = readme.split_once("```yaml ").unwrap();
    let (block, _) = block.split_once("```").unwrap();
    let (_, manifest) = block.split_once('\n').unwrap();
    let manifest: Value = serde_saphyr::from_str(manifest).unwrap();
    let sample = root().join("config/samples/tg_v1_trackedfield.yaml");
    let sample: Value = serde_saphyr::from_str(&fs::read_to_string(sample).unwrap()).unwrap();
    assert!(is_within(&manifest, &sample), "{manifest:#}\n{sample:#}");
}

/// The pages contain the samples of webhooks unchanged.
#[test]
fn samples_match_the_pages() {
    let shown = manifests_of_pages();
    let mut compared = 0;
    for file in fs::read_dir(root().join("config/samples"))
        .unwrap()
        .map(|file| file.unwrap().path())
    {
        let sample: Value = serde_saphyr::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
        if sample["spec"]["type"] == "Webhook" {
            compared += 1;
            assert!(
                shown.contains(&sample),
                "{}: no page has this manifest",
                file.display()
            );
        }
    }
    assert!(compared >= 5);
}
