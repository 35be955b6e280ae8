//! What the cluster has and what of it is in use: a value, on which [placement](crate::policy::placement) is a pure
//! function.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use contract::environment;
use crds::{ViTTrainingJob, labels};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod, PodSpec, ResourceRequirements, Taint};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::{Resource as _, ResourceExt as _};

use super::quantity;
use crate::policy::homogeneity::GpuLabels;

/// The nodes of a cluster, by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Inventory {
    pub(crate) nodes: BTreeMap<Arc<str>, NodeFacts>,
}

/// What placement needs to know of a node.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NodeFacts {
    pub(crate) labels: Arc<NodeLabels>,
    pub(crate) taints: Vec<Taint>,
    pub(crate) health: NodeHealth,
    pub(crate) cordoned: bool,
    pub(crate) resources: Resources,
    /// The job, as `namespace/name`, for which the node is kept: jobs after it do not get it.
    pub(crate) kept_for: Option<Arc<str>>,
}

/// A node's labels, and what they tell of its GPUs.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct NodeLabels {
    values: BTreeMap<String, String>,
    /// Nodes of one kind share it.
    gpus: Arc<GpuLabels>,
}

impl NodeLabels {
    pub(crate) fn new(values: BTreeMap<String, String>, shared: &mut Shared) -> Self {
        Self {
            gpus: shared.kind(GpuLabels::read(&values)),
            values,
        }
    }

    pub(crate) fn values(&self) -> &BTreeMap<String, String> {
        &self.values
    }

    pub(crate) fn gpus(&self) -> &GpuLabels {
        &self.gpus
    }
}

/// What thousands of nodes have in common is held once: a look at all of them takes as long as memory is far.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    names: HashSet<Arc<str>>,
    kinds: HashSet<Arc<GpuLabels>>,
}

impl Shared {
    fn name(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.names.get(name) {
            return Arc::clone(known);
        }
        let name: Arc<str> = name.into();
        self.names.insert(Arc::clone(&name));
        name
    }

    fn kind(&mut self, kind: GpuLabels) -> Arc<GpuLabels> {
        if let Some(known) = self.kinds.get(&kind) {
            return Arc::clone(known);
        }
        let kind = Arc::new(kind);
        self.kinds.insert(Arc::clone(&kind));
        kind
    }
}

/// By name of the resource: extended resources, cpu in thousandths, memory and ephemeral storage in bytes, pods. All nodes share
/// the names.
pub(crate) type Resources = BTreeMap<Arc<str>, Amount>;

/// How much of a resource a node has.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Amount {
    /// What is built in.
    pub(crate) capacity: i64,
    /// What pods can get; less than the capacity where GPUs are unhealthy.
    pub(crate) allocatable: i64,
    /// What pods and promises hold.
    pub(crate) used: i64,
    /// What of it gangs of this operator hold: they end by themselves.
    pub(crate) used_by_gangs: i64,
}

impl Amount {
    pub(crate) fn free(self) -> i64 {
        self.allocatable - self.used
    }

    /// What will be free once all gangs have ended.
    pub(crate) fn free_in_time(self) -> i64 {
        self.free() + self.used_by_gangs
    }
}

/// What one pod asks for, by name of the resource; units as in [`Resources`].
pub(crate) type Requests = BTreeMap<String, i64>;

/// Who holds something on a node.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Holder {
    /// A gang of this operator.
    Gang,
    /// Anyone else.
    Other,
}

/// Adds to what is held of a node's resources; a negative `times` takes away.
pub(crate) fn hold(resources: &mut Resources, requests: &Requests, holder: Holder, times: i64) {
    for (resource, amount) in requests {
        if *amount == 0 {
            continue;
        }
        if !resources.contains_key(resource.as_str()) {
            resources.insert(resource.as_str().into(), Amount::default());
        }
        let Some(entry) = resources.get_mut(resource.as_str()) else {
            continue;
        };
        entry.used += times * amount;
        if holder == Holder::Gang {
            entry.used_by_gangs += times * amount;
        }
        if *entry == Amount::default() {
            resources.remove(resource.as_str());
        }
    }
}

/// GPUs promised to an attempt whose pods may not be in the caches yet.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Reservation {
    pub(crate) job: JobKey,
    pub(crate) attempt: i32,
    /// Nodes by node rank.
    pub(crate) nodes: Vec<String>,
    /// What each pod asks for.
    pub(crate) requests: Requests,
}

/// Which job an object belongs to. An owner is of the namespace of what it owns, so that nobody can make objects of a job
/// elsewhere, whatever uid an owner reference names.
#[derive(Clone, Debug, Default, Eq, Hash, PartialEq)]
pub(crate) struct JobKey {
    pub(crate) namespace: String,
    pub(crate) uid: String,
}

impl JobKey {
    pub(crate) fn of(job: &ViTTrainingJob) -> Self {
        Self {
            namespace: job.namespace().unwrap_or_default(),
            uid: job.uid().unwrap_or_default(),
        }
    }
}

/// Which gang one of our own pods belongs to.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Membership {
    pub(crate) job: JobKey,
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
            .find(|owner| owner.controller == Some(true) && owner.kind == ViTTrainingJob::kind(&()))?;
        let label = |key: &str| pod.labels().get(key);
        Some(Self {
            job: JobKey {
                namespace: pod.namespace().unwrap_or_default(),
                uid: owner.uid.clone(),
            },
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

/// What a pod asks of its node, as kube-scheduler counts it: its containers together, or its largest init container, or what is
/// asked for the pod as a whole, plus overhead; a limit without a request counts as the request.
pub(crate) fn requests_of(spec: &PodSpec) -> Requests {
    let mut total = Requests::new();
    for container in &spec.containers {
        add(&mut total, &requests(container.resources.as_ref()));
    }
    let mut sidecars = Requests::new();
    let mut while_starting = Requests::new();
    for container in spec.init_containers.iter().flatten() {
        let own = requests(container.resources.as_ref());
        if container.restart_policy.as_deref() == Some("Always") {
            add(&mut sidecars, &own);
            add(&mut total, &own);
        } else {
            let mut beside = sidecars.clone();
            add(&mut beside, &own);
            raise(&mut while_starting, beside);
        }
    }
    raise(&mut total, while_starting);
    if let Some(of_pod) = &spec.resources {
        let amounts = |quantities: &Option<BTreeMap<String, Quantity>>| {
            let mut amounts = amounts(quantities.as_ref().unwrap_or(&BTreeMap::new()));
            amounts.retain(|resource, _| is_asked_for_pods(resource));
            amounts
        };
        for (resource, limit) in amounts(&of_pod.limits) {
            total.entry(resource).or_insert(limit);
        }
        total.extend(amounts(&of_pod.requests));
    }
    if let Some(overhead) = &spec.overhead {
        add(&mut total, &amounts(overhead));
    }
    total.insert(PODS.into(), 1);
    let ports = spec
        .containers
        .iter()
        .flat_map(|container| container.ports.iter().flatten());
    if ports
        .filter_map(|port| port.host_port)
        .any(|port| GANG_PORTS.contains(&port))
    {
        total.insert(HOST_PORTS.into(), 1);
    }
    total
}

/// Whether a resource can be asked for a pod as a whole (KEP-2837).
fn is_asked_for_pods(resource: &str) -> bool {
    matches!(resource, CPU | MEMORY) || resource.starts_with(HUGE_PAGES)
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
pub(crate) const STORAGE: &str = "ephemeral-storage";
pub(crate) const PODS: &str = "pods";
const HUGE_PAGES: &str = "hugepages-";
/// Held by pods that listen on a port of their node on which gangs on the host's network listen. No node tells that it has
/// it: a node on which it is held has no room for such a gang.
pub(crate) const HOST_PORTS: &str = "vit-operator.dev/host-ports";
const GANG_PORTS: [i32; 2] = [
    environment::DEFAULT_AGENT_PORT as i32,
    environment::DEFAULT_COORDINATOR_PORT as i32,
];

fn add(total: &mut Requests, more: &Requests) {
    for (resource, amount) in more {
        *total.entry(resource.clone()).or_default() += amount;
    }
}

fn raise(total: &mut Requests, least: Requests) {
    for (resource, amount) in least {
        let entry = total.entry(resource).or_default();
        *entry = amount.max(*entry);
    }
}

/// Resources that placement counts: cpu, memory, ephemeral storage, pods, huge pages and extended ones (their names have a
/// domain).
fn amounts(quantities: &BTreeMap<String, Quantity>) -> Requests {
    quantities
        .iter()
        .filter(|(name, _)| {
            matches!(name.as_str(), CPU | MEMORY | STORAGE | PODS)
                || name.starts_with(HUGE_PAGES)
                || name.contains('/')
        })
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

/// Reads a node, of which nothing is held yet.
pub(crate) fn facts(node: &Node, shared: &mut Shared) -> NodeFacts {
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
        labels: Arc::new(NodeLabels::new(node.labels().clone(), shared)),
        taints: spec.and_then(|spec| spec.taints.clone()).unwrap_or_default(),
        health: health(node),
        cordoned: spec.and_then(|spec| spec.unschedulable).unwrap_or(false),
        resources: capacity
            .into_iter()
            .map(|(name, capacity)| {
                let amount = Amount {
                    capacity,
                    allocatable: allocatable.get(&name).copied().unwrap_or(0),
                    ..Amount::default()
                };
                (shared.name(&name), amount)
            })
            // To have nothing of a resource is not to have it.
            .filter(|(_, amount)| *amount != Amount::default())
            .collect(),
        kept_for: None,
    }
}

/// What is known of a node's kubelet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum NodeHealth {
    /// It says it is fine.
    Ready,
    /// It says it is not, or says nothing any more, since then.
    NotReady(Option<Timestamp>),
}

/// Reads a node's Ready condition.
pub(crate) fn health(node: &Node) -> NodeHealth {
    let ready = node
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten())
        .find(|condition| condition.type_ == "Ready");
    match ready {
        Some(condition) if condition.status == "True" => NodeHealth::Ready,
        other => NodeHealth::NotReady(
            other.and_then(|condition| condition.last_transition_time.as_ref().map(|time| time.0)),
        ),
    }
}

#[cfg(test)]
mod counted;
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
                (STORAGE.into(), 1 << 30),
                (PODS.into(), 1),
                ("nvidia.com/gpu".into(), 2),
            ])
        );
    }

    #[test]
    fn a_sidecar_that_starts_after_an_init_container_does_not_run_beside_it() {
        let asked = requests_of(&spec(json!({
            "containers": [{"name": "a", "resources": {"requests": {"cpu": "1"}}}],
            "initContainers": [
                {"name": "big", "resources": {"requests": {"cpu": "3"}}},
                {"name": "sidecar", "restartPolicy": "Always", "resources": {"requests": {"cpu": "100m"}}},
            ],
        })));
        assert_eq!(asked, Requests::from([(CPU.into(), 3000), (PODS.into(), 1)]));
    }

    #[test]
    fn what_a_pod_asks_for_as_a_whole_counts_instead_of_its_containers() {
        let asked = requests_of(&spec(json!({
            "containers": [
                {"name": "a", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"nvidia.com/gpu": "2"}}},
            ],
            "resources": {
                "requests": {"cpu": "4", "hugepages-2Mi": "8Mi"},
                // As the API server fills in what is not asked for: the containers' requests, or else the limits.
                "limits": {"cpu": "8", "memory": "2Gi", "hugepages-1Gi": "1Gi"},
            },
            "overhead": {"cpu": "250m"},
        })));
        assert_eq!(
            asked,
            Requests::from([
                (CPU.into(), 4250),
                (MEMORY.into(), 1 << 30),
                ("hugepages-2Mi".into(), 8 << 20),
                ("hugepages-1Gi".into(), 1 << 30),
                (PODS.into(), 1),
                ("nvidia.com/gpu".into(), 2),
            ])
        );
    }

    #[test]
    fn a_pod_on_a_port_of_its_node_that_gangs_use_holds_it() {
        let holds = |port: serde_json::Value| {
            let asked = requests_of(&spec(json!({"containers": [{"name": "a", "ports": [port]}]})));
            asked.get(HOST_PORTS).copied()
        };
        assert_eq!(holds(json!({"containerPort": 8080, "hostPort": 9402})), Some(1));
        assert_eq!(holds(json!({"containerPort": 29500, "hostPort": 29500})), Some(1));
        assert_eq!(holds(json!({"containerPort": 9402})), None);
        assert_eq!(holds(json!({"containerPort": 9100, "hostPort": 9100})), None);
    }

    #[test]
    fn a_node_is_ready_only_if_its_kubelet_says_so() {
        let node = |status: &str| -> Node {
            serde_json::from_value(json!({"status": {"conditions": [{"type": "Ready", "status": status}]}}))
                .expect("a node")
        };
        assert_eq!(health(&node("True")), NodeHealth::Ready);
        for other in [node("Unknown"), node("False"), Node::default()] {
            assert_eq!(health(&other), NodeHealth::NotReady(None));
        }
        let since =
            json!({"type": "Ready", "status": "Unknown", "lastTransitionTime": "2026-09-21T00:00:00Z"});
        let silent = serde_json::from_value(json!({"status": {"conditions": [since]}})).expect("a node");
        assert_eq!(
            health(&silent),
            NodeHealth::NotReady("2026-09-21T00:00:00Z".parse().ok())
        );
    }
}
