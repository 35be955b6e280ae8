//! Chooses the nodes to reserve for a gang that does not fit.

use std::collections::BTreeMap;
use std::sync::Arc;

use crds::spec::Homogeneity;

use super::{Group, View};
use crate::facts::inventory::NodeLabels;

/// The holder of a node's reservation, in the order in which busy nodes are reserved.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum Claim {
    /// The gang itself, in the last pass: the gangs on the node end soonest.
    Own,
    /// Nobody.
    Free,
    /// Another job: the last resort.
    Other,
}

impl View {
    /// The nodes to reserve for a gang that does not fit, in the group (and the value of the
    /// required topology key) that lacks the fewest: fitting nodes, then by `claim` those closest
    /// to becoming free. Empty if it would not fit even after all gangs have ended.
    pub(crate) fn nodes_to_reserve(&self, nodes: usize, claim: impl Fn(&str) -> Claim) -> Vec<Arc<str>> {
        let alone = self.groups.iter().filter(|(gpus, _)| !gpus.product.is_empty());
        let of_one = || Pool::best(alone.map(|(_, group)| vec![group]), nodes, self);
        let of_all = || Pool::best(std::iter::once(self.groups.values().collect()), nodes, self);
        let pool = match self.shape.rules.homogeneity {
            Homogeneity::Required => of_one(),
            Homogeneity::Preferred => of_one().or_else(of_all),
            Homogeneity::Off => of_all(),
        };
        let Some(pool) = pool else {
            return Vec::new();
        };
        let inside = |labels: &NodeLabels| pool.domain == self.domain(labels);
        let fitting = pool
            .groups
            .iter()
            .flat_map(|group| &group.fitting)
            .filter(|(_, labels)| inside(labels))
            .map(|((_, name), _)| name);
        let busy = pool.groups.iter().flat_map(|group| &group.busy);
        let busy = busy.filter(|(_, labels)| inside(labels));
        let mut busy: Vec<&Arc<str>> = busy.map(|((_, name), _)| name).collect();
        busy.sort_by_cached_key(|name| claim(name));
        fitting.chain(busy).take(nodes).cloned().collect()
    }

    /// Whether a gang fits once other gangs have ended.
    pub(crate) fn may_ever_fit(&self, nodes: usize) -> bool {
        !self.nodes_to_reserve(nodes, |_| Claim::Free).is_empty()
    }

    /// The value of the required topology key.
    fn domain<'a>(&self, labels: &'a NodeLabels) -> Option<&'a str> {
        let key = self.shape.rules.required_topology.as_ref()?;
        labels.values.get(key).map(String::as_str)
    }
}

/// Nodes that one gang may combine.
struct Pool<'a> {
    groups: Vec<&'a Group>,
    domain: Option<&'a str>,
}

impl<'a> Pool<'a> {
    /// The pool that lacks the fewest nodes, and of those the smallest.
    fn best(choices: impl Iterator<Item = Vec<&'a Group>>, nodes: usize, view: &View) -> Option<Self> {
        let pools = choices.flat_map(|groups| {
            let domains = count_by_domain(&groups, view).into_iter();
            domains.map(move |(domain, counts)| {
                let groups = groups.clone();
                (counts, Self { groups, domain })
            })
        });
        pools
            .filter(|((fitting, busy), _)| fitting + busy >= nodes)
            .min_by_key(|((fitting, busy), _)| (nodes.saturating_sub(*fitting), fitting + busy))
            .map(|(_, pool)| pool)
    }
}

/// Counts of fitting and busy nodes, by value of the required topology key.
fn count_by_domain<'a>(groups: &[&'a Group], view: &View) -> BTreeMap<Option<&'a str>, (usize, usize)> {
    let mut counts: BTreeMap<Option<&'a str>, (usize, usize)> = BTreeMap::new();
    for group in groups {
        if view.shape.rules.required_topology.is_none() {
            let count = counts.entry(None).or_default();
            count.0 += group.fitting.len();
            count.1 += group.busy.len();
            continue;
        }
        for labels in group.fitting.values() {
            counts.entry(view.domain(labels)).or_default().0 += 1;
        }
        for labels in group.busy.values() {
            counts.entry(view.domain(labels)).or_default().1 += 1;
        }
    }
    counts
}
