//! Which nodes a gang gets: all of one group of like GPUs, or none. A pure function over the inventory.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use crds::ValidatedJob;
use crds::status::{GpuGroup, RejectedGroup};
use crds::validate::PlacementRules;
use k8s_openapi::api::core::v1::Toleration;

use super::homogeneity::{Refusal, group_of, refusal};
use crate::cluster::inventory::{self, Inventory, PODS, Requests};

/// What a gang asks for.
#[derive(Clone, Debug, Default)]
pub(crate) struct GangRequest {
    /// Pods, each on a node of its own.
    pub(crate) nodes: usize,
    /// GPUs of each pod.
    pub(crate) gpus_per_node: i64,
    /// Name of the extended resource by which nodes count GPUs.
    pub(crate) gpu_resource: String,
    pub(crate) rules: PlacementRules,
    pub(crate) node_selector: BTreeMap<String, String>,
    pub(crate) tolerations: Vec<Toleration>,
    /// Everything each pod asks of its node, GPUs included.
    pub(crate) requests: Requests,
}

impl From<&ValidatedJob> for GangRequest {
    fn from(job: &ValidatedJob) -> Self {
        let gpus_per_node = i64::from(job.gpus_per_node());
        let mut requests = inventory::requests(Some(&job.pod.resources));
        requests.insert(job.pod.gpu_resource.clone(), gpus_per_node);
        requests.insert(PODS.into(), 1);
        Self {
            nodes: job.nodes() as usize,
            gpus_per_node,
            gpu_resource: job.pod.gpu_resource.clone(),
            rules: job.placement.clone(),
            node_selector: job.pod.node_selector.clone(),
            tolerations: job.pod.tolerations.clone(),
            requests,
        }
    }
}

/// Where a gang goes, and why not elsewhere.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Placement {
    pub(crate) group: GpuGroup,
    /// Node names by node rank.
    pub(crate) nodes: Vec<String>,
    pub(crate) rejected: Vec<RejectedGroup>,
}

/// Why a gang goes nowhere now.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Unplaceable {
    pub(crate) rejected: Vec<RejectedGroup>,
    /// All of it in one sentence.
    pub(crate) message: String,
}

/// A group as one request sees it.
#[derive(Debug, Default)]
struct Candidate<'a> {
    /// Nodes that can take a pod, with their free GPUs.
    fitting: Vec<(i64, &'a str)>,
    /// The others, by reason.
    refused: BTreeMap<Refusal, Vec<&'a str>>,
}

/// Chooses nodes for a gang.
///
/// 1. Nodes are sorted into groups of like GPUs; each is fitting or refused for one reason.
/// 2. Of the groups in which the whole gang fits, the one is taken that has the fewest fitting nodes left over, so that
///    large groups stay whole for large gangs; then the one with fewer GPUs a node; then by name.
/// 3. In it, the nodes with the fewest free GPUs are taken, so that whole nodes stay free; ranks follow node names.
pub(crate) fn place(request: &GangRequest, inventory: &Inventory) -> Result<Placement, Unplaceable> {
    let groups = candidates(request, inventory);
    let best = groups
        .iter()
        .filter(|(group, candidate)| {
            !group.product.is_empty() && candidate.fitting.len() >= request.nodes && request.nodes > 0
        })
        .min_by(|left, right| by_fit(left, right));
    let Some((group, candidate)) = best else {
        let rejected = rejections(request, &groups, None);
        let message = message(request, &rejected);
        return Err(Unplaceable { rejected, message });
    };
    let mut fitting = candidate.fitting.clone();
    fitting.sort_unstable();
    let nodes: BTreeSet<String> = fitting
        .iter()
        .take(request.nodes)
        .map(|(_, name)| (*name).to_owned())
        .collect();
    Ok(Placement {
        group: group.clone(),
        nodes: nodes.into_iter().collect(),
        rejected: rejections(request, &groups, Some(group)),
    })
}

fn by_fit(left: &(&GpuGroup, &Candidate<'_>), right: &(&GpuGroup, &Candidate<'_>)) -> Ordering {
    let key = |(group, candidate): &(&GpuGroup, &Candidate<'_>)| {
        (candidate.fitting.len(), group.gpus_per_node, (*group).clone())
    };
    key(left).cmp(&key(right))
}

fn candidates<'a>(request: &GangRequest, inventory: &'a Inventory) -> BTreeMap<GpuGroup, Candidate<'a>> {
    let mut groups: BTreeMap<GpuGroup, Candidate<'a>> = BTreeMap::new();
    for (name, node) in &inventory.nodes {
        let Some(group) = group_of(node, &request.gpu_resource) else {
            continue;
        };
        let refusal = refusal(name, node, &group, request);
        let candidate = groups.entry(group).or_default();
        match refusal {
            None => {
                let free = node.resources[&request.gpu_resource].free();
                candidate.fitting.push((free, name));
            }
            Some(refusal) => candidate.refused.entry(refusal).or_default().push(name),
        }
    }
    groups
}

fn rejections(
    request: &GangRequest,
    groups: &BTreeMap<GpuGroup, Candidate<'_>>,
    chosen: Option<&GpuGroup>,
) -> Vec<RejectedGroup> {
    let left_over = chosen.map_or(0, |group| groups[group].fitting.len() - request.nodes);
    groups
        .iter()
        .filter(|(group, _)| Some(*group) != chosen)
        .map(|(group, candidate)| {
            let fitting = candidate.fitting.len();
            let refused: usize = candidate.refused.values().map(Vec::len).sum();
            let mut reason = String::new();
            if fitting >= request.nodes && chosen.is_some() {
                let _ = write!(
                    reason,
                    "fits too, with {} left over against {left_over}",
                    count(fitting - request.nodes, "node"),
                );
            } else if fitting > 0 || candidate.refused.is_empty() {
                let only = if chosen.is_some() { "only " } else { "" };
                let _ = write!(
                    reason,
                    "{only}{} with {} free",
                    count(fitting, "node"),
                    request.gpus_per_node
                );
            }
            for (refusal, nodes) in &candidate.refused {
                if !reason.is_empty() {
                    reason.push_str(", ");
                }
                let _ = write!(
                    reason,
                    "{} {refusal} ({})",
                    count(nodes.len(), "node"),
                    names(nodes)
                );
            }
            RejectedGroup {
                group: label(group, groups),
                reason,
                nodes: i32::try_from(fitting + refused).unwrap_or(i32::MAX),
            }
        })
        .collect()
}

/// Groups named in a message, at most.
const GROUPS_IN_MESSAGE: usize = 12;

fn message(request: &GangRequest, rejected: &[RejectedGroup]) -> String {
    let mut message = format!(
        "needs {} x {} like {}: ",
        request.nodes, request.gpus_per_node, request.gpu_resource
    );
    if rejected.is_empty() {
        let _ = write!(message, "no node has {}", request.gpu_resource);
    }
    for (index, group) in rejected.iter().take(GROUPS_IN_MESSAGE).enumerate() {
        let separator = if index == 0 { "" } else { "; " };
        let _ = if group.group.is_empty() {
            write!(message, "{separator}{}", group.reason)
        } else {
            write!(message, "{separator}{} has {}", group.group, group.reason)
        };
    }
    if rejected.len() > GROUPS_IN_MESSAGE {
        let _ = write!(
            message,
            "; and {} more groups",
            rejected.len() - GROUPS_IN_MESSAGE
        );
    }
    message
}

/// The product; with what tells groups of one product apart, where there are several.
fn label(group: &GpuGroup, groups: &BTreeMap<GpuGroup, Candidate<'_>>) -> String {
    let namesakes = groups
        .keys()
        .filter(|other| other.product == group.product)
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
    label + ")"
}

fn count(number: usize, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

/// The first few names.
fn names(nodes: &[&str]) -> String {
    const SHOWN: usize = 3;
    let shown = nodes.iter().take(SHOWN).copied().collect::<Vec<_>>().join(", ");
    if nodes.len() > SHOWN {
        format!("{shown}, ...")
    } else {
        shown
    }
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
