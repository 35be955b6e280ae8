//! Which nodes a gang gets: a set of like GPUs (or, where the job allows it, of several kinds) that lie near to one
//! another, or none. A pure function over the inventory, which a [`View`] sorts for one shape of gang.

mod explain;
mod view;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crds::ValidatedJob;
use crds::spec::Homogeneity;
use crds::status::{GpuGroup, RejectedGroup, TopologySpread};
use crds::validate::PlacementRules;
use k8s_openapi::api::core::v1::Toleration;

use super::avoidance::Avoidance;
use crate::cluster::inventory::{self, HOST_PORTS, PODS, Requests};
pub(crate) use explain::Reasons;
pub(crate) use view::{Claim, View};

/// What a gang asks for.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct GangRequest {
    /// Pods, each on a node of its own; the least number of them for an elastic gang.
    pub(crate) nodes: usize,
    /// Greater numbers of pods that an elastic gang would rather have, the greatest first.
    pub(crate) larger: Vec<usize>,
    pub(crate) shape: Arc<Shape>,
}

impl GangRequest {
    /// What remains of it for a gang that has so many nodes and looks for more in that shape.
    pub(crate) fn larger_than(&self, nodes: usize, shape: &Arc<Shape>) -> Option<Self> {
        let mut larger: Vec<usize> = self.larger.iter().copied().filter(|more| *more > nodes).collect();
        Some(Self {
            nodes: larger.pop()?,
            larger,
            shape: Arc::clone(shape),
        })
    }

    /// Pods of the gang that it would like best.
    pub(crate) fn most_nodes(&self) -> usize {
        self.larger.first().copied().unwrap_or(self.nodes)
    }

    /// The same without the sizes from `nodes` up, but for the least.
    pub(crate) fn below(mut self, nodes: usize) -> Self {
        self.larger.retain(|more| *more < nodes);
        self
    }

    /// The same for a gang of that size.
    fn of_size(&self, nodes: usize) -> Self {
        Self {
            nodes,
            larger: Vec::new(),
            shape: Arc::clone(&self.shape),
        }
    }
}

/// What each pod of a gang asks for. Gangs of one shape see the same nodes fit.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Shape {
    pub(crate) gpus_per_node: i64,
    /// Name of the extended resource by which nodes count GPUs.
    pub(crate) gpu_resource: String,
    pub(crate) rules: PlacementRules,
    pub(crate) node_selector: BTreeMap<String, String>,
    pub(crate) tolerations: Vec<Toleration>,
    /// Everything each pod asks of its node, GPUs included.
    pub(crate) requests: Requests,
    /// Nodes that a job does without, by name.
    pub(crate) avoided: BTreeMap<String, Avoidance>,
    /// The GPUs that a gang has had, where no others will do.
    pub(crate) only: Option<GpuGroup>,
}

impl From<&ValidatedJob> for GangRequest {
    fn from(job: &ValidatedJob) -> Self {
        let gpus_per_node = i64::from(job.gpus_per_node());
        let mut requests = inventory::requests(Some(&job.pod.resources));
        requests.insert(job.pod.gpu_resource.clone(), gpus_per_node);
        requests.insert(PODS.into(), 1);
        if job.pod.host_network {
            requests.insert(HOST_PORTS.into(), 1);
        }
        let mut larger: Vec<usize> = job.sizes.iter().map(|nodes| *nodes as usize).collect();
        Self {
            // A valid job has a size.
            nodes: larger.pop().unwrap_or_default(),
            larger,
            shape: Arc::new(Shape {
                gpus_per_node,
                gpu_resource: job.pod.gpu_resource.clone(),
                rules: job.placement.clone(),
                node_selector: job.pod.node_selector.clone(),
                tolerations: job.pod.tolerations.clone(),
                requests,
                avoided: BTreeMap::new(),
                only: None,
            }),
        }
    }
}

impl Shape {
    /// Whether another is the same, but for the nodes that they avoid.
    fn is_alike(&self, other: &Self) -> bool {
        let Self {
            gpus_per_node,
            gpu_resource,
            rules,
            node_selector,
            tolerations,
            requests,
            avoided: _,
            only,
        } = self;
        *gpus_per_node == other.gpus_per_node
            && *requests == other.requests
            && *rules == other.rules
            && *gpu_resource == other.gpu_resource
            && *node_selector == other.node_selector
            && *tolerations == other.tolerations
            && *only == other.only
    }

    /// The word that says whether GPUs must be alike.
    fn likeness(&self) -> &'static str {
        match self.rules.homogeneity {
            Homogeneity::Required => "like ",
            Homogeneity::Preferred | Homogeneity::Off => "",
        }
    }
}

/// Where a gang goes, and why not elsewhere.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Placement {
    pub(crate) gpus: Gpus,
    /// Node names by node rank.
    pub(crate) nodes: Vec<String>,
    /// Over which parts of the cluster the nodes are spread, for each key of the job.
    pub(crate) topology: Vec<TopologySpread>,
    pub(crate) rejected: Vec<RejectedGroup>,
}

/// Where a gang goes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Choice {
    pub(crate) gpus: Gpus,
    /// By node rank.
    pub(crate) nodes: Vec<Arc<str>>,
    pub(crate) topology: Vec<TopologySpread>,
}

impl Choice {
    /// The same with the reasons for which it is not another.
    pub(crate) fn explained(&self, request: &GangRequest, reasons: &Reasons) -> Placement {
        let chosen: BTreeSet<&GpuGroup> = match &self.gpus {
            Gpus::Like(group) => BTreeSet::from([group]),
            Gpus::Mixed(groups) => groups.keys().collect(),
        };
        Placement {
            rejected: reasons.rejections(&request.of_size(self.nodes.len()), &chosen),
            gpus: self.gpus.clone(),
            nodes: self.nodes.iter().map(|node| (**node).to_owned()).collect(),
            topology: self.topology.clone(),
        }
    }
}

/// What GPUs a gang gets.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Gpus {
    /// All of one group.
    Like(GpuGroup),
    /// Of several groups, with the number of nodes of each.
    Mixed(BTreeMap<GpuGroup, usize>),
}

/// Why a gang goes nowhere now.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Unplaceable {
    pub(crate) rejected: Vec<RejectedGroup>,
    /// All of it in one sentence.
    pub(crate) message: String,
}

impl Unplaceable {
    pub(crate) fn new(request: &GangRequest, reasons: &Reasons) -> Self {
        let rejected = reasons.rejections(request, &BTreeSet::new());
        Self {
            message: explain::message(request, reasons, &rejected),
            rejected,
        }
    }
}

/// Looks for a place for one gang, on its own.
#[cfg(test)]
pub(crate) fn place(
    request: &GangRequest,
    inventory: &inventory::Inventory,
) -> Result<Placement, Unplaceable> {
    let mut view = View::new(Arc::clone(&request.shape), inventory);
    let choice = view.choose(request);
    let reasons = view.reasons();
    match choice {
        Some(choice) => Ok(choice.explained(request, &reasons)),
        None => Err(Unplaceable::new(request, &reasons)),
    }
}

#[cfg(test)]
pub(crate) mod properties;
#[cfg(test)]
mod tests;
