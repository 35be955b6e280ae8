//! Explains why a gang does not get the nodes of a group, with counts.

use std::collections::BTreeSet;
use std::sync::Arc;

use crds::spec::Homogeneity;
use crds::status::{GpuGroup, RejectedGroup};

use crate::policy::node_fit::Refusal;
use crate::policy::request::{GangRequest, Shape};

const GROUPS_IN_MESSAGE: usize = 12;
/// Most groups in a status: with `placement.groupBy` there may be one per node.
const GROUPS_IN_STATUS: usize = 32;
/// Most nodes named for a reason.
const NODES_IN_REASON: usize = 3;

/// The node counts of each group, for one shape. Rendered only when a status needs the text.
#[derive(Debug, PartialEq)]
pub(crate) struct Reasons(pub(super) Vec<GroupReasons>);

#[derive(Debug, PartialEq)]
pub(super) struct GroupReasons {
    pub(super) group: GpuGroup,
    pub(super) fitting: usize,
    /// The most of them with one value of the required topology key, if there is one.
    pub(super) largest_domain: Option<usize>,
    /// The other nodes, by reason.
    pub(super) refused: Vec<Refused>,
}

/// Nodes refused for one reason.
#[derive(Debug, PartialEq)]
pub(super) struct Refused {
    refusal: Refusal,
    nodes: usize,
    /// Names of the first few.
    names: Vec<Arc<str>>,
}

impl Refused {
    pub(super) fn new(refusal: Refusal, names: &BTreeSet<Arc<str>>) -> Self {
        Self {
            refusal,
            nodes: names.len(),
            names: names.iter().take(NODES_IN_REASON).cloned().collect(),
        }
    }

    fn words(&self) -> String {
        let more = if self.nodes > self.names.len() {
            ", ..."
        } else {
            ""
        };
        let nodes = count(self.nodes, "node");
        format!("{nodes} {} ({}{more})", self.refusal, self.names.join(", "))
    }
}

impl GroupReasons {
    /// GPUs of the fitting nodes, used or not, that the gang would leave over.
    fn left_over(&self, request: &GangRequest) -> i64 {
        let nodes = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        nodes(self.fitting) * self.group.gpus_per_node - nodes(request.nodes) * request.shape.gpus_per_node
    }

    /// Why a gang does not get these nodes. `chosen` is the only chosen group.
    fn words(&self, request: &GangRequest, chosen: Option<&Self>, is_placed: bool) -> String {
        let nodes = count(self.fitting, "node");
        let free = request.shape.gpus_per_node;
        let suffices = self.fitting >= request.nodes;
        let fitting = if let (Some(key), Some(largest)) =
            (&request.shape.rules.required_topology, self.largest_domain)
            && suffices
            && largest < request.nodes
        {
            Some(format!(
                "{nodes} with {free} free, but at most {largest} with the same {key}"
            ))
        } else if let Some(chosen) = chosen.filter(|_| suffices) {
            let [own, other] = [self, chosen].map(|group| group.left_over(request));
            Some(format!(
                "fits too, but leaves over {own} GPUs of its nodes instead of {other}"
            ))
        } else {
            let only = if is_placed { "only " } else { "" };
            let is_named = self.fitting > 0 || self.refused.is_empty();
            is_named.then(|| format!("{only}{nodes} with {free} free"))
        };
        let refused = self.refused.iter().map(Refused::words);
        fitting.into_iter().chain(refused).collect::<Vec<_>>().join(", ")
    }
}

impl Reasons {
    /// The groups not chosen, with reasons, up to [`GROUPS_IN_STATUS`].
    pub(super) fn rejections(
        &self,
        request: &GangRequest,
        chosen: &BTreeSet<&GpuGroup>,
    ) -> Vec<RejectedGroup> {
        let is_chosen = |reasons: &&GroupReasons| chosen.contains(&reasons.group);
        let only = self.0.iter().find(is_chosen).filter(|_| chosen.len() == 1);
        let rejected = |reasons: &GroupReasons| {
            let refused: usize = reasons.refused.iter().map(|refused| refused.nodes).sum();
            RejectedGroup {
                group: self.label(&reasons.group),
                reason: reasons.words(request, only, !chosen.is_empty()),
                nodes: i32::try_from(reasons.fitting + refused).unwrap_or(i32::MAX),
            }
        };
        let others = self.0.iter().filter(|reasons| !is_chosen(reasons));
        others.take(GROUPS_IN_STATUS).map(rejected).collect()
    }

    /// The product; if several groups have it, with all properties in which they may differ.
    fn label(&self, group: &GpuGroup) -> String {
        let is_namesake = |other: &&GroupReasons| other.group.product == group.product;
        if group.product.is_empty() || self.0.iter().filter(is_namesake).count() < 2 {
            return group.product.clone();
        }
        let mut parts = vec![format!("{} a node", group.gpus_per_node)];
        parts.extend(group.memory_mebibytes.map(|memory| format!("{memory} MiB")));
        parts.extend(group.driver_major.iter().map(|driver| format!("driver {driver}")));
        parts.extend(group.replicas.map(|replicas| format!("{replicas} pods a GPU")));
        parts.extend(group.sharing_strategy.clone());
        parts.extend(group.labels.iter().map(|(key, value)| format!("{key} {value}")));
        format!("{} ({})", group.product, parts.join(", "))
    }
}

/// All reasons in one message, for a gang that fits nowhere.
pub(super) fn message(request: &GangRequest, reasons: &Reasons, rejected: &[RejectedGroup]) -> String {
    let Shape { gpu_resource, .. } = &*request.shape;
    let up_to = request.larger.first().map(|most| format!(" to {most}"));
    let identical = match request.shape.rules.homogeneity {
        Homogeneity::Required => "identical ",
        Homogeneity::Preferred | Homogeneity::Off => "",
    };
    let words = |group: &RejectedGroup| match &*group.group {
        "" => group.reason.clone(),
        label => format!("{label} has {}", group.reason),
    };
    let mut groups: Vec<String> = rejected.iter().take(GROUPS_IN_MESSAGE).map(words).collect();
    if rejected.is_empty() {
        groups.push(format!("no node has {gpu_resource}"));
    }
    if reasons.0.len() > GROUPS_IN_MESSAGE {
        groups.push(format!("and {} more groups", reasons.0.len() - GROUPS_IN_MESSAGE));
    }
    let nodes = format!("{}{}", request.nodes, up_to.unwrap_or_default());
    let pod = format!("{} {identical}{gpu_resource}", request.shape.gpus_per_node);
    format!("needs {nodes} x {pod}: {}", groups.join("; "))
}

fn count(number: usize, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}
