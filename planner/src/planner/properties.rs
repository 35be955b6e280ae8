//! Events of jobs and nodes, in any order.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crds::status::PlacementStatus;
use crds::{Phase, ViTTrainingJob};
use proptest::prelude::*;

use super::*;
use crate::facts::inventory::Inventory;
use crate::fixtures::{self, at};

const GPU: &str = "nvidia.com/gpu";
const GPUS: i64 = 2;
const NODES: [&str; 4] = ["a", "b", "c", "d"];

#[derive(Clone, Debug)]
enum Step {
    /// A node appears or disappears.
    Node(usize, bool),
    /// A job with these nodes and GPUs per node, with or without a priority, or an old one again.
    Job(usize, i32, i32, bool),
    /// A round of the known version of a job, or of an earlier one.
    Ask(usize, bool),
    /// The status with the job's promise arrives in the cache.
    Record(usize),
    /// The write of that status, or of an earlier one, is refused.
    Refuse(usize, i32),
    /// Another version of a job arrives, without the promise.
    Overwrite(usize),
    /// A placed job ends in this phase. If it waits again, then for another number of nodes, and
    /// without the node on which it failed.
    End(usize, Phase, i32, usize),
    Delete(usize),
    /// The PriorityClass appears or disappears.
    Class(bool),
}

fn step() -> impl Strategy<Value = Step> {
    let ends = prop::sample::select(vec![Phase::Succeeded, Phase::Restarting, Phase::Pending]);
    let job = || 0_usize..3;
    prop_oneof![
        3 => (0_usize..4, prop::bool::weighted(0.7)).prop_map(|(index, exists)| Step::Node(index, exists)),
        4 => (job(), 1_i32..4, 1_i32..=2, any::<bool>())
            .prop_map(|(index, nodes, gpus, class)| Step::Job(index, nodes, gpus, class)),
        8 => (job(), prop::bool::weighted(0.1)).prop_map(|(index, is_late)| Step::Ask(index, is_late)),
        6 => job().prop_map(Step::Record),
        1 => (job(), 0_i32..2).prop_map(|(index, late)| Step::Refuse(index, late)),
        1 => job().prop_map(Step::Overwrite),
        6 => (job(), ends, 1_i32..4, 0_usize..4)
            .prop_map(|(index, phase, nodes, failed)| Step::End(index, phase, nodes, failed)),
        1 => job().prop_map(Step::Delete),
        1 => any::<bool>().prop_map(Step::Class),
    ]
}

fn uid(job: usize) -> String {
    format!("uid-{job}")
}

#[derive(Default)]
struct World {
    planner: Planner,
    nodes: BTreeSet<usize>,
    jobs: BTreeMap<usize, ViTTrainingJob>,
    version: u64,
    /// Promises, recorded or not, by uid.
    recorded: HashMap<String, Promise>,
    open: HashMap<String, Promise>,
}

impl World {
    fn take(&mut self, step: Step) {
        match step {
            Step::Node(index, exists) => {
                self.nodes.remove(&index);
                self.nodes.extend(exists.then_some(index));
                let event = if exists { Event::Apply } else { Event::Delete };
                self.planner.follow_nodes(&event(node(index)));
            }
            Step::Job(index, nodes, gpus, has_class) => {
                if let Some(job) = self.jobs.get(&index).cloned() {
                    self.planner.follow_jobs(&Event::Apply(job.into()));
                    return;
                }
                let mut job = fixtures::job();
                job.metadata.name = Some(format!("job-{index}"));
                job.metadata.uid = Some(uid(index));
                job.spec.workers.nodes = nodes;
                job.spec.workers.gpus_per_node = gpus;
                job.spec.workers.priority_class_name = has_class.then(|| "high".into());
                self.send(index, job);
            }
            Step::Ask(index, is_late) => {
                let known = self
                    .jobs
                    .get(&index)
                    .and_then(|job| job.metadata.resource_version.clone());
                let is_outdated = is_late || known.is_none() || self.open.contains_key(&uid(index));
                let version = known.filter(|_| !is_late);
                let attempt = self.attempt(index) + 1;
                let decision = self
                    .planner
                    .place(&uid(index), version.as_deref(), attempt, at(100));
                if let Some(Decision::Placed(placement)) = &decision {
                    let promise = self.planner.open[&uid(index)].clone();
                    assert_eq!(promise.nodes, placement.nodes);
                    self.open.insert(uid(index), promise);
                }
                assert!(
                    !is_outdated || decision.is_none(),
                    "the last promise may have been recorded"
                );
            }
            Step::Record(index) => {
                let promise = self.open.get(&uid(index)).cloned();
                if let (Some(promise), Some(mut job)) = (promise, self.jobs.get(&index).cloned()) {
                    self.recorded.insert(uid(index), promise.clone());
                    let mut status = fixtures::status(Phase::Starting, promise.attempt);
                    status.placement = Some(PlacementStatus {
                        nodes: promise.nodes.iter().map(ToString::to_string).collect(),
                        ..PlacementStatus::default()
                    });
                    job.status = Some(status);
                    self.send(index, job);
                }
            }
            Step::Refuse(index, late) => {
                self.planner.release(&uid(index), self.attempt(index) + 1 - late);
                if late == 0 {
                    self.open.remove(&uid(index));
                }
            }
            Step::Overwrite(index) => {
                if let Some(job) = self.jobs.get(&index).cloned() {
                    self.send(index, job);
                }
            }
            Step::End(index, phase, nodes, failed) => {
                if let Some(mut job) = self.jobs.get(&index).cloned()
                    && let Some(status) = &mut job.status
                    && status.phase == Some(Phase::Starting)
                {
                    self.recorded.remove(&uid(index));
                    status.phase = Some(phase);
                    if phase != Phase::Succeeded {
                        job.spec.workers.nodes = nodes;
                        status.failed_nodes = vec![fixtures::failed_node(NODES[failed], Some(3600))];
                    }
                    self.send(index, job);
                }
            }
            Step::Delete(index) => {
                if let Some(job) = self.jobs.remove(&index) {
                    self.recorded.remove(&uid(index));
                    self.open.remove(&uid(index));
                    let event = Event::Delete(job.into());
                    self.planner.follow_jobs(&event);
                }
            }
            Step::Class(exists) => {
                let class = fixtures::priority_class("high", 10, false);
                let event = if exists { Event::Apply } else { Event::Delete };
                self.planner.follow_classes(&event(class));
            }
        }
    }

    /// Another version of a job arrives.
    fn send(&mut self, index: usize, mut job: ViTTrainingJob) {
        self.version += 1;
        job.metadata.resource_version = Some(self.version.to_string());
        self.open.remove(&uid(index));
        self.jobs.insert(index, job.clone());
        let event = Event::Apply(job.into());
        self.planner.follow_jobs(&event);
    }

    fn attempt(&self, index: usize) -> i32 {
        let status = self.jobs.get(&index).and_then(|job| job.status.as_ref());
        status.map_or(0, |status| status.attempt)
    }

    fn counted_afresh(&self) -> Inventory {
        let mut promises = self.recorded.clone();
        promises.extend(self.open.clone());
        let nodes: Vec<Node> = self.nodes.iter().map(|index| node(*index)).collect();
        Inventory::new(&nodes, [], &promises)
    }
}

fn node(index: usize) -> Node {
    fixtures::node(NODES[index], "Tesla-T4", GPUS)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_no_gpu_is_promised_twice_and_none_is_lost(
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let mut world = World::default();
        for step in (0..NODES.len()).map(|index| Step::Node(index, true)).chain(steps) {
            world.take(step);
            prop_assert_eq!(&world.planner.open, &world.open);
            let planner = &mut world.planner;
            // As the next decision would do first.
            planner.is_stale |= planner.cluster.catch_up();
            prop_assert!(planner.cluster.is_current());
            for (name, node) in world.counted_afresh().nodes {
                let gpus = node.resources[GPU];
                prop_assert!(gpus.used <= GPUS, "{name}: {gpus:?}");
            }
        }
        let expected = world.counted_afresh();
        let planner = &mut world.planner;
        planner.pass = std::mem::take(&mut planner.pass).restart(&mut planner.cluster);
        prop_assert_eq!(planner.cluster.fleet.inventory(), &expected);
    }
}
