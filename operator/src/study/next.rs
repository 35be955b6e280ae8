//! What is to be done next for a study. Pure.

use std::collections::BTreeSet;

use contract::FailureClass;
use crds::conditions::{reasons, types};
use crds::status::ViTTrainingJobStatus;
use crds::study::status::StudyNodes;
use crds::{Phase, ViTTrainingJob};
use jiff::SignedDuration;
use kube::ResourceExt as _;
use study::{Outcome, Plan, Record, Records};

use super::observation::{Child, Observation};
use super::runs::{Nodes, Slot, slots};

/// What is to be done next for a study: first what is measured is recorded, then jobs are deleted, then one is created.
#[derive(Clone, Debug, Default)]
pub(super) struct Next {
    pub(super) records: Records,
    /// Runs that have just failed, and why.
    pub(super) failures: Vec<String>,
    pub(super) delete: Vec<Deletion>,
    pub(super) create: Option<Creation>,
    pub(super) nodes: Vec<StudyNodes>,
    /// What the study waits for beside GPUs.
    pub(super) waits_for: Option<String>,
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Deletion {
    pub(super) name: String,
    pub(super) uid: String,
    /// Whether pods may still run: then the job stays until they are gone.
    pub(super) has_pods: bool,
}

impl Deletion {
    fn of(child: &Child) -> Self {
        Self {
            name: child.job.name_any(),
            uid: child.job.uid().unwrap_or_default(),
            has_pods: !child.is_over(),
        }
    }

    /// Of every job that is under way.
    pub(super) fn of_all(observation: &Observation) -> Vec<Self> {
        let under_way = |child: &&Child| !child.is_over() && !child.is_going();
        observation.jobs.iter().filter(under_way).map(Self::of).collect()
    }
}

#[derive(Clone, Debug)]
pub(super) struct Creation {
    pub(super) job: ViTTrainingJob,
    pub(super) key: String,
    pub(super) repetition: u32,
    pub(super) number: u32,
    /// What people call it.
    pub(super) words: String,
}

/// Decides.
pub(super) fn next(observation: &Observation, plan: &Plan) -> Next {
    let slots = slots(plan);
    let slot_of = |child: &Child| {
        let mut slots = slots.iter();
        slots.find(|slot| slot.run.key == child.key && slot.repetition == child.repetition)
    };
    let mut next = Next {
        records: observation.records.clone(),
        nodes: pinned(observation, slot_of),
        ..Next::default()
    };
    let yields = next.yield_nodes(observation);
    for child in &observation.jobs {
        next.record(observation, child, slot_of(child), plan);
    }
    next.records.make_room(plan);
    for child in &observation.jobs {
        let slot = slot_of(child);
        let goes = if child.is_over() {
            !next.is_last_failed_try(child, slot.is_some())
        } else {
            let is_recorded = next
                .record_of(child)
                .is_some_and(|record| record.tries >= child.number);
            let is_on = |nodes: &BTreeSet<String>| child.nodes().iter().any(|node| nodes.contains(node));
            observation.study.spec.suspend
                || is_recorded
                || is_on(&yields)
                || slot.is_none_or(|slot| is_outdated(child, &next.job(observation, slot, child.number)))
        };
        if goes && !child.is_going() {
            next.delete.push(Deletion::of(child));
        }
    }
    let is_busy = observation.jobs.iter().any(|child| !child.is_over());
    if !is_busy && !observation.study.spec.suspend {
        next.create = slots
            .iter()
            .find_map(|slot| next.creation(observation, slot, plan));
    }
    next.waits_for = held_by(observation, &next);
    next
}

impl Next {
    /// Whether every run is over.
    pub(super) fn is_over(&self, plan: &Plan) -> bool {
        slots(plan).iter().all(|slot| {
            let record = self.records.get(&slot.run.key, slot.repetition);
            record.is_some_and(|record| record.is_over(plan.retries))
        })
    }

    /// Records how a job ended, if that is new.
    fn record(&mut self, observation: &Observation, child: &Child, slot: Option<&Slot<'_>>, plan: &Plan) {
        if self
            .record_of(child)
            .is_some_and(|record| record.tries >= child.number)
            || child.is_going()
        {
            return;
        }
        let status = child.job.status.clone().unwrap_or_default();
        let outcome = match status.phase {
            Some(Phase::Succeeded) => Some(measured(&status)),
            Some(Phase::Failed) => Some(failed(&status, plan)),
            Some(Phase::Pending) | None => slot
                .filter(|slot| !is_outdated(child, &self.job(observation, slot, child.number)))
                .and_then(|_| waited_too_long(observation, child)),
            _ => None,
        };
        let Some(outcome) = outcome else { return };
        let words = slot.map_or_else(|| child.job.name_any(), Slot::words);
        if let Outcome::Failure { message, .. } = &outcome {
            self.failures.push(format!("{words}: {message}"));
        }
        let record = Record {
            tries: child.number,
            nodes: child.nodes().to_vec(),
            outcome,
        };
        self.records.insert(&child.key, child.repetition, record);
    }

    fn record_of(&self, child: &Child) -> Option<&Record> {
        self.records.get(&child.key, child.repetition)
    }

    /// Whether a job that is over is the last try of a run that failed: it stays to be looked at.
    fn is_last_failed_try(&self, child: &Child, is_in_plan: bool) -> bool {
        let failed = self.record_of(child).is_some_and(|record| {
            record.tries == child.number && matches!(record.outcome, Outcome::Failure { .. })
        });
        failed && is_in_plan
    }

    /// Gives nodes up that cannot be had, or on which a study measures that goes first. Tells those of the latter, which a job must
    /// leave.
    fn yield_nodes(&mut self, observation: &Observation) -> BTreeSet<String> {
        let before = observation.others.iter().filter(|other| other.goes_first);
        let taken: BTreeSet<String> = before.flat_map(|other| other.nodes.iter().cloned()).collect();
        let runs_on: BTreeSet<&String> = observation
            .jobs
            .iter()
            .filter(|child| !child.is_over())
            .flat_map(Child::nodes)
            .collect();
        // A node on which a run is under way tells by the run's failure what has become of it.
        self.nodes.retain(|known| {
            known.nodes.iter().all(|node| {
                !taken.contains(node) && (runs_on.contains(node) || !observation.unusable.contains_key(node))
            })
        });
        taken
    }

    fn creation(&self, observation: &Observation, slot: &Slot<'_>, plan: &Plan) -> Option<Creation> {
        let record = self.records.get(&slot.run.key, slot.repetition);
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

    fn job(&self, observation: &Observation, slot: &Slot<'_>, number: u32) -> ViTTrainingJob {
        let known = self.nodes.iter().find(|known| known.key == slot.way());
        let pinned = known.and_then(|known| known.nodes.get(..slot.nodes()));
        let nodes = Nodes {
            pinned: if slot.names_nodes() {
                vec![]
            } else {
                pinned.unwrap_or_default().to_vec()
            },
            held: observation
                .others
                .iter()
                .flat_map(|other| other.nodes.iter().cloned())
                .collect(),
        };
        slot.job(&observation.study, number, &nodes)
    }
}

/// The nodes on which runs are measured, with those of jobs that have got theirs.
fn pinned<'a>(
    observation: &'a Observation,
    slot_of: impl Fn(&Child) -> Option<&'a Slot<'a>>,
) -> Vec<StudyNodes> {
    let mut known = observation.status().nodes;
    // A job that failed is kept, but says nothing of those that come after it.
    let is_news = |child: &&Child| {
        let record = observation.records.get(&child.key, child.repetition);
        !child.nodes().is_empty() && record.is_none_or(|record| record.tries < child.number)
    };
    for child in observation.jobs.iter().filter(is_news) {
        let Some(slot) = slot_of(child) else { continue };
        let (key, nodes) = (slot.way(), child.nodes().to_vec());
        match known.iter_mut().find(|known| known.key == key) {
            Some(known) if known.nodes.len() < nodes.len() => known.nodes = nodes,
            Some(_) => {}
            None => known.push(StudyNodes { key, nodes }),
        }
    }
    known
}

fn measured(status: &ViTTrainingJobStatus) -> Outcome {
    match &status.measurement {
        Some(measurement) => Outcome::Measurement(Box::new(measurement.clone())),
        None => Outcome::Failure {
            message: status.condition(types::MEASURED).map_or_else(
                || "it measured nothing".into(),
                |measured| measured.message.clone(),
            ),
            is_final: true,
        },
    }
}

fn failed(status: &ViTTrainingJobStatus, plan: &Plan) -> Outcome {
    let condition = status.condition(types::FAILED);
    let is_late = condition.is_some_and(|failed| failed.reason == reasons::DEADLINE_EXCEEDED);
    if is_late {
        return Outcome::Failure {
            message: format!(
                "it took more than measure.timeoutSeconds ({})",
                plan.timeout.as_secs()
            ),
            is_final: true,
        };
    }
    let class = status.last_failure.as_ref().map(|failure| failure.class.as_str());
    let may_pass = FailureClass::ALL
        .into_iter()
        .any(|known| Some(known.as_str()) == class && known.is_retryable());
    Outcome::Failure {
        message: condition.map_or_else(|| "it failed".into(), |failed| failed.message.clone()),
        is_final: !may_pass,
    }
}

/// Where a study does not wait for GPUs for ever.
fn waited_too_long(observation: &Observation, child: &Child) -> Option<Outcome> {
    let seconds = observation.study.spec.measure.pending_timeout_seconds?;
    // Whether it fits is not known while nodes are left to others.
    if !observation.others.is_empty() && child.job.spec.placement.nodes.is_empty() {
        return None;
    }
    let waits_since = child.job.creation_timestamp()?.0;
    let has_waited = observation.now.duration_since(waits_since);
    (has_waited >= SignedDuration::from_secs(seconds.into())).then(|| Outcome::Failure {
        message: format!(
            "it got no GPUs within measure.pendingTimeoutSeconds ({seconds}): {}",
            child.waits_for()
        ),
        is_final: true,
    })
}

/// Whether a job that has no nodes yet may not have those any more that it may.
fn is_outdated(child: &Child, wanted: &ViTTrainingJob) -> bool {
    let (found, wanted) = (&child.job.spec.placement, &wanted.spec.placement);
    child.nodes().is_empty() && (&found.nodes, &found.exclude_nodes) != (&wanted.nodes, &wanted.exclude_nodes)
}

/// Which other studies a study without nodes waits for.
fn held_by(observation: &Observation, next: &Next) -> Option<String> {
    let has_nodes = |child: &Child| !child.nodes().is_empty();
    if !next.nodes.is_empty() || observation.jobs.iter().any(has_nodes) {
        return None;
    }
    let names: Vec<&str> = observation
        .others
        .iter()
        .map(|other| other.name.as_str())
        .collect();
    (!names.is_empty()).then(|| format!("does not use the nodes of {}", names.join(", ")))
}
