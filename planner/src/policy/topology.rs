//! Chooses fitting nodes close to one another, by labels that name parts of the cluster.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crds::status::{GpuGroup, TopologySpread};

/// A node that fits a pod of the gang.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fit<'a> {
    /// Free GPUs.
    pub(crate) free: i64,
    pub(crate) name: &'a Arc<str>,
    pub(crate) group: &'a GpuGroup,
    pub(crate) labels: &'a BTreeMap<String, String>,
}

/// A criterion that divides nodes into domains.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Key<'a> {
    /// The kind of GPUs.
    Group,
    /// The value of a node label.
    Label(&'a str),
}

/// One value of a key. Nodes without the label come last, because their location is unknown.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Domain<'a> {
    Group(&'a GpuGroup),
    Value(&'a str),
    Unknown,
}

fn domain_of<'a>(fit: &Fit<'a>, key: Key<'_>) -> Domain<'a> {
    match key {
        Key::Group => Domain::Group(fit.group),
        Key::Label(label) => fit
            .labels
            .get(label)
            .map_or(Domain::Unknown, |value| Domain::Value(value)),
    }
}

fn divide<'a>(fits: &[Fit<'a>], key: Key<'_>) -> BTreeMap<Domain<'a>, Vec<Fit<'a>>> {
    let mut domains: BTreeMap<Domain<'a>, Vec<Fit<'a>>> = BTreeMap::new();
    for fit in fits {
        domains.entry(domain_of(fit, key)).or_default().push(*fit);
    }
    domains
}

/// The number of nodes in the largest domain of a label.
pub(crate) fn largest_domain(fits: &[Fit<'_>], label: &str) -> usize {
    divide(fits, Key::Label(label))
        .iter()
        .filter(|(domain, _)| **domain != Domain::Unknown)
        .map(|(_, fits)| fits.len())
        .max()
        .unwrap_or(0)
}

/// Chooses `count` nodes, in order of ranks, with one value of the label `required`, if given, and
/// spread over as few domains of `keys` as possible. `keys` go from the widest to the closest. From
/// a domain with too few nodes it takes a multiple of `together` if possible, so that nodes that
/// compute a model together are in one domain. `None` if there are too few nodes.
pub(crate) fn choose<'a>(
    fits: &[Fit<'a>],
    count: usize,
    together: usize,
    required: Option<&str>,
    keys: &[Key<'_>],
) -> Option<Vec<Fit<'a>>> {
    let size = (count, together.max(1));
    let mut chosen = match required {
        None if fits.len() < count => return None,
        None => pack(fits.to_vec(), size, keys),
        Some(label) => {
            let mut domains = divide(fits, Key::Label(label));
            domains.remove(&Domain::Unknown);
            tightest(&domains, size, keys)?
        }
    };
    chosen.sort_by_cached_key(|fit| {
        let path: Vec<Domain<'a>> = keys.iter().map(|key| domain_of(fit, *key)).collect();
        (path, fit.name)
    });
    Some(chosen)
}

/// Chooses `count` of at least as many nodes, in groups of `together`.
fn pack<'a>(mut fits: Vec<Fit<'a>>, (count, together): (usize, usize), keys: &[Key<'_>]) -> Vec<Fit<'a>> {
    let Some((widest, closer)) = keys.split_first() else {
        fits.sort_unstable_by_key(|fit| (fit.free, fit.name));
        fits.truncate(count);
        return fits;
    };
    let mut domains = divide(&fits, *widest);
    let mut taken = Vec::with_capacity(count);
    loop {
        let missing = count - taken.len();
        if let Some(last) = tightest(&domains, (missing, together), closer) {
            taken.extend(last);
            return taken;
        }
        // No domain has all missing nodes: take all of the largest, for few domains in total.
        let whole = |nodes: usize| nodes - nodes % together;
        let largest = domains
            .iter()
            .min_by_key(|(domain, fits)| {
                let nodes = fits.len();
                (
                    **domain == Domain::Unknown,
                    Reverse(whole(nodes)),
                    Reverse(nodes),
                    **domain,
                )
            })
            .map(|(domain, _)| *domain);
        let Some((domain, fits)) = largest.and_then(|domain| domains.remove_entry(&domain)) else {
            return taken;
        };
        match whole(fits.len()) {
            some if 0 < some && some < fits.len() => {
                let part = pack(fits.clone(), (some, together), closer);
                let is_left = |fit: &Fit<'a>| part.iter().all(|other| other.name != fit.name);
                domains.insert(domain, fits.into_iter().filter(is_left).collect());
                taken.extend(part);
            }
            _ => taken.extend(fits),
        }
    }
}

/// Chooses `count` nodes of one domain: the one that spreads them over the fewest closer domains,
/// then the one with the fewest leftover nodes.
fn tightest<'a>(
    domains: &BTreeMap<Domain<'a>, Vec<Fit<'a>>>,
    (count, together): (usize, usize),
    closer: &[Key<'_>],
) -> Option<Vec<Fit<'a>>> {
    domains
        .iter()
        .filter(|(_, fits)| fits.len() >= count)
        .map(|(domain, fits)| {
            let packed = pack(fits.clone(), (count, together), closer);
            let cost: Vec<usize> = closer.iter().map(|key| domains_of(&packed, *key)).collect();
            ((*domain == Domain::Unknown, cost, fits.len(), *domain), packed)
        })
        .min_by(|(left, _), (right, _)| left.cmp(right))
        .map(|(_, packed)| packed)
}

/// The number of domains of nodes. Each node of an unknown domain counts as one.
fn domains_of(fits: &[Fit<'_>], key: Key<'_>) -> usize {
    let domains: BTreeSet<Domain<'_>> = fits.iter().map(|fit| domain_of(fit, key)).collect();
    let unknown = fits
        .iter()
        .filter(|fit| domain_of(fit, key) == Domain::Unknown)
        .count();
    domains.len() + unknown.saturating_sub(1)
}

/// Most domains of a label in a status: with a label such as the hostname there is one per node.
const DOMAINS_IN_STATUS: usize = 32;

/// The first values of each label on these nodes, in order of ranks.
pub(crate) fn spread<'a>(fits: &[Fit<'_>], labels: impl Iterator<Item = &'a str>) -> Vec<TopologySpread> {
    labels
        .map(|label| {
            let mut domains: Vec<String> = Vec::new();
            for value in fits.iter().filter_map(|fit| fit.labels.get(label)) {
                if !domains.contains(value) {
                    domains.push(value.clone());
                }
                if domains.len() == DOMAINS_IN_STATUS {
                    break;
                }
            }
            TopologySpread {
                key: label.into(),
                domains,
            }
        })
        .collect()
}

#[cfg(test)]
mod tests;
