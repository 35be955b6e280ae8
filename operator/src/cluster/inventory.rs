//! What the cluster has and what of it is in use: values made from Nodes, pods and reservations, on which
//! [placement](crate::policy::placement) is a pure function.

use std::collections::{BTreeMap, HashMap, HashSet};

use crds::labels;
use k8s_openapi::api::core::v1::{Node, Pod, PodSpec, ResourceRequirements, Taint};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::{Resource as _, ResourceExt as _};

use super::quantity;

/// The nodes of a cluster, by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Inventory {
    pub(crate) nodes: BTreeMap<String, NodeFacts>,
}

/// What placement needs to know of a node.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeFacts {
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) taints: Vec<Taint>,
    pub(crate) ready: bool,
    pub(crate) cordoned: bool,
    /// By name of the resource: extended resources, cpu in thousandths, memory in bytes, pods.
    pub(crate) resources: BTreeMap<String, Amount>,
}

/// How much of a resource a node has.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Amount {
    /// What is built in.
    pub(crate) capacity: i64,
    /// What pods can get; less than the capacity where GPUs are unhealthy.
    pub(crate) allocatable: i64,
    /// What pods and reservations hold.
    pub(crate) used: i64,
}

impl Amount {
    pub(crate) fn free(self) -> i64 {
        self.allocatable - self.used
    }
}

/// What one pod asks for, by name of the resource; units as in [`NodeFacts::resources`].
pub(crate) type Requests = BTreeMap<String, i64>;

/// GPUs promised to an attempt whose pods may not be in the caches yet.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Reservation {
    /// The job's uid.
    pub(crate) job: String,
    pub(crate) attempt: i32,
    /// Nodes by node rank.
    pub(crate) nodes: Vec<String>,
    /// What each pod asks for.
    pub(crate) requests: Requests,
}

impl Inventory {
    /// Counts what pods hold, and what of the reservations is not held by a pod yet. Pods that ended hold nothing;
    /// pods that are being stopped hold what they have until they are gone.
    pub(crate) fn new<'a>(
        nodes: impl IntoIterator<Item = &'a Node>,
        pods: impl IntoIterator<Item = &'a Pod>,
        reservations: &HashMap<String, Reservation>,
    ) -> Self {
        let mut inventory = Self {
            nodes: nodes
                .into_iter()
                .map(|node| (node.name_any(), facts(node)))
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
            let node = bound_node(pod).or(member.as_ref().and_then(|_| pinned_node(pod)));
            if let (Some(node), Some(spec)) = (node, &pod.spec) {
                inventory.hold(node, &requests_of(spec));
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

    /// Takes the requests of a pod out of what is free on a node.
    pub(crate) fn hold(&mut self, node: &str, requests: &Requests) {
        let Some(facts) = self.nodes.get_mut(node) else {
            return;
        };
        for (resource, amount) in requests {
            facts.resources.entry(resource.clone()).or_default().used += amount;
        }
    }
}

/// Which gang one of our own pods belongs to.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Membership {
    /// The job's uid.
    pub(crate) job: String,
    pub(crate) attempt: i32,
    pub(crate) node_rank: usize,
    pub(crate) gang_size: usize,
}

impl Membership {
    /// `None` for pods that are not ours.
    pub(crate) fn of(pod: &Pod) -> Option<Self> {
        let owner = pod
            .owner_references()
            .iter()
            .find(|owner| owner.controller == Some(true) && owner.kind == crds::ViTTrainingJob::kind(&()))?;
        let label = |key: &str| pod.labels().get(key);
        Some(Self {
            job: owner.uid.clone(),
            attempt: label(labels::ATTEMPT)?.parse().ok()?,
            node_rank: label(labels::NODE_RANK)?.parse().ok()?,
            gang_size: label(labels::GANG_SIZE)?.parse().ok()?,
        })
    }
}

/// Whether a pod's containers have all ended for good.
pub(crate) fn has_ended(pod: &Pod) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

pub(crate) fn phase(pod: &Pod) -> &str {
    pod.status
        .as_ref()
        .and_then(|status| status.phase.as_deref())
        .unwrap_or("Pending")
}

/// The node a pod was bound to by a scheduler.
pub(crate) fn bound_node(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

/// The node one of our own pods is pinned to.
pub(crate) fn pinned_node(pod: &Pod) -> Option<&str> {
    pod.spec
        .as_ref()?
        .affinity
        .as_ref()?
        .node_affinity
        .as_ref()?
        .required_during_scheduling_ignored_during_execution
        .as_ref()?
        .node_selector_terms
        .first()?
        .match_fields
        .as_ref()?
        .first()?
        .values
        .as_ref()?
        .first()
        .map(String::as_str)
}

/// What a pod asks of its node, as kube-scheduler counts it: its containers together, or its largest init container,
/// plus overhead; a limit without a request counts as the request.
pub(crate) fn requests_of(spec: &PodSpec) -> Requests {
    let mut total = Requests::new();
    for container in &spec.containers {
        add(&mut total, &requests(container.resources.as_ref()));
    }
    let mut sidecars = Requests::new();
    for container in spec.init_containers.iter().flatten() {
        let own = requests(container.resources.as_ref());
        if container.restart_policy.as_deref() == Some("Always") {
            add(&mut sidecars, &own);
            add(&mut total, &own);
        } else {
            let mut beside = sidecars.clone();
            add(&mut beside, &own);
            for (resource, amount) in beside {
                let entry = total.entry(resource).or_default();
                *entry = amount.max(*entry);
            }
        }
    }
    if let Some(overhead) = &spec.overhead {
        add(&mut total, &amounts(overhead));
    }
    total.insert(PODS.into(), 1);
    total
}

/// Requests of one container.
pub(crate) fn requests(resources: Option<&ResourceRequirements>) -> Requests {
    let Some(resources) = resources else {
        return Requests::new();
    };
    let mut own = amounts(resources.limits.as_ref().unwrap_or(&BTreeMap::new()));
    own.extend(amounts(resources.requests.as_ref().unwrap_or(&BTreeMap::new())));
    own
}

pub(crate) const CPU: &str = "cpu";
pub(crate) const MEMORY: &str = "memory";
pub(crate) const PODS: &str = "pods";

fn add(total: &mut Requests, more: &Requests) {
    for (resource, amount) in more {
        *total.entry(resource.clone()).or_default() += amount;
    }
}

/// Resources that placement counts: cpu, memory, pods and extended ones (their names have a domain).
fn amounts(quantities: &BTreeMap<String, Quantity>) -> Requests {
    quantities
        .iter()
        .filter(|(name, _)| matches!(name.as_str(), CPU | MEMORY | PODS) || name.contains('/'))
        .filter_map(|(name, quantity)| {
            let amount = if name == CPU {
                quantity::milli(quantity)
            } else {
                quantity::whole(quantity)
            };
            Some((name.clone(), amount?))
        })
        .collect()
}

fn facts(node: &Node) -> NodeFacts {
    let spec = node.spec.as_ref();
    let status = node.status.as_ref();
    let none = BTreeMap::new();
    let capacity = amounts(
        status
            .and_then(|status| status.capacity.as_ref())
            .unwrap_or(&none),
    );
    let allocatable = amounts(
        status
            .and_then(|status| status.allocatable.as_ref())
            .unwrap_or(&none),
    );
    NodeFacts {
        labels: node.labels().clone(),
        taints: spec.and_then(|spec| spec.taints.clone()).unwrap_or_default(),
        ready: is_ready(node),
        cordoned: spec.and_then(|spec| spec.unschedulable).unwrap_or(false),
        resources: capacity
            .into_iter()
            .map(|(name, capacity)| {
                let allocatable = allocatable.get(&name).copied().unwrap_or(0);
                (
                    name,
                    Amount {
                        capacity,
                        allocatable,
                        used: 0,
                    },
                )
            })
            .collect(),
    }
}

/// Whether a node's kubelet says it is fine.
pub(crate) fn is_ready(node: &Node) -> bool {
    node.status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten())
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn spec(value: serde_json::Value) -> PodSpec {
        serde_json::from_value(value).expect("a pod spec")
    }

    #[test]
    fn a_pod_asks_for_the_larger_of_its_containers_and_its_init_containers() {
        let asked = requests_of(&spec(json!({
            "containers": [
                {"name": "a", "resources": {"requests": {"cpu": "500m"}, "limits": {"nvidia.com/gpu": "2", "cpu": "2"}}},
                {"name": "b", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}},
            ],
            "initContainers": [
                {"name": "sidecar", "restartPolicy": "Always", "resources": {"requests": {"cpu": "100m"}}},
                {"name": "big", "resources": {"requests": {"cpu": "3", "ephemeral-storage": "1Gi"}}},
            ],
            "overhead": {"memory": "1Mi"},
        })));
        assert_eq!(
            asked,
            Requests::from([
                (CPU.into(), 3100),
                (MEMORY.into(), (1 << 30) + (1 << 20)),
                (PODS.into(), 1),
                ("nvidia.com/gpu".into(), 2),
            ])
        );
    }

    #[test]
    fn a_node_is_ready_only_if_its_kubelet_says_so() {
        let node = |status: &str| -> Node {
            serde_json::from_value(json!({"status": {"conditions": [{"type": "Ready", "status": status}]}}))
                .expect("a node")
        };
        assert!(is_ready(&node("True")));
        assert!(!is_ready(&node("Unknown")) && !is_ready(&node("False")) && !is_ready(&Node::default()));
    }
}
