//! Items that most controllers need.

pub use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
pub use qm_core::conditions::HasConditions;
pub use qm_core::conditions::readiness;
pub use qm_core::kind::{DelegatedAccess, Kind, KindInfo};
pub use qm_core::metadata_names;
pub use qm_core::names::MetadataNames;
pub use qm_core::readiness::ReadinessSummary;

pub use crate::ObjectKey;
pub use crate::children::{Children, Quirks};
pub use crate::controller::{Context, Controller};
pub use crate::error::{Error, Result};
pub use crate::manager::{self, Manager};
pub use crate::outcome::Outcome;
pub use crate::settings::{Program, Settings};
