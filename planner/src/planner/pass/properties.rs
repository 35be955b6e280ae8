//! Passes over random clusters and queues.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crds::status::RejectedGroup;
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::facts::fleet::Fleet;
use crate::facts::inventory::Inventory;
use crate::facts::resources::{CPU, Holder, Requests, hold};
use crate::fixtures::at;
use crate::policy::placement::random::{GPU, any_cluster, elastic_gang, name_of, node};
use crate::policy::placement::{Placement, View, place};
use crate::policy::request::Avoidance;

fn state_of(inventory: &Inventory) -> ClusterState {
    ClusterState::of(Fleet::of(inventory.clone()))
}

/// A job created and waiting since this time.
fn waiter(job: &str, request: GangRequest, since: Timestamp) -> Waiter {
    Waiter {
        order: Order {
            priority: Reverse(0),
            created: Some(since),
            job: job.into(),
        },
        request,
        preferred_shapes: vec![],
        since: Some(since),
        previous_nodes: vec![],
    }
}

/// Jobs in order, with a priority and more or less patience.
fn queue() -> impl Strategy<Value = Vec<Waiter>> {
    let since = prop::option::of(-2_000_i64..2_000);
    let job = (
        elastic_gang(),
        -1_i32..2,
        since,
        vec((0_usize..24).prop_map(|node| Arc::from(name_of(node))), 0..3),
    );
    vec(job, 1..12).prop_map(|jobs| {
        let jobs = jobs.into_iter().enumerate();
        let jobs = jobs.map(|(index, (request, priority, since, previous_nodes))| {
            let mut job = waiter(&format!("research/{index:02}"), request, at(0));
            job.order.priority = Reverse(priority);
            job.since = since.map(at);
            job.previous_nodes = previous_nodes;
            job
        });
        let mut queue: Vec<Waiter> = jobs.collect();
        queue.sort_by(|left, right| left.order.cmp(&right.order));
        queue
    })
}

type Decided = Result<Placement, Vec<RejectedGroup>>;

/// The decisions of one pass, in the order of the queue.
fn decide(cluster: &mut ClusterState, queue: &[Waiter]) -> (Pass, Vec<Decided>) {
    let mut pass = Pass::default();
    for job in queue {
        pass.plan(job, cluster, at(0));
    }
    let explained = |job: &Waiter| match pass.outcome(&job.order).expect("planned") {
        Ok((placement, reasons)) => Ok(placement.clone().explained(&job.request, reasons)),
        Err(wait) => Err(wait.reasons.rejections(&job.request, &BTreeSet::new())),
    };
    let decided = queue.iter().map(explained).collect();
    (pass, decided)
}

/// The nodes that later jobs do not get: the job's, and if fewer than before, its previous ones.
fn held(job: &Waiter, placement: Option<&Placement>) -> Vec<Arc<str>> {
    let nodes = placement.map_or(&[][..], |placement| &placement.nodes);
    let is_held = |node: &&Arc<str>| nodes.len() < job.previous_nodes.len() && !nodes.contains(node);
    let previous = job.previous_nodes.iter().filter(is_held);
    nodes.iter().chain(previous).cloned().collect()
}

fn is_impatient(job: &Waiter) -> bool {
    job.since.is_some_and(|since| since + PATIENCE <= at(0))
}

/// The same by planning jobs one by one, each on the inventory that the earlier ones left.
fn one_after_another(inventory: &Inventory, queue: &[Waiter]) -> Vec<Decided> {
    let mut inventory = inventory.clone();
    let mut decided = Vec::new();
    for job in queue {
        let outcome = place(&job.request, &inventory);
        for node in held(job, outcome.as_ref().ok()) {
            inventory.hold(&node, &job.request.shape.requests);
        }
        if outcome.is_err() && is_impatient(job) {
            let view = View::new(Arc::clone(&job.request.shape), &inventory);
            let claim = |node: &str| match inventory.nodes[node].reserved_for {
                Some(_) => Claim::Other,
                None => Claim::Free,
            };
            for node in view.nodes_to_reserve(job.request.nodes, claim) {
                let node = inventory.nodes.get_mut(&node).expect("a node");
                node.reserved_for.get_or_insert(Arc::clone(&job.order.job));
            }
        }
        decided.push(outcome);
    }
    decided
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    /// Invariant G12.
    #[test]
    fn an_avoided_node_is_used_only_where_the_gang_does_not_fit_without_it(
        inventory in any_cluster(),
        request in elastic_gang(),
        avoids in vec(any::<bool>(), 24),
    ) {
        let avoids = inventory.nodes.keys().zip(avoids).filter(|(_, avoids)| *avoids);
        let mut avoided: BTreeMap<String, Avoidance> =
            avoids.map(|(name, _)| (name.to_string(), Avoidance::WasSlow)).collect();
        avoided.extend(request.shape.avoided.clone());
        let strict = Arc::new(Shape { avoided: avoided.clone(), ..(*request.shape).clone() });
        let mut job = waiter("research/only", request.clone(), at(0));
        job.preferred_shapes = vec![Arc::clone(&strict)];
        let decided = decide(&mut state_of(&inventory), &[job]).1.swap_remove(0);
        prop_assert_eq!(decided.is_ok(), place(&request, &inventory).is_ok(), "no job waits for it");
        let without = place(&GangRequest { shape: strict, ..request.clone() }, &inventory);
        if let (Ok(placement), Ok(without)) = (decided, without) {
            // As many identical GPUs with such nodes are better than a mix without.
            let is_better = request.shape.rules.homogeneity == Homogeneity::Preferred
                && matches!((&without.gpus, &placement.gpus), (Gpus::Mixed(_), Gpus::Identical(_)))
                && placement.nodes.len() >= without.nodes.len();
            prop_assert!(is_better || placement.nodes.iter().all(|node| !avoided.contains_key(&**node)));
        }
    }

    /// Invariant G9.
    #[test]
    fn a_pass_decides_as_one_job_after_another(
        inventory in any_cluster(),
        queue in queue(),
        changes in vec((0_usize..25, node()), 0..12),
    ) {
        let mut cluster = state_of(&inventory);
        let (pass, decided) = decide(&mut cluster, &queue);
        prop_assert_eq!(decided, one_after_another(&inventory, &queue));
        // It leaves nothing behind: the next pass decides as if it were the first.
        pass.restart(&mut cluster);
        prop_assert_eq!(cluster.fleet.inventory(), &inventory);
        let mut changed = inventory;
        for (index, facts) in changes {
            let name: Arc<str> = name_of(index).into();
            cluster.fleet.replace(&name, facts.clone());
            changed.nodes.insert(name, facts);
        }
        cluster.catch_up();
        prop_assert!(cluster.is_current());
        prop_assert_eq!(decide(&mut cluster, &queue).1, one_after_another(&changed, &queue));
    }
}

/// Amounts of resources that a pod of others takes from a node, or returns.
fn use_change() -> impl Strategy<Value = (String, Requests, i64)> {
    let request = prop::sample::select(&[(CPU, 2_000_i64), (CPU, 6_000), (GPU, 1), ("rdma/hca", 1)][..]);
    (0_usize..24, request, prop::sample::select(&[1_i64, -1][..])).prop_map(
        |(node, (name, amount), times)| (name_of(node), Requests::from([(name.to_owned(), amount)]), times),
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn a_change_that_does_not_matter_changes_no_decision(
        inventory in any_cluster(),
        queue in queue(),
        (node, requests, times) in use_change(),
    ) {
        let mut cluster = state_of(&inventory);
        let (_, decided) = decide(&mut cluster, &queue);
        cluster.fleet.count(&node, &requests, Holder::Other, times);
        if !cluster.catch_up() {
            let mut changed = inventory;
            if let Some(facts) = changed.nodes.get_mut(&*node) {
                hold(&mut facts.resources, &requests, Holder::Other, times);
            }
            prop_assert_eq!(decided, one_after_another(&changed, &queue));
        }
    }
}

/// Turns before the large job arrives, so that the cluster is in use.
const BUSY: usize = 3;
/// Turns in which it lets others pass.
const PATIENT: usize = 10;
/// Most turns of a short job.
const SHORT: usize = 4;

fn time_of(turn: usize) -> Timestamp {
    at(0) + PATIENCE / PATIENT as i32 * turn as i32
}

/// GPUs per node, nodes and turns of a short job.
fn short() -> impl Strategy<Value = (u32, usize, usize)> {
    (1_u32..=4, 1_usize..3, 1..=SHORT)
}

fn sized(job: &str, nodes: usize, gpus: u32, turn: usize) -> Waiter {
    let shape = Arc::new(Shape::of_gpus("nvidia.com/gpu", gpus));
    waiter(job, GangRequest::fixed(nodes, &shape), time_of(turn))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 250, ..ProptestConfig::default() })]

    #[test]
    fn a_large_job_among_endless_short_ones_is_passed_by_for_a_while_and_then_has_its_turn(
        nodes in 2_usize..8,
        smaller in 0_usize..3,
        turns in vec(vec(short(), 1..6), BUSY + PATIENT + SHORT + 1),
    ) {
        let objects = (0..nodes).map(|node| crate::fixtures::node(&name_of(node), "Tesla-T4", 4));
        let idle = Inventory::of(objects);
        let size = nodes.saturating_sub(smaller).max(2);
        let mut large = sized("large", size, 4, 0);
        large.since = Some(time_of(BUSY));
        // With the turn in which they end, and their number of turns.
        let mut running: Vec<(Waiter, Vec<Arc<str>>, usize)> = vec![];
        let mut waiting: BTreeMap<Order, (Waiter, usize)> = BTreeMap::new();
        let mut last = Pass::default();
        for (turn, new) in turns.into_iter().enumerate() {
            running.retain(|(_, _, end)| *end > turn);
            for (index, (gpus, nodes, turns)) in new.into_iter().enumerate() {
                let job = sized(&format!("short-{turn:03}-{index}"), nodes, gpus, turn);
                waiting.insert(job.order.clone(), (job, turns));
            }
            let mut inventory = idle.clone();
            for (job, nodes, _) in &running {
                for node in nodes {
                    inventory.hold(node, &job.request.shape.requests);
                }
            }
            let mut queue: Vec<&Waiter> = waiting.values().map(|(job, _)| job).collect();
            queue.extend((turn >= BUSY).then_some(&large));
            queue.sort_by(|left, right| left.order.cmp(&right.order));
            let mut cluster = state_of(&inventory);
            // The last pass's holds are gone with its cluster.
            let mut pass = last.restart(&mut ClusterState::default());
            for job in queue {
                pass.plan(job, &mut cluster, time_of(turn));
            }
            let reserved = match pass.outcome(&large.order) {
                Some(Ok(_)) => return Ok(()),
                Some(Err(wait)) => wait.reserved_nodes,
                None => 0,
            };
            // Jobs running when nodes were first reserved for it have ended by then.
            prop_assert!(turn < BUSY + PATIENT + SHORT, "it waits forever");
            prop_assert_eq!(reserved, if turn < BUSY + PATIENT { 0 } else { size }, "in turn {}", turn);
            waiting.retain(|order, (job, turns)| match pass.outcome(order) {
                Some(Ok((placement, _))) => {
                    running.push((job.clone(), placement.nodes.clone(), turn + *turns));
                    false
                }
                _ => true,
            });
            last = pass;
        }
    }
}
