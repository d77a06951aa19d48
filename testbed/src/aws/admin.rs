//! An account administrator, who calls under the same rules but bypasses faults and journal; and controls that the AWS
//! API does not offer.

use std::sync::Arc;

use anyhow::{Context as _, Result};

use super::answer::{self, AwsErrorResponse};
use super::form::Form;
use super::network::OWN_GROUPS;
use super::rules;
use super::state::{Instance, State};
use super::{Aws, REGION};

impl Aws {
    /// Calls the API as the administrator and returns the response body.
    ///
    /// # Errors
    ///
    /// AWS rejects the call.
    pub async fn ask(
        &self,
        action: &str,
        params: &[(&str, &str)],
    ) -> Result<String, AwsErrorResponse> {
        let result = self.layer.perform(Form::elb(action, params)).await?;
        Ok(answer::body(action, &answer::request_id(), result))
    }

    async fn call(
        &self,
        action: &str,
        params: &[(&str, &str)],
        lists: &[(&str, &[&str])],
    ) -> Result<String, AwsErrorResponse> {
        let mut form = Form::elb(action, params);
        for (name, items) in lists {
            let items: Vec<String> = items.iter().map(|item| (*item).to_owned()).collect();
            form.set_list(name, &items);
        }
        let result = rules::members(self.layer.perform(form).await?);
        let first = result.first();
        let arn = ["ListenerArn", "TargetGroupArn", "LoadBalancerArn"]
            .iter()
            .filter_map(|name| first.map(|item| item.get(name)))
            .find(|arn| !arn.is_empty());
        Ok(arn.unwrap_or_default().to_owned())
    }

    /// Creates a load balancer and returns its ARN.
    pub async fn create(
        &self,
        name: &str,
        subnets: &[&str],
        scheme: &str,
        tags: &[(&str, &str)],
    ) -> Result<String, AwsErrorResponse> {
        let tags: Vec<(String, String)> = (1..)
            .zip(tags)
            .flat_map(|(at, (key, value))| {
                [
                    (format!("Tags.member.{at}.Key"), *key),
                    (format!("Tags.member.{at}.Value"), *value),
                ]
            })
            .map(|(name, value)| (name, value.to_owned()))
            .collect();
        let mut params = vec![("Name", name), ("Scheme", scheme)];
        params.extend(
            tags.iter()
                .map(|(name, value)| (name.as_str(), value.as_str())),
        );
        self.call("CreateLoadBalancer", &params, &[("Subnets", subnets)])
            .await
    }

    /// Deletes a load balancer.
    pub async fn delete(&self, arn: &str) -> Result<(), AwsErrorResponse> {
        self.call("DeleteLoadBalancer", &[("LoadBalancerArn", arn)], &[])
            .await
            .map(drop)
    }

    /// Sets a tag of any resource.
    pub async fn tag(&self, arn: &str, key: &str, value: &str) -> Result<(), AwsErrorResponse> {
        let tag = [("Tags.member.1.Key", key), ("Tags.member.1.Value", value)];
        self.call("AddTags", &tag, &[("ResourceArns", &[arn])])
            .await
            .map(drop)
    }

    /// Removes a tag of any resource.
    pub async fn untag(&self, arn: &str, key: &str) -> Result<(), AwsErrorResponse> {
        self.call(
            "RemoveTags",
            &[],
            &[("ResourceArns", &[arn]), ("TagKeys", &[key])],
        )
        .await
        .map(drop)
    }

    /// Sets deletion protection of a load balancer.
    pub async fn protect(&self, arn: &str, protected: bool) -> Result<(), AwsErrorResponse> {
        let params = [
            ("LoadBalancerArn", arn),
            ("Attributes.member.1.Key", "deletion_protection.enabled"),
            (
                "Attributes.member.1.Value",
                if protected { "true" } else { "false" },
            ),
        ];
        self.call("ModifyLoadBalancerAttributes", &params, &[])
            .await
            .map(drop)
    }

    /// Sets a load balancer's subnets.
    pub async fn set_subnets(&self, arn: &str, subnets: &[&str]) -> Result<(), AwsErrorResponse> {
        self.call(
            "SetSubnets",
            &[("LoadBalancerArn", arn)],
            &[("Subnets", subnets)],
        )
        .await
        .map(drop)
    }

    /// Sets a load balancer's security groups.
    pub async fn set_security_groups(
        &self,
        arn: &str,
        groups: &[&str],
    ) -> Result<(), AwsErrorResponse> {
        self.call(
            "SetSecurityGroups",
            &[("LoadBalancerArn", arn)],
            &[("SecurityGroups", groups)],
        )
        .await
        .map(drop)
    }

    /// Sets a load balancer's IP address type.
    pub async fn set_ip_address_type(&self, arn: &str, kind: &str) -> Result<(), AwsErrorResponse> {
        self.call(
            "SetIpAddressType",
            &[("LoadBalancerArn", arn), ("IpAddressType", kind)],
            &[],
        )
        .await
        .map(drop)
    }

    /// Creates a target group of instances in the first VPC with protocol HTTP, and returns its ARN.
    pub async fn create_target_group(
        &self,
        name: &str,
        port: u16,
    ) -> Result<String, AwsErrorResponse> {
        let (vpc, port) = (self.vpc(), port.to_string());
        let params = [
            ("Name", name),
            ("Protocol", "HTTP"),
            ("Port", port.as_str()),
            ("VpcId", vpc.as_str()),
        ];
        self.call("CreateTargetGroup", &params, &[]).await
    }

    /// Creates an HTTP listener that forwards to a target group, and returns its ARN.
    pub async fn create_listener(
        &self,
        balancer: &str,
        port: u16,
        group: &str,
    ) -> Result<String, AwsErrorResponse> {
        let port = port.to_string();
        let params = [
            ("LoadBalancerArn", balancer),
            ("Protocol", "HTTP"),
            ("Port", port.as_str()),
            ("DefaultActions.member.1.Type", "forward"),
            ("DefaultActions.member.1.TargetGroupArn", group),
        ];
        self.call("CreateListener", &params, &[]).await
    }

    /// Overrides the state of a load balancer (by name or ARN), such as `failed` or `active_impaired`, and the reason.
    ///
    /// # Errors
    ///
    /// The load balancer does not exist.
    pub fn set_state(&self, balancer: &str, state: &str, reason: &str) -> Result<()> {
        let mut known = self.layer.state();
        let mut balancers = known.balancers.iter_mut();
        let found = balancers.find(|(arn, known)| *arn == balancer || known.name == balancer);
        let (_, found) = found.with_context(|| format!("there is no load balancer {balancer}"))?;
        found.forced = Some((state.to_owned(), reason.to_owned()));
        Ok(())
    }

    /// Overrides the health of a target in a group (by name or ARN), such as `unhealthy`, with AWS's reason, such as
    /// `Target.FailedHealthChecks`. The override applies while a listener forwards to the group.
    ///
    /// # Errors
    ///
    /// The group does not exist.
    pub fn health(&self, group: &str, target: &str, health: &str, reason: &str) -> Result<()> {
        let mut state = self.layer.state();
        let found = state
            .groups
            .iter_mut()
            .find(|(arn, known)| *arn == group || known.name == group);
        let (_, found) = found.with_context(|| format!("there is no target group {group}"))?;
        found
            .forced
            .insert(target.to_owned(), (health.to_owned(), reason.to_owned()));
        Ok(())
    }

    /// Adds a running instance with this id in a zone (`a`, `b`, `c` ...) of the first VPC. Only known instances can be
    /// targets.
    pub fn add_instance(&self, id: &str, zone: char) {
        let zone = format!("{REGION}{zone}");
        self.layer.state().instances.insert(
            id.to_owned(),
            Instance {
                zone,
                running: true,
            },
        );
    }

    /// Terminates the instance, which leaves its target groups.
    pub fn end_instance(&self, id: &str) {
        let mut state = self.layer.state();
        let State {
            instances, groups, ..
        } = &mut *state;
        if let Some(instance) = instances.get_mut(id) {
            instance.running = false;
        }
        for group in groups.values_mut() {
            group.targets.retain(|(target, _), _| target != id);
        }
    }

    /// Creates a certificate for listeners and returns its ARN.
    pub async fn certificate(&self) -> Result<String> {
        let layer = Arc::clone(&self.layer);
        let arn = self
            .layer
            .run(async move { layer.moto.certificate("quartermaster.example.com").await })
            .await?;
        self.layer.state().certificates.insert(arn.clone());
        Ok(arn)
    }

    /// Returns the id of the first VPC.
    pub fn vpc(&self) -> String {
        self.layer.state().network.vpc.clone()
    }

    /// Returns the id of the second VPC.
    pub fn other_vpc(&self) -> String {
        self.layer.state().network.other_vpc.clone()
    }

    /// Returns the ids of two security groups of the first VPC.
    pub fn security_groups(&self) -> Vec<String> {
        self.layer.state().network.own_groups.clone()
    }

    /// Returns the name of a security group: `front`, `back`, or `default` for that of the first VPC. Any other group
    /// keeps its id.
    pub fn security_group_name(&self, id: &str) -> String {
        let own = self.security_groups().into_iter().zip(OWN_GROUPS);
        let default = (self.default_security_group(), "default");
        let mut named = own.chain([default]);
        let found = named.find(|(group, _)| group == id);
        found.map_or(id, |(_, name)| name).to_owned()
    }

    /// Returns the id of the first VPC's default security group, for load balancers that name none.
    pub fn default_security_group(&self) -> String {
        let state = self.layer.state();
        state
            .network
            .default_group
            .get(&state.network.vpc)
            .cloned()
            .unwrap_or_default()
    }

    /// Returns the id of the second VPC's default security group.
    pub fn foreign_security_group(&self) -> String {
        let state = self.layer.state();
        state
            .network
            .default_group
            .get(&state.network.other_vpc)
            .cloned()
            .unwrap_or_default()
    }

    /// Adds a subnet with this name to the first VPC.
    pub async fn add_subnet(&self, name: &str, zone: char) -> Result<()> {
        let (layer, name) = (Arc::clone(&self.layer), name.to_owned());
        let made = async move {
            let mut network = layer.state().network.clone();
            network.add_subnet(&layer.moto, &name, false, zone).await?;
            layer.state().network = network;
            Ok(())
        };
        self.layer.run(made).await
    }

    /// Gives a subnet another name.
    ///
    /// # Errors
    ///
    /// The subnet does not exist.
    pub fn alias(&self, name: &str, subnet: &str) -> Result<()> {
        self.layer.state().network.alias(name, subnet)
    }
}
