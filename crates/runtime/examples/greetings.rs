//! Operator with one kind: each `Greeting` owns a `ConfigMap` with the text of the greeting.

use std::sync::Arc;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::CustomResource;
use qm_runtime::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(CustomResource, Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[kube(group = "example.com", version = "v1", kind = "Greeting")]
#[kube(namespaced, status = "GreetingStatus")]
pub struct GreetingSpec {
    text: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
pub struct GreetingStatus {
    conditions: Vec<Condition>,
}

impl HasConditions for GreetingStatus {
    fn conditions(&self) -> &[Condition] {
        &self.conditions
    }

    fn conditions_mut(&mut self) -> &mut Vec<Condition> {
        &mut self.conditions
    }
}

impl Kind for Greeting {
    const NAMES: &'static MetadataNames = &metadata_names!("example.com");

    fn readiness(&self) -> ReadinessSummary<'_> {
        readiness(self.metadata.generation, self.status.as_ref())
    }
}

struct Greetings {
    maps: Arc<Children<ConfigMap, ()>>,
}

impl Controller for Greetings {
    type Kind = Greeting;

    const KIND: &'static KindInfo =
        &KindInfo::of::<Greeting>("greeting", &[], DelegatedAccess::Nothing, &[]);
    const FIELD_MANAGER: &'static str = "greetings";

    async fn reconcile(&self, cx: &mut Context<Greeting>) -> Result<Outcome> {
        let map = ConfigMap {
            metadata: cx.owner.child_metadata(cx.owner.name()),
            data: Some([("text".into(), cx.object.spec.text.clone())].into()),
            ..ConfigMap::default()
        };
        self.maps.apply(cx, map, Quirks::default()).await?;
        Ok(Outcome::ready("the ConfigMap exists"))
    }

    fn forget(&self, key: &ObjectKey) {
        self.maps.forget(key);
    }
}

#[tokio::main]
pub async fn main() -> anyhow::Result<()> {
    let settings = Settings::new(Program::new("greetings", "1.0.0"));
    manager::run_with_defaults(settings, |manager| {
        manager.add(|setup| {
            let maps = setup.children(|_| (), &[]);
            Ok(Greetings { maps })
        })
    })
    .await
}
