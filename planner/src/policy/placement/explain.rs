//! Explains why a gang does not get the nodes of a group, with counts.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::Arc;

use crds::spec::Homogeneity;
use crds::status::{GpuGroup, RejectedGroup};

use crate::policy::node_fit::Refusal;
use crate::policy::request::GangRequest;

/// Most groups in a message.
const GROUPS_IN_MESSAGE: usize = 12;
/// Most groups in a status: with `placement.groupBy` there may be one per node.
const GROUPS_IN_STATUS: usize = 32;
/// Most nodes named for a reason.
const NODES_IN_REASON: usize = 3;

/// The node counts of each group, for one shape. Rendered only when a status needs the text.
#[derive(Debug, PartialEq)]
pub(crate) struct Reasons(pub(super) Vec<GroupReasons>);

/// One group.
#[derive(Debug, PartialEq)]
pub(super) struct GroupReasons {
    pub(super) group: GpuGroup,
    /// Fitting nodes.
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

impl GroupReasons {
    /// GPUs of the fitting nodes, used or not, that the gang would leave over.
    fn left_over(&self, request: &GangRequest) -> i64 {
        let nodes = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        nodes(self.fitting) * self.group.gpus_per_node - nodes(request.nodes) * request.shape.gpus_per_node
    }
}

impl Refused {
    pub(super) fn new(refusal: Refusal, names: &BTreeSet<Arc<str>>) -> Self {
        Self {
            refusal,
            nodes: names.len(),
            names: names.iter().take(NODES_IN_REASON).cloned().collect(),
        }
    }

    fn names(&self) -> String {
        let more = self.nodes > self.names.len();
        self.names.join(", ") + if more { ", ..." } else { "" }
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
        let left_over = (chosen.len() == 1)
            .then(|| self.0.iter().find(is_chosen))
            .flatten()
            .map(|reasons| reasons.left_over(request));
        self.0
            .iter()
            .filter(|reasons| !is_chosen(reasons))
            .take(GROUPS_IN_STATUS)
            .map(|reasons| {
                let refused: usize = reasons.refused.iter().map(|refused| refused.nodes).sum();
                let mut reason = fitting(request, reasons, left_over, !chosen.is_empty());
                for refused in &reasons.refused {
                    if !reason.is_empty() {
                        reason.push_str(", ");
                    }
                    let _ = write!(
                        reason,
                        "{} {} ({})",
                        count(refused.nodes, "node"),
                        refused.refusal,
                        refused.names()
                    );
                }
                RejectedGroup {
                    group: self.label(&reasons.group),
                    reason,
                    nodes: i32::try_from(reasons.fitting + refused).unwrap_or(i32::MAX),
                }
            })
            .collect()
    }

    /// The product; if several groups have it, with all properties in which they may differ.
    fn label(&self, group: &GpuGroup) -> String {
        let namesakes = self
            .0
            .iter()
            .filter(|other| other.group.product == group.product)
            .count();
        if namesakes < 2 || group.product.is_empty() {
            return group.product.clone();
        }
        let mut label = format!("{} ({} a node", group.product, group.gpus_per_node);
        if let Some(memory) = group.memory_mebibytes {
            let _ = write!(label, ", {memory} MiB");
        }
        if let Some(driver) = &group.driver_major {
            let _ = write!(label, ", driver {driver}");
        }
        if let Some(replicas) = group.replicas {
            let _ = write!(label, ", {replicas} pods a GPU");
        }
        if let Some(strategy) = &group.sharing_strategy {
            let _ = write!(label, ", {strategy}");
        }
        for (key, value) in &group.labels {
            let _ = write!(label, ", {key} {value}");
        }
        label + ")"
    }
}

/// Describes fitting nodes. `left_over` is the number of leftover GPUs in the chosen group.
fn fitting(request: &GangRequest, reasons: &GroupReasons, left_over: Option<i64>, is_placed: bool) -> String {
    let fitting = reasons.fitting;
    let gpus_per_node = request.shape.gpus_per_node;
    if let (Some(key), Some(largest)) = (&request.shape.rules.required_topology, reasons.largest_domain)
        && fitting >= request.nodes
        && largest < request.nodes
    {
        return format!(
            "{} with {gpus_per_node} free, but at most {largest} with the same {key}",
            count(fitting, "node")
        );
    }
    match left_over {
        Some(left_over) if fitting >= request.nodes => format!(
            "fits too, but leaves over {} GPUs of its nodes instead of {left_over}",
            reasons.left_over(request)
        ),
        _ if fitting > 0 || reasons.refused.is_empty() => {
            let only = if is_placed { "only " } else { "" };
            format!("{only}{} with {gpus_per_node} free", count(fitting, "node"))
        }
        _ => String::new(),
    }
}

/// All reasons in one message, for a gang that fits nowhere.
pub(super) fn message(request: &GangRequest, reasons: &Reasons, rejected: &[RejectedGroup]) -> String {
    let is_identical = request.shape.rules.homogeneity == Homogeneity::Required;
    let up_to = request.larger.first().map(|most| format!(" to {most}"));
    let mut message = format!(
        "needs {}{} x {} {}{}: ",
        request.nodes,
        up_to.unwrap_or_default(),
        request.shape.gpus_per_node,
        if is_identical { "identical " } else { "" },
        request.shape.gpu_resource
    );
    if rejected.is_empty() {
        let _ = write!(message, "no node has {}", request.shape.gpu_resource);
    }
    for (index, group) in rejected.iter().take(GROUPS_IN_MESSAGE).enumerate() {
        let separator = if index == 0 { "" } else { "; " };
        let _ = if group.group.is_empty() {
            write!(message, "{separator}{}", group.reason)
        } else {
            write!(message, "{separator}{} has {}", group.group, group.reason)
        };
    }
    let groups = reasons.0.len();
    if groups > GROUPS_IN_MESSAGE {
        let _ = write!(message, "; and {} more groups", groups - GROUPS_IN_MESSAGE);
    }
    message
}

fn count(number: usize, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}
