//! Passes over random clusters and queues.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::facts::fleet::Fleet;
use crate::facts::inventory::{Inventory, NodeFacts, NodeHealth};
use crate::fixtures::at;
use crate::policy::placement::properties::{GPU, cluster, elastic_gang, gang, node};
use crate::policy::placement::{Placement, Unplaceable, View, place};
use crate::policy::request::{Avoidance, GangRequest};

const NOW: i64 = 2_000;

fn state_of(inventory: &Inventory) -> ClusterState {
    ClusterState::of(Fleet::of(inventory.clone()))
}

/// Jobs in their order: with a priority, and more patience or less.
fn queue() -> impl Strategy<Value = Vec<Waiter>> {
    let job = (
        elastic_gang(),
        -1_i32..2,
        prop::option::of(0_i64..2 * NOW),
        prop::collection::vec(0_usize..24, 0..3),
    );
    prop::collection::vec(job, 1..12).prop_map(|jobs| {
        let mut queue: Vec<Waiter> = jobs
            .into_iter()
            .enumerate()
            .map(|(index, (request, priority, since, had))| Waiter {
                order: Order {
                    priority: Reverse(priority),
                    created: Some(at(0)),
                    job: format!("research/{index:02}").into(),
                },
                request,
                preferred_shapes: vec![],
                since: since.map(|second| at(second - NOW)),
                previous_nodes: had.into_iter().map(|node| format!("node-{node:02}")).collect(),
            })
            .collect();
        queue.sort_by(|left, right| left.order.cmp(&right.order));
        queue
    })
}

/// What one pass decides, in the order of the queue.
fn decide(cluster: &mut ClusterState, queue: &[Waiter]) -> (Pass, Vec<Result<Placement, Unplaceable>>) {
    let mut pass = Pass::default();
    for job in queue {
        pass.plan(job, cluster, at(0));
    }
    let decided = queue
        .iter()
        .map(|job| match pass.outcome(&job.order).expect("planned") {
            Outcome::Fits { choice, reasons } => Ok(choice.explained(&job.request, reasons)),
            Outcome::Waits(wait) => Err(Unplaceable::new(&job.request, &wait.reasons)),
        })
        .collect();
    (pass, decided)
}

/// What a job keeps from those after it: what it gets, and what it had where that is fewer nodes.
fn held(job: &Waiter, placement: Option<&Placement>) -> Vec<String> {
    let nodes = placement.map_or(&[][..], |placement| &placement.nodes);
    let keeps = |node: &&String| nodes.len() < job.previous_nodes.len() && !nodes.contains(node);
    let had = job.previous_nodes.iter().filter(keeps);
    nodes.iter().chain(had).cloned().collect()
}

/// Whether a gang that prefers like GPUs got as many of them with nodes that it would avoid as a mix without those.
fn is_like_at_last(request: &GangRequest, decided: &Placement, without: &Placement) -> bool {
    request.shape.rules.homogeneity == Homogeneity::Preferred
        && matches!(without.gpus, Gpus::Mixed(_))
        && matches!(decided.gpus, Gpus::Like(_))
        && decided.nodes.len() >= without.nodes.len()
}

fn is_impatient(job: &Waiter) -> bool {
    job.since.is_some_and(|since| since + PATIENCE <= at(0))
}

/// The same by planning jobs one after another, each with nothing but the inventory that those before it left.
fn one_after_another(inventory: &Inventory, queue: &[Waiter]) -> Vec<Result<Placement, Unplaceable>> {
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

/// A change of one node, or a new one.
fn change() -> impl Strategy<Value = (usize, NodeFacts)> {
    (0_usize..25, node())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    #[test]
    fn an_avoided_node_is_used_only_where_the_gang_does_not_fit_without_it(
        inventory in cluster(),
        request in elastic_gang(),
        avoids in prop::collection::vec(any::<bool>(), 24),
    ) {
        let avoided: BTreeMap<String, Avoidance> = inventory
            .nodes
            .keys()
            .zip(avoids)
            .filter(|(_, avoids)| *avoids)
            .map(|(name, _)| (name.to_string(), Avoidance::FailedBefore))
            .collect();
        let strict = Arc::new(Shape { avoided: avoided.clone(), ..(*request.shape).clone() });
        let job = Waiter {
            order: Order { priority: Reverse(0), created: None, job: "research/only".into() },
            request: request.clone(),
            preferred_shapes: vec![Arc::clone(&strict)],
            since: None,
            previous_nodes: vec![],
        };
        let decided = decide(&mut state_of(&inventory), &[job]).1.swap_remove(0);
        prop_assert_eq!(decided.is_ok(), place(&request, &inventory).is_ok(), "no job waits for it");
        let without = place(&GangRequest { shape: strict, ..request.clone() }, &inventory);
        if let (Ok(placement), Ok(without)) = (decided, without) {
            let like_at_last = is_like_at_last(&request, &placement, &without);
            prop_assert!(like_at_last || placement.nodes.iter().all(|node| !avoided.contains_key(node)));
        }
    }

    #[test]
    fn a_pass_decides_as_one_job_after_another(
        inventory in cluster(),
        queue in queue(),
        changes in prop::collection::vec(change(), 0..4),
    ) {
        let mut cluster = state_of(&inventory);
        let (pass, decided) = decide(&mut cluster, &queue);
        prop_assert_eq!(decided, one_after_another(&inventory, &queue));
        // And it leaves nothing behind: the next one decides as if it were the first.
        pass.restart(&mut cluster);
        prop_assert_eq!(cluster.fleet().inventory(), &inventory);
        let mut changed = inventory;
        for (index, facts) in changes {
            let name: Arc<str> = format!("node-{index:02}").into();
            cluster.fleet_mut().replace(&name, facts.clone());
            changed.nodes.insert(name, facts);
        }
        cluster.catch_up();
        prop_assert_eq!(decide(&mut cluster, &queue).1, one_after_another(&changed, &queue));
    }

    #[test]
    fn a_job_waits_only_if_those_before_it_left_too_little(inventory in cluster(), queue in queue()) {
        let (_, decided) = decide(&mut state_of(&inventory), &queue);
        let patient = queue.iter().all(|job| !is_impatient(job));
        let mut left = inventory;
        for (job, outcome) in queue.iter().zip(&decided) {
            // Whatever jobs after it got, of lower priority or younger.
            prop_assert!(outcome.is_ok() || !patient || place(&job.request, &left).is_err());
            for node in held(job, outcome.as_ref().ok()) {
                left.hold(&node, &job.request.shape.requests);
            }
        }
    }

    #[test]
    fn more_capacity_never_keeps_a_job_out(inventory in cluster(), request in gang(), mut spare in node()) {
        for gpus in spare.resources.values_mut() {
            (gpus.used, gpus.used_by_gangs) = (0, 0);
        }
        let job = |since| Waiter {
            order: Order { priority: Reverse(0), created: None, job: "research/only".into() },
            request: request.clone(),
            preferred_shapes: vec![],
            since,
            previous_nodes: vec![],
        };
        for since in [None, Some(at(-NOW))] {
            let queue = [job(since)];
            if decide(&mut state_of(&inventory), &queue).1[0].is_ok() {
                let mut more = inventory.clone();
                more.nodes.insert("node-99".into(), spare.clone());
                prop_assert!(decide(&mut state_of(&more), &queue).1[0].is_ok());
            }
        }
    }
}

/// Turns before the large job comes, so that it finds the cluster in use.
const BUSY: usize = 3;
/// Turns in which it lets others go ahead.
const PATIENT: usize = 10;

/// When a turn is.
fn time_of(turn: usize) -> Timestamp {
    at(0) + PATIENCE / PATIENT as i32 * turn as i32
}

/// A job that runs for so many turns.
#[derive(Clone, Debug)]
struct Short {
    gpus: i64,
    nodes: usize,
    turns: usize,
}

fn short() -> impl Strategy<Value = Short> {
    (1_i64..=4, 1_usize..3, 1_usize..5).prop_map(|(gpus, nodes, turns)| Short { gpus, nodes, turns })
}

/// A cluster of nodes with four GPUs, in which short jobs come and go while a large one waits that needs most of it.
struct Turns {
    inventory: Inventory,
    large: Waiter,
    /// Those that run, with the turn in which they end.
    running: Vec<(Waiter, Vec<Arc<str>>, usize)>,
    waiting: BTreeMap<Order, (Waiter, usize)>,
    pass: Pass,
}

impl Turns {
    fn new(nodes: usize, large: usize) -> Self {
        let objects: Vec<_> = (0..nodes)
            .map(|index| crate::fixtures::node(&format!("node-{index:02}"), "Tesla-T4", 4))
            .collect();
        Self {
            inventory: Inventory::new(&objects, [], &HashMap::new()),
            large: waiter("large", large, 4, BUSY),
            running: Vec::new(),
            waiting: BTreeMap::new(),
            pass: Pass::default(),
        }
    }

    /// One turn; returns whether the large job got its nodes, and how many are kept for it before.
    fn turn(&mut self, turn: usize, new: &[Short]) -> (bool, usize) {
        self.running.retain(|(_, _, end)| *end > turn);
        for (index, short) in new.iter().enumerate() {
            let job = waiter(&format!("{turn:03}-{index}"), short.nodes, short.gpus, turn);
            self.waiting.insert(job.order.clone(), (job, short.turns));
        }
        let mut inventory = self.inventory.clone();
        for (job, nodes, _) in &self.running {
            for node in nodes {
                inventory.hold(node, &job.request.shape.requests);
            }
        }
        let mut cluster = state_of(&inventory);
        // What the pass before held went with its cluster.
        let mut pass = std::mem::take(&mut self.pass).restart(&mut ClusterState::default());
        let large = (turn >= BUSY).then_some(&self.large);
        let short = self.waiting.values().map(|(job, _)| job);
        // The large job is the first of its second.
        let (before, after): (Vec<&Waiter>, Vec<&Waiter>) =
            short.partition(|job| job.order < self.large.order);
        for job in before.into_iter().chain(large).chain(after) {
            pass.plan(job, &mut cluster, time_of(turn));
        }
        let (got_it, keeps) = match pass.outcome(&self.large.order) {
            Some(Outcome::Fits { .. }) => (true, 0),
            Some(Outcome::Waits(wait)) => (false, wait.reserved_nodes),
            None => (false, 0),
        };
        let waiting = std::mem::take(&mut self.waiting);
        for (order, (job, turns)) in waiting {
            match pass.outcome(&order) {
                Some(Outcome::Fits { choice, .. }) => {
                    self.running.push((job, choice.nodes.clone(), turn + turns));
                }
                _ => {
                    self.waiting.insert(order, (job, turns));
                }
            }
        }
        self.pass = pass;
        (got_it, keeps)
    }
}

fn waiter(job: &str, nodes: usize, gpus: i64, turn: usize) -> Waiter {
    let shape = Shape {
        gpus_per_node: gpus,
        gpu_resource: GPU.into(),
        requests: [(GPU.to_owned(), gpus)].into(),
        ..Shape::default()
    };
    Waiter {
        order: Order {
            priority: Reverse(0),
            created: Some(time_of(turn)),
            job: job.into(),
        },
        request: GangRequest {
            nodes,
            larger: vec![],
            shape: Arc::new(shape),
        },
        preferred_shapes: vec![],
        since: Some(time_of(turn)),
        previous_nodes: vec![],
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn a_large_job_among_endless_short_ones_is_passed_by_for_a_while_and_then_has_its_turn(
        nodes in 2_usize..8,
        smaller in 0_usize..3,
        news in prop::collection::vec(prop::collection::vec(short(), 1..6), BUSY + PATIENT + 5),
    ) {
        let large = nodes.saturating_sub(smaller).max(2);
        let mut turns = Turns::new(nodes, large);
        for (turn, new) in news.iter().enumerate() {
            let (got_it, keeps) = turns.turn(turn, new);
            if got_it {
                return Ok(());
            }
            // What ran when nodes began to be kept for it has ended four turns later.
            prop_assert!(turn < BUSY + PATIENT + 4, "it waits for ever");
            prop_assert_eq!(keeps, if turn < BUSY + PATIENT { 0 } else { large }, "in turn {}", turn);
        }
    }

    #[test]
    fn a_pass_does_not_hang_on_the_order_in_which_nodes_came(
        inventory in cluster(),
        queue in queue(),
        seed in any::<u64>(),
    ) {
        let mut nodes: Vec<(&Arc<str>, &NodeFacts)> = inventory.nodes.iter().collect();
        nodes.sort_by_key(|(name, _)| {
            name.bytes().fold(seed, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
        });
        let mut shuffled = state_of(&Inventory::default());
        // The views are there before the nodes.
        for job in &queue {
            shuffled.view(&job.request.shape);
        }
        for (name, facts) in nodes {
            let mut down = facts.clone();
            down.health = NodeHealth::NotReady(None);
            shuffled.fleet_mut().replace(name, down);
            shuffled.catch_up();
            shuffled.fleet_mut().replace(name, facts.clone());
            shuffled.catch_up();
        }
        let (_, expected) = decide(&mut state_of(&inventory), &queue);
        prop_assert_eq!(decide(&mut shuffled, &queue).1, expected);
    }
}
