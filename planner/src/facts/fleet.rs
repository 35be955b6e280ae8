//! The [inventory](Inventory), kept current: it follows the events of nodes and pods, and the promises made to gangs
//! whose pods are not there yet.
//!
//! ```text
//!  what is held on a node = what pods hold that are bound to it, or pinned there by us, and have not ended
//!                         + what was promised there to pods that have not appeared
//!                         + what the planner's present pass holds there
//! ```

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt as _;
use kube::runtime::watcher::Event;

use super::inventory::{Inventory, NodeFacts, NodeHealth, Shared, facts};
use super::pods::{JobKey, Membership, bound_node, has_ended, pinned_node};
use super::resources::{Holder, Requests, Resources, hold, requests_of};

/// GPUs promised to an attempt whose pods may not be in the caches yet.
#[derive(Clone, Debug, PartialEq)]
pub struct Reservation {
    pub(crate) job: JobKey,
    pub(crate) attempt: i32,
    /// Nodes by node rank.
    pub(crate) nodes: Vec<String>,
    /// What each pod asks for.
    pub(crate) requests: Requests,
}

/// The inventory, and what it is made of.
#[derive(Debug, Default)]
pub struct Fleet {
    inventory: Inventory,
    shared: Shared,
    /// What is held on nodes that are not there.
    strays: HashMap<Arc<str>, Resources>,
    /// Every pod, by namespace and name.
    pods: HashMap<String, PodUse>,
    /// How many pods there are of a node rank of an attempt.
    members: HashMap<Member, usize>,
    /// By the uid of the job.
    promises: HashMap<String, Reservation>,
    /// Nodes that were touched since the last [`Fleet::take_changes`], as they were before.
    touched: HashMap<Arc<str>, Option<NodeFacts>>,
    /// What lists that are under way have brought so far.
    listed_nodes: HashSet<Arc<str>>,
    listed_pods: HashSet<String>,
}

/// What a pod holds.
#[derive(Clone, Debug, PartialEq)]
struct PodUse {
    /// `None` where it holds nothing: it has ended, or is on no node yet.
    node: Option<Arc<str>>,
    requests: Requests,
    member: Option<Member>,
}

/// Which pod of which gang.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
struct Member {
    job: JobKey,
    attempt: i32,
    node_rank: usize,
}

impl Fleet {
    /// What the cluster has, and what of it is held.
    pub fn inventory(&self) -> &Inventory {
        &self.inventory
    }

    pub(crate) fn node(&self, name: &str) -> Option<&NodeFacts> {
        self.inventory.nodes.get(name)
    }

    /// Whether a node's kubelet says it is fine, or since when not; `None` where there is no such node.
    pub(crate) fn node_health(&self, name: &str) -> Option<NodeHealth> {
        self.node(name).map(|node| node.health)
    }

    /// Pods, as `namespace/name`, that hold some of a resource, with how much, by node.
    pub(crate) fn holders(&self, resource: &str) -> HashMap<&str, Vec<(&str, i64)>> {
        let mut holders: HashMap<&str, Vec<(&str, i64)>> = HashMap::new();
        for (key, pod) in &self.pods {
            let amount = pod.requests.get(resource).copied().unwrap_or(0);
            if let Some(node) = pod.node.as_deref().filter(|_| amount > 0) {
                holders.entry(node).or_default().push((key, amount));
            }
        }
        holders
    }

    /// Takes in what the watch of nodes tells; whether it may matter to anyone.
    pub fn follow_nodes(&mut self, event: &Event<Node>) -> bool {
        match event {
            Event::Init => self.listed_nodes.clear(),
            Event::InitApply(node) => {
                self.keep_node(node);
                return self.put_node(node);
            }
            Event::Apply(node) => return self.put_node(node),
            Event::Delete(node) => self.remove_node(&node.name_any()),
            Event::InitDone => {
                let listed = std::mem::take(&mut self.listed_nodes);
                let names = self.inventory.nodes.keys();
                let gone: Vec<Arc<str>> = names.filter(|name| !listed.contains(*name)).cloned().collect();
                for name in gone {
                    self.remove_node(&name);
                }
            }
        }
        true
    }

    /// A list that is under way holds a node.
    pub(crate) fn keep_node(&mut self, node: &Node) {
        self.listed_nodes.insert(node.name_any().into());
    }

    /// A list that is under way holds a pod.
    pub(crate) fn keep_pod(&mut self, pod: &Pod) {
        self.listed_pods.insert(key(pod));
    }

    /// Takes in what the watch of pods tells.
    pub fn follow_pods(&mut self, event: &Event<Pod>) {
        match event {
            Event::Init => self.listed_pods.clear(),
            Event::InitApply(pod) => {
                self.keep_pod(pod);
                self.put_pod(key(pod), Some(self.use_of(pod)));
            }
            Event::Apply(pod) => self.put_pod(key(pod), Some(self.use_of(pod))),
            Event::Delete(pod) => self.put_pod(key(pod), None),
            Event::InitDone => {
                let listed = std::mem::take(&mut self.listed_pods);
                let gone: Vec<String> = self
                    .pods
                    .keys()
                    .filter(|key| !listed.contains(*key))
                    .cloned()
                    .collect();
                for key in gone {
                    self.put_pod(key, None);
                }
            }
        }
    }

    /// Replaces what a job was promised. A promise counts for the pods that have not appeared; whether that of any is
    /// let go of.
    pub(crate) fn promise(&mut self, job: &str, promise: Option<Reservation>) -> bool {
        if self.promises.get(job) == promise.as_ref() {
            return false;
        }
        let old = self.promises.remove(job);
        let lets_go = old.is_some_and(|old| self.count_promise(&old, -1));
        if let Some(new) = promise {
            self.count_promise(&new, 1);
            self.promises.insert(job.into(), new);
        }
        lets_go
    }

    /// The nodes that are not as they were the last time; the pass's own doings do not count.
    pub(crate) fn take_changes(&mut self) -> Vec<Arc<str>> {
        let touched = std::mem::take(&mut self.touched);
        touched
            .into_iter()
            .filter(|(name, before)| self.node(name) != before.as_ref())
            .map(|(name, _)| name)
            .collect()
    }

    /// Holds something for the planner's pass, or (`times` -1) lets go of it.
    pub(crate) fn hold_for_pass(&mut self, node: &str, requests: &Requests, times: i64) {
        hold(self.resources(node), requests, Holder::Gang, times);
        self.forget_stray(node);
    }

    /// Lets go of what the planner's pass holds for a job that has been promised what it got. What was held beyond that is free
    /// from here on, and the node has changed.
    pub(crate) fn hand_over(&mut self, node: &str, requests: &Requests) {
        self.count(node, requests, Holder::Gang, -1);
    }

    /// Keeps a node for a job, or for nobody any more.
    pub(crate) fn keep_for(&mut self, node: &str, job: Option<Arc<str>>) {
        if let Some(facts) = self.inventory.nodes.get_mut(node) {
            facts.kept_for = job;
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
                new.kept_for.clone_from(&old.kept_for);
                take_over(&mut new.resources, &old.resources);
                if *old == new {
                    return false;
                }
            }
            None => take_over(&mut new.resources, &self.strays.remove(&name).unwrap_or_default()),
        }
        self.touch(&name);
        self.inventory.nodes.insert(name, new);
        true
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
            member: member.map(|member| Member {
                job: member.job,
                attempt: member.attempt,
                node_rank: member.node_rank,
            }),
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

    /// A promise is kept where the pod appears, and stands again where it is gone.
    fn appeared(&mut self, member: &Member, times: i64) {
        let promise = self
            .promises
            .get(&member.job.uid)
            .filter(|promise| promise.job == member.job && promise.attempt == member.attempt);
        let Some((node, requests)) = promise
            .and_then(|promise| Some((promise.nodes.get(member.node_rank)?, &promise.requests)))
            .map(|(node, requests)| (node.clone(), requests.clone()))
        else {
            return;
        };
        self.count(&node, &requests, Holder::Gang, -times);
    }

    /// Whether it counts for any pod.
    fn count_promise(&mut self, promise: &Reservation, times: i64) -> bool {
        let mut counts = false;
        for (node_rank, node) in promise.nodes.iter().enumerate() {
            let member = Member {
                job: promise.job.clone(),
                attempt: promise.attempt,
                node_rank,
            };
            if !self.members.contains_key(&member) {
                self.count(node, &promise.requests, Holder::Gang, times);
                counts = true;
            }
        }
        counts
    }

    fn count(&mut self, node: &str, requests: &Requests, holder: Holder, times: i64) {
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

/// Fleets for tests, of nodes that no object told of.
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

/// What is held goes over to a node that is read anew.
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
