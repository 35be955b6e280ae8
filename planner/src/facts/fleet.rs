//! The [inventory](Inventory), updated by events of nodes and pods and by promises to gangs.
//!
//! ```text
//!  in use on a node = requests of pods bound or pinned to it that have not ended
//!                   + requests of promised pods that have not appeared
//!                   + requests held by the planner's current pass
//! ```

use std::collections::HashMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt as _;
use kube::runtime::watcher::Event;

use super::inventory::{Inventory, NodeFacts, Shared, facts};
use super::listing::Listing;
use super::pods::{JobKey, Membership, bound_node, has_ended, pinned_node};
use super::resources::{HOST_PORTS, Holder, Requests, Resources, hold, requests_of};

/// Nodes promised to an attempt whose pods may not be in the caches yet.
#[derive(Clone, Debug, PartialEq)]
pub struct Promise {
    pub(crate) job: JobKey,
    pub(crate) attempt: i32,
    pub(crate) nodes: Vec<Arc<str>>,
    pub(crate) requests: Requests,
}

/// The inventory, and the state from which it is counted.
#[derive(Debug, Default)]
pub struct Fleet {
    inventory: Inventory,
    shared: Shared,
    /// Resources in use on nodes that do not exist.
    strays: HashMap<Arc<str>, Resources>,
    /// Every pod, by namespace and name.
    pods: HashMap<String, PodUse>,
    /// Counts of pods; briefly two after a replacement.
    members: HashMap<Member, usize>,
    /// By the uid of the job.
    promises: HashMap<String, Promise>,
    /// Nodes changed since the last [`Fleet::take_changes`], as they were before.
    touched: HashMap<Arc<str>, Option<NodeFacts>>,
    /// The objects of lists in progress.
    listed_nodes: Listing<Arc<str>>,
    listed_pods: Listing<String>,
}

/// A pod's use of resources.
#[derive(Clone, Debug, PartialEq)]
struct PodUse {
    /// `None` if the pod has ended or has no node yet.
    node: Option<Arc<str>>,
    requests: Requests,
    member: Option<Member>,
}

/// A pod of a gang: its job, attempt and node rank.
type Member = (JobKey, i32, usize);

impl Fleet {
    /// The nodes and their use.
    pub fn inventory(&self) -> &Inventory {
        &self.inventory
    }

    pub(crate) fn node(&self, name: &str) -> Option<&NodeFacts> {
        self.inventory.nodes.get(name)
    }

    /// The users of a resource by node: pods (as `namespace/name`) and their amounts.
    pub(crate) fn users_of(&self, resource: &str) -> HashMap<&str, Vec<(&str, i64)>> {
        let mut users: HashMap<&str, Vec<(&str, i64)>> = HashMap::new();
        for (key, pod) in &self.pods {
            let amount = pod.requests.get(resource).copied().unwrap_or(0);
            if let Some(node) = pod.node.as_deref().filter(|_| amount > 0) {
                users.entry(node).or_default().push((key, amount));
            }
        }
        users
    }

    /// Handles an event of a node. Returns whether it may matter to waiting jobs.
    pub fn follow_nodes(&mut self, event: &Event<Node>) -> bool {
        let known = self.inventory.nodes.keys();
        let (node, gone) = self
            .listed_nodes
            .follow(event, |node| node.name_any().into(), known);
        for name in gone {
            self.remove_node(&name);
        }
        node.is_none_or(|node| self.put_node(node))
    }

    /// Handles an event of a pod.
    pub fn follow_pods(&mut self, event: &Event<Pod>) {
        let (pod, gone) = self.listed_pods.follow(event, key, self.pods.keys());
        for key in gone {
            self.put_pod(key, None);
        }
        if let Some(pod) = pod {
            self.put_pod(key(pod), Some(self.use_of(pod)));
        }
    }

    /// Replaces a job's promise, which counts for absent pods. Returns whether it released any.
    pub(crate) fn promise(&mut self, job: &str, promise: Option<Promise>) -> bool {
        if self.promises.get(job) == promise.as_ref() {
            return false;
        }
        let old = self.promises.remove(job);
        let is_released = old.is_some_and(|old| self.count_promise(&old, -1));
        if let Some(new) = promise {
            self.count_promise(&new, 1);
            self.promises.insert(job.into(), new);
        }
        is_released
    }

    /// The nodes with devices changed since the last call, other than by the pass. No gang fits on others.
    pub(crate) fn take_changes(&mut self) -> Vec<Arc<str>> {
        let touched = std::mem::take(&mut self.touched);
        touched
            .into_iter()
            .filter(|(name, before)| {
                let now = self.node(name);
                now != before.as_ref() && now.into_iter().chain(before).any(has_devices)
            })
            .map(|(name, _)| name)
            .collect()
    }

    /// Holds a pod's requests for the planner's pass, or (`times` -1) releases them.
    pub(crate) fn hold_for_pass(&mut self, node: &str, requests: &Requests, times: i64) {
        hold(self.resources(node), requests, Holder::Gang, times);
        self.forget_stray(node);
    }

    /// Releases the pass's hold on a node for a job that now has a promise. A larger hold frees
    /// resources, which is a change of the node.
    pub(crate) fn release_for_promise(&mut self, node: &str, requests: &Requests) {
        self.count(node, requests, Holder::Gang, -1);
    }

    /// Reserves a node for a job, or cancels its reservation.
    pub(crate) fn reserve(&mut self, node: &str, job: Option<Arc<str>>) {
        if let Some(facts) = self.inventory.nodes.get_mut(node) {
            facts.reserved_for = job;
        }
    }

    fn put_node(&mut self, node: &Node) -> bool {
        let name: Arc<str> = node.name_any().into();
        let mut new = facts(node, &mut self.shared);
        match self.inventory.nodes.get(&name) {
            Some(old) => {
                if old.labels == new.labels {
                    new.labels = Arc::clone(&old.labels);
                }
                new.reserved_for.clone_from(&old.reserved_for);
                take_over(&mut new.resources, &old.resources);
                if *old == new {
                    return false;
                }
            }
            None => take_over(&mut new.resources, &self.strays.remove(&name).unwrap_or_default()),
        }
        self.touch(&name);
        let has_devices_now = has_devices(&new);
        let old = self.inventory.nodes.insert(name, new);
        has_devices_now || old.as_ref().is_some_and(has_devices)
    }

    fn remove_node(&mut self, name: &str) {
        self.touch(name);
        if let Some((name, facts)) = self.inventory.nodes.remove_entry(name) {
            let mut held = Resources::new();
            take_over(&mut held, &facts.resources);
            self.strays.insert(Arc::clone(&name), held);
            self.forget_stray(&name);
        }
    }

    fn use_of(&self, pod: &Pod) -> PodUse {
        let member = Membership::of(pod);
        let node = bound_node(pod).or(member.as_ref().and_then(|_| pinned_node(pod)));
        PodUse {
            node: node.filter(|_| !has_ended(pod)).map(|name| {
                match self.inventory.nodes.get_key_value(name) {
                    Some((name, _)) => Arc::clone(name),
                    None => name.into(),
                }
            }),
            requests: pod.spec.as_ref().map(requests_of).unwrap_or_default(),
            member: member.map(|member| (member.job, member.attempt, member.node_rank)),
        }
    }

    fn put_pod(&mut self, key: String, new: Option<PodUse>) {
        if self.pods.get(&key) == new.as_ref() {
            return;
        }
        if let Some(old) = self.pods.remove(&key) {
            self.count_pod(&old, -1);
        }
        if let Some(new) = new {
            self.count_pod(&new, 1);
            self.pods.insert(key, new);
        }
    }

    fn count_pod(&mut self, pod: &PodUse, times: i64) {
        let holder = pod.member.as_ref().map_or(Holder::Other, |_| Holder::Gang);
        if let Some(node) = &pod.node {
            self.count(node, &pod.requests, holder, times);
        }
        let Some(member) = &pod.member else { return };
        let present = self.members.get(member).copied().unwrap_or(0);
        let now = present.saturating_add_signed(times as isize);
        if now == 0 {
            self.members.remove(member);
        } else {
            self.members.insert(member.clone(), now);
        }
        if (present == 0) != (now == 0) {
            self.appeared(member, times);
        }
    }

    /// A promise stops counting when its pod appears, and counts again when the pod is gone.
    fn appeared(&mut self, (job, attempt, node_rank): &Member, times: i64) {
        let promise = self.promises.get(&job.uid);
        let promise = promise.filter(|promise| promise.job == *job && promise.attempt == *attempt);
        if let Some(promise) = promise
            && let Some(node) = promise.nodes.get(*node_rank)
        {
            let (node, requests) = (Arc::clone(node), promise.requests.clone());
            self.count(&node, &requests, Holder::Gang, -times);
        }
    }

    /// Returns whether the promise counts for any pod.
    fn count_promise(&mut self, promise: &Promise, times: i64) -> bool {
        let mut counts = false;
        for (node_rank, node) in promise.nodes.iter().enumerate() {
            let member = (promise.job.clone(), promise.attempt, node_rank);
            if !self.members.contains_key(&member) {
                self.count(node, &promise.requests, Holder::Gang, times);
                counts = true;
            }
        }
        counts
    }

    pub(crate) fn count(&mut self, node: &str, requests: &Requests, holder: Holder, times: i64) {
        self.touch(node);
        hold(self.resources(node), requests, holder, times);
        self.forget_stray(node);
    }

    fn resources(&mut self, node: &str) -> &mut Resources {
        match self.inventory.nodes.get_mut(node) {
            Some(facts) => &mut facts.resources,
            None => self.strays.entry(node.into()).or_default(),
        }
    }

    fn forget_stray(&mut self, node: &str) {
        if self.strays.get(node).is_some_and(Resources::is_empty) {
            self.strays.remove(node);
        }
    }

    fn touch(&mut self, node: &str) {
        if self.touched.contains_key(node) {
            return;
        }
        match self.inventory.nodes.get_key_value(node) {
            Some((name, facts)) => self.touched.insert(Arc::clone(name), Some(facts.clone())),
            None => self.touched.insert(node.into(), None),
        };
    }
}

/// Fleets for tests, of nodes without objects.
#[cfg(test)]
impl Fleet {
    pub(crate) fn of(inventory: Inventory) -> Self {
        Self {
            inventory,
            ..Self::default()
        }
    }

    pub(crate) fn replace(&mut self, name: &Arc<str>, facts: NodeFacts) {
        self.touch(name);
        self.inventory.nodes.insert(Arc::clone(name), facts);
    }
}

/// Whether a node has an extended resource, such as GPUs.
fn has_devices(node: &NodeFacts) -> bool {
    let mut resources = node.resources.keys();
    resources.any(|resource| resource.contains('/') && **resource != *HOST_PORTS)
}

/// Copies the used amounts to a node that was read again.
fn take_over(resources: &mut Resources, old: &Resources) {
    for (name, amount) in old {
        if (amount.used, amount.used_by_gangs) != (0, 0) {
            let entry = resources.entry(name.clone()).or_default();
            entry.used = amount.used;
            entry.used_by_gangs = amount.used_by_gangs;
        }
    }
}

fn key(pod: &Pod) -> String {
    format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any())
}

#[cfg(test)]
mod tests;
