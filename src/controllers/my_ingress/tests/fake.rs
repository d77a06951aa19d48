//! A fake of AWS and of the apiserver, and a reconcile with them.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use http::{Method, Request, Response};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Client;
use kube::client::Body;
use qm_api::MyIngress;
use qm_api::common::{ADOPT_BY, OWNER, OWNER_UID};
use qm_api::my_ingress::FINALIZER;
use qm_aws::error::{self, INVALID_TARGET};
use qm_aws::listeners::{
    DesiredListener, DesiredTargetGroup, InstanceTarget, Listener, TargetGroup, TargetHealth,
};
use qm_aws::{Aws, AwsError, DesiredLoadBalancer, LoadBalancer, Tags};
use qm_core::kind::HasReadyCondition as _;
use qm_runtime::WatchScope;
use qm_runtime::controller::{Context, KindContext};
use qm_runtime::error::{Class, Error};
use qm_runtime::events::Events;
use qm_runtime::objects::Objects;
use qm_runtime::outcome::{Outcome, Progress, Requeue};
use qm_runtime::ownership::Owner;
use qm_runtime::trigger::Trigger;
use qm_runtime::watch::Index;
use serde_json::{Value, from_value, json, to_value};
use tokio::sync::OnceCell;
use tower::{BoxError, service_fn};

use super::super::MyIngresses;
use super::super::backends::Backends;
use super::super::build::Desired;
use super::super::execute::{Executor, StepError};
use super::super::namesakes::Namesakes;
use super::super::observe::{Observed, now};
use super::super::plan;
use super::super::report::{Report, report};
use super::super::step::Step;
use super::super::tags::{CLUSTER, OwnershipTags};
use super::super::warnings::Warnings;

pub(super) const LOAD_BALANCER: &str = "arn:aws:elb:eu-1:1:web";
pub(super) const LISTENER: &str = "arn:aws:elb:eu-1:1:listener-80";
pub(super) const GROUP: &str = "arn:aws:elb:eu-1:1:group-80";
/// Certificate that AWS does not have.
pub(super) const UNKNOWN_CERTIFICATE: &str = "arn:aws:acm:eu-1:1:certificate/none";

/// State of AWS.
#[derive(Clone, Debug, Default)]
pub(super) struct State {
    pub account: String,
    pub load_balancer: Option<LoadBalancer>,
    pub listeners: Vec<Listener>,
    pub groups: Vec<TargetGroup>,
    pub tags: BTreeMap<String, Tags>,
    pub health: BTreeMap<String, Vec<TargetHealth>>,
    /// Resources that exist and are not shown yet.
    pub hidden: BTreeSet<String>,
    /// Resources that exist and are not found, although their tags are shown.
    pub(crate) unlisted: BTreeSet<String>,
    /// Resources that are shown without their tags yet.
    pub untagged: BTreeSet<String>,
    /// New resources are hidden at first.
    pub is_late: bool,
    pub(crate) is_late_with_tags: bool,
    /// A deleted load balancer is shown for a while.
    pub lingers: bool,
    /// Instances that AWS rejects as targets; `some` rejects without naming one.
    pub rejected: BTreeSet<String>,
    /// Number of resources that AWS has created.
    pub created: usize,
}

impl State {
    fn create(&mut self, kind: &str, tags: &Tags) -> String {
        self.created += 1;
        let arn = format!("arn:aws:elb:eu-1:{}:{kind}-{}", self.account, self.created);
        self.tags.insert(arn.clone(), tags.clone());
        if self.is_late {
            self.hidden.insert(arn.clone());
        }
        if self.is_late_with_tags {
            self.untagged.insert(arn.clone());
        }
        arn
    }

    fn is_found(&self, arn: &str) -> bool {
        !self.hidden.contains(arn) && !self.unlisted.contains(arn)
    }

    fn visible_tags(&self, arn: &str) -> Option<Tags> {
        let tags = self.tags.get(arn).filter(|_| !self.hidden.contains(arn));
        let untagged = self.untagged.contains(arn);
        tags.map(|tags| tags.clone().into_iter().filter(|_| !untagged).collect())
    }

    /// Asserts that the operator may change the resource.
    fn check(&self, arn: &str) {
        let tags = &self.tags[arn];
        let is = |key: &str, value: &str| tags.get(key).is_some_and(|it| it == value);
        let is_owned = is(CLUSTER, "c1") && (is(OWNER_UID, "u1") || is(OWNER, "shop/web"));
        assert!(
            is_owned || is(ADOPT_BY, "shop/web"),
            "{arn} is not owned: {tags:?}"
        );
    }

    /// Asserts that no listener forwards to a group without targets.
    fn check_targets(&self, group: &str) {
        let active = self.health[group].iter().any(|it| !it.is_draining());
        assert!(active, "{group} has no targets");
    }
}

#[derive(Default)]
pub(super) struct FakeAws(pub Arc<Mutex<State>>);

impl FakeAws {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    fn owned(&self, arn: &str) -> MutexGuard<'_, State> {
        let state = self.state();
        state.check(arn);
        state
    }

    fn of_load_balancer(&self, arn: &str, change: impl FnOnce(&mut LoadBalancer)) {
        change(self.owned(arn).load_balancer.as_mut().unwrap());
    }
}

pub(super) fn aws_error(class: Class, reason: &'static str, code: &str) -> AwsError {
    AwsError {
        code: Some(code.into()),
        ..AwsError::unsent(class, reason, format!("AWS returned {code}: words"))
    }
}

impl Aws for FakeAws {
    async fn region(&self) -> Result<String, AwsError> {
        Ok("eu-1".into())
    }

    async fn account(&self) -> Result<String, AwsError> {
        Ok(self.state().account.clone())
    }

    async fn find_load_balancer(&self, _: &str) -> Result<Option<LoadBalancer>, AwsError> {
        let state = self.state();
        let visible = state.load_balancer.clone();
        Ok(visible.filter(|it| state.is_found(&it.arn)))
    }

    async fn find_tags(&self, arn: &str) -> Result<Option<Tags>, AwsError> {
        let state = self.state();
        let is_gone = arn == LOAD_BALANCER && state.load_balancer.is_none();
        Ok(state.visible_tags(arn).filter(|_| !is_gone))
    }

    async fn create_load_balancer(
        &self,
        desired: &DesiredLoadBalancer,
    ) -> Result<LoadBalancer, AwsError> {
        let mut state = self.state();
        if let Some(existing) = &state.load_balancer {
            return Ok(existing.clone());
        }
        let created = LoadBalancer {
            arn: state.create("web", &desired.tags),
            dns: "web.elb".into(),
            kind: "application".into(),
            state: "provisioning".into(),
            scheme: desired.scheme.clone(),
            ip_address_type: "ipv4".into(),
            vpc: "vpc-1".into(),
            subnets: desired.subnets.clone(),
            security_groups: desired.security_groups.clone(),
            ..LoadBalancer::default()
        };
        state.load_balancer = Some(created.clone());
        Ok(created)
    }

    async fn set_subnets(&self, arn: &str, subnets: &BTreeSet<String>) -> Result<(), AwsError> {
        self.of_load_balancer(arn, |it| it.subnets.clone_from(subnets));
        Ok(())
    }

    async fn set_security_groups(
        &self,
        arn: &str,
        groups: &BTreeSet<String>,
    ) -> Result<(), AwsError> {
        self.of_load_balancer(arn, |it| it.security_groups.clone_from(groups));
        Ok(())
    }

    async fn set_ip_address_type(&self, arn: &str, address_type: &str) -> Result<(), AwsError> {
        self.of_load_balancer(arn, |it| it.ip_address_type = address_type.into());
        Ok(())
    }

    async fn add_tags(&self, arn: &str, tags: &Tags) -> Result<(), AwsError> {
        let mut state = self.owned(arn);
        let present = state.tags.get_mut(arn).unwrap();
        present.extend(tags.clone());
        Ok(())
    }

    async fn remove_tags(&self, arn: &str, keys: &BTreeSet<String>) -> Result<(), AwsError> {
        let mut state = self.owned(arn);
        let present = state.tags.get_mut(arn).unwrap();
        present.retain(|key, _| !keys.contains(key));
        Ok(())
    }

    async fn delete_load_balancer(&self, arn: &str) -> Result<(), AwsError> {
        let mut state = self.owned(arn);
        if !state.lingers {
            state.load_balancer = None;
        }
        state.listeners.clear();
        Ok(())
    }

    async fn listeners(&self, _: &str) -> Result<Vec<Listener>, AwsError> {
        let state = self.state();
        let listeners = state.listeners.iter();
        Ok(listeners
            .filter(|it| !state.hidden.contains(&it.arn))
            .cloned()
            .collect())
    }

    async fn target_groups(&self, _: &str) -> Result<Vec<TargetGroup>, AwsError> {
        let state = self.state();
        let led_to = |group: &&TargetGroup| {
            let mut listeners = state.listeners.iter();
            listeners.any(|it| it.group.as_ref() == Some(&group.arn))
        };
        Ok(state.groups.iter().filter(led_to).cloned().collect())
    }

    async fn find_target_group(&self, name: &str) -> Result<Option<TargetGroup>, AwsError> {
        let groups = self.target_groups_named(name).await?;
        Ok(groups.into_iter().find(|it| it.name == name))
    }

    async fn target_groups_named(&self, prefix: &str) -> Result<Vec<TargetGroup>, AwsError> {
        let state = self.state();
        let named =
            |group: &&TargetGroup| group.name.starts_with(prefix) && state.is_found(&group.arn);
        Ok(state.groups.iter().filter(named).cloned().collect())
    }

    async fn tags_of(&self, arns: &[String]) -> Result<BTreeMap<String, Tags>, AwsError> {
        let state = self.state();
        let not_found = || {
            aws_error(
                Class::Transient,
                "OperationInProgress",
                error::GROUP_NOT_FOUND,
            )
        };
        let tags = |arn: &String| Ok((arn.clone(), state.visible_tags(arn).ok_or_else(not_found)?));
        arns.iter().map(tags).collect()
    }

    async fn create_target_group(
        &self,
        desired: &DesiredTargetGroup,
    ) -> Result<TargetGroup, AwsError> {
        let mut state = self.state();
        if let Some(existing) = state.groups.iter().find(|it| it.name == desired.name) {
            return Ok(existing.clone());
        }
        let created = TargetGroup {
            arn: state.create("group", &desired.tags),
            name: desired.name.clone(),
            vpc: desired.vpc.clone(),
            health_check_path: desired.health_check_path.clone(),
        };
        state.health.insert(created.arn.clone(), Vec::new());
        state.groups.push(created.clone());
        Ok(created)
    }

    async fn set_health_check(&self, group: &str, path: &str) -> Result<(), AwsError> {
        let mut state = self.owned(group);
        let group = state.groups.iter_mut().find(|it| it.arn == group).unwrap();
        group.health_check_path = path.into();
        Ok(())
    }

    async fn delete_target_group(&self, group: &str) -> Result<(), AwsError> {
        let mut state = self.owned(group);
        if state
            .listeners
            .iter()
            .any(|it| it.group.as_deref() == Some(group))
        {
            return Err(aws_error(
                Class::Transient,
                "OperationInProgress",
                error::IN_USE,
            ));
        }
        state.groups.retain(|it| it.arn != group);
        Ok(())
    }

    async fn target_health(&self, group: &str) -> Result<Vec<TargetHealth>, AwsError> {
        Ok(self.state().health[group].clone())
    }

    async fn register_targets(
        &self,
        group: &str,
        targets: &BTreeSet<InstanceTarget>,
    ) -> Result<(), AwsError> {
        let mut state = self.owned(group);
        let instances = targets.iter().map(|it| it.instance.clone()).collect();
        let rejected: Vec<_> = state.rejected.intersection(&instances).cloned().collect();
        if !rejected.is_empty() || state.rejected.contains("some") {
            let message = format!(
                "AWS returned {INVALID_TARGET}: not running: '{}'",
                rejected.join("', '")
            );
            let error = aws_error(Class::Transient, "TargetsRejected", INVALID_TARGET);
            return Err(AwsError { message, ..error });
        }
        let health = state.health.get_mut(group).unwrap();
        health.retain(|it| !targets.contains(&it.target));
        health.extend(
            targets
                .iter()
                .map(|target| health_of(target.clone(), "initial")),
        );
        Ok(())
    }

    async fn deregister_targets(
        &self,
        group: &str,
        targets: &BTreeSet<InstanceTarget>,
    ) -> Result<(), AwsError> {
        let mut state = self.owned(group);
        let health = state.health.get_mut(group).unwrap();
        let health = health.iter_mut().filter(|it| targets.contains(&it.target));
        health.for_each(|it| it.state = "draining".into());
        Ok(())
    }

    async fn create_listener(
        &self,
        load_balancer: &str,
        desired: &DesiredListener,
        tags: &Tags,
    ) -> Result<(), AwsError> {
        let mut state = self.owned(load_balancer);
        if desired.certificate.as_deref() == Some(UNKNOWN_CERTIFICATE) {
            return Err(aws_error(
                Class::Terminal,
                "SpecRejected",
                "CertificateNotFound",
            ));
        }
        if state.listeners.iter().any(|it| it.port == desired.port) {
            return Err(aws_error(
                Class::Transient,
                "OperationInProgress",
                "DuplicateListener",
            ));
        }
        state.check_targets(&desired.group);
        let arn = state.create("listener", tags);
        state.listeners.push(listener(arn, desired));
        Ok(())
    }

    async fn modify_listener(&self, arn: &str, desired: &DesiredListener) -> Result<(), AwsError> {
        let mut state = self.owned(arn);
        state.check_targets(&desired.group);
        let existing = state.listeners.iter_mut().find(|it| it.arn == arn).unwrap();
        *existing = listener(arn.into(), desired);
        Ok(())
    }

    async fn delete_listener(&self, arn: &str) -> Result<(), AwsError> {
        self.owned(arn).listeners.retain(|it| it.arn != arn);
        Ok(())
    }
}

fn listener(arn: String, desired: &DesiredListener) -> Listener {
    Listener {
        arn,
        port: desired.port,
        protocol: desired.protocol.clone(),
        certificate: desired.certificate.clone(),
        ssl_policy: desired.ssl_policy.clone(),
        group: Some(desired.group.clone()),
    }
}

pub(super) fn target(instance: &str, port: u16) -> InstanceTarget {
    InstanceTarget {
        instance: instance.into(),
        port,
    }
}

pub(super) fn health_of(target: InstanceTarget, state: &str) -> TargetHealth {
    TargetHealth {
        target,
        state: state.into(),
        reason: String::new(),
        description: String::new(),
    }
}

pub(super) fn tags(pairs: &[(&str, &str)]) -> Tags {
    let pairs = pairs.iter();
    pairs
        .map(|(key, value)| ((*key).into(), (*value).into()))
        .collect()
}

pub(super) fn owner_tags() -> Tags {
    tags(&[
        ("ManagedBy", "quartermaster"),
        (CLUSTER, "c1"),
        (OWNER, "shop/web"),
        (OWNER_UID, "u1"),
    ])
}

/// Returns the time `seconds` ago, as in the status.
pub(super) fn ago(seconds: i64) -> String {
    let time = Timestamp::from_second(now().as_second() - seconds).unwrap();
    time.to_string()
}

/// A `MyIngress` and its surroundings; initially in the desired state.
#[derive(Debug)]
pub(super) struct World {
    pub aws: State,
    pub object: Value,
    pub services: BTreeMap<&'static str, Value>,
    /// Instances of the nodes, or the reason that the nodes are unknown.
    pub nodes: Result<Vec<&'static str>, &'static str>,
    /// UIDs of other `MyIngress` that exist.
    pub siblings: Vec<&'static str>,
    /// Namespace that the operator watches; `None` for the whole cluster.
    pub scope: Option<&'static str>,
    /// Steps that AWS rejects.
    pub rejected: Vec<(&'static str, AwsError)>,
    /// Warnings of the reconciles with the loop of the controller.
    pub(crate) warnings: Warnings,
}

/// Result of a reconcile.
pub(super) struct Reconciled {
    /// The steps in their order; `!` marks those that AWS rejected.
    pub steps: Vec<String>,
    pub report: Option<Report>,
}

impl Reconciled {
    pub fn report(&self) -> &Report {
        self.report.as_ref().unwrap()
    }
}

impl World {
    /// Creates a load balancer that listens on port 80.
    pub fn new() -> Self {
        let mut world = Self::plain();
        world.object["spec"]["listeners"] = json!([http(80)]);
        world.object["status"]["listeners"] = json!([{ "port": 80, "healthy": 2, "total": 2 }]);
        world.listen(LISTENER, GROUP, 80);
        world
    }

    /// Creates a load balancer without listeners.
    pub fn plain() -> Self {
        let alb = json!({ "arn": LOAD_BALANCER, "dns": "web.elb", "state": "active" });
        let aws = State {
            account: "1".into(),
            load_balancer: Some(LoadBalancer {
                arn: LOAD_BALANCER.into(),
                dns: "web.elb".into(),
                kind: "application".into(),
                state: "active".into(),
                scheme: "internet-facing".into(),
                ip_address_type: "ipv4".into(),
                vpc: "vpc-1".into(),
                subnets: ["subnet-1".into(), "subnet-2".into()].into(),
                security_groups: ["sg-1".into()].into(),
                ..LoadBalancer::default()
            }),
            tags: [(LOAD_BALANCER.into(), owner_tags())].into(),
            ..State::default()
        };
        let object = json!({
            "apiVersion": "demo.rtfm.co.ua/v1",
            "kind": "MyIngress",
            "metadata": {
                "namespace": "shop", "name": "web", "uid": "u1", "resourceVersion": "1", "generation": 1,
                "finalizers": [FINALIZER],
            },
            "spec": { "subnets": ["subnet-1", "subnet-2"] },
            "status": { "alb": alb },
        });
        let service = json!({ "metadata": { "name": "shop" }, "spec": { "ports": [{ "port": 80, "nodePort": 30_080 }] } });
        Self {
            aws,
            object,
            services: [("shop", service)].into(),
            nodes: Ok(vec!["i-1", "i-2"]),
            siblings: Vec::new(),
            scope: None,
            rejected: Vec::new(),
            warnings: Warnings::default(),
        }
    }

    /// Creates a new `MyIngress`.
    pub fn empty() -> Self {
        let mut world = Self::plain();
        world.aws.load_balancer = None;
        world.aws.tags.clear();
        world.object["status"] = json!({});
        world.object["metadata"]["finalizers"] = json!([]);
        world
    }

    /// Adds an owned listener with its group.
    pub fn listen(&mut self, listener: &str, group: &str, port: u16) {
        let name = self.group_name(port);
        for arn in [listener, group] {
            self.aws.tags.insert(arn.into(), owner_tags());
        }
        self.aws.listeners.push(Listener {
            arn: listener.into(),
            port,
            protocol: "HTTP".into(),
            group: Some(group.into()),
            ..Listener::default()
        });
        self.group(group, name);
    }

    pub fn group(&mut self, arn: &str, name: String) {
        self.aws.groups.push(TargetGroup {
            arn: arn.into(),
            name,
            vpc: "vpc-1".into(),
            health_check_path: "/".into(),
        });
        let health = ["i-1", "i-2"].map(|it| health_of(target(it, 30_080), "healthy"));
        self.aws.health.insert(arn.into(), health.into());
    }

    pub(crate) fn group_name(&self, port: u16) -> String {
        let object: MyIngress = from_value(self.object.clone()).unwrap();
        let owner = &Owner::of(&object).unwrap();
        let cluster = "c1";
        OwnershipTags { owner, cluster }.group_name(port)
    }

    pub fn delete(&mut self) {
        self.object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    }

    /// Reconciles once; the status is not written.
    pub async fn reconcile(&mut self) -> Reconciled {
        let object: MyIngress = from_value(self.object.clone()).unwrap();
        let aws = FakeAws(Arc::new(Mutex::new(self.aws.clone())));
        let state = Arc::clone(&aws.0);
        let stored = Arc::new(Mutex::new(self.object.clone()));
        let (executor, kind) = self.executor(aws, Arc::clone(&stored));
        let owner = &Owner::of(&object).unwrap();
        let cluster = "c1";
        let desired = Desired::of(&object, OwnershipTags { owner, cluster });
        let stored_object = Arc::new(object.clone());
        let mut cx = Context::new(kind, Arc::clone(&stored_object), owner.clone());
        let mut observed = Observed::new(stored_object, Duration::from_mins(1));
        let mut steps = Vec::new();
        while let Some(step) = plan::next(&desired, &observed) {
            assert!(steps.len() < 200, "endless: {steps:?}");
            let name = name(&step);
            let rejected = self.rejected.iter().find(|(rejected, _)| name == *rejected);
            let taken = match rejected {
                Some((_, error)) => {
                    if !error.had_no_effect {
                        // AWS executed the call, and the answer was lost.
                        let object = Arc::clone(&observed.object);
                        let mut unseen = Observed::new(object, Duration::ZERO);
                        let done = executor
                            .execute(&mut cx, &desired, &mut unseen, &step)
                            .await;
                        done.unwrap();
                    }
                    Err(error.clone().into())
                }
                None => {
                    executor
                        .execute(&mut cx, &desired, &mut observed, &step)
                        .await
                }
            };
            match taken {
                Ok(()) => {
                    steps.push(name);
                    observed.done.push(step);
                }
                Err(StepError::Aws(error)) => {
                    steps.push(format!("!{name}"));
                    observed.reject(step, error);
                }
                Err(StepError::Reconcile(error)) => panic!("{name}: {error}"),
            }
        }
        self.aws = state.lock().unwrap().clone();
        self.object = stored.lock().unwrap().clone();
        Reconciled {
            steps,
            report: report(&desired, &observed),
        }
    }

    /// Reconciles, and stores the status.
    pub(crate) async fn reconcile_and_store(&mut self) -> Reconciled {
        let reconciled = self.reconcile().await;
        if let Some(report) = &reconciled.report {
            let object: MyIngress = from_value(self.object.clone()).unwrap();
            let time = Time(now());
            let mut status = object.status.unwrap_or_default();
            report
                .readiness
                .fill_status(&mut status, report.listeners.clone());
            let outcome = report.readiness.outcome(Requeue::OnChange);
            MyIngress::set_ready_condition(&mut status, &outcome.condition(), 1, time);
            self.object["status"] = to_value(status).unwrap();
        }
        reconciled
    }

    /// Reconciles once with the loop of the controller and this timeout, and stores the status with
    /// the condition of the outcome.
    pub(crate) async fn reconcile_within(&mut self, timeout: Duration) -> Result<Outcome, Error> {
        let object: MyIngress = from_value(self.object.clone()).unwrap();
        let aws = FakeAws(Arc::new(Mutex::new(self.aws.clone())));
        let state = Arc::clone(&aws.0);
        let stored = Arc::new(Mutex::new(self.object.clone()));
        let (mut executor, kind) = self.executor(aws, Arc::clone(&stored));
        executor.warnings = mem::take(&mut self.warnings);
        let owner = Owner::of(&object).unwrap();
        let mut cx = Context::new(kind, Arc::new(object), owner);
        let ingresses = MyIngresses {
            executor,
            ingresses: Objects::default(),
            namesakes: Namesakes::default(),
            trigger: Trigger::default(),
            cluster: OnceCell::new_with(Some("c1".into())),
            sync_period: Duration::from_mins(10),
            consistency_window: Duration::from_mins(1),
            timeout,
        };
        let result = ingresses.converge(&mut cx).await;
        self.warnings = ingresses.executor.warnings;
        self.aws = state.lock().unwrap().clone();
        self.object = stored.lock().unwrap().clone();
        if let Ok(Some(outcome)) = &result
            && outcome.progress != Progress::Unchanged
        {
            let generation = cx.object.metadata.generation.unwrap();
            let (condition, time) = (outcome.condition(), Time(now()));
            MyIngress::set_ready_condition(&mut cx.status, &condition, generation, time);
        }
        self.object["status"] = to_value(&cx.status).unwrap();
        result.map(Option::unwrap)
    }

    fn executor(
        &self,
        aws: FakeAws,
        stored: Arc<Mutex<Value>>,
    ) -> (Executor<FakeAws>, Arc<KindContext<MyIngress>>) {
        let client = apiserver(stored, self.services.clone());
        let store = Objects::<MyIngress>::default();
        for uid in &self.siblings {
            let metadata = json!({ "namespace": "a", "name": uid, "uid": uid });
            let sibling = json!({ "metadata": metadata, "spec": {} });
            store.insert(from_value(sibling).unwrap());
        }
        let backends = Backends::new(Trigger::default());
        backends.nodes_sync.begin(0, [None]);
        match &self.nodes {
            Ok(instances) => {
                for id in instances {
                    let provider = json!({ "providerID": format!("aws:///a/{id}") });
                    let node = json!({ "metadata": { "name": id }, "spec": provider });
                    let node: Node = from_value(node).unwrap();
                    backends.apply(node);
                }
                backends.nodes_sync.set_listed(None);
            }
            Err(why) => backends.nodes_sync.set_denied(None, why.to_string()),
        }
        let scope = self.scope.map(ToOwned::to_owned);
        let executor = Executor {
            scope: scope.map_or(WatchScope::Cluster, |it| WatchScope::Namespaces(vec![it])),
            aws,
            backends: Arc::new(backends),
            warnings: Warnings::default(),
        };
        let events = Events::new(client.clone(), "test", "qm-0").0;
        let kind = KindContext::new(client, "test", store, Trigger::default(), events);
        (executor, kind)
    }
}

pub(super) fn http(port: u16) -> Value {
    json!({ "port": port, "service": { "name": "shop", "port": 80 } })
}

/// Returns the name of a step, with a detail that distinguishes it from others of that name.
pub(super) fn name(step: &Step) -> String {
    match step {
        Step::Emit(_, _, reason, _) => format!("Emit:{reason}"),
        Step::RecordIntent(intent) => format!("Record{}", variant(&format!("{intent:?}"))),
        step => variant(&format!("{step:?}")).into(),
    }
}

fn variant(debug: &str) -> &str {
    debug.split(['(', ' ']).next().unwrap()
}

/// Returns an apiserver that has the object and these Services.
fn apiserver(stored: Arc<Mutex<Value>>, services: BTreeMap<&'static str, Value>) -> Client {
    let service = service_fn(move |request: Request<Body>| {
        let (stored, services) = (Arc::clone(&stored), services.clone());
        async move {
            let (parts, body) = request.into_parts();
            let last = parts.uri.path().rsplit('/').next().unwrap().to_owned();
            let is_service = parts.uri.path().contains("/services/");
            let body = body.collect_bytes().await?;
            let answer = if is_service {
                services.get(&*last).cloned()
            } else {
                let mut stored = stored.lock().unwrap();
                if parts.method == Method::PATCH {
                    merge(&mut stored, &serde_json::from_slice(&body)?);
                }
                Some(stored.clone())
            };
            let not_found =
                json!({ "status": "Failure", "message": "", "reason": "NotFound", "code": 404 });
            let code = if answer.is_some() { 200 } else { 404 };
            let body = serde_json::to_vec(&answer.unwrap_or(not_found))?;
            Ok::<_, BoxError>(Response::builder().status(code).body(Body::from(body))?)
        }
    });
    Client::new(service, "shop")
}

/// Applies a merge patch.
fn merge(value: &mut Value, patch: &Value) {
    let Some(fields) = patch.as_object() else {
        *value = patch.clone();
        return;
    };
    for (name, patch) in fields {
        if patch.is_null() {
            value.as_object_mut().and_then(|it| it.remove(name));
        } else {
            merge(&mut value[name], patch);
        }
    }
}
