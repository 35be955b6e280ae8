//! The inventory counted in one go from objects: what a [fleet](crate::facts::fleet::Fleet) that follows their events
//! must equal.

use std::collections::{HashMap, HashSet};

use k8s_openapi::api::core::v1::Pod;

use super::*;
use crate::facts::fleet::Reservation;
use crate::facts::pods::{Membership, bound_node, has_ended, pinned_node};
use crate::facts::resources::{Holder, Requests, hold, requests_of};

impl Inventory {
    pub(crate) fn new<'a>(
        nodes: impl IntoIterator<Item = &'a Node>,
        pods: impl IntoIterator<Item = &'a Pod>,
        reservations: &HashMap<String, Reservation>,
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
        for reservation in reservations.values() {
            for (node_rank, node) in reservation.nodes.iter().enumerate() {
                let key = (reservation.job.clone(), reservation.attempt, node_rank);
                if !present.contains(&key) {
                    inventory.hold(node, &reservation.requests);
                }
            }
        }
        inventory
    }

    /// Takes the requests of a gang's pod out of what is free on a node.
    pub(crate) fn hold(&mut self, node: &str, requests: &Requests) {
        self.hold_for(node, requests, Holder::Gang);
    }

    pub(crate) fn hold_for(&mut self, node: &str, requests: &Requests, holder: Holder) {
        if let Some(facts) = self.nodes.get_mut(node) {
            hold(&mut facts.resources, requests, holder, 1);
        }
    }
}
