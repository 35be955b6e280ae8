//! Which nodes a gang gets: a set of like GPUs (or, where the job allows it, of several kinds) that lie near to one
//! another, or none. A pure function over the inventory, which a [`View`] sorts for one shape of gang.

mod explain;
mod view;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crds::status::{GpuGroup, RejectedGroup, TopologySpread};

use super::request::GangRequest;
use crate::facts::inventory::Inventory;
pub(crate) use explain::Reasons;
pub(crate) use view::{Claim, View};

/// Where a gang goes, and why not elsewhere.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Placement {
    /// The GPUs that it gets.
    pub gpus: Gpus,
    /// Node names by node rank.
    pub nodes: Vec<String>,
    /// Over which parts of the cluster the nodes are spread, for each key of the job.
    pub topology: Vec<TopologySpread>,
    /// The groups that were not chosen.
    pub rejected: Vec<RejectedGroup>,
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
pub enum Gpus {
    /// All of one group.
    Like(GpuGroup),
    /// Of several groups, with the number of nodes of each.
    Mixed(BTreeMap<GpuGroup, usize>),
}

/// Why a gang goes nowhere now.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Unplaceable {
    /// The groups, with the reason for each.
    pub rejected: Vec<RejectedGroup>,
    /// All of it in one sentence.
    pub message: String,
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
pub fn place(request: &GangRequest, inventory: &Inventory) -> Result<Placement, Unplaceable> {
    let mut view = View::new(Arc::clone(&request.shape), inventory);
    let choice = view.choose(request);
    let reasons = view.reasons();
    match choice {
        Some(choice) => Ok(choice.explained(request, &reasons)),
        None => Err(Unplaceable::new(request, &reasons)),
    }
}

#[cfg(test)]
pub mod properties;
#[cfg(test)]
mod tests;
