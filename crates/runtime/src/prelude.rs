//! Items that most controllers need.

pub use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
pub use qm_core::kind::{DelegatedAccess, Kind, KindInfo};
pub use qm_core::names::MetadataNames;
pub use qm_core::readiness::{ReadinessSummary, from_conditions};
pub use qm_core::{conditions, metadata_names};

pub use crate::Key;
pub use crate::children::{Children, Trouble};
pub use crate::manager::{self, Manager};
pub use crate::objects::Objects;
pub use crate::ownership::Owner;
pub use crate::reconciler::{Outcome, Reconciler};
pub use crate::settings::{Program, Settings};
