//! Calls that describe several resources at once.

use std::collections::BTreeMap;

use aws_sdk_elasticloadbalancingv2::Client;
use aws_sdk_elasticloadbalancingv2::types::{Tag, TagDescription};

use super::Elb;
use super::batcher::BatchCall;
use crate::action::AwsAction;
use crate::{AwsError, LoadBalancer, Tags};

/// Describes load balancers, by name.
pub(super) struct DescribeLoadBalancers<'a>(pub &'a Elb, pub Client);

impl BatchCall<LoadBalancer> for DescribeLoadBalancers<'_> {
    async fn acquire(&self) {
        self.0
            .rate_limit
            .acquire(AwsAction::DescribeLoadBalancers)
            .await;
    }

    async fn send(&self, names: Vec<String>) -> Result<BTreeMap<String, LoadBalancer>, AwsError> {
        let Self(elb, client) = self;
        // A missing name fails the call for all names, so several names are filtered from the list of all load
        // balancers.
        let alone = (names.len() == 1).then(|| names.clone());
        let (mut found, mut next) = (BTreeMap::new(), None);
        loop {
            let ask = client
                .describe_load_balancers()
                .set_names(alone.clone())
                .set_marker(next);
            let page = elb
                .send(AwsAction::DescribeLoadBalancers, ask.send())
                .await?;
            let described = page
                .load_balancers()
                .iter()
                .filter_map(|it| Some((it.load_balancer_name()?.to_owned(), it)));
            found.extend(
                described
                    .filter(|(name, _)| names.contains(name))
                    .map(|(name, it)| (name, LoadBalancer::from(it))),
            );
            match page.next_marker().filter(|marker| !marker.is_empty()) {
                Some(marker) => next = Some(marker.to_owned()),
                None => return Ok(found),
            }
            self.acquire().await;
        }
    }
}

/// Describes the tags of resources, by ARN.
pub(super) struct DescribeTags<'a>(pub &'a Elb, pub Client);

impl BatchCall<Tags> for DescribeTags<'_> {
    async fn acquire(&self) {
        self.0.rate_limit.acquire(AwsAction::DescribeTags).await;
    }

    async fn send(&self, arns: Vec<String>) -> Result<BTreeMap<String, Tags>, AwsError> {
        let ask = self.1.describe_tags().set_resource_arns(Some(arns));
        let described = self.0.send(AwsAction::DescribeTags, ask.send()).await?;
        Ok(described
            .tag_descriptions()
            .iter()
            .filter_map(tagged)
            .collect())
    }
}

/// Returns the ARN of a resource and its tags.
fn tagged(described: &TagDescription) -> Option<(String, Tags)> {
    let pair = |tag: &Tag| {
        Some((
            tag.key()?.to_owned(),
            tag.value().unwrap_or_default().to_owned(),
        ))
    };
    Some((
        described.resource_arn()?.to_owned(),
        described.tags().iter().filter_map(pair).collect(),
    ))
}
