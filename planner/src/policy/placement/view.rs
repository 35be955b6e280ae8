//! A cluster for gangs of one shape: the fitting nodes of each group, and why the others do not
//! fit. Built once per shape, then updated node by node.

mod reserve;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crds::spec::Homogeneity;
use crds::status::{GpuGroup, Refusal};

pub(crate) use reserve::Claim;

use super::explain::{GroupReasons, Reasons, rejected_nodes};
use super::{Gpus, Placement};
use crate::facts::inventory::{Inventory, NodeFacts, NodeLabels};
use crate::policy::node_fit::{Verdict, group_of, is_of, verdict};
use crate::policy::request::{GangRequest, Shape};
use crate::policy::topology::{Fit, Key, choose, largest_domain, spread};

/// The nodes of a cluster, for gangs of one shape.
#[derive(Debug)]
pub(crate) struct View {
    shape: Arc<Shape>,
    /// Groups without nodes are removed.
    groups: BTreeMap<Arc<GpuGroup>, Group>,
    /// The nodes with some of the resource.
    nodes: HashMap<Arc<str>, Seen>,
    /// The smallest gang size known not to fit.
    too_many: Option<usize>,
    reasons: Option<Arc<Reasons>>,
}

#[derive(Clone, Debug)]
struct Seen {
    group: Arc<GpuGroup>,
    verdict: Verdict,
    labels: Arc<NodeLabels>,
}

/// Nodes by a rank and name, lowest first.
type Ranked = BTreeMap<(i64, Arc<str>), Arc<NodeLabels>>;

/// The nodes with GPUs of one group.
#[derive(Debug, Default, PartialEq)]
struct Group {
    /// In order of choice: fewest free GPUs first, so that whole nodes stay free.
    fitting: Ranked,
    /// Used by or reserved for gangs, in order of reservation: closest to becoming free first.
    busy: Ranked,
    /// All nodes that do not fit now.
    refused: BTreeMap<Refusal, BTreeSet<Arc<str>>>,
}

impl Group {
    /// A group of many nodes. Faster than inserting each.
    fn of(members: &[(Arc<str>, Seen)]) -> Self {
        let (mut fitting, mut busy) = (Vec::new(), Vec::new());
        let mut refused: BTreeMap<Refusal, Vec<Arc<str>>> = BTreeMap::new();
        for (name, seen) in members {
            let labels = || Arc::clone(&seen.labels);
            match seen.verdict {
                Verdict::Fits { free } => fitting.push(((free, Arc::clone(name)), labels())),
                Verdict::Busy { free, .. } => busy.push(((-free, Arc::clone(name)), labels())),
                Verdict::Refused(_) => {}
            }
            if let Some(refusal) = seen.verdict.refusal() {
                refused.entry(refusal).or_default().push(Arc::clone(name));
            }
        }
        let sorted = |(refusal, names): (_, Vec<_>)| (refusal, names.into_iter().collect());
        Self {
            fitting: fitting.into_iter().collect(),
            busy: busy.into_iter().collect(),
            refused: refused.into_iter().map(sorted).collect(),
        }
    }

    /// The list of a node with this verdict, and its rank there.
    fn ranked(&mut self, verdict: Verdict) -> Option<(&mut Ranked, i64)> {
        match verdict {
            Verdict::Fits { free } => Some((&mut self.fitting, free)),
            Verdict::Busy { free, .. } => Some((&mut self.busy, -free)),
            Verdict::Refused(_) => None,
        }
    }

    fn insert(&mut self, name: &Arc<str>, seen: &Seen) {
        if let Some((nodes, rank)) = self.ranked(seen.verdict) {
            nodes.insert((rank, Arc::clone(name)), Arc::clone(&seen.labels));
        }
        if let Some(refusal) = seen.verdict.refusal() {
            self.refused.entry(refusal).or_default().insert(Arc::clone(name));
        }
    }

    fn remove(&mut self, name: &Arc<str>, seen: &Seen) {
        if let Some((nodes, rank)) = self.ranked(seen.verdict) {
            nodes.remove(&(rank, Arc::clone(name)));
        }
        if let Some(refusal) = seen.verdict.refusal()
            && let Some(names) = self.refused.get_mut(&refusal)
        {
            names.remove(name);
            if names.is_empty() {
                self.refused.remove(&refusal);
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.fitting.is_empty() && self.refused.is_empty()
    }

    fn fits<'a>(&'a self, group: &'a GpuGroup) -> impl Iterator<Item = Fit<'a>> {
        self.fitting.iter().map(move |((free, name), labels)| Fit {
            free: *free,
            name,
            group,
            labels: &labels.values,
        })
    }
}

impl View {
    pub(crate) fn new(shape: Arc<Shape>, inventory: &Inventory) -> Self {
        let mut members: BTreeMap<Arc<GpuGroup>, Vec<(Arc<str>, Seen)>> = BTreeMap::new();
        let mut last: Option<Arc<GpuGroup>> = None;
        for (name, facts) in &inventory.nodes {
            if let Some(seen) = look(name, facts, &shape, last.as_ref()) {
                last = Some(Arc::clone(&seen.group));
                let group = members.entry(Arc::clone(&seen.group)).or_default();
                group.push((Arc::clone(name), seen));
            }
        }
        Self {
            shape,
            groups: members
                .iter()
                .map(|(group, members)| (Arc::clone(group), Group::of(members)))
                .collect(),
            nodes: members.into_values().flatten().collect(),
            too_many: None,
            reasons: None,
        }
    }

    /// Whether it is of this shape, ignoring avoided nodes.
    pub(crate) fn is_of(&self, shape: &Arc<Shape>) -> bool {
        Arc::ptr_eq(&self.shape, shape) || self.shape.is_same_but_avoided(shape)
    }

    /// Changes to a shape that differs only in the avoided nodes.
    pub(crate) fn switch_to(&mut self, shape: &Arc<Shape>, inventory: &Inventory) {
        let last = std::mem::replace(&mut self.shape, Arc::clone(shape));
        if last.avoided == shape.avoided {
            return;
        }
        for node in last.avoided.keys().chain(shape.avoided.keys()) {
            if let Some((name, facts)) = inventory.nodes.get_key_value(node.as_str()) {
                self.update(name, Some(facts));
            }
        }
    }

    /// Updates a node, or removes it. Returns whether that may matter to a gang of this shape, which
    /// may avoid other nodes.
    pub(crate) fn update(&mut self, name: &Arc<str>, facts: Option<&NodeFacts>) -> bool {
        let old = self.nodes.get(name);
        let new = facts.and_then(|facts| look(name, facts, &self.shape, old.map(|seen| &seen.group)));
        match (old, &new) {
            (Some(old), Some(new))
                if old.group == new.group
                    && old.verdict == new.verdict
                    && Arc::ptr_eq(&old.labels, &new.labels) =>
            {
                return self.shape.avoided.contains_key(&**name);
            }
            (None, None) => return false,
            _ => {}
        }
        self.reasons = None;
        if let Some(old) = self.nodes.remove(name)
            && let Some(group) = self.groups.get_mut(&old.group)
        {
            group.remove(name, &old);
            if group.is_empty() {
                self.groups.remove(&old.group);
            }
        }
        if let Some(new) = new {
            if matches!(new.verdict, Verdict::Fits { .. }) {
                self.too_many = None;
            }
            let group = self.groups.entry(Arc::clone(&new.group)).or_default();
            group.insert(name, &new);
            self.nodes.insert(Arc::clone(name), new);
        }
        true
    }

    /// The first node that only its reservation keeps from fitting.
    pub(crate) fn first_reserved(&self) -> Option<&Arc<str>> {
        let groups = self.groups.values();
        groups
            .filter_map(|group| group.refused.get(&Refusal::Reserved)?.first())
            .min()
    }

    /// Chooses nodes for a gang of one size.
    ///
    /// 1. Of the groups that fit the whole gang (within one value of the required topology key, if
    ///    there is one), take the one whose fitting nodes have the fewest GPUs. So large groups stay
    ///    whole for large gangs, and nodes with many GPUs for gangs that need them. Then take the one
    ///    with fewer GPUs per node, then by name.
    /// 2. In it, take nodes spread over the fewest values of the preferred topology keys; among equals
    ///    those with the fewest free GPUs, so that whole nodes stay free. Ranks follow the topology,
    ///    then node names.
    /// 3. If no group fits and the job allows a mix, do the same with all groups together. The group is
    ///    then the widest topology key, for as few kinds of GPUs as possible.
    fn choose_of_size(&mut self, nodes: usize, homogeneity: Homogeneity) -> Option<Placement> {
        if nodes == 0 || self.too_many.is_some_and(|too_many| nodes >= too_many) {
            return None;
        }
        let chosen = match homogeneity {
            Homogeneity::Required => self.in_one_group(nodes),
            Homogeneity::Preferred => self
                .in_one_group(nodes)
                .or_else(|| self.in_all_groups(nodes, true)),
            Homogeneity::Off => self.in_all_groups(nodes, false),
        };
        let Some(fits) = chosen else {
            if homogeneity == self.shape.rules.homogeneity {
                self.too_many = Some(nodes);
            }
            return None;
        };
        let mut counts: BTreeMap<&GpuGroup, usize> = BTreeMap::new();
        for fit in &fits {
            *counts.entry(fit.group).or_default() += 1;
        }
        let rules = &self.shape.rules;
        let keys = rules.required_topology.iter().chain(&rules.preferred_topology);
        Some(Placement {
            rejected: Vec::new(),
            topology: spread(&fits, keys.map(String::as_str)),
            nodes: fits.iter().map(|fit| Arc::clone(fit.name)).collect(),
            gpus: match counts.first_key_value() {
                Some((group, _)) if counts.len() == 1 && !group.product.is_empty() => {
                    Gpus::Identical((*group).clone())
                }
                _ => Gpus::Mixed(
                    counts
                        .into_iter()
                        .map(|(group, count)| (group.clone(), count))
                        .collect(),
                ),
            },
        })
    }

    /// The nodes of a gang in the best group that fits all of it.
    fn in_one_group(&self, nodes: usize) -> Option<Vec<Fit<'_>>> {
        let rules = &self.shape.rules;
        let required = rules.required_topology.as_deref();
        let labels = rules.preferred_topology.iter();
        let keys: Vec<Key<'_>> = labels.map(|label| Key::Label(label)).collect();
        let mut groups: Vec<(&Arc<GpuGroup>, &Group)> = self
            .groups
            .iter()
            .filter(|(gpus, group)| !gpus.product.is_empty() && group.fitting.len() >= nodes)
            .collect();
        groups.sort_unstable_by_key(|(gpus, group)| {
            let total = i64::try_from(group.fitting.len()).unwrap_or(i64::MAX) * gpus.gpus_per_node;
            (total, gpus.gpus_per_node, *gpus)
        });
        groups.into_iter().find_map(|(gpus, group)| {
            let fits = group.fits(gpus);
            let fits: Vec<Fit<'_>> = if required.is_none() && keys.is_empty() {
                // Nothing else distinguishes them.
                fits.take(nodes).collect()
            } else {
                fits.collect()
            };
            choose(&fits, nodes, self.shape.together, required, &keys)
        })
    }

    /// The nodes of a gang, of any groups; of few groups with `few_kinds`.
    fn in_all_groups(&self, nodes: usize, few_kinds: bool) -> Option<Vec<Fit<'_>>> {
        let rules = &self.shape.rules;
        let groups = self.groups.iter();
        let all: Vec<Fit<'_>> = groups.flat_map(|(gpus, group)| group.fits(gpus)).collect();
        let labels = rules.preferred_topology.iter();
        let keys: Vec<Key<'_>> = few_kinds
            .then_some(Key::Group)
            .into_iter()
            .chain(labels.map(|label| Key::Label(label)))
            .collect();
        let required = rules.required_topology.as_deref();
        choose(&all, nodes, self.shape.together, required, &keys)
    }

    /// The nodes of the largest gang that fits, of the requested sizes. If identical GPUs are
    /// preferred, any gang of them comes before a mix.
    pub(crate) fn choose(&mut self, request: &GangRequest) -> Option<Placement> {
        let homogeneity = self.shape.rules.homogeneity;
        let identical = (homogeneity == Homogeneity::Preferred)
            .then(|| self.choose_largest(request, Homogeneity::Required))
            .flatten();
        identical.or_else(|| self.choose_largest(request, homogeneity))
    }

    fn choose_largest(&mut self, request: &GangRequest, homogeneity: Homogeneity) -> Option<Placement> {
        // If a gang fits, every smaller one does.
        let mut largest = self.choose_of_size(request.nodes, homogeneity)?;
        let (mut start, mut end) = (0, request.larger.len());
        while start < end {
            let middle = usize::midpoint(start, end);
            match self.choose_of_size(request.larger[middle], homogeneity) {
                Some(choice) => (largest, end) = (choice, middle),
                None => start = middle + 1,
            }
        }
        Some(largest)
    }

    /// Why nodes do not fit now, with counts.
    pub(crate) fn reasons(&mut self) -> Arc<Reasons> {
        if let Some(reasons) = &self.reasons {
            return Arc::clone(reasons);
        }
        let required = self.shape.rules.required_topology.as_deref();
        let groups = self
            .groups
            .iter()
            .map(|(gpus, group)| GroupReasons {
                group: (**gpus).clone(),
                fitting: group.fitting.len(),
                largest_domain: required
                    .map(|key| largest_domain(&group.fits(gpus).collect::<Vec<_>>(), key)),
                refused: group
                    .refused
                    .iter()
                    .map(|(refusal, names)| rejected_nodes(*refusal, names))
                    .collect(),
            })
            .collect();
        let reasons = Arc::new(Reasons(groups));
        self.reasons = Some(Arc::clone(&reasons));
        reasons
    }
}

#[cfg(test)]
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

/// The node in a view; `None` if it has none of the resource. `last` is its probable group.
fn look(name: &str, facts: &NodeFacts, shape: &Shape, last: Option<&Arc<GpuGroup>>) -> Option<Seen> {
    let group = match last.filter(|group| is_of(group, facts, shape)) {
        Some(group) => Arc::clone(group),
        None => Arc::new(group_of(facts, shape)?),
    };
    Some(Seen {
        group,
        verdict: verdict(name, facts, shape),
        labels: Arc::clone(&facts.labels),
    })
}
