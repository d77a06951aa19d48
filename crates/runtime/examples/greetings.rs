//! Operator with one kind: each `Greeting` owns a `ConfigMap` with its text.

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

impl Kind for Greeting {
    const NAMES: &'static MetadataNames = &metadata_names!("example.com");
    fn readiness(&self) -> ReadinessSummary<'_> {
        let conditions = self.status.as_ref().map_or(&[][..], |it| &it.conditions);
        from_conditions(self.metadata.generation, conditions, None)
    }
}

const KIND: KindInfo = KindInfo::of::<Greeting>("greeting", &[], DelegatedAccess::Nothing, &[]);

struct Greetings {
    objects: Objects<Greeting>,
    maps: Arc<Children<ConfigMap, ()>>,
}

impl Reconciler for Greetings {
    type Object = Greeting;
    type Error = Trouble;
    async fn reconcile(&self, greeting: Arc<Greeting>) -> Result<Outcome, Trouble> {
        let greeting = self.objects.newest(greeting);
        let Some(owner) = Owner::of(&*greeting) else {
            return Ok(Outcome::Done);
        };
        let map = ConfigMap {
            metadata: owner.child_metadata(owner.name()),
            data: Some([("text".into(), greeting.spec.text.clone())].into()),
            ..ConfigMap::default()
        };
        let owners = &self.objects.owners;
        self.maps.settle(&owner, map, owners, &[]).await?;
        let GreetingStatus { mut conditions } = greeting.status.clone().unwrap_or_default();
        conditions::set_ready(&mut conditions, &greeting.metadata, "ConfigMap exists");
        let status = GreetingStatus { conditions };
        self.objects.write_status(&greeting, &status).await?;
        Ok(Outcome::Done)
    }

    fn gone(&self, key: &Key) {
        self.maps.forget(key);
    }
}

#[tokio::main]
pub async fn main() -> anyhow::Result<()> {
    let settings = Settings::new(Program::new("greetings", "1.0.0"));
    manager::run_with_defaults(settings, |manager| {
        let watched = manager.kind::<Greeting>(&KIND);
        let objects = Objects::new(manager, &watched, "greetings");
        let writer = manager.writer(&KIND, "greetings");
        let maps = Children::new(manager, &writer, |_| (), objects.waker());
        let listener = objects.listener();
        let greetings = Arc::new(Greetings { objects, maps });
        manager.control(watched, greetings, vec![], listener);
        Ok(())
    })
    .await
}
