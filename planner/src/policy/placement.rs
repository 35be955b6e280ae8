//! Chooses a gang's nodes: close to one another, with GPUs of one group (or of several, if the job
//! allows it). A pure function of the inventory, which a [`View`] sorts for one shape.

mod explain;
mod view;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crds::status::{GpuGroup, RejectedGroup, TopologySpread};

use super::request::GangRequest;
use crate::facts::inventory::Inventory;
pub(crate) use explain::Reasons;
pub(crate) use view::{Claim, View};

/// The nodes of a gang, and why other groups were rejected.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Placement {
    /// Its GPUs.
    pub gpus: Gpus,
    /// Node names by node rank.
    pub nodes: Vec<Arc<str>>,
    /// The domains of its nodes, for each topology key of the job.
    pub topology: Vec<TopologySpread>,
    /// The groups that were not chosen; empty until it is [explained](Placement::explained).
    pub rejected: Vec<RejectedGroup>,
}

impl Placement {
    /// The same with the reasons against other groups.
    pub(crate) fn explained(mut self, request: &GangRequest, reasons: &Reasons) -> Self {
        let chosen: BTreeSet<&GpuGroup> = match &self.gpus {
            Gpus::Identical(group) => BTreeSet::from([group]),
            Gpus::Mixed(groups) => groups.keys().collect(),
        };
        let request = GangRequest::fixed(self.nodes.len(), &request.shape);
        self.rejected = reasons.rejections(&request, &chosen);
        self
    }
}

/// The GPUs of a gang.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Gpus {
    /// All of one group.
    Identical(GpuGroup),
    /// Of several groups, with the number of nodes of each.
    Mixed(BTreeMap<GpuGroup, usize>),
}

/// Places a single gang, or says why each group rejects it.
pub fn place(request: &GangRequest, inventory: &Inventory) -> Result<Placement, Vec<RejectedGroup>> {
    let mut view = View::new(Arc::clone(&request.shape), inventory);
    let choice = view.choose(request);
    let reasons = view.reasons();
    match choice {
        Some(choice) => Ok(choice.explained(request, &reasons)),
        None => Err(reasons.rejections(request, &BTreeSet::new())),
    }
}

#[cfg(test)]
mod properties;
#[cfg(test)]
pub(crate) mod random;
#[cfg(test)]
mod tests;
