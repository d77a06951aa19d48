//! Kind and program for unit tests.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{Client, CustomResource};
use qm_core::conditions::ReadyCondition;
use qm_core::kind::{HasReadyCondition, Kind};
use qm_core::names::MetadataNames;
use qm_core::readiness::{NOT_OBSERVED, Readiness, ReadinessSummary};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::controller::{Context, KindContext};
use crate::events::Events;
use crate::objects::Objects;
use crate::ownership::Owner;
use crate::settings::Program;
use crate::trigger::Trigger;

pub(crate) const PROGRAM: Program = Program {
    log_targets: &["widget_operator"],
    ..Program::new("widget-operator", "1.2.3")
};
pub(crate) const NAMES: MetadataNames = qm_core::metadata_names!("example.com");

pub(crate) const FINALIZER: &str = "example.com/widget";
pub(crate) const ANNOTATION: &str = "example.com/colour";
pub(crate) const FOREIGN_ANNOTATION: &str = "old.example.com/spec";

#[derive(CustomResource, Clone, Debug, Default, Serialize, Deserialize)]
#[kube(
    group = "example.com",
    version = "v1",
    kind = "Widget",
    namespaced,
    status = "WidgetStatus",
    schema = "disabled",
    derive = "Default"
)]
pub(crate) struct WidgetSpec {}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct WidgetStatus {
    pub fields: BTreeMap<String, Value>,
}

impl Kind for Widget {
    const NAMES: &'static MetadataNames = &NAMES;
    const FINALIZER: Option<&'static str> = Some(FINALIZER);
    const ANNOTATIONS: &'static [&'static str] = &[ANNOTATION];
    const FOREIGN_ANNOTATIONS: &'static [&'static str] = &[FOREIGN_ANNOTATION];

    fn readiness(&self) -> ReadinessSummary<'_> {
        let status = self.status.as_ref();
        let reason = status.and_then(|status| status.fields.get("ready")?.as_str());
        (Readiness::Unknown, reason.unwrap_or(NOT_OBSERVED))
    }
}

impl HasReadyCondition for Widget {
    fn ready_condition(&self) -> Option<ReadyCondition<'_>> {
        None
    }

    fn observed_generation(&self) -> Option<i64> {
        let status = self.status.as_ref()?;
        status.fields.get("ready").and(self.metadata.generation)
    }

    fn set_ready_condition(
        status: &mut WidgetStatus,
        condition: &ReadyCondition<'_>,
        _generation: i64,
        _now: Time,
    ) {
        status
            .fields
            .insert("ready".into(), condition.reason.into());
    }
}

/// Returns the context of a widget with this owner, in a cluster without other widgets.
pub(crate) fn context(client: &Client, owner: Owner) -> Context<Widget> {
    let events = Events::new(client.clone(), "test", "qm-0").0;
    let (objects, trigger) = (Objects::default(), Trigger::default());
    let shared = KindContext::new(
        client.clone(),
        "quartermaster/test",
        objects,
        trigger,
        events,
    );
    Context::new(shared, Arc::new(Widget::default()), owner)
}
