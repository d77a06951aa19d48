//! Ownership in AWS, which only tags prove. Pure.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use qm_api::common::{ADOPT_BY, OWNER, OWNER_UID, REQUESTED_AT};
use qm_aws::action::{GROUP_PREFIX, MANAGED_BY};
use qm_aws::error::{ACCOUNT_MISMATCH, REGION_MISMATCH};
use qm_aws::{AwsError, LoadBalancer, Tags};
use qm_runtime::error::Class;
use qm_runtime::ownership::{ForeignOwner, Owner, Ownership};
use qm_runtime::short_digest;

/// Tag with the UID of namespace [`CLUSTER_NAMESPACE`], which identifies the cluster.
pub(crate) const CLUSTER: &str = "quartermaster.dev/cluster";
/// Namespace that exists as long as its cluster.
pub(crate) const CLUSTER_NAMESPACE: &str = "kube-system";

/// Tags of all resources that a `MyIngress` owns.
#[derive(Clone, Copy)]
pub(crate) struct OwnershipTags<'a> {
    pub owner: &'a Owner,
    /// Value of [`CLUSTER`].
    pub cluster: &'a str,
}

impl OwnershipTags<'_> {
    pub fn tags(&self) -> Tags {
        let (managed_by, quartermaster) = MANAGED_BY;
        [
            (managed_by.into(), quartermaster.into()),
            (CLUSTER.into(), self.cluster.into()),
            (OWNER.into(), self.owner.path()),
            (OWNER_UID.into(), self.owner.uid().into()),
        ]
        .into()
    }

    /// Returns the ownership that `tags` prove, by the rule for children, with tags in place of labels and annotations.
    /// Tags of another cluster prove nothing. `exists` returns whether a `MyIngress` has that UID.
    pub fn ownership(&self, tags: &Tags, exists: impl Fn(&str) -> bool) -> Ownership {
        let is_of_this_cluster = tags
            .get(CLUSTER)
            .is_some_and(|cluster| cluster == self.cluster);
        let these = |names: &[&str]| {
            names
                .iter()
                .filter_map(|name| Some(((*name).to_owned(), tags.get(*name)?.clone())))
                .collect()
        };
        let metadata = ObjectMeta {
            labels: is_of_this_cluster.then(|| these(&[OWNER_UID])),
            annotations: Some(if is_of_this_cluster {
                these(&[OWNER, ADOPT_BY])
            } else {
                these(&[ADOPT_BY])
            }),
            ..ObjectMeta::default()
        };
        self.owner.ownership(&metadata, exists)
    }

    /// Returns whether the tags contain the consent to the adoption. Consent for another `MyIngress` does not count.
    pub(crate) fn has_consent(&self, tags: &Tags) -> bool {
        tags.get(ADOPT_BY) == Some(&self.owner.path())
    }

    /// Returns the message about a load balancer that the `MyIngress` does not own, with the command that adopts it.
    pub fn conflict(&self, load_balancer: &LoadBalancer, name: &str, tags: &Tags) -> String {
        let ownership = match (tags.get(CLUSTER), tags.get(OWNER)) {
            (Some(cluster), owner) if cluster != self.cluster => {
                let owner = owner.map_or("?", |owner| short(owner));
                format!("belongs to MyIngress {owner} of cluster {}", short(cluster))
            }
            (Some(_), Some(owner)) if *owner != self.owner.path() => {
                format!("belonged to MyIngress {}", short(owner))
            }
            _ => "is not owned".into(),
        };
        format!(
            "load balancer {name} {ownership}, so it stays unchanged; {}",
            self.adopt_command(&load_balancer.arn)
        )
    }

    /// Returns the error about a load balancer in a region other than the operator's.
    pub(crate) fn in_another_region(&self, arn: &str, region: &str, called: &str) -> AwsError {
        let called = format!("{called}, the region that the operator is configured for");
        self.elsewhere(REGION_MISMATCH, arn, &called, &format!("region {region}"))
    }

    /// Returns the error about a load balancer in an account other than the operator's.
    pub(crate) fn in_another_account(&self, arn: &str, account: &str, called: &str) -> AwsError {
        let called = format!("{called}, the account of the operator's credentials");
        let needs = format!("credentials of account {account}");
        self.elsewhere(ACCOUNT_MISMATCH, arn, &called, &needs)
    }

    fn elsewhere(&self, reason: &'static str, arn: &str, called: &str, needs: &str) -> AwsError {
        let (name, namespace) = (self.owner.name(), self.owner.namespace());
        let message = format!(
            "{arn} is not in {called}: the operator changes nothing, and deletion waits; give the operator {needs}, or delete the \
             MyIngress and abandon the load balancer: kubectl patch myingress {name} -n {namespace} --type=merge -p \
             '{{\"metadata\":{{\"finalizers\":null}}}}'"
        );
        AwsError::unsent(Class::Slow, reason, message)
    }

    /// Returns the prefix of the names of the owner's target groups, which are unique in an account and region. A
    /// restore from a backup does not change the prefix.
    pub(crate) fn group_prefix(&self) -> String {
        let digest = short_digest(format!("{}/{}", self.cluster, self.owner.path()));
        format!("{GROUP_PREFIX}{digest}-")
    }

    /// Returns the name of the target group of a listener.
    pub(crate) fn group_name(&self, port: u16) -> String {
        format!("{}{port}", self.group_prefix())
    }

    /// Returns the command that tags a resource in AWS with the consent to its adoption.
    pub(crate) fn adopt_command(&self, arn: &str) -> String {
        format!(
            "to adopt it: {} add-tags --resource-arns {arn} --tags Key={ADOPT_BY},Value={} && {}",
            qm_aws::command(arn),
            self.owner.path(),
            self.reconcile_command(),
        )
    }

    /// Returns the command that triggers a reconcile.
    pub(crate) fn reconcile_command(&self) -> String {
        let (name, namespace) = (self.owner.name(), self.owner.namespace());
        format!(
            "kubectl annotate myingress {name} -n {namespace} {REQUESTED_AT}=\"$(date +%s)\" --overwrite"
        )
    }
}

/// Truncates a tag's value, of up to 256 characters, so that the command after it stays visible.
fn short(text: &str) -> &str {
    &text[..text.floor_char_boundary(130)]
}

/// Tags of a resource in AWS, with the ownership that they prove.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TagOwnership {
    /// Relation of the resource to the `MyIngress`.
    pub(crate) relation: Ownership,
    pub tags: Tags,
}

impl TagOwnership {
    /// Returns whether the `MyIngress` may change and delete the resource.
    pub(crate) fn is_owned(&self) -> bool {
        matches!(self.relation, Ownership::Owned | Ownership::Restored)
    }

    /// Returns whether the `MyIngress` owns or may adopt the resource.
    pub(crate) fn is_adoptable(&self) -> bool {
        !matches!(self.relation, Ownership::Foreign(_))
    }

    /// Returns the other `MyIngress` that owns the resource, if `may_exist` accepts its UID and namespace. The resource
    /// cannot be adopted then.
    pub(crate) fn sibling(&self, may_exist: impl Fn(&str, &str) -> bool) -> Option<&str> {
        let Ownership::Foreign(ForeignOwner::Sibling(owner)) = &self.relation else {
            return None;
        };
        let (namespace, _) = owner.split_once('/')?;
        may_exist(self.tags.get(OWNER_UID)?, namespace).then_some(owner)
    }
}

/// The ownership of listeners and target groups, by ARN.
#[derive(Debug, Default)]
pub(crate) struct OwnershipMap(pub BTreeMap<String, TagOwnership>);

impl OwnershipMap {
    pub(crate) fn is_owned(&self, arn: &str) -> bool {
        self.0.get(arn).is_some_and(TagOwnership::is_owned)
    }

    pub(crate) fn is_adoptable(&self, arn: &str) -> bool {
        self.0.get(arn).is_some_and(TagOwnership::is_adoptable)
    }

    /// Returns whether AWS shows no tags yet: tags may appear late.
    pub(crate) fn is_untagged(&self, arn: &str) -> bool {
        self.0.get(arn).is_none_or(|it| it.tags.is_empty())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use qm_api::MyIngress;
    use rstest::rstest;
    use serde_json::{from_value, json};

    use super::*;

    fn owner() -> Owner {
        let metadata = json!({ "namespace": "shop", "name": "web", "uid": "u1" });
        let ingress: MyIngress = from_value(json!({ "metadata": metadata, "spec": {} })).unwrap();
        Owner::of(&ingress).unwrap()
    }

    fn tags(pairs: &[(&str, &str)]) -> Tags {
        pairs
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    }

    fn foreign(ownership: &Ownership) -> bool {
        matches!(ownership, Ownership::Foreign(_))
    }

    #[test]
    fn tagged_resource_is_owned() {
        let owner = owner();
        let own_tags = OwnershipTags {
            owner: &owner,
            cluster: "c1",
        };
        assert_eq!(
            own_tags.ownership(&own_tags.tags(), |_| false),
            Ownership::Owned
        );
        assert!(
            foreign(
                &OwnershipTags {
                    owner: &owner,
                    cluster: "c2"
                }
                .ownership(&own_tags.tags(), |_| false)
            ),
            "of another cluster"
        );
    }

    /// Only `u2` exists.
    #[rstest]
    #[case::untagged(&[], "foreign")]
    #[case::of_the_documents_program(&[("ManagedBy", "kopf")], "foreign")]
    #[case::managed_by_proves_nothing(&[("ManagedBy", "quartermaster")], "foreign")]
    #[case::by_uid(&[(CLUSTER, "c1"), (OWNER_UID, "u1")], "owned")]
    #[case::uid_of_no_cluster(&[(OWNER_UID, "u1")], "foreign")]
    #[case::uid_of_another_cluster(&[(CLUSTER, "c2"), (OWNER_UID, "u1"), (OWNER, "shop/web")], "foreign")]
    #[case::name_alone(&[(CLUSTER, "c1"), (OWNER, "shop/web")], "foreign")]
    #[case::restored(&[(CLUSTER, "c1"), (OWNER_UID, "u9"), (OWNER, "shop/web")], "restored")]
    #[case::same_name_and_exists(&[(CLUSTER, "c1"), (OWNER_UID, "u2"), (OWNER, "shop/web")], "foreign")]
    #[case::deleted_sibling(&[(CLUSTER, "c1"), (OWNER_UID, "u9"), (OWNER, "a/web")], "foreign")]
    #[case::adoptable(&[("ManagedBy", "kopf"), (ADOPT_BY, "shop/web")], "adoptable")]
    #[case::adoptable_from_another_cluster(&[(CLUSTER, "c2"), (OWNER_UID, "u1"), (ADOPT_BY, "shop/web")], "adoptable")]
    #[case::adoptable_by_another(&[(ADOPT_BY, "shop/api")], "foreign")]
    fn ownership_depends_on_the_tags(#[case] pairs: &[(&str, &str)], #[case] expected: &str) {
        let owner = owner();
        let proved = match (OwnershipTags {
            owner: &owner,
            cluster: "c1",
        })
        .ownership(&tags(pairs), |uid| uid == "u2")
        {
            Ownership::Owned => "owned",
            Ownership::Restored => "restored",
            Ownership::Adoptable => "adoptable",
            Ownership::Foreign(_) => "foreign",
        };
        assert_eq!(proved, expected);
    }

    #[test]
    fn sibling_that_exists_is_named() {
        let owner = owner();
        let own_tags = OwnershipTags {
            owner: &owner,
            cluster: "c1",
        };
        let siblings = tags(&[(CLUSTER, "c1"), (OWNER_UID, "u2"), (OWNER, "a/web")]);
        let ownership = TagOwnership {
            relation: own_tags.ownership(&siblings, |_| true),
            tags: siblings,
        };
        assert_eq!(
            ownership.sibling(|uid, namespace| (uid, namespace) == ("u2", "a")),
            Some("a/web")
        );
        assert_eq!(
            ownership.sibling(|_, _| false),
            None,
            "the sibling does not exist"
        );
    }

    #[rstest]
    #[case(&[("ManagedBy", "kopf")], "load balancer web-alb is not owned")]
    #[case(&[(CLUSTER, "c2"), (OWNER, "shop/web")], "load balancer web-alb belongs to MyIngress shop/web of cluster c2")]
    #[case(&[(CLUSTER, "c1"), (OWNER, "a/web"), (OWNER_UID, "u9")], "load balancer web-alb belonged to MyIngress a/web")]
    fn conflict_names_owner_and_command(#[case] pairs: &[(&str, &str)], #[case] start: &str) {
        let owner = owner();
        let load_balancer = LoadBalancer {
            arn: "arn:aws:elb:eu-1:1:a".into(),
            ..LoadBalancer::default()
        };
        let message = OwnershipTags {
            owner: &owner,
            cluster: "c1",
        }
        .conflict(&load_balancer, "web-alb", &tags(pairs));
        let command = ", so it stays unchanged; to adopt it: aws --region eu-1 elbv2 add-tags --resource-arns \
            arn:aws:elb:eu-1:1:a --tags Key=quartermaster.dev/adopt-by,Value=shop/web && kubectl annotate myingress web -n shop \
            quartermaster.dev/requested-at=\"$(date +%s)\" --overwrite";
        assert_eq!(message, format!("{start}{command}"));
    }
}
