//! The network of the load balancers: moto's, with fixed names for its subnets.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};

use super::REGION;
use super::moto::Moto;
use super::xml::Element;

/// Names of the security groups created in the first VPC.
pub(super) const OWN_GROUPS: [&str; 2] = ["front", "back"];

/// A subnet as moto knows it.
#[derive(Clone, Debug)]
pub(super) struct Subnet {
    pub(super) vpc: String,
    pub(super) zone: String,
}

/// The network.
#[derive(Clone, Debug, Default)]
pub(super) struct Network {
    pub(super) vpc: String,
    pub(super) other_vpc: String,
    /// Subnets by moto's id.
    pub(super) subnets: BTreeMap<String, Subnet>,
    /// Security groups and their VPC.
    pub(super) security_groups: BTreeMap<String, String>,
    /// Default security group of each VPC, for load balancers that name none.
    pub(super) default_group: BTreeMap<String, String>,
    /// The two security groups created in the first VPC.
    pub(super) own_groups: Vec<String>,
    /// moto's id of each named subnet.
    aliases: BTreeMap<String, String>,
    /// Number of subnets created; each has its own address range.
    subnet_count: u8,
}

impl Network {
    /// Creates two VPCs: one with a subnet in each of three zones and two security groups, one with two subnets.
    pub(super) async fn create(moto: &Moto) -> Result<Self> {
        let mut network = Self {
            vpc: vpc(moto).await?,
            other_vpc: vpc(moto).await?,
            ..Self::default()
        };
        for (alias, zone) in super::SUBNETS.iter().zip(['a', 'b', 'c']) {
            network.add_subnet(moto, alias, false, zone).await?;
        }
        for (alias, zone) in super::OTHER_SUBNETS.iter().zip(['a', 'b']) {
            network.add_subnet(moto, alias, true, zone).await?;
        }
        for name in OWN_GROUPS {
            let vpc = network.vpc.clone();
            let params = [
                ("GroupName", name),
                ("GroupDescription", name),
                ("VpcId", vpc.as_str()),
            ];
            network.own_groups.push(
                moto.ec2("CreateSecurityGroup", &params)
                    .await?
                    .get("groupId")
                    .to_owned(),
            );
        }
        let groups = moto.ec2("DescribeSecurityGroups", &[]).await?;
        for group in groups.members("securityGroupInfo") {
            let (id, vpc) = (
                group.get("groupId").to_owned(),
                group.get("vpcId").to_owned(),
            );
            if group.get("groupName") == "default" {
                network.default_group.insert(vpc.clone(), id.clone());
            }
            network.security_groups.insert(id, vpc);
        }
        Ok(network)
    }

    /// Adds a subnet to the first or the second VPC.
    pub(super) async fn add_subnet(
        &mut self,
        moto: &Moto,
        alias: &str,
        other: bool,
        zone: char,
    ) -> Result<()> {
        let vpc = if other { &self.other_vpc } else { &self.vpc };
        let zone = format!("{REGION}{zone}");
        let range = format!("10.0.{}.0/24", self.subnet_count);
        let params = [
            ("VpcId", vpc.as_str()),
            ("CidrBlock", &range),
            ("AvailabilityZone", &zone),
        ];
        let made = moto.ec2("CreateSubnet", &params).await?;
        let id = made
            .child("subnet")
            .map(|subnet| subnet.get("subnetId"))
            .context("no subnet in moto's answer")?;
        self.subnets.insert(
            id.to_owned(),
            Subnet {
                vpc: vpc.clone(),
                zone,
            },
        );
        self.aliases.insert(alias.to_owned(), id.to_owned());
        self.subnet_count += 1;
        Ok(())
    }

    /// Renames a subnet.
    pub(super) fn alias(&mut self, alias: &str, subnet: &str) -> Result<()> {
        let id = self.moto_id(subnet).unwrap_or_else(|| subnet.to_owned());
        anyhow::ensure!(
            self.subnets.contains_key(&id),
            "there is no subnet {subnet}"
        );
        self.aliases.retain(|_, moto_id| *moto_id != id);
        self.aliases.insert(alias.to_owned(), id);
        Ok(())
    }

    /// Returns moto's id of the subnet with this name.
    pub(super) fn moto_id(&self, alias: &str) -> Option<String> {
        self.aliases.get(alias).cloned()
    }

    /// Returns the name of a subnet by moto's id.
    pub(super) fn name_of(&self, id: &str) -> String {
        let alias = self
            .aliases
            .iter()
            .find(|(_, moto_id)| *moto_id == id)
            .map(|(alias, _)| alias);
        alias.map_or_else(|| id.to_owned(), Clone::clone)
    }

    /// Replaces moto's subnet ids with names.
    pub(super) fn rename(&self, element: &mut Element) {
        if element.name == "SubnetId" {
            element.text = self.name_of(&element.text);
        }
        for child in &mut element.children {
            self.rename(child);
        }
    }
}

async fn vpc(moto: &Moto) -> Result<String> {
    let made = moto
        .ec2("CreateVpc", &[("CidrBlock", "10.0.0.0/16")])
        .await?;
    Ok(made
        .child("vpc")
        .context("no VPC in moto's answer")?
        .get("vpcId")
        .to_owned())
}
