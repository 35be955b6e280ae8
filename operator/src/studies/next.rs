//! The next actions for a study. Pure.

use std::collections::BTreeSet;
use std::sync::Arc;

use contract::FailureClass;
use crds::Phase;
use crds::ViTTrainingJob;
use crds::conditions::{reasons, types};
use crds::status::ViTTrainingJobStatus;
use crds::study::status::StudyNodes;
use jiff::SignedDuration;
use kube::ResourceExt as _;
use planner::facts::inventory::NodeHealth;
use planner::policy::node_fit::{Refusal, Verdict, verdict};
use planner::policy::request::Shape;
use study::{Bounds, Outcome, Plan, Record, Records};

use super::observation::{Child, Observation};
use super::runs::{Nodes, RunRepetition};

/// The next actions for a study: write records, then delete jobs, then create one.
#[derive(Clone, Debug, Default)]
pub(super) struct Next {
    pub(super) records: Records,
    /// Newly failed runs, with reasons.
    pub(super) failures: Vec<String>,
    pub(super) delete: Vec<Deletion>,
    pub(super) create: Option<Creation>,
    pub(super) nodes: Vec<StudyNodes>,
    /// Studies whose nodes the waiting job does not use.
    pub(super) leaves_nodes_to: Vec<String>,
    /// Jobs to delete because of an edit, with reasons.
    pub(super) stopped: Vec<String>,
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Deletion {
    pub(super) name: String,
    pub(super) uid: String,
    /// Whether the job stays until its pods are deleted.
    pub(super) is_foreground: bool,
}

impl Deletion {
    fn of(child: &Child) -> Self {
        Self {
            name: child.job.name_any(),
            uid: child.job.uid().unwrap_or_default(),
            is_foreground: child.is_busy(),
        }
    }

    /// Deletions of all running jobs.
    pub(super) fn of_all(observation: &Observation) -> Vec<Self> {
        let under_way = |child: &&Child| !child.is_over() && !child.is_being_deleted();
        observation.jobs.iter().filter(under_way).map(Self::of).collect()
    }
}

#[derive(Clone, Debug)]
pub(super) struct Creation {
    pub(super) job: ViTTrainingJob,
    pub(super) key: String,
    pub(super) repetition: u32,
    /// Which try it is, from 1.
    pub(super) number: u32,
    /// The run's name in messages.
    pub(super) words: String,
}

/// Decides.
pub(super) fn next(observation: &Observation, plan: &Plan, slots: &[RunRepetition<'_>]) -> Next {
    let slot_of = |child: &Child| slots.iter().find(|slot| child.is_of(slot));
    let mut next = Next {
        records: observation.records.clone(),
        nodes: known_nodes(observation, plan, slots),
        ..Next::default()
    };
    let (over, others): (Vec<&Child>, Vec<&Child>) =
        observation.jobs.iter().partition(|child| child.is_over());
    // Record ended jobs before nodes are given up, and waiting jobs after: their nodes may change.
    for child in over {
        next.record(observation, child, slot_of(child), plan);
    }
    next.give_nodes_up(observation, slots, plan);
    for child in others {
        next.record(observation, child, slot_of(child), plan);
    }
    next.records.make_room(plan);
    let first = slots.iter().find_map(|slot| {
        observation
            .jobs
            .iter()
            .find(|child| !child.is_over() && child.is_of(slot))
    });
    for child in observation.jobs.iter().filter(|child| !child.is_being_deleted()) {
        let slot = slot_of(child);
        let stays = if child.is_over() {
            slot.is_some_and(|slot| next.is_last_failed_try(child, slot, plan))
        } else {
            // Concurrent runs would disturb each other.
            let is_first = first.is_some_and(|first| first.job.uid() == child.job.uid());
            let is_wanted = slot.is_some_and(|slot| {
                !is_recorded(&next.records, child, slot, plan)
                    && !is_outdated(observation, child, &next.job(observation, slot, child.number))
            });
            is_first && is_wanted && !observation.study.spec.suspend && !observation.must_leave(child)
        };
        if !stays {
            next.delete.push(Deletion::of(child));
            let why = if slot.is_none() {
                Some("the edited study no longer needs its run")
            } else if !child.measures_for(&observation.study) {
                Some("measure.warmupSteps was changed, and its run starts again")
            } else {
                None
            };
            let why = why.filter(|_| !child.is_over());
            next.stopped
                .extend(why.map(|why| format!("stopped {}: {why}", child.job.name_any())));
        }
    }
    if observation.study.spec.suspend || next.is_over(plan, slots) {
        // Other studies may use them meanwhile.
        next.nodes.clear();
        return next;
    }
    if !observation.jobs.iter().any(Child::is_busy) {
        next.create = slots
            .iter()
            .find_map(|slot| next.creation(observation, slot, plan));
    }
    let waits_for_others = |child: &Child| {
        let is_open = slot_of(child).is_some_and(|slot| slot.leaves_nodes_open(&child.job));
        child.is_placeless() && is_open && !observation.others.is_empty()
    };
    if first.is_some_and(waits_for_others) {
        // Two studies that keep nodes and wait for each other's would deadlock.
        next.nodes.clear();
        next.leaves_nodes_to = observation
            .others
            .iter()
            .map(|other| other.name.clone())
            .collect();
    }
    next
}

impl Next {
    /// Whether every run is over.
    pub(super) fn is_over(&self, plan: &Plan, slots: &[RunRepetition<'_>]) -> bool {
        self.left(slots, plan).is_empty()
    }

    /// The first unfinished repetition of each run.
    fn left<'s>(&self, slots: &'s [RunRepetition<'s>], plan: &Plan) -> Vec<&'s RunRepetition<'s>> {
        let mut known = BTreeSet::new();
        let is_left = |slot: &&RunRepetition<'_>| {
            let record = self.records.get(plan, slot.run, slot.repetition);
            !record.is_some_and(|record| record.is_over(plan.retries))
        };
        let left = slots.iter().filter(is_left);
        left.filter(|slot| known.insert(&slot.run.key)).collect()
    }

    /// Records how a job ended, once.
    fn record(
        &mut self,
        observation: &Observation,
        child: &Child,
        slot: Option<&RunRepetition<'_>>,
        plan: &Plan,
    ) {
        let Some(slot) = slot.filter(|_| !child.is_being_deleted()) else {
            return;
        };
        if is_recorded(&self.records, child, slot, plan) || !child.measures_for(&observation.study) {
            return;
        }
        let status = child.job.status.clone().unwrap_or_default();
        let outcome = match status.phase {
            Some(Phase::Succeeded) => Some(measured(child, &status, slot)),
            Some(Phase::Failed) if child.has_the_deadline_of(&observation.study) => {
                Some(failed(&status, plan))
            }
            Some(Phase::Pending) | None => {
                let wanted = self.job(observation, slot, child.number);
                let waits = !is_outdated(observation, child, &wanted);
                waits.then(|| waited_too_long(observation, child, slot)).flatten()
            }
            _ => None,
        };
        let Some(outcome) = outcome else { return };
        if let Outcome::Failure { message, .. } = &outcome {
            self.failures.push(format!("{}: {message}", slot.words()));
        }
        let record = Record {
            tries: child.number,
            bounds: Bounds::of(plan),
            outcome,
        };
        self.records.insert(&child.key, child.repetition, record);
    }

    /// Whether a finished job is the last try of a failed run, which is kept for inspection.
    fn is_last_failed_try(&self, child: &Child, slot: &RunRepetition<'_>, plan: &Plan) -> bool {
        self.records
            .get(plan, slot.run, slot.repetition)
            .is_some_and(|record| {
                record.tries == child.number && matches!(record.outcome, Outcome::Failure { .. })
            })
    }

    /// Gives up nodes that an older study uses, that no longer fit the runs, or whose GPUs failed.
    fn give_nodes_up(&mut self, observation: &Observation, slots: &[RunRepetition<'_>], plan: &Plan) {
        let left = self.left(slots, plan);
        let busy = observation.jobs.iter().filter(|child| child.is_busy());
        let runs_on: BTreeSet<&String> = busy.flat_map(Child::nodes).collect();
        let faulty = observation.faulty_nodes();
        let taken: BTreeSet<&String> = observation
            .others
            .iter()
            .filter(|other| other.goes_first)
            .flat_map(|other| &other.nodes)
            .collect();
        self.nodes.retain_mut(|known| {
            let needs = needs(&left, &known.key);
            // Release nodes that no run needs.
            let most = needs.iter().map(|(_, nodes)| *nodes).max().unwrap_or(0);
            known.nodes.truncate(most);
            let are_kept = known.nodes.iter().enumerate().all(|(place, node)| {
                // A lost node with a run on it makes the run fail.
                let is_lost = || {
                    let mut of_place = needs.iter().filter(|(_, nodes)| place < *nodes);
                    !runs_on.contains(node) && of_place.any(|(shape, _)| is_lost(observation, node, shape))
                };
                !taken.contains(node) && !faulty.contains(node.as_str()) && !is_lost()
            });
            are_kept && !known.nodes.is_empty()
        });
    }

    fn creation(&self, observation: &Observation, slot: &RunRepetition<'_>, plan: &Plan) -> Option<Creation> {
        let record = self.records.get(plan, slot.run, slot.repetition);
        if record.is_some_and(|record| record.is_over(plan.retries)) {
            return None;
        }
        let number = record.map_or(1, |record| record.tries + 1);
        Some(Creation {
            job: self.job(observation, slot, number),
            key: slot.run.key.clone(),
            repetition: slot.repetition,
            number,
            words: slot.words(),
        })
    }

    fn job(&self, observation: &Observation, slot: &RunRepetition<'_>, number: u32) -> ViTTrainingJob {
        let key = slot.node_choice();
        let known = self.nodes.iter().find(|known| known.key == key);
        let pinned = known.and_then(|known| known.nodes.get(..slot.nodes()));
        let of_others = observation.others.iter().flat_map(|other| &other.nodes);
        let faulty = observation.faulty_nodes().into_iter();
        let nodes = Nodes {
            pinned: pinned.unwrap_or_default().to_vec(),
            excluded: of_others.cloned().chain(faulty.map(str::to_owned)).collect(),
        };
        slot.job(&observation.study, number, &nodes)
    }
}

/// The nodes of runs, including those of newly placed jobs.
fn known_nodes(observation: &Observation, plan: &Plan, slots: &[RunRepetition<'_>]) -> Vec<StudyNodes> {
    let mut known = observation.status().nodes;
    for child in observation.jobs.iter().filter(|child| !child.nodes().is_empty()) {
        let Some(slot) = slots.iter().find(|slot| child.is_of(slot)) else {
            continue;
        };
        // A kept failed job does not determine later jobs' nodes.
        if is_recorded(&observation.records, child, slot, plan) {
            continue;
        }
        let (key, nodes) = (slot.node_choice(), child.nodes().to_vec());
        match known.iter_mut().find(|known| known.key == key) {
            Some(known) if known.nodes.len() < nodes.len() => known.nodes = nodes,
            Some(_) => {}
            None => known.push(StudyNodes { key, nodes }),
        }
    }
    known
}

/// The shapes that these runs need of their shared nodes, each with the most nodes.
fn needs(slots: &[&RunRepetition<'_>], key: &str) -> Vec<(Arc<Shape>, usize)> {
    let mut needs: Vec<(Arc<Shape>, usize)> = Vec::new();
    for slot in slots.iter().filter(|slot| slot.node_choice() == key) {
        let shape = slot.shape();
        match needs.iter_mut().find(|(known, _)| *known == shape) {
            Some((_, nodes)) => *nodes = slot.nodes().max(*nodes),
            None => needs.push((shape, slot.nodes())),
        }
    }
    needs
}

/// Whether an empty node would be refused. An unready node is lost only after `nodeLostSeconds`.
fn is_lost(observation: &Observation, node: &str, shape: &Shape) -> bool {
    let Some(facts) = observation.facts.get(node) else {
        return true;
    };
    match verdict(node, facts, shape) {
        Verdict::Refused(Refusal::NotReady) => {
            let seconds = observation
                .study
                .spec
                .template
                .spec
                .failure_policy
                .node_lost_seconds;
            let bound = SignedDuration::from_secs(seconds.into());
            matches!(facts.health, NodeHealth::NotReady(Some(since)) if observation.now.duration_since(since) >= bound)
        }
        // This study itself pins its jobs to nodes.
        Verdict::Refused(refusal) => !matches!(refusal, Refusal::NotNamed | Refusal::Excluded),
        Verdict::Fits { .. } | Verdict::Busy { .. } => false,
    }
}

fn measured(child: &Child, status: &ViTTrainingJobStatus, slot: &RunRepetition<'_>) -> Outcome {
    let Some(measurement) = &status.measurement else {
        let condition = status.condition(types::MEASURED);
        let is_lost = condition.is_none_or(|measured| measured.reason == reasons::MEASUREMENT_LOST);
        let why = condition.map_or("it measured nothing", |measured| measured.message.as_str());
        return Outcome::failure(why, !is_lost);
    };
    let is_changed = child.job.spec.workers.nodes != slot.run.spec.workers.nodes;
    let Some(found) = slot.run.mismatch(measurement) else {
        return Outcome::Measurement(measurement.clone());
    };
    if slot.run.spec.external.is_some() && !is_changed {
        // Another try would do the same.
        Outcome::failure(
            format!("the command does not follow VIT_RUN_CONFIG: {found}"),
            true,
        )
    } else {
        Outcome::failure(format!("the job was changed: {found}"), false)
    }
}

fn failed(status: &ViTTrainingJobStatus, plan: &Plan) -> Outcome {
    let condition = status.condition(types::FAILED);
    if condition.is_some_and(|failed| failed.reason == reasons::DEADLINE_EXCEEDED) {
        let seconds = plan.timeout.as_secs();
        return Outcome::failure(
            format!("it took more than measure.timeoutSeconds ({seconds})"),
            true,
        );
    }
    let class = status.last_failure.as_ref().map(|failure| failure.class.as_str());
    let may_pass = FailureClass::ALL
        .into_iter()
        .any(|known| Some(known.as_str()) == class && known.is_retryable());
    let why = condition.map_or("it failed", |failed| failed.message.as_str());
    Outcome::failure(why, !may_pass)
}

/// The failure of a job that waited longer than `pendingTimeoutSeconds`.
fn waited_too_long(observation: &Observation, child: &Child, slot: &RunRepetition<'_>) -> Option<Outcome> {
    let seconds = observation.study.spec.measure.pending_timeout_seconds?;
    // While other studies use nodes, it is unknown whether it would fit.
    if !observation.others.is_empty() && slot.leaves_nodes_open(&child.job) {
        return None;
    }
    let has_waited = observation.now.duration_since(child.waits_since()?);
    (has_waited >= SignedDuration::from_secs(seconds.into())).then(|| {
        let why = child.waits_for();
        let message = format!("it got no GPUs within measure.pendingTimeoutSeconds ({seconds}): {why}");
        Outcome::failure(message, true)
    })
}

/// Whether the end of a job, or of a later try, is recorded.
fn is_recorded(records: &Records, child: &Child, slot: &RunRepetition<'_>, plan: &Plan) -> bool {
    let record = records.get(plan, slot.run, slot.repetition);
    record.is_some_and(|record| record.tries >= child.number)
}

/// Whether a job differs from the present spec: in what it measures or, before it has nodes, in
/// nodes or deadline. A training job continues; if its old deadline ends it, it is retried.
fn is_outdated(observation: &Observation, child: &Child, wanted: &ViTTrainingJob) -> bool {
    let nodes = |job: &ViTTrainingJob| {
        let placement = &job.spec.placement;
        (placement.nodes.clone(), placement.exclude_nodes.clone())
    };
    let study = &observation.study;
    let has_changed = || !child.has_the_deadline_of(study) || nodes(&child.job) != nodes(wanted);
    !child.measures_for(study) || (child.is_placeless() && has_changed())
}
