//! Which nodes are kept for a gang that does not fit.

use std::collections::BTreeMap;
use std::sync::Arc;

use crds::spec::Homogeneity;

use super::{Group, View};
use crate::facts::inventory::NodeLabels;

/// What is between a gang and a node that is to be kept for it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Claim {
    /// It was kept for it before: what is on it now ends the soonest.
    Kept,
    /// It is kept for nobody.
    Nobody,
    /// It is kept for another: the last resort.
    Other,
}

impl View {
    /// The nodes to keep for a gang that does not fit: of the group (and the value of the required topology key) in
    /// which it will fit first, which is the one that lacks the fewest nodes. Those that fit already come first, then
    /// by `claim` those that are nearest to being free. None where it will never fit, whatever gangs end.
    pub(crate) fn nodes_to_keep(&self, nodes: usize, claim: impl Fn(&str) -> Claim) -> Vec<Arc<str>> {
        let mut groups: Vec<&Group> = self.groups.iter().collect();
        groups.sort_unstable_by_key(|group| &group.gpus);
        let alone = groups.iter().filter(|group| group.is_alike());
        let of_one = || Pool::first(alone.map(|group| vec![*group]), nodes, self);
        let of_all = || Pool::first(std::iter::once(groups.clone()), nodes, self);
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
        let claim = &claim;
        let busy = |claimed: Claim| {
            pool.groups
                .iter()
                .flat_map(|group| &group.busy)
                .filter(|(_, labels)| inside(labels))
                .map(|((_, name), _)| name)
                .filter(move |name| claim(name) == claimed)
        };
        fitting
            .chain(busy(Claim::Kept))
            .chain(busy(Claim::Nobody))
            .chain(busy(Claim::Other))
            .take(nodes)
            .cloned()
            .collect()
    }

    /// Whether a gang will fit once those have ended that are in its way.
    pub(crate) fn may_ever_fit(&self, nodes: usize) -> bool {
        !self.nodes_to_keep(nodes, |_| Claim::Nobody).is_empty()
    }

    /// What must be the same of all nodes of a gang.
    fn domain<'a>(&self, labels: &'a NodeLabels) -> Option<&'a str> {
        let key = self.shape.rules.required_topology.as_ref()?;
        labels.values().get(key).map(String::as_str)
    }
}

/// Nodes that a gang may have together.
struct Pool<'a> {
    groups: Vec<&'a Group>,
    domain: Option<&'a str>,
}

impl<'a> Pool<'a> {
    /// The one that lacks the fewest nodes, then the smallest.
    fn first(choices: impl Iterator<Item = Vec<&'a Group>>, nodes: usize, view: &View) -> Option<Self> {
        let mut best: Option<((usize, usize), Self)> = None;
        for groups in choices {
            for (domain, (fitting, busy)) in count_by_domain(&groups, view) {
                let cost = (nodes.saturating_sub(fitting), fitting + busy);
                if cost.1 >= nodes && best.as_ref().is_none_or(|(least, _)| cost < *least) {
                    let groups = groups.clone();
                    best = Some((cost, Self { groups, domain }));
                }
            }
        }
        best.map(|(_, pool)| pool)
    }
}

/// Nodes that fit and nodes that are busy, by the value of the required topology key.
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
