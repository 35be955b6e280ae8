//! A gang's request.

use std::collections::BTreeMap;
use std::sync::Arc;

use crds::ValidatedJob;
use crds::status::{AdmittedPod, GpuGroup};
use crds::validate::{PlacementRules, gpu_toleration};
use k8s_openapi::api::core::v1::Toleration;

use crate::facts::resources::{self, HOST_PORTS, PODS, Requests};

/// A gang's request for nodes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GangRequest {
    /// Number of pods, each on a separate node; for an elastic gang the minimum.
    pub nodes: usize,
    /// The larger sizes of an elastic gang, largest first.
    pub larger: Vec<usize>,
    /// The request of each pod.
    pub shape: Arc<Shape>,
}

impl GangRequest {
    /// The sizes above `nodes`, with this shape; `None` if there are none.
    pub fn larger_than(&self, nodes: usize, shape: &Arc<Shape>) -> Option<Self> {
        let mut larger: Vec<usize> = self.larger.iter().copied().filter(|more| *more > nodes).collect();
        Some(Self {
            nodes: larger.pop()?,
            larger,
            shape: Arc::clone(shape),
        })
    }

    /// The request with what admission adds to the pods.
    #[must_use]
    pub fn admitted(mut self, pod: Option<&AdmittedPod>) -> Self {
        if let Some(pod) = pod {
            let shape = Arc::make_mut(&mut self.shape);
            for (resource, more) in resources::amounts(Some(&pod.requests)) {
                *shape.requests.entry(resource).or_default() += more;
            }
            shape.node_selector.extend(pod.node_selector.clone());
            shape.tolerations.extend(pod.tolerations.iter().cloned());
        }
        self
    }

    /// The request of a gang of one size.
    pub(crate) fn fixed(nodes: usize, shape: &Arc<Shape>) -> Self {
        Self {
            nodes,
            larger: Vec::new(),
            shape: Arc::clone(shape),
        }
    }
}

/// The request of each pod of a gang. The same nodes fit all gangs of one shape.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shape {
    /// GPUs of each pod.
    pub gpus_per_node: i64,
    /// Neighboring nodes whose ranks compute a model together; 0 or 1 if they are on one node or
    /// share nodes with others.
    pub together: usize,
    /// The extended resource of the GPUs.
    pub gpu_resource: String,
    /// The rules of `placement`.
    pub rules: PlacementRules,
    /// Labels that a node must have.
    pub node_selector: BTreeMap<String, String>,
    /// Tolerations of the pods.
    pub tolerations: Vec<Toleration>,
    /// All requests of a pod, GPUs included.
    pub requests: Requests,
    /// Nodes that the job avoids, by name.
    pub avoided: BTreeMap<String, Avoidance>,
    /// The only group of GPUs that fits, if there is one.
    pub required_group: Option<GpuGroup>,
}

impl From<&ValidatedJob> for GangRequest {
    fn from(job: &ValidatedJob) -> Self {
        let gpus_per_node = i64::from(job.gpus_per_node());
        let mut requests = resources::requests(Some(&job.spec.workers.resources));
        requests.insert(job.spec.workers.gpu_resource.clone(), gpus_per_node);
        for (resource, amount) in resources::requests(job.agent_resources().as_ref()) {
            *requests.entry(resource).or_default() += amount;
        }
        requests.insert(PODS.into(), 1);
        if job.spec.workers.host_network {
            requests.insert(HOST_PORTS.into(), 1);
        }
        let mut larger: Vec<usize> = job.sizes.iter().map(|nodes| *nodes as usize).collect();
        Self {
            // A valid job has a size.
            nodes: larger.pop().unwrap_or_default(),
            larger,
            shape: Arc::new(Shape {
                gpus_per_node,
                together: nodes_together(job),
                gpu_resource: job.spec.workers.gpu_resource.clone(),
                rules: job.placement.clone(),
                node_selector: job.spec.workers.node_selector.clone(),
                tolerations: job.tolerations(),
                requests,
                ..Shape::default()
            }),
        }
    }
}

/// Number of nodes whose ranks compute a model together.
fn nodes_together(job: &ValidatedJob) -> usize {
    let parallelism = &job.run_config.parallelism;
    let (ranks, per_node) = (parallelism.sequence * parallelism.tensor, job.gpus_per_node());
    if ranks.is_multiple_of(per_node) {
        (ranks / per_node) as usize
    } else {
        1
    }
}

impl Shape {
    /// A pod that requests GPUs of a resource, such as `nvidia.com/gpu`, and nothing else.
    pub fn of_gpus(gpu_resource: &str, gpus: u32) -> Self {
        let gpus = i64::from(gpus);
        Self {
            gpus_per_node: gpus,
            gpu_resource: gpu_resource.into(),
            requests: BTreeMap::from([(gpu_resource.into(), gpus)]),
            tolerations: vec![gpu_toleration(gpu_resource)],
            ..Self::default()
        }
    }

    /// Whether another differs at most in the avoided nodes.
    pub(crate) fn is_same_but_avoided(&self, other: &Self) -> bool {
        let Self {
            gpus_per_node,
            together,
            gpu_resource,
            rules,
            node_selector,
            tolerations,
            requests,
            avoided: _,
            required_group,
        } = self;
        *gpus_per_node == other.gpus_per_node
            && *together == other.together
            && *requests == other.requests
            && *rules == other.rules
            && *gpu_resource == other.gpu_resource
            && *node_selector == other.node_selector
            && *tolerations == other.tolerations
            && *required_group == other.required_group
    }
}

/// Why a node is avoided.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Avoidance {
    /// A rank of the last gang, or of an earlier one within the last hour, stayed slow there.
    WasSlow,
    /// Attempts failed there.
    FailedBefore,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_admission_adds_is_requested_too() {
        let added = json!({
            "requests": {"cpu": "1500m", "memory": "1Gi"}, "nodeSelector": {"pool": "a"},
            "tolerations": [{"key": "team"}], "containers": ["mesh"],
        });
        let added: AdmittedPod = serde_json::from_value(added).expect("a pod");
        let mut shape = Shape::of_gpus("nvidia.com/gpu", 2);
        shape.requests.insert("cpu".into(), 500);
        let request = GangRequest::fixed(1, &Arc::new(shape)).admitted(Some(&added));
        let expected = [("cpu", 2000), ("memory", 1 << 30), ("nvidia.com/gpu", 2)];
        let expected = expected.map(|(resource, amount)| (resource.to_owned(), amount));
        assert_eq!(request.shape.requests, expected.into());
        assert_eq!(request.shape.node_selector, added.node_selector);
        let tolerations = &request.shape.tolerations;
        assert!(tolerations.ends_with(&added.tolerations), "{tolerations:?}");
    }
}
