//! Whose a load balancer is, which its tags alone say. Pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use qm_aws::action::{GROUP_PREFIX, MANAGED_BY};
use qm_aws::{Balancer, Tags};
use qm_core::REQUESTED_AT;
use qm_runtime::ownership::{ADOPT_BY, Claim, Foreign, OWNER, OWNER_UID, Owner};
use qm_runtime::short_digest;

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
        let ours = tags
            .get(CLUSTER)
            .is_some_and(|cluster| cluster == self.cluster);
        let these = |names: &[&str]| {
            names
                .iter()
                .filter_map(|name| Some(((*name).to_owned(), tags.get(*name)?.clone())))
                .collect()
        };
        let marks = ObjectMeta {
            labels: ours.then(|| these(&[OWNER_UID])),
            annotations: Some(if ours {
                these(&[OWNER, ADOPT_BY])
            } else {
                these(&[ADOPT_BY])
            }),
            ..ObjectMeta::default()
        };
        self.owner.claim(&marks, lives)
    }

    /// The sibling whose balancer it is, which lives: it is nobody's to hand over. `may_live` is asked with UID and namespace.
    pub fn sibling<'a>(
        &self,
        foreign: &'a Foreign,
        tags: &Tags,
        may_live: impl Fn(&str, &str) -> bool,
    ) -> Option<&'a str> {
        let Foreign::Sibling(owner) = foreign else {
            return None;
        };
        let (namespace, _) = owner.split_once('/')?;
        may_live(tags.get(OWNER_UID)?, namespace).then_some(owner)
    }

    /// What to say of a balancer that is not ours, and how it is handed over.
    pub fn conflict(&self, balancer: &Balancer, name: &str, tags: &Tags) -> String {
        let whose = match (tags.get(CLUSTER), tags.get(OWNER)) {
            (Some(cluster), owner) if cluster != self.cluster => {
                let owner = owner.map_or("?", |owner| short(owner));
                format!("belongs to MyIngress {owner} of cluster {}", short(cluster))
            }
            (Some(_), Some(owner)) if *owner != self.owner.path() => {
                format!("belonged to MyIngress {}", short(owner))
            }
            _ => "is not ours".into(),
        };
        format!(
            "load balancer {name} {whose} and is left alone; {}",
            self.hand_over(&balancer.arn)
        )
    }

    /// What the names of its target groups begin with: AWS has one of each name in an account and region. It is the same after
    /// a restore from a backup.
    pub fn groups(&self) -> String {
        let digest = short_digest(format!("{}/{}", self.cluster, self.owner.path()));
        format!("{GROUP_PREFIX}{digest}-")
    }

    /// The name of the target group of that port.
    pub fn group(&self, port: u16) -> String {
        format!("{}{port}", self.groups())
    }

    /// How something in AWS is handed over to it.
    pub fn hand_over(&self, arn: &str) -> String {
        format!(
            "to hand it over: {} add-tags --resource-arns {arn} --tags Key={ADOPT_BY},Value={} && {}",
            qm_aws::command(arn),
            self.owner.path(),
            self.again(),
        )
    }

    /// The command that has AWS looked at again at once.
    pub fn again(&self) -> String {
        let (name, namespace) = (self.owner.name(), self.owner.namespace());
        format!(
            "kubectl annotate myingress {name} -n {namespace} {REQUESTED_AT}=\"$(date +%s)\" --overwrite"
        )
    }
}

/// Anybody may write a tag of 256 letters, and the command behind it is to be read.
fn short(text: &str) -> &str {
    &text[..text.floor_char_boundary(130)]
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

    fn foreign(claim: &Claim) -> bool {
        matches!(claim, Claim::Foreign(_))
    }

    #[test]
    fn what_it_tags_is_its_own() {
        let owner = owner();
        let mark = Mark {
            owner: &owner,
            cluster: "c1",
        };
        assert_eq!(mark.claim(&mark.tags(), |_| false), Claim::Ours);
        assert!(
            foreign(
                &Mark {
                    owner: &owner,
                    cluster: "c2"
                }
                .claim(&mark.tags(), |_| false)
            ),
            "of another cluster"
        );
    }

    /// `u2` lives, no other does.
    #[rstest]
    #[case::untagged(&[], "foreign")]
    #[case::of_the_documents_program(&[("ManagedBy", "kopf")], "foreign")]
    #[case::managed_by_us_says_nothing(&[("ManagedBy", "quartermaster")], "foreign")]
    #[case::by_uid(&[(CLUSTER, "c1"), (OWNER_UID, "u1")], "ours")]
    #[case::uid_of_no_cluster(&[(OWNER_UID, "u1")], "foreign")]
    #[case::uid_of_another_cluster(&[(CLUSTER, "c2"), (OWNER_UID, "u1"), (OWNER, "shop/web")], "foreign")]
    #[case::name_alone(&[(CLUSTER, "c1"), (OWNER, "shop/web")], "foreign")]
    #[case::restored(&[(CLUSTER, "c1"), (OWNER_UID, "u9"), (OWNER, "shop/web")], "restored")]
    #[case::of_our_name_and_it_lives(&[(CLUSTER, "c1"), (OWNER_UID, "u2"), (OWNER, "shop/web")], "foreign")]
    #[case::gone_sibling(&[(CLUSTER, "c1"), (OWNER_UID, "u9"), (OWNER, "a/web")], "foreign")]
    #[case::handed_over(&[("ManagedBy", "kopf"), (ADOPT_BY, "shop/web")], "handed over")]
    #[case::handed_over_by_another_cluster(&[(CLUSTER, "c2"), (OWNER_UID, "u1"), (ADOPT_BY, "shop/web")], "handed over")]
    #[case::handed_over_to_another(&[(ADOPT_BY, "shop/api")], "foreign")]
    fn claims(#[case] pairs: &[(&str, &str)], #[case] claim: &str) {
        let owner = owner();
        let said = match (Mark {
            owner: &owner,
            cluster: "c1",
        })
        .claim(&tags(pairs), |uid| uid == "u2")
        {
            Claim::Ours => "ours",
            Claim::Restored => "restored",
            Claim::HandedOver => "handed over",
            Claim::Foreign(_) => "foreign",
        };
        assert_eq!(said, claim);
    }

    #[test]
    fn a_sibling_that_lives_is_named_and_no_command_with_it() {
        let owner = owner();
        let mark = Mark {
            owner: &owner,
            cluster: "c1",
        };
        let theirs = tags(&[(CLUSTER, "c1"), (OWNER_UID, "u2"), (OWNER, "a/web")]);
        let Claim::Foreign(foreign) = mark.claim(&theirs, |_| true) else {
            panic!()
        };
        assert_eq!(
            mark.sibling(&foreign, &theirs, |uid, namespace| (uid, namespace)
                == ("u2", "a")),
            Some("a/web")
        );
        assert_eq!(
            mark.sibling(&foreign, &theirs, |_, _| false),
            None,
            "its balancer was left behind"
        );
    }

    #[rstest]
    #[case(&[("ManagedBy", "kopf")], "load balancer web-alb is not ours")]
    #[case(&[(CLUSTER, "c2"), (OWNER, "shop/web")], "load balancer web-alb belongs to MyIngress shop/web of cluster c2")]
    #[case(&[(CLUSTER, "c1"), (OWNER, "a/web"), (OWNER_UID, "u9")], "load balancer web-alb belonged to MyIngress a/web")]
    fn a_conflict_says_whose_it_is_and_how_it_is_handed_over(
        #[case] pairs: &[(&str, &str)],
        #[case] start: &str,
    ) {
        let owner = owner();
        let balancer = Balancer {
            arn: "arn:aws:elb:eu-1:1:a".into(),
            ..Balancer::default()
        };
        let words = Mark {
            owner: &owner,
            cluster: "c1",
        }
        .conflict(&balancer, "web-alb", &tags(pairs));
        let command = " and is left alone; to hand it over: aws --region eu-1 elbv2 add-tags --resource-arns \
            arn:aws:elb:eu-1:1:a --tags Key=quartermaster.dev/adopt-by,Value=shop/web && kubectl annotate myingress web -n shop \
            quartermaster.dev/requested-at=\"$(date +%s)\" --overwrite";
        assert_eq!(words, format!("{start}{command}"));
    }
}
