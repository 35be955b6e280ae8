//! The planner's view of a cluster's GPUs for `kubectl vit`: the nodes that a gang could get, and
//! why it could not get others. Promises nothing.

use std::collections::BTreeMap;

use crds::status::GpuGroup;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::runtime::watcher::Event;

use crate::facts::fleet::Fleet;
use crate::facts::inventory::NodeFacts;
use crate::policy::node_fit::{Refusal, Verdict, gpus, group_of, verdict};
use crate::policy::request::Shape;

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
    /// GPUs of the node.
    pub capacity: i64,
    /// GPUs available to pods: fewer if some are unhealthy.
    pub allocatable: i64,
    /// GPUs in use.
    pub used: i64,
    /// The pods that use them, by name.
    pub pods: Vec<GpuPod>,
    /// Why no pod of the gang can go there now; `None` if one can.
    pub refusal: Option<Refusal>,
    /// Whether one can after gangs have ended.
    pub is_busy: bool,
}

/// A pod that uses GPUs.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct GpuPod {
    /// The pod, as `namespace/name`.
    pub pod: String,
    /// How many.
    pub gpus: i64,
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

    /// The nodes with the GPU resource of `shape`, by group.
    pub fn groups(&self, shape: &Shape) -> Vec<SurveyedGroup> {
        let mut users = self.0.users_of(&shape.gpu_resource);
        let mut groups: BTreeMap<GpuGroup, Vec<SurveyedNode>> = BTreeMap::new();
        for (name, facts) in &self.0.inventory().nodes {
            let Some(group) = group_of(facts, shape) else {
                continue;
            };
            let amount = gpus(facts, shape);
            let verdict = verdict(name, facts, shape);
            let mut pods: Vec<GpuPod> = users
                .remove(&**name)
                .unwrap_or_default()
                .into_iter()
                .map(|(pod, gpus)| GpuPod {
                    pod: pod.into(),
                    gpus,
                })
                .collect();
            pods.sort_unstable();
            groups.entry(group).or_default().push(SurveyedNode {
                name: (**name).into(),
                capacity: amount.capacity,
                allocatable: amount.allocatable,
                used: amount.used,
                pods,
                refusal: verdict.refusal(),
                is_busy: matches!(verdict, Verdict::Busy { .. }),
            });
        }
        groups
            .into_iter()
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
        let survey = Survey::new(
            [
                node("a", "NVIDIA-H200", 8),
                cordoned,
                node("c", "Tesla-T4", 1),
                node("d", "", 8),
                node("e", "", 0),
            ],
            [pod("x", "a", 3), pod("y", "c", 1), pod("none", "a", 0)],
        );
        let groups = survey.groups(&Shape::of_gpus("nvidia.com/gpu", 1));
        let seen: Vec<(&str, Vec<_>)> = groups
            .iter()
            .map(|group| {
                let nodes = group.nodes.iter();
                let of = |node: &SurveyedNode| (node.name.clone(), node.used, node.refusal);
                (group.gpus.product.as_str(), nodes.map(of).collect())
            })
            .collect();
        assert_eq!(
            seen,
            [
                ("", vec![("d".into(), 0, Some(Refusal::NoProductLabel))]),
                (
                    "NVIDIA-H200",
                    vec![("a".into(), 3, None), ("b".into(), 0, Some(Refusal::Cordoned))]
                ),
                ("Tesla-T4", vec![("c".into(), 1, Some(Refusal::InUse))]),
            ]
        );
        let holder = |pod: &str, gpus| GpuPod {
            pod: pod.into(),
            gpus,
        };
        assert_eq!(groups[1].nodes[0].pods, [holder("research/x", 3)]);
        assert_eq!(survey.nodes_without("nvidia.com/gpu"), 1);
        assert_eq!(survey.groups(&Shape::of_gpus("amd.com/gpu", 1)), []);
    }

    #[test]
    fn every_refusal_has_words_of_its_own() {
        let words = std::collections::BTreeSet::from(Refusal::ALL.map(|refusal| refusal.to_string()));
        assert_eq!(words.len(), Refusal::ALL.len());
    }
}
