//! The planner's view of a cluster's GPUs for `kubectl vit`: the nodes that a gang could get, and
//! why it could not get others. Promises nothing.

use std::collections::BTreeMap;

use crds::status::{GpuGroup, RejectedGroup};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::runtime::watcher::Event;

use crate::facts::fleet::Fleet;
use crate::facts::inventory::NodeFacts;
use crate::facts::resources::Amount;
use crate::policy::node_fit::{Verdict, gpus, group_of, verdict};
use crate::policy::placement::{Placement, place};
use crate::policy::request::{GangRequest, Shape};

/// The nodes of a cluster, and their use by pods.
#[derive(Debug, Default)]
pub struct Survey(Fleet);

/// The nodes of a group.
#[derive(Clone, Debug, PartialEq)]
pub struct SurveyedGroup {
    /// Their GPUs. The product is empty if no label names it.
    pub gpus: GpuGroup,
    /// By name.
    pub nodes: Vec<SurveyedNode>,
}

/// A node with GPUs.
#[derive(Clone, Debug, PartialEq)]
pub struct SurveyedNode {
    /// Its name.
    pub name: String,
    /// Its GPUs, and their use.
    pub gpus: Amount,
    /// The pods that use them, as `namespace/name`, and how many.
    pub pods: Vec<(String, i64)>,
    /// Whether a pod of the gang can go there.
    pub verdict: Verdict,
}

impl Survey {
    /// Reads the nodes and pods of a whole cluster.
    pub fn new(nodes: impl IntoIterator<Item = Node>, pods: impl IntoIterator<Item = Pod>) -> Self {
        let mut fleet = Fleet::default();
        for node in nodes {
            fleet.follow_nodes(&Event::Apply(node));
        }
        for pod in pods {
            fleet.follow_pods(&Event::Apply(pod));
        }
        Self(fleet)
    }

    /// The nodes that a gang could get now, or why it fits nowhere, by group.
    pub fn place(&self, request: &GangRequest) -> Result<Placement, Vec<RejectedGroup>> {
        place(request, self.0.inventory())
    }

    /// The nodes with the GPU resource of `shape`, by group.
    pub fn groups(&self, shape: &Shape) -> Vec<SurveyedGroup> {
        let mut users = self.0.users_of(&shape.gpu_resource);
        let mut groups: BTreeMap<GpuGroup, Vec<SurveyedNode>> = BTreeMap::new();
        for (name, facts) in &self.0.inventory().nodes {
            let Some(group) = group_of(facts, shape) else {
                continue;
            };
            let of_node = users.remove(&**name).unwrap_or_default().into_iter();
            let mut pods: Vec<_> = of_node.map(|(pod, gpus)| (pod.to_owned(), gpus)).collect();
            pods.sort_unstable();
            groups.entry(group).or_default().push(SurveyedNode {
                name: (**name).into(),
                gpus: gpus(facts, shape),
                pods,
                verdict: verdict(name, facts, shape),
            });
        }
        let groups = groups.into_iter();
        groups
            .map(|(gpus, nodes)| SurveyedGroup { gpus, nodes })
            .collect()
    }

    /// How many nodes have none of a resource.
    pub fn nodes_without(&self, resource: &str) -> usize {
        let capacity = |facts: &NodeFacts| facts.resources.get(resource).map_or(0, |amount| amount.capacity);
        let nodes = self.0.inventory().nodes.values();
        nodes.filter(|facts| capacity(facts) == 0).count()
    }
}

#[cfg(test)]
mod tests {
    use crds::status::Refusal;
    use serde_json::json;

    use super::*;
    use crate::fixtures::node;

    fn pod(name: &str, node: &str, gpus: u32) -> Pod {
        let resources = json!({"limits": {"nvidia.com/gpu": gpus.to_string()}});
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "research"},
            "spec": {"nodeName": node, "containers": [{"name": "a", "resources": resources}]},
            "status": {"phase": "Running"},
        }))
        .expect("a pod")
    }

    #[test]
    fn nodes_are_grouped_and_refused_as_the_planner_does() {
        let mut cordoned = node("b", "NVIDIA-H200", 8);
        cordoned.spec.get_or_insert_default().unschedulable = Some(true);
        let (idle, small) = (node("a", "NVIDIA-H200", 8), node("c", "Tesla-T4", 1));
        let pods = [pod("x", "a", 3), pod("y", "c", 1), pod("none", "a", 0)];
        let survey = Survey::new([idle, cordoned, small, node("d", "", 8), node("e", "", 0)], pods);
        let groups = survey.groups(&Shape::of_gpus("nvidia.com/gpu", 1));
        let seen: Vec<_> = groups
            .iter()
            .flat_map(|group| group.nodes.iter().map(|node| (&*group.gpus.product, node)))
            .map(|(product, node)| (product, &*node.name, node.gpus.used, node.verdict))
            .collect();
        let expected = [
            ("", "d", 0, Verdict::Refused(Refusal::NoProductLabel)),
            ("NVIDIA-H200", "a", 3, Verdict::Fits { free: 5 }),
            ("NVIDIA-H200", "b", 0, Verdict::Refused(Refusal::Cordoned)),
            ("Tesla-T4", "c", 1, Verdict::Refused(Refusal::InUse)),
        ];
        assert_eq!(seen, expected);
        assert_eq!(groups[1].nodes[0].pods, [("research/x".to_owned(), 3)]);
        assert_eq!(survey.nodes_without("nvidia.com/gpu"), 1);
        assert_eq!(survey.groups(&Shape::of_gpus("amd.com/gpu", 1)), []);
    }
}
