//! Why a gang does not get the nodes of a group, with counts.

use std::collections::BTreeSet;
use std::sync::Arc;

use crds::status::{GpuGroup, LeftOverGpus, Refusal, RejectedGroup, RejectedNodes};

use crate::facts::gpu_labels::driver_label;
use crate::policy::request::GangRequest;

/// Most groups in a status: with `placement.groupBy` there may be one per node.
const GROUPS_IN_STATUS: usize = 32;
/// Most nodes named for a reason.
const NODES_IN_REASON: usize = 3;

/// The node counts of each group, for one shape.
#[derive(Debug, PartialEq)]
pub(crate) struct Reasons(pub(super) Vec<GroupReasons>);

#[derive(Debug, PartialEq)]
pub(super) struct GroupReasons {
    pub(super) group: GpuGroup,
    pub(super) fitting: usize,
    /// The most of them with one value of the required topology key, if there is one.
    pub(super) largest_domain: Option<usize>,
    /// The other nodes, by reason.
    pub(super) refused: Vec<RejectedNodes>,
}

/// Nodes that do not fit for one reason.
pub(super) fn rejected_nodes(code: Refusal, names: &BTreeSet<Arc<str>>) -> RejectedNodes {
    RejectedNodes {
        code,
        nodes: count(names.len()),
        names: names
            .iter()
            .take(NODES_IN_REASON)
            .map(ToString::to_string)
            .collect(),
        taints: vec![],
    }
}

impl GroupReasons {
    /// The most fitting nodes of one domain, if that is too few although the group has enough.
    fn too_small_domain(&self, request: &GangRequest) -> Option<usize> {
        let suffices = self.fitting >= request.nodes;
        self.largest_domain
            .filter(|largest| suffices && *largest < request.nodes)
    }

    /// GPUs of the fitting nodes, used or not, that the gang would leave over.
    fn left_over(&self, request: &GangRequest) -> i64 {
        let nodes = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        nodes(self.fitting) * self.group.gpus_per_node - nodes(request.nodes) * request.shape.gpus_per_node
    }
}

impl Reasons {
    /// The groups not `chosen`, with reasons, up to [`GROUPS_IN_STATUS`].
    pub(crate) fn rejections(
        &self,
        request: &GangRequest,
        chosen: &BTreeSet<&GpuGroup>,
    ) -> Vec<RejectedGroup> {
        let is_chosen = |reasons: &&GroupReasons| chosen.contains(&reasons.group);
        let only = self.0.iter().find(is_chosen).filter(|_| chosen.len() == 1);
        let rejected = |reasons: &GroupReasons| {
            let largest_domain = reasons.too_small_domain(request);
            let suffices = reasons.fitting >= request.nodes && largest_domain.is_none();
            let chosen = only.filter(|_| suffices);
            RejectedGroup {
                group: self.label(&reasons.group),
                nodes: count(reasons.fitting) + reasons.refused.iter().map(|nodes| nodes.nodes).sum::<i32>(),
                fitting_nodes: count(reasons.fitting),
                largest_domain: largest_domain.map(count),
                left_over_gpus: chosen.map(|chosen| LeftOverGpus {
                    rejected: reasons.left_over(request),
                    chosen: chosen.left_over(request),
                }),
                reasons: reasons.refused.clone(),
            }
        };
        let others = self.0.iter().filter(|reasons| !is_chosen(reasons));
        others.take(GROUPS_IN_STATUS).map(rejected).collect()
    }

    /// Whether the [rejections](Self::rejections) of all groups differ at most in numbers and names.
    pub(crate) fn are_like(&self, other: &Self, request: &GangRequest) -> bool {
        let kind = |reasons: &GroupReasons| {
            let codes: Vec<Refusal> = reasons.refused.iter().map(|nodes| nodes.code).collect();
            (reasons.too_small_domain(request).is_some(), codes)
        };
        let shown = |reasons: &Self| reasons.0.len().min(GROUPS_IN_STATUS);
        let mut pairs = self.0.iter().zip(&other.0).take(GROUPS_IN_STATUS);
        shown(self) == shown(other)
            && pairs.all(|(left, right)| left.group == right.group && kind(left) == kind(right))
    }

    /// The product; if several groups have it, with all properties in which they may differ.
    fn label(&self, group: &GpuGroup) -> String {
        let is_namesake = |other: &&GroupReasons| other.group.product == group.product;
        let mut namesakes = self.0.iter().filter(is_namesake);
        if group.product.is_empty() || namesakes.clone().count() < 2 {
            return group.product.clone();
        }
        let mut parts = vec![format!("{} a node", group.gpus_per_node)];
        parts.extend(group.memory_mebibytes.map(|memory| format!("{memory} MiB")));
        let unlabelled = driver_label(&group.product_label)
            .filter(|_| namesakes.any(|other| other.group.driver_major.is_some()))
            .map(|label| format!("driver unknown: no label {label}"));
        let driver = group
            .driver_major
            .as_ref()
            .map(|driver| format!("driver {driver}"));
        parts.extend(driver.or(unlabelled));
        parts.extend(group.replicas.map(|replicas| format!("{replicas} pods a GPU")));
        parts.extend(group.sharing_strategy.clone());
        parts.extend(group.labels.iter().map(|(key, value)| format!("{key} {value}")));
        format!("{} ({})", group.product, parts.join(", "))
    }
}

fn count(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}
