//! Objects to adopt.

use kube::ResourceExt;
use qm_runtime::ownership::Owner;

use super::classify::Adoptability;

/// An object that a resource needs and does not own.
pub(super) struct Candidate {
    pub(super) owner: Owner,
    pub(super) title: String,
    pub(super) object: CandidateObject,
    pub(super) adoptability: Adoptability,
}

pub(super) enum CandidateObject {
    Copy(ObjectVersion),
    Pod(ObjectVersion),
    /// The load balancer with this ARN.
    LoadBalancer(String),
    Unreadable,
}

/// The version of an object that was classified. There may be too many objects to keep their content.
pub(super) struct ObjectVersion {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: Option<String>,
    pub(super) version: Option<String>,
}

impl ObjectVersion {
    pub(super) fn of(object: &impl ResourceExt) -> Self {
        Self {
            namespace: object.namespace().unwrap_or_default(),
            name: object.name_any(),
            uid: object.uid(),
            version: object.resource_version(),
        }
    }
}

impl Candidate {
    /// Returns `None` if there is no object, or if the object needs no consent.
    pub(super) fn new(
        owner: &Owner,
        title: String,
        read: Result<Option<(CandidateObject, Adoptability)>, String>,
    ) -> Option<Self> {
        let (object, adoptability) = match read {
            Ok(read) => read?,
            Err(error) => {
                let problem = Adoptability::NotAdoptable(format!("it could not be read: {error}"));
                (CandidateObject::Unreadable, problem)
            }
        };
        (adoptability != Adoptability::AlreadyOwned).then(|| Self {
            owner: owner.clone(),
            title,
            object,
            adoptability,
        })
    }

    /// Returns whether a failed read leaves open what adoption would do.
    pub(super) fn is_undetermined(&self) -> bool {
        matches!(self.object, CandidateObject::Unreadable)
            || matches!(self.adoptability, Adoptability::Unknown(_))
    }

    /// Returns the owner as the command line takes it: `KIND/NAME`.
    pub(super) fn owner_arg(&self) -> String {
        format!("{}/{}", self.owner.kind().to_lowercase(), self.owner.name())
    }

    pub(super) fn owner_title(&self) -> String {
        format!("{} in {}", self.owner_arg(), self.owner.namespace())
    }
}
