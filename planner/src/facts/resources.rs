//! Amounts of nodes' resources and pods' requests.

use std::collections::BTreeMap;
use std::sync::Arc;

use contract::environment;
use k8s_openapi::api::core::v1::{PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::quantity;

/// Amounts by name: extended resources, cpu in thousandths, memory and ephemeral storage in bytes,
/// pods. Nodes share the names.
pub type Resources = BTreeMap<Arc<str>, Amount>;

/// How much of a resource a node has.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Amount {
    /// The node's total.
    pub capacity: i64,
    /// The amount for pods: less than the capacity if GPUs are unhealthy.
    pub allocatable: i64,
    /// The amount held by pods and promises.
    pub used: i64,
    /// The part of `used` held by gangs of this operator, which will end.
    pub used_by_gangs: i64,
}

impl Amount {
    /// The unused amount.
    pub fn free(self) -> i64 {
        self.allocatable - self.used
    }

    /// The free amount after all gangs have ended.
    pub fn free_in_time(self) -> i64 {
        self.free() + self.used_by_gangs
    }
}

/// Requests of a pod, by name; units as in [`Resources`].
pub type Requests = BTreeMap<String, i64>;

/// The user of a node's resources.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Holder {
    /// A gang of this operator.
    Gang,
    /// Any other pod.
    Other,
}

/// Adds `times` the requests to the used amounts of a node's resources.
pub fn hold(resources: &mut Resources, requests: &Requests, holder: Holder, times: i64) {
    for (resource, amount) in requests {
        if *amount == 0 {
            continue;
        }
        // Clone names only for resources that the node lacks.
        let entry = match resources.get_mut(resource.as_str()) {
            Some(entry) => entry,
            None => resources.entry(resource.as_str().into()).or_default(),
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

/// Requests of a pod, as kube-scheduler counts them: the sum of its containers, or its largest init
/// container, or the pod's own requests, plus overhead. A limit without a request counts as one.
pub fn requests_of(spec: &PodSpec) -> Requests {
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
            let mut amounts = amounts(quantities.as_ref());
            amounts.retain(|resource, _| is_of_pods(resource));
            amounts
        };
        for (resource, limit) in amounts(&of_pod.limits) {
            total.entry(resource).or_insert(limit);
        }
        total.extend(amounts(&of_pod.requests));
    }
    add(&mut total, &amounts(spec.overhead.as_ref()));
    total.insert(PODS.into(), 1);
    let containers = spec.init_containers.iter().flatten().chain(&spec.containers);
    let ports = containers.flat_map(|container| container.ports.iter().flatten());
    if ports
        .filter_map(|port| port.host_port)
        .any(|port| GANG_PORTS.contains(&port))
    {
        total.insert(HOST_PORTS.into(), 1);
    }
    total
}

/// Whether it is a resource of nodes, and not a count that placement treats as one.
pub fn is_of_nodes(resource: &str) -> bool {
    !matches!(resource, PODS | HOST_PORTS)
}

/// Whether a pod as a whole can request a resource (KEP-2837).
fn is_of_pods(resource: &str) -> bool {
    matches!(resource, CPU | MEMORY) || resource.starts_with(HUGE_PAGES)
}

/// Requests of one container.
pub fn requests(resources: Option<&ResourceRequirements>) -> Requests {
    let mut own = amounts(resources.and_then(|resources| resources.limits.as_ref()));
    own.extend(amounts(
        resources.and_then(|resources| resources.requests.as_ref()),
    ));
    own
}

/// In thousandths of a core.
pub const CPU: &str = "cpu";
/// In bytes.
pub const MEMORY: &str = "memory";
/// In bytes.
pub const STORAGE: &str = "ephemeral-storage";
/// The number of pods.
pub const PODS: &str = "pods";
const HUGE_PAGES: &str = "hugepages-";
/// Requested by pods that use a host port of gangs on the host network. No node has it: a node on
/// which it is used has no room for such a gang.
pub const HOST_PORTS: &str = "vit-operator.dev/host-ports";
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

/// The resources that placement counts: cpu, memory, ephemeral storage, pods, huge pages and
/// extended resources (with a domain).
pub(crate) fn amounts(quantities: Option<&BTreeMap<String, Quantity>>) -> Requests {
    quantities
        .into_iter()
        .flatten()
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn asked(spec: serde_json::Value) -> Requests {
        requests_of(&serde_json::from_value(spec).expect("a pod spec"))
    }

    #[test]
    fn a_pod_asks_for_the_larger_of_its_containers_and_its_init_containers() {
        let asked = asked(json!({
            "containers": [
                {"name": "a", "resources": {"requests": {"cpu": "500m"}, "limits": {"nvidia.com/gpu": "2", "cpu": "2"}}},
                {"name": "b", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}},
            ],
            "initContainers": [
                {"name": "sidecar", "restartPolicy": "Always", "resources": {"requests": {"cpu": "100m"}}},
                {"name": "big", "resources": {"requests": {"cpu": "3", "ephemeral-storage": "1Gi"}}},
                {"name": "late", "restartPolicy": "Always", "resources": {"requests": {"cpu": "200m"}}},
            ],
            "overhead": {"memory": "1Mi"},
        }));
        let memory = (1 << 30) + (1 << 20);
        // The last sidecar does not run beside the init container before it.
        let expected = [
            (CPU, 3100),
            (MEMORY, memory),
            (STORAGE, 1 << 30),
            (PODS, 1),
            ("nvidia.com/gpu", 2),
        ];
        assert_eq!(
            asked,
            Requests::from(expected.map(|(name, amount)| (name.into(), amount)))
        );
    }

    #[test]
    fn what_a_pod_asks_for_as_a_whole_counts_instead_of_its_containers() {
        let asked = asked(json!({
            "containers": [
                {"name": "a", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"nvidia.com/gpu": "2"}}},
            ],
            "resources": {
                "requests": {"cpu": "4", "hugepages-2Mi": "8Mi"},
                // The API server sets missing requests to the containers', or else to the limits.
                "limits": {"cpu": "8", "memory": "2Gi", "hugepages-1Gi": "1Gi"},
            },
            "overhead": {"cpu": "250m"},
        }));
        let pages = [("hugepages-2Mi", 8 << 20), ("hugepages-1Gi", 1 << 30)];
        let others = [(CPU, 4250), (MEMORY, 1 << 30), (PODS, 1), ("nvidia.com/gpu", 2)];
        let expected = pages.into_iter().chain(others);
        assert_eq!(
            asked,
            expected.map(|(name, amount)| (name.into(), amount)).collect()
        );
    }

    #[test]
    fn a_pod_on_a_port_of_its_node_that_gangs_use_holds_it() {
        for (port, held) in [
            (json!({"containerPort": 8080, "hostPort": 9402}), Some(&1)),
            (json!({"containerPort": 29500, "hostPort": 29500}), Some(&1)),
            (json!({"containerPort": 9402}), None),
            (json!({"containerPort": 9100, "hostPort": 9100}), None),
        ] {
            let asked = asked(json!({"containers": [{"name": "a", "ports": [port]}]}));
            assert_eq!(asked.get(HOST_PORTS), held);
        }
    }
}
