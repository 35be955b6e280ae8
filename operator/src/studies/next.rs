//! The next actions for a study. Pure.

use crds::status::Refusal;
use crds::{Phase, ViTTrainingJob};
use kube::ResourceExt as _;
use planner::policy::node_fit::{Verdict, verdict};
use planner::policy::request::Shape;
use study::{Plan, RunState, StudyJob};

use super::observation::{Observation, device_fault, is_being_deleted, nodes};
use super::runs::{self, Nodes, RunRepetition, slot_of};

/// The next actions for a study: delete jobs, then create one.
#[derive(Clone, Debug, Default)]
pub(super) struct Next {
    /// They stay until their pods are gone, so that no run starts beside them.
    pub(super) delete: Vec<StudyJob>,
    pub(super) create: Option<Creation>,
}

#[derive(Clone, Debug)]
pub(super) struct Creation {
    pub(super) job: ViTTrainingJob,
    /// From 0.
    pub(super) repetition: u32,
    /// The run's name in messages.
    pub(super) words: String,
}

/// Decides.
pub(super) fn next(observation: &Observation, plan: &Plan) -> Next {
    if observation.study.spec.suspend {
        return Next {
            delete: deletable(observation).cloned().collect(),
            create: None,
        };
    }
    let slots = &runs::slots(plan);
    let first = observation.unfinished();
    // Concurrent runs would disturb each other, and a job that waits for lost nodes waits forever.
    let must_go = |job: &&StudyJob| {
        let is_first = first.is_some_and(|first| first.job.uid() == job.job.uid());
        !is_first || is_outdated(observation, job, slots)
    };
    let is_idle = first.is_none() && !observation.has_pods && observation.waits_for.is_none();
    let mut slots_to_run = slots.iter().filter(|_| is_idle);
    Next {
        delete: deletable(observation).filter(must_go).cloned().collect(),
        create: slots_to_run.find_map(|slot| creation(observation, plan, slot, slots)),
    }
}

/// The unfinished jobs that are not being deleted.
fn deletable(observation: &Observation) -> impl Iterator<Item = &StudyJob> {
    let jobs = observation.jobs.iter();
    jobs.filter(|job| !job.is_over() && !is_being_deleted(job))
}

/// The jobs that go if this version of the operator refuses the study: gangs that another version
/// placed train on.
pub(super) fn unplaced(observation: &Observation) -> impl Iterator<Item = &StudyJob> {
    deletable(observation).filter(|job| nodes(job).is_empty())
}

/// Whether a job that waits for GPUs would now get other nodes to choose from.
fn is_outdated(observation: &Observation, job: &StudyJob, slots: &[RunRepetition<'_>]) -> bool {
    let Some(slot) = slot_of(job, slots) else {
        // Another version of the operator created it.
        return true;
    };
    let wanted = slot.job(&observation.study, 1, &choose(observation, slot, slots));
    let choice = |job: &ViTTrainingJob| {
        let placement = &job.spec.placement;
        (placement.nodes.clone(), placement.exclude_nodes.clone())
    };
    let is_waiting = job.phase().is_none_or(|phase| phase == Phase::Pending);
    is_waiting && choice(&job.job) != choice(&wanted)
}

fn creation(
    observation: &Observation,
    plan: &Plan,
    slot: &RunRepetition<'_>,
    slots: &[RunRepetition<'_>],
) -> Option<Creation> {
    let RunState::Open { number, .. } = observation.state(plan, slot) else {
        return None;
    };
    let nodes = choose(observation, slot, slots);
    Some(Creation {
        job: slot.job(&observation.study, number, &nodes),
        repetition: slot.repetition,
        words: slot.words(),
    })
}

/// The nodes for a run: those of earlier runs that choose nodes in the same way, while they fit.
fn choose(observation: &Observation, slot: &RunRepetition<'_>, slots: &[RunRepetition<'_>]) -> Nodes {
    let faulty = observation.faulty_nodes();
    let known = known_nodes(observation, &slot.node_choice(), slots);
    let shape = slot.shape();
    let fits = |node: &String| !faulty.contains(node.as_str()) && !is_lost(observation, node, &shape);
    let pinned = known.get(..slot.nodes()).filter(|nodes| nodes.iter().all(fits));
    Nodes {
        pinned: pinned.unwrap_or_default().to_vec(),
        excluded: faulty.into_iter().map(str::to_owned).collect(),
    }
}

/// The nodes of the jobs with this choice of nodes, in the order of `placement.nodes` if it is set.
/// Smaller runs use the first of them; a job elsewhere shows that they were given up.
fn known_nodes(observation: &Observation, choice: &str, slots: &[RunRepetition<'_>]) -> Vec<String> {
    let mut known = Vec::new();
    for job in &observation.jobs {
        let slot = slot_of(job, slots);
        let Some(slot) = slot.filter(|slot| slot.node_choice() == choice) else {
            continue;
        };
        let named = &slot.run.spec.placement.nodes;
        let mut nodes = nodes(job).to_vec();
        nodes.sort_by_key(|node| named.iter().position(|name| name == node));
        if device_fault(job).is_some() {
            known = vec![];
        } else if !known.starts_with(&nodes) {
            known = nodes;
        }
    }
    known
}

/// Whether an empty node would be refused. An unready node is lost only after `nodeLostSeconds`.
fn is_lost(observation: &Observation, node: &str, shape: &Shape) -> bool {
    let Some(facts) = observation.facts.get(node) else {
        return true;
    };
    match verdict(node, facts, shape) {
        Verdict::Refused(Refusal::NotReady) => {
            let failure_policy = &observation.study.spec.template.spec.failure_policy;
            let lasted = observation.unready.get(node);
            lasted.is_some_and(|lasted| *lasted >= failure_policy.node_lost_after())
        }
        // This study itself pins its jobs to nodes.
        Verdict::Refused(refusal) => !matches!(refusal, Refusal::NotNamed | Refusal::Excluded),
        Verdict::Fits { .. } | Verdict::Busy { .. } => false,
    }
}
