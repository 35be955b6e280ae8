//! A cluster as gangs of one shape see it: which nodes fit, group by group, and why the others do not. It is made once
//! for a shape and then follows its nodes one by one.

#[cfg(test)]
mod current;
mod reserve;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crds::spec::Homogeneity;
use crds::status::GpuGroup;

pub(crate) use reserve::Claim;

use super::explain::{GroupReasons, Reasons, Refused};
use super::{Choice, Gpus};
use crate::facts::inventory::{Inventory, NodeFacts, NodeLabels};
use crate::policy::node_fit::{Refusal, Verdict, group_of, is_of, verdict};
use crate::policy::request::{GangRequest, Shape};
use crate::policy::topology::{Fit, Key, choose, largest_domain, spread};

/// The nodes of a cluster as gangs of one shape see them.
#[derive(Debug)]
pub(crate) struct View {
    shape: Arc<Shape>,
    groups: Vec<Group>,
    index: HashMap<GpuGroup, usize>,
    /// The nodes that have some of the resource.
    nodes: HashMap<Arc<str>, Seen>,
    /// A gang of so many nodes does not fit, as far as is known.
    too_many: Option<usize>,
    reasons: Option<Arc<Reasons>>,
}

/// A node in a view.
#[derive(Clone, Debug)]
struct Seen {
    group: usize,
    verdict: Verdict,
    labels: Arc<NodeLabels>,
}

/// The nodes with GPUs of one kind.
#[derive(Debug, PartialEq)]
struct Group {
    gpus: GpuGroup,
    /// In the order in which they are taken: those with the fewest free GPUs first, so that whole nodes stay free.
    fitting: BTreeMap<(i64, Arc<str>), Arc<NodeLabels>>,
    /// Those in use by gangs, or kept for them, in the order in which they are kept: those first that are nearest to
    /// being free.
    busy: BTreeMap<(Reverse<i64>, Arc<str>), Arc<NodeLabels>>,
    /// All that do not fit now.
    refused: BTreeMap<Refusal, BTreeSet<Arc<str>>>,
}

impl Group {
    /// Takes in all its nodes at once, which is faster than one by one.
    fn fill(&mut self, members: &[(Arc<str>, Seen)]) {
        let mut refused: BTreeMap<Refusal, Vec<Arc<str>>> = BTreeMap::new();
        let mut fitting = Vec::with_capacity(members.len());
        let mut busy = Vec::new();
        for (name, seen) in members {
            let (name, labels) = (Arc::clone(name), || Arc::clone(&seen.labels));
            match seen.verdict {
                Verdict::Fits { free } => fitting.push(((free, name), labels())),
                Verdict::Busy { refusal, free } => {
                    busy.push(((Reverse(free), Arc::clone(&name)), labels()));
                    refused.entry(refusal).or_default().push(name);
                }
                Verdict::Refused(refusal) => refused.entry(refusal).or_default().push(name),
            }
        }
        self.fitting = fitting.into_iter().collect();
        self.busy = busy.into_iter().collect();
        self.refused = refused
            .into_iter()
            .map(|(refusal, names)| (refusal, names.into_iter().collect()))
            .collect();
    }

    fn insert(&mut self, name: &Arc<str>, seen: &Seen) {
        let (name, labels) = (Arc::clone(name), Arc::clone(&seen.labels));
        match seen.verdict {
            Verdict::Fits { free } => {
                self.fitting.insert((free, name), labels);
            }
            Verdict::Busy { refusal, free } => {
                self.busy.insert((Reverse(free), Arc::clone(&name)), labels);
                self.refused.entry(refusal).or_default().insert(name);
            }
            Verdict::Refused(refusal) => {
                self.refused.entry(refusal).or_default().insert(name);
            }
        }
    }

    fn remove(&mut self, name: &Arc<str>, verdict: Verdict) {
        let refusal = match verdict {
            Verdict::Fits { free } => {
                self.fitting.remove(&(free, Arc::clone(name)));
                return;
            }
            Verdict::Busy { refusal, free } => {
                self.busy.remove(&(Reverse(free), Arc::clone(name)));
                refusal
            }
            Verdict::Refused(refusal) => refusal,
        };
        if let Some(names) = self.refused.get_mut(&refusal) {
            names.remove(name);
            if names.is_empty() {
                self.refused.remove(&refusal);
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.fitting.is_empty() && self.refused.is_empty()
    }

    /// Whether a gang that wants like GPUs can go here.
    fn is_alike(&self) -> bool {
        !self.gpus.product.is_empty()
    }

    fn fits(&self) -> impl Iterator<Item = Fit<'_>> {
        self.fitting.iter().map(|((free, name), labels)| Fit {
            free: *free,
            name,
            group: &self.gpus,
            labels: labels.values(),
        })
    }
}

impl View {
    pub(crate) fn new(shape: Arc<Shape>, inventory: &Inventory) -> Self {
        let mut view = Self {
            shape,
            groups: Vec::new(),
            index: HashMap::new(),
            nodes: HashMap::with_capacity(inventory.nodes.len()),
            too_many: None,
            reasons: None,
        };
        let mut last = None;
        let mut members: Vec<Vec<(Arc<str>, Seen)>> = Vec::new();
        for (name, facts) in &inventory.nodes {
            let Some(seen) = view.look(name, facts, last) else {
                continue;
            };
            last = Some(seen.group);
            members.resize_with(view.groups.len(), Vec::new);
            members[seen.group].push((Arc::clone(name), seen));
        }
        for (group, members) in view.groups.iter_mut().zip(members) {
            group.fill(&members);
            view.nodes.extend(members);
        }
        view
    }

    /// Whether it is of a shape, but for the nodes that the shape avoids.
    pub(crate) fn is_of(&self, shape: &Arc<Shape>) -> bool {
        Arc::ptr_eq(&self.shape, shape) || self.shape.is_alike(shape)
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

    /// Looks at a node again, or finds that it is gone.
    pub(crate) fn update(&mut self, name: &Arc<str>, facts: Option<&NodeFacts>) {
        let old = self.nodes.get(name);
        let last = old.map(|seen| seen.group);
        let new = facts.and_then(|facts| self.look(name, facts, last));
        match (self.nodes.get(name), &new) {
            (Some(old), Some(new))
                if old.group == new.group
                    && old.verdict == new.verdict
                    && Arc::ptr_eq(&old.labels, &new.labels) =>
            {
                return;
            }
            (None, None) => return,
            _ => {}
        }
        self.reasons = None;
        if let Some(old) = self.nodes.remove(name) {
            self.groups[old.group].remove(name, old.verdict);
        }
        if let Some(new) = new {
            if matches!(new.verdict, Verdict::Fits { .. }) {
                self.too_many = None;
            }
            self.groups[new.group].insert(name, &new);
            self.nodes.insert(Arc::clone(name), new);
        }
    }

    /// The first node that would do were it not kept for another job.
    pub(crate) fn first_reserved(&self) -> Option<&Arc<str>> {
        self.groups
            .iter()
            .filter_map(|group| group.refused.get(&Refusal::Reserved)?.first())
            .min()
    }

    /// `None` for a node that has none of the resource. `last` is the group it may well be in.
    fn look(&mut self, name: &str, facts: &NodeFacts, last: Option<usize>) -> Option<Seen> {
        let group = match last.filter(|index| is_of(&self.groups[*index].gpus, facts, &self.shape)) {
            Some(index) => index,
            None => self.group_index(group_of(facts, &self.shape)?),
        };
        Some(Seen {
            group,
            verdict: verdict(name, facts, &self.shape),
            labels: Arc::clone(&facts.labels),
        })
    }

    fn group_index(&mut self, group: GpuGroup) -> usize {
        if let Some(index) = self.index.get(&group) {
            return *index;
        }
        let index = self.groups.len();
        self.groups.push(Group {
            gpus: group.clone(),
            fitting: BTreeMap::new(),
            busy: BTreeMap::new(),
            refused: BTreeMap::new(),
        });
        self.index.insert(group, index);
        index
    }

    /// Chooses nodes for a gang of that size.
    ///
    /// 1. Nodes are sorted into groups of like GPUs; each is fitting or refused for one reason.
    /// 2. Of the groups in which the whole gang fits (within one value of the required topology key, if there is one),
    ///    the one is taken whose fitting nodes have the fewest GPUs, so that large groups stay whole for large gangs,
    ///    and nodes of many GPUs for those that need them; then the one with fewer GPUs a node; then by name.
    /// 3. In it, the nodes are taken that spread over the fewest values of the preferred topology keys; among equals
    ///    those with the fewest free GPUs, so that whole nodes stay free. Ranks follow the topology, then node names.
    /// 4. Where no group fits and the job allows a mix, the same is done with all groups together, the group being the
    ///    widest topology key: as few kinds of GPUs as possible.
    fn choose_alike(&mut self, nodes: usize, homogeneity: Homogeneity) -> Option<Choice> {
        if nodes == 0 || self.too_many.is_some_and(|too_many| nodes >= too_many) {
            return None;
        }
        let chosen = match homogeneity {
            Homogeneity::Required => self.of_one_group(nodes),
            Homogeneity::Preferred => self
                .of_one_group(nodes)
                .or_else(|| self.of_all_groups(nodes, true)),
            Homogeneity::Off => self.of_all_groups(nodes, false),
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
        Some(Choice {
            topology: spread(&fits, keys.map(String::as_str)),
            nodes: fits.iter().map(|fit| Arc::clone(fit.name)).collect(),
            gpus: match counts.first_key_value() {
                Some((group, _)) if counts.len() == 1 && !group.product.is_empty() => {
                    Gpus::Like((*group).clone())
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

    /// The nodes of the gang in the best group that holds all of it.
    fn of_one_group(&self, nodes: usize) -> Option<Vec<Fit<'_>>> {
        let rules = &self.shape.rules;
        let required = rules.required_topology.as_deref();
        let keys: Vec<Key<'_>> = rules
            .preferred_topology
            .iter()
            .map(|label| Key::Label(label))
            .collect();
        let mut groups: Vec<&Group> = self
            .groups
            .iter()
            .filter(|group| group.is_alike() && group.fitting.len() >= nodes)
            .collect();
        groups.sort_unstable_by_key(|group| {
            let gpus = i64::try_from(group.fitting.len()).unwrap_or(i64::MAX) * group.gpus.gpus_per_node;
            (gpus, group.gpus.gpus_per_node, &group.gpus)
        });
        groups.into_iter().find_map(|group| {
            let fits: Vec<Fit<'_>> = if required.is_none() && keys.is_empty() {
                // Nothing else decides among them.
                group.fits().take(nodes).collect()
            } else {
                group.fits().collect()
            };
            choose(&fits, nodes, required, &keys)
        })
    }

    /// The nodes of the gang, of whatever group; of few groups where `few_kinds` asks for it.
    fn of_all_groups(&self, nodes: usize, few_kinds: bool) -> Option<Vec<Fit<'_>>> {
        let rules = &self.shape.rules;
        let mut groups: Vec<&Group> = self.groups.iter().collect();
        groups.sort_unstable_by_key(|group| &group.gpus);
        let all: Vec<Fit<'_>> = groups.into_iter().flat_map(Group::fits).collect();
        let labels = rules.preferred_topology.iter();
        let keys: Vec<Key<'_>> = few_kinds
            .then_some(Key::Group)
            .into_iter()
            .chain(labels.map(|label| Key::Label(label)))
            .collect();
        choose(&all, nodes, rules.required_topology.as_deref(), &keys)
    }

    /// The nodes of the largest gang that fits, of the sizes asked for; where like GPUs are preferred, of the largest one
    /// of like GPUs before any other. Where a gang fits, every smaller one does.
    pub(crate) fn choose(&mut self, request: &GangRequest) -> Option<Choice> {
        let homogeneity = self.shape.rules.homogeneity;
        let like = (homogeneity == Homogeneity::Preferred)
            .then(|| self.choose_largest(request, Homogeneity::Required))
            .flatten();
        like.or_else(|| self.choose_largest(request, homogeneity))
    }

    fn choose_largest(&mut self, request: &GangRequest, homogeneity: Homogeneity) -> Option<Choice> {
        let mut largest = self.choose_alike(request.nodes, homogeneity)?;
        let (mut start, mut end) = (0, request.larger.len());
        while start < end {
            let middle = usize::midpoint(start, end);
            match self.choose_alike(request.larger[middle], homogeneity) {
                Some(choice) => (largest, end) = (choice, middle),
                None => start = middle + 1,
            }
        }
        Some(largest)
    }

    /// Why nodes do not fit, with counts, as things are.
    pub(crate) fn reasons(&mut self) -> Arc<Reasons> {
        if let Some(reasons) = &self.reasons {
            return Arc::clone(reasons);
        }
        let required = self.shape.rules.required_topology.as_deref();
        let mut groups: Vec<GroupReasons> = self
            .groups
            .iter()
            .filter(|group| !group.is_empty())
            .map(|group| GroupReasons {
                group: group.gpus.clone(),
                fitting: group.fitting.len(),
                largest_domain: required.map(|key| largest_domain(&group.fits().collect::<Vec<_>>(), key)),
                refused: group
                    .refused
                    .iter()
                    .map(|(refusal, names)| Refused::new(*refusal, names))
                    .collect(),
            })
            .collect();
        groups.sort_unstable_by(|left, right| left.group.cmp(&right.group));
        let reasons = Arc::new(Reasons(groups));
        self.reasons = Some(Arc::clone(&reasons));
        reasons
    }
}
