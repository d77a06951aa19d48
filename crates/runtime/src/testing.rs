//! Kind and program for unit tests.

use std::collections::BTreeMap;

use kube::CustomResource;
use qm_core::kind::Kind;
use qm_core::names::MetadataNames;
use qm_core::readiness::{Readiness, ReadinessSummary};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::settings::Program;

pub(crate) const PROGRAM: Program = Program {
    log_targets: &["widget_operator"],
    ..Program::new("widget-operator", "1.2.3")
};
pub(crate) const NAMES: MetadataNames = qm_core::metadata_names!("example.com");
pub(crate) const FINALIZER: &str = "example.com/widget";
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
    const FOREIGN_ANNOTATIONS: &'static [&'static str] = &[FOREIGN_ANNOTATION];

    fn readiness(&self) -> ReadinessSummary<'_> {
        (Readiness::Unknown, "")
    }
}
