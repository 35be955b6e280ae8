//! Checks that an updated view equals a new one.

use std::sync::Arc;

use super::View;
use crate::facts::inventory::Inventory;

impl View {
    /// Whether it equals a new view, and its cached results are still valid.
    pub(crate) fn is_current(&mut self, inventory: &Inventory) -> bool {
        let mut new = Self::new(Arc::clone(&self.shape), inventory);
        let homogeneity = self.shape.rules.homogeneity;
        let too_many = self.too_many;
        self.groups == new.groups
            && self.nodes.len() == new.nodes.len()
            && self.reasons() == new.reasons()
            && too_many.is_none_or(|nodes| new.choose_of_size(nodes, homogeneity).is_none())
    }
}
