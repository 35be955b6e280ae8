//! The inventory counted from all objects: the oracle for a [fleet](crate::facts::fleet::Fleet).

use std::collections::{HashMap, HashSet};

use k8s_openapi::api::core::v1::Pod;

use super::*;
use crate::facts::fleet::Promise;
use crate::facts::pods::{Membership, bound_node, has_ended, pinned_node};
use crate::facts::resources::{Holder, Requests, hold, requests_of};

impl Inventory {
    pub(crate) fn new<'a>(
        nodes: impl IntoIterator<Item = &'a Node>,
        pods: impl IntoIterator<Item = &'a Pod>,
        promises: &HashMap<String, Promise>,
    ) -> Self {
        let mut shared = Shared::default();
        let mut inventory = Self {
            nodes: nodes
                .into_iter()
                .map(|node| (node.name_any().into(), facts(node, &mut shared)))
                .collect(),
        };
        let mut present = HashSet::new();
        for pod in pods {
            let member = Membership::of(pod);
            if let Some(member) = &member {
                present.insert((member.job.clone(), member.attempt, member.node_rank));
            }
            if has_ended(pod) {
                continue;
            }
            let holder = member.as_ref().map_or(Holder::Other, |_| Holder::Gang);
            let node = bound_node(pod).or(member.as_ref().and_then(|_| pinned_node(pod)));
            if let (Some(node), Some(spec)) = (node, &pod.spec) {
                inventory.hold_for(node, &requests_of(spec), holder);
            }
        }
        for promise in promises.values() {
            for (node_rank, node) in promise.nodes.iter().enumerate() {
                let key = (promise.job.clone(), promise.attempt, node_rank);
                if !present.contains(&key) {
                    inventory.hold(node, &promise.requests);
                }
            }
        }
        inventory
    }

    pub(crate) fn of(nodes: impl IntoIterator<Item = Node>) -> Self {
        let nodes: Vec<Node> = nodes.into_iter().collect();
        Self::new(&nodes, [], &HashMap::new())
    }

    pub(crate) fn hold(&mut self, node: &str, requests: &Requests) {
        self.hold_for(node, requests, Holder::Gang);
    }

    pub(crate) fn hold_for(&mut self, node: &str, requests: &Requests, holder: Holder) {
        if let Some(facts) = self.nodes.get_mut(node) {
            hold(&mut facts.resources, requests, holder, 1);
        }
    }
}
