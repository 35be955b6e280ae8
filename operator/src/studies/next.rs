//! The next actions for a study. Pure.

use crds::ViTTrainingJob;
use jiff::SignedDuration;
use kube::ResourceExt as _;
use planner::facts::inventory::NodeHealth;
use planner::policy::node_fit::{Refusal, Verdict, verdict};
use planner::policy::request::Shape;
use study::{Plan, RunState, StudyJob};

use super::observation::{Observation, has_lost_a_gpu, is_being_deleted, is_placeless, nodes};
use super::runs::{Nodes, RunRepetition};

/// The next actions for a study: delete jobs, then create one.
#[derive(Clone, Debug, Default)]
pub(super) struct Next {
    pub(super) delete: Vec<Deletion>,
    pub(super) create: Option<Creation>,
}

/// A job to delete. It stays until its pods are gone, so that no run starts beside them.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Deletion {
    pub(super) name: String,
    pub(super) uid: String,
}

impl Deletion {
    fn of(job: &StudyJob) -> Self {
        Self {
            name: job.job.name_any(),
            uid: job.job.uid().unwrap_or_default(),
        }
    }

    /// Deletions of all unfinished jobs.
    pub(super) fn of_unfinished(observation: &Observation) -> Vec<Self> {
        let unfinished = |job: &&StudyJob| !job.is_over() && !is_being_deleted(job);
        observation.jobs.iter().filter(unfinished).map(Self::of).collect()
    }
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
pub(super) fn next(observation: &Observation, plan: &Plan, slots: &[RunRepetition<'_>]) -> Next {
    if observation.study.spec.suspend {
        return Next {
            delete: Deletion::of_unfinished(observation),
            create: None,
        };
    }
    let first = observation.unfinished();
    // Concurrent runs would disturb each other, and a job that waits for lost nodes waits forever.
    let must_go = |job: &&StudyJob| {
        let is_first = first.is_some_and(|first| first.job.uid() == job.job.uid());
        !job.is_over() && !is_being_deleted(job) && (!is_first || is_outdated(observation, job, slots))
    };
    let delete = observation.jobs.iter().filter(must_go).map(Deletion::of);
    let is_idle = first.is_none() && !observation.has_pods && observation.waits_for.is_none();
    Next {
        delete: delete.collect(),
        create: is_idle
            .then(|| {
                slots
                    .iter()
                    .find_map(|slot| creation(observation, plan, slot, slots))
            })
            .flatten(),
    }
}

/// Whether a job that waits for GPUs would now get other nodes to choose from.
fn is_outdated(observation: &Observation, job: &StudyJob, slots: &[RunRepetition<'_>]) -> bool {
    let Some(slot) = slots.iter().find(|slot| job.is_try_of(slot.run, slot.repetition)) else {
        // Another version of the operator created it.
        return true;
    };
    let wanted = slot.job(&observation.study, 1, &choose(observation, slot, slots));
    let choice = |job: &ViTTrainingJob| {
        let placement = &job.spec.placement;
        (placement.nodes.clone(), placement.exclude_nodes.clone())
    };
    is_placeless(job) && choice(&job.job) != choice(&wanted)
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
        let slot = slots.iter().find(|slot| job.is_try_of(slot.run, slot.repetition));
        let Some(slot) = slot.filter(|slot| slot.node_choice() == choice) else {
            continue;
        };
        let named = &slot.run.spec.placement.nodes;
        let mut nodes = nodes(job).to_vec();
        nodes.sort_by_key(|node| named.iter().position(|name| name == node));
        if has_lost_a_gpu(job) {
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
            let bound = SignedDuration::from_secs(failure_policy.node_lost_seconds.into());
            matches!(facts.health, NodeHealth::NotReady(Some(since)) if observation.now.duration_since(since) >= bound)
        }
        // This study itself pins its jobs to nodes.
        Verdict::Refused(refusal) => !matches!(refusal, Refusal::NotNamed | Refusal::Excluded),
        Verdict::Fits { .. } | Verdict::Busy { .. } => false,
    }
}
