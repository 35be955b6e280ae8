//! Remembers nodes on which ranks of a job stayed slow, for its later gangs.

use std::collections::BTreeMap;

use crds::status::{SlowNodeStatus, StragglerStatus};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// How long a node is remembered. Nodes recover, and an unused one is not measured.
const REMEMBERED: SignedDuration = SignedDuration::from_hours(1);
/// Most nodes to remember, the latest ones, to keep the status small.
const MOST_NODES: usize = 16;

/// The remembered nodes after a gang with these stragglers was replaced, by name.
pub fn after(
    known: &[SlowNodeStatus],
    stragglers: &[StragglerStatus],
    now: Timestamp,
) -> Vec<SlowNodeStatus> {
    let mut found: BTreeMap<&String, f64> = BTreeMap::new();
    for straggler in stragglers {
        if let Some(node) = &straggler.node {
            let slowest = found.entry(node).or_default();
            *slowest = slowest.max(straggler.slowdown);
        }
    }
    let mut nodes = remembered(known, now);
    nodes.retain(|node| !found.contains_key(&node.node));
    nodes.extend(found.into_iter().map(|(node, slowdown)| SlowNodeStatus {
        node: node.clone(),
        slowdown,
        avoided_until: Time(now + REMEMBERED),
    }));
    nodes.sort_by_key(|node| std::cmp::Reverse(node.avoided_until.0));
    nodes.truncate(MOST_NODES);
    nodes.sort_by(|left, right| left.node.cmp(&right.node));
    nodes
}

/// The nodes that are still remembered.
pub fn remembered(known: &[SlowNodeStatus], now: Timestamp) -> Vec<SlowNodeStatus> {
    let is_fresh = |node: &&SlowNodeStatus| node.avoided_until.0 > now;
    known.iter().filter(is_fresh).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{at, straggler};

    fn summary(nodes: &[SlowNodeStatus]) -> Vec<(&str, f64, i64)> {
        let until = |node: &SlowNodeStatus| node.avoided_until.0.duration_since(at(0)).as_secs();
        let nodes = nodes.iter();
        nodes
            .map(|node| (&*node.node, node.slowdown, until(node)))
            .collect()
    }

    #[test]
    fn a_slow_node_is_remembered_for_an_hour_with_its_slowest_rank() {
        let ranks = [
            straggler(0, "a", 1.5),
            straggler(1, "a", 2.0),
            straggler(4, "c", 1.4),
        ];
        let first = after(&[], &ranks, at(0));
        assert_eq!(summary(&first), [("a", 2.0, 3600), ("c", 1.4, 3600)]);
        let second = after(&first, &[straggler(7, "a", 1.6)], at(60));
        assert_eq!(summary(&second), [("a", 1.6, 3660), ("c", 1.4, 3600)]);
        assert_eq!(summary(&remembered(&second, at(3600))), [("a", 1.6, 3660)]);
        assert_eq!(after(&second, &[], at(3660)), []);
    }

    #[test]
    fn no_more_nodes_are_remembered_than_the_status_holds_and_the_latest_stay() {
        let slow = |index| [straggler(0, &format!("node{index:02}"), 1.5)];
        let known = (0..20).fold(vec![], |known, index| after(&known, &slow(index), at(index)));
        assert_eq!((known.len(), known[0].node.as_str()), (MOST_NODES, "node04"));
    }
}
