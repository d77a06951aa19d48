//! Whose a load balancer is, which its tags alone say. Pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::api::common::REQUESTED_AT;
use crate::cloud::action::MANAGED_BY;
use crate::cloud::{Balancer, Tags};
use crate::runtime::ownership::{ADOPT_BY, Claim, Foreign, OWNER, OWNER_UID, Owner};

/// Tag: UID of the namespace kube-system of the cluster whose balancer it is.
pub const CLUSTER: &str = "quartermaster.dev/cluster";

/// A `MyIngress`, as the tags of its balancer name it.
pub struct Mark<'a> {
    /// The `MyIngress`.
    pub owner: &'a Owner,
    /// Its cluster, as [`CLUSTER`] has it.
    pub cluster: &'a str,
}

impl Mark<'_> {
    /// The tags of its balancer.
    pub fn tags(&self) -> Tags {
        let (managed_by, us) = MANAGED_BY;
        [
            (managed_by.into(), us.into()),
            (CLUSTER.into(), self.cluster.into()),
            (OWNER.into(), self.owner.path()),
            (OWNER_UID.into(), self.owner.uid().into()),
        ]
        .into()
    }

    /// What a balancer of these tags is to us: the rule of every kind, with tags for marks. Another cluster's prove nothing here.
    /// `lives` says whether a `MyIngress` has that UID.
    pub fn claim(&self, tags: &Tags, lives: impl Fn(&str) -> bool) -> Claim {
        let ours = tags.get(CLUSTER).is_some_and(|cluster| cluster == self.cluster);
        let these = |names: &[&str]| {
            names.iter().filter_map(|name| Some(((*name).to_owned(), tags.get(*name)?.clone()))).collect()
        };
        let marks = ObjectMeta {
            labels: ours.then(|| these(&[OWNER_UID])),
            annotations: Some(if ours { these(&[OWNER, ADOPT_BY]) } else { these(&[ADOPT_BY]) }),
            ..ObjectMeta::default()
        };
        self.owner.claim(&marks, lives)
    }

    /// The sibling whose balancer it is, which lives: it is nobody's to hand over.
    pub fn sibling<'a>(&self, foreign: &'a Foreign, tags: &Tags, lives: impl Fn(&str) -> bool) -> Option<&'a str> {
        match foreign {
            Foreign::Sibling(owner) => tags.get(OWNER_UID).filter(|uid| lives(uid)).map(|_| owner.as_str()),
            _ => None,
        }
    }

    /// What to say of a balancer that is not ours, and how it is handed over.
    pub fn conflict(&self, balancer: &Balancer, name: &str, tags: &Tags) -> String {
        let whose = match (tags.get(CLUSTER), tags.get(OWNER)) {
            (Some(cluster), owner) if cluster != self.cluster => {
                format!("belongs to MyIngress {} of cluster {cluster}", owner.map_or("?", |owner| owner))
            }
            (Some(_), Some(owner)) if *owner != self.owner.path() => format!("belonged to MyIngress {owner}"),
            _ => "is not ours".into(),
        };
        format!(
            "load balancer {name} {whose} and is left alone; to hand it over: aws elbv2 add-tags --resource-arns {} --tags \
             Key={ADOPT_BY},Value={} && {}",
            balancer.arn,
            self.owner.path(),
            self.again(),
        )
    }

    /// The command that has AWS looked at again at once.
    pub fn again(&self) -> String {
        let (name, namespace) = (self.owner.name(), self.owner.namespace());
        format!("kubectl annotate myingress {name} -n {namespace} {REQUESTED_AT}=\"$(date +%s)\" --overwrite")
    }
}
