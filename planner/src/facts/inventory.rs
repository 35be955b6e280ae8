//! The nodes of the cluster and their use: the input of [placement](crate::policy::placement).

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Taint};
use kube::ResourceExt as _;

use super::gpu_labels::GpuLabels;
use super::resources::{Amount, Resources, amounts};

/// The nodes of a cluster, by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Inventory {
    /// Every node.
    pub nodes: BTreeMap<Arc<str>, NodeFacts>,
}

/// The properties of a node that placement needs.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeFacts {
    /// Its labels.
    pub labels: Arc<NodeLabels>,
    /// Its taints.
    pub taints: Vec<Taint>,
    /// Its Ready condition.
    pub health: NodeHealth,
    /// Whether it is unschedulable.
    pub cordoned: bool,
    /// Its resources, and their use.
    pub resources: Resources,
    /// The job, as `namespace/name`, with a reservation of the node: later jobs do not get it.
    pub reserved_for: Option<Arc<str>>,
}

/// A node's labels, and the GPUs that they describe.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeLabels {
    /// By key.
    pub values: BTreeMap<String, String>,
    /// Its GPUs by its labels. Shared by nodes with the same GPUs.
    pub gpus: Arc<GpuLabels>,
}

impl NodeLabels {
    pub(crate) fn new(values: BTreeMap<String, String>, shared: &mut Shared) -> Self {
        Self {
            gpus: shared.kind(GpuLabels::read(&values)),
            values,
        }
    }
}

/// Values shared by many nodes, stored once to reduce cache misses when visiting all nodes.
#[derive(Debug, Default)]
pub struct Shared {
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

/// Reads a node, with nothing in use.
pub fn facts(node: &Node, shared: &mut Shared) -> NodeFacts {
    let spec = node.spec.as_ref();
    let status = node.status.as_ref();
    let capacity = amounts(status.and_then(|status| status.capacity.as_ref()));
    let allocatable = amounts(status.and_then(|status| status.allocatable.as_ref()));
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
            .filter(|(_, amount)| *amount != Amount::default())
            .collect(),
        reserved_for: None,
    }
}

/// The health of a node.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum NodeHealth {
    /// Its kubelet reports that it is ready.
    Ready,
    /// Its kubelet reports that it is not, or no longer reports.
    NotReady,
}

/// Reads a node's Ready condition.
pub fn health(node: &Node) -> NodeHealth {
    let ready = node
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten())
        .find(|condition| condition.type_ == "Ready");
    match ready {
        Some(condition) if condition.status == "True" => NodeHealth::Ready,
        _ => NodeHealth::NotReady,
    }
}

#[cfg(test)]
mod counted;
#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_node_is_ready_only_if_its_kubelet_says_so() {
        let node = |status: &str| -> Node {
            serde_json::from_value(json!({"status": {"conditions": [{"type": "Ready", "status": status}]}}))
                .expect("a node")
        };
        assert_eq!(health(&node("True")), NodeHealth::Ready);
        for other in [node("Unknown"), node("False"), Node::default()] {
            assert_eq!(health(&other), NodeHealth::NotReady);
        }
    }
}
