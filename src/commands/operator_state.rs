//! The state of the operator, by its Lease.

use std::time::Duration;

use anyhow::Context as _;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::core::{ApiResource, PartialObjectMeta};
use kube::{Api, Client, ResourceExt};
use qm_runtime::ObjectKey;
use qm_runtime::raw_object::RawObject;
use serde::Serialize;

use super::FailedRequest;
use super::objects::pages;
use super::printer::format_time;

/// Largest difference between the clocks of this machine and the cluster that is tolerated.
const CLOCK_SKEW: Duration = Duration::from_secs(30);
/// Field manager of an operator's Lease: the first part of the operator's `User-Agent`.
const FIELD_MANAGER: &str = "quartermaster";

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "state")]
pub(crate) enum OperatorState {
    /// `holder` leads. `overdue` is the time of the last renewal if the Lease has expired, which differing clocks may
    /// explain.
    Running {
        holder: String,
        #[serde(rename = "renewed", skip_serializing_if = "Option::is_none")]
        overdue: Option<Timestamp>,
    },
    /// No replica leads.
    #[serde(rename = "Stopped")]
    Gone { message: String },
    /// The Lease does not exist or cannot be read.
    Unknown { message: String },
}

impl OperatorState {
    /// Reads the Lease, and judges it by the clock.
    pub(crate) async fn read(client: &Client, lease: &ObjectKey) -> Self {
        let read = Self::try_read(client, lease).await;
        read.unwrap_or_else(|error| Self::Unknown {
            message: format!("{error:#}"),
        })
    }

    /// Reads the Lease, and judges it by the clock. Fails if the Lease cannot be read.
    pub(crate) async fn try_read(client: &Client, lease: &ObjectKey) -> anyhow::Result<Self> {
        Ok(match LeaseVersion::read(client, lease).await? {
            Some(lease) => lease.by_clock(Timestamp::now()),
            None => Self::Unknown {
                message: format!(
                    "Lease {lease} does not exist: the operator has stopped, runs without --leader-elect, or uses another Lease (name \
                     that Lease with --operator-namespace and --leader-election-id)"
                ),
            },
        })
    }

    pub(crate) fn is_running(&self) -> bool {
        matches!(self, Self::Running { .. })
    }

    pub(crate) fn is_gone(&self) -> bool {
        matches!(self, Self::Gone { .. })
    }

    /// Returns a sentence without its full stop, unless the operator certainly runs.
    pub(crate) fn problem(&self) -> Option<String> {
        match self {
            Self::Running { holder, overdue } => overdue.map(|since| {
                let why = not_renewed(holder, since);
                format!("The operator may have stopped: {why}")
            }),
            Self::Gone { message } => Some(format!("The operator is not running: {message}")),
            Self::Unknown { message } => Some(format!(
                "Cannot tell whether the operator is running: {message}"
            )),
        }
    }
}

fn not_renewed(holder: &str, since: Timestamp) -> String {
    let since = format_time(since);
    format!("{holder} has not renewed the Lease since {since}")
}

/// A version of a Lease.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LeaseVersion {
    /// Empty if the Lease was released.
    pub(crate) holder: String,
    pub(crate) duration: Duration,
    renewed: Timestamp,
}

impl LeaseVersion {
    /// Returns `None` if there is no Lease.
    pub(crate) async fn read(client: &Client, lease: &ObjectKey) -> anyhow::Result<Option<Self>> {
        let api: Api<Lease> = Api::namespaced(client.clone(), &lease.namespace);
        let lease = api.get_opt(&lease.name).await.map_err(FailedRequest::from);
        Ok(lease
            .context("the Lease of the operator could not be read")?
            .map(Self::from))
    }

    /// Compares the last renewal with this machine's clock.
    pub(crate) fn by_clock(&self, now: Timestamp) -> OperatorState {
        if self.holder.is_empty() || self.is_expired(now) {
            return OperatorState::Gone {
                message: self.why_gone(),
            };
        }
        OperatorState::Running {
            holder: self.holder.clone(),
            overdue: (self.age(now) > self.duration).then_some(self.renewed),
        }
    }

    /// Returns whether the Lease has expired, even if the clocks differ by [`CLOCK_SKEW`].
    fn is_expired(&self, now: Timestamp) -> bool {
        self.age(now) > self.duration + CLOCK_SKEW
    }

    /// Returns the time since the last renewal; zero if that lies in the future.
    fn age(&self, now: Timestamp) -> Duration {
        Duration::try_from(now.duration_since(self.renewed)).unwrap_or_default()
    }

    /// Returns why this Lease, which was released or has expired, shows that the operator has stopped.
    pub(crate) fn why_gone(&self) -> String {
        match self.holder.as_str() {
            "" => "no replica holds the Lease".into(),
            holder => not_renewed(holder, self.renewed),
        }
    }
}

impl From<Lease> for LeaseVersion {
    fn from(lease: Lease) -> Self {
        let spec = lease.spec.unwrap_or_default();
        let seconds = spec.lease_duration_seconds.unwrap_or(1);
        Self {
            holder: spec.holder_identity.unwrap_or_default(),
            duration: Duration::from_secs(seconds.try_into().unwrap_or(1)),
            renewed: spec.renew_time.map_or(Timestamp::UNIX_EPOCH, |time| time.0),
        }
    }
}

/// Lists the Leases of operators, in all namespaces and except `own`, that have not expired by this machine's clock. A
/// Lease that cannot be decoded counts as not expired.
pub(crate) async fn other_leases(
    client: &Client,
    own: &ObjectKey,
) -> Result<Vec<ObjectKey>, FailedRequest> {
    let now = Timestamp::now();
    let api: Api<RawObject> = Api::all_with(client.clone(), &ApiResource::erase::<Lease>(&()));
    let leases = pages(&api, |lease| {
        let key = ObjectKey::of(&lease);
        let metadata = lease.decode_as::<PartialObjectMeta<Lease>>();
        let is_operators = metadata.is_ok_and(|metadata| {
            let mut fields = metadata.managed_fields().iter();
            fields.any(|it| it.manager.as_deref() == Some(FIELD_MANAGER))
        });
        let lease = lease.decode_as::<Lease>();
        let is_expired = lease.is_ok_and(|lease| LeaseVersion::from(lease).is_expired(now));
        (is_operators && !is_expired && key != *own).then_some(key)
    });
    Ok(leases.await?.into_iter().flatten().collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    impl LeaseVersion {
        pub(crate) fn for_test(holder: &str, seconds: u64, renewed: i64) -> Self {
            Self {
                holder: holder.into(),
                duration: Duration::from_secs(seconds),
                renewed: at(renewed),
            }
        }
    }

    fn lease(holder: &str) -> LeaseVersion {
        LeaseVersion::for_test(holder, 9, 100)
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn running(overdue: Option<i64>) -> OperatorState {
        OperatorState::Running {
            holder: "a".into(),
            overdue: overdue.map(at),
        }
    }

    fn gone(why: &str) -> OperatorState {
        OperatorState::Gone {
            message: why.into(),
        }
    }

    const SILENT: &str = "a has not renewed the Lease since 1970-01-01 00:01:40Z";

    #[rstest]
    #[case::renewed("a", 109, running(None))]
    #[case::renewed_by_a_clock_that_is_ahead("a", 80, running(None))]
    #[case::overdue("a", 110, running(Some(100)))]
    #[case::overdue_within_the_skew("a", 139, running(Some(100)))]
    #[case::expired("a", 140, gone(SILENT))]
    #[case::released("", 100, gone("no replica holds the Lease"))]
    fn clock_allows_for_skew(#[case] holder: &str, #[case] now: i64, #[case] state: OperatorState) {
        assert_eq!(lease(holder).by_clock(at(now)), state);
    }

    /// A replica of another operator may be about to acquire a released Lease.
    #[test]
    fn lease_of_another_operator_expires_whoever_holds_it() {
        for holder in ["a", ""] {
            assert!(!lease(holder).is_expired(at(139)));
            assert!(lease(holder).is_expired(at(140)));
        }
    }

    /// No Lease has a time after 9999-12-30T22:00:00Z in the operator's types, but the apiserver stores such times.
    #[tokio::test]
    async fn undecodable_lease_counts_if_an_operator_wrote_it() {
        let lease = |name: &str, manager: &str, renewed: &str| {
            json!({
                "metadata": { "namespace": "shop", "name": name, "managedFields": [{ "manager": manager }] },
                "spec": { "leaseDurationSeconds": 9, "renewTime": renewed },
            })
        };
        let last = "9999-12-31T23:59:59.000000Z";
        let list = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "LeaseList", "metadata": { "resourceVersion": "1" },
            "items": [
                lease("foreign", "kubectl", last),
                lease("undecodable", FIELD_MANAGER, last),
                lease("expired", FIELD_MANAGER, "2020-01-01T00:00:00.000000Z"),
                lease("own", FIELD_MANAGER, last),
            ],
        });
        let answer = tower::service_fn(move |_: http::Request<kube::client::Body>| {
            let body = kube::client::Body::from(list.to_string().into_bytes());
            async move { Ok::<_, std::convert::Infallible>(http::Response::new(body)) }
        });
        let client = Client::new(answer, "default");
        let others = other_leases(&client, &ObjectKey::new("shop", "own")).await;
        let others = others.map_err(|error| error.to_string());
        assert_eq!(others, Ok(vec![ObjectKey::new("shop", "undecodable")]));
    }

    /// A report must not change while a Lease expires, or `status --watch` would print it again and again.
    #[rstest]
    #[case::running(running(None), json!({ "state": "Running", "holder": "a" }))]
    #[case::overdue(running(Some(0)), json!({ "state": "Running", "holder": "a", "renewed": "1970-01-01T00:00:00Z" }))]
    #[case::gone(gone("why"), json!({ "state": "Stopped", "message": "why" }))]
    #[case::unknown(OperatorState::Unknown { message: "why".into() }, json!({ "state": "Unknown", "message": "why" }))]
    fn state_is_reported_without_an_age(#[case] state: OperatorState, #[case] report: Value) {
        assert_eq!(serde_json::to_value(state).unwrap(), report);
    }

    #[rstest]
    #[case::renewed(running(None), None)]
    #[case::overdue(
        running(Some(0)),
        Some("may have stopped: a has not renewed the Lease since 1970-01-01 00:00:00Z")
    )]
    #[case::gone(gone("why"), Some("The operator is not running: why"))]
    #[case::unknown(OperatorState::Unknown { message: "why".into() }, Some("is running: why"))]
    fn problem_is_described(#[case] state: OperatorState, #[case] problem: Option<&str>) {
        let described = state.problem();
        assert_eq!(described.is_some(), problem.is_some(), "{described:?}");
        assert!(
            described
                .unwrap_or_default()
                .ends_with(problem.unwrap_or_default())
        );
    }
}
