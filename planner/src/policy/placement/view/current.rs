//! Whether a view that followed its nodes equals one made anew.

use std::collections::BTreeMap;
use std::sync::Arc;

use crds::status::GpuGroup;

use super::{Group, View};
use crate::facts::inventory::Inventory;

impl View {
    /// Whether it shows what a view made anew shows, and what it remembers still holds.
    pub(crate) fn is_current(&mut self, inventory: &Inventory) -> bool {
        let mut anew = Self::new(Arc::clone(&self.shape), inventory);
        let homogeneity = self.shape.rules.homogeneity;
        let too_many = self.too_many;
        self.groups() == anew.groups()
            && self.nodes.len() == anew.nodes.len()
            && self.reasons() == anew.reasons()
            && too_many.is_none_or(|nodes| anew.choose_alike(nodes, homogeneity).is_none())
    }

    /// In an order that does not depend on that of the nodes.
    fn groups(&self) -> BTreeMap<&GpuGroup, &Group> {
        self.groups
            .iter()
            .filter(|group| !group.is_empty())
            .map(|group| (&group.gpus, group))
            .collect()
    }
}
