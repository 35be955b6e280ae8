//! The observed state of one study: the input of a round's decisions.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use contract::FailureClass;
use crds::ViTScalingStudy;
use crds::conditions::types;
use crds::status::FailureStatus;
use crds::study::status::ViTScalingStudyStatus;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use planner::facts::inventory::NodeFacts;
use study::{Plan, RunState, StudyJob};

use super::runs::RunRepetition;

/// How long runs avoid a node with a failed GPU; after that it is better than none.
const FAULT_REMEMBERED: SignedDuration = SignedDuration::from_mins(10);

/// The observed state of one study.
#[derive(Clone, Debug)]
pub(super) struct Observation {
    pub(super) study: Arc<ViTScalingStudy>,
    /// Its existing jobs, the oldest first.
    pub(super) jobs: Vec<StudyJob>,
    /// Whether any of their pods may still run.
    pub(super) has_pods: bool,
    /// The study of the same namespace that measures before this one.
    pub(super) waits_for: Option<String>,
    /// The nodes of its jobs, as far as they exist.
    pub(super) facts: BTreeMap<String, NodeFacts>,
    /// How long this process has seen unready nodes of its jobs unready.
    pub(super) unready: BTreeMap<String, Duration>,
    /// Messages for jobs that the API server would always refuse, by name.
    pub(super) refused: BTreeMap<String, String>,
    pub(super) now: Timestamp,
}

impl Observation {
    pub(super) fn status(&self) -> ViTScalingStudyStatus {
        self.study.status.clone().unwrap_or_default()
    }

    /// The state of a repetition.
    pub(super) fn state(&self, plan: &Plan, slot: &RunRepetition<'_>) -> RunState {
        match plan.state(slot.run, slot.repetition, &self.jobs) {
            RunState::Open { number, failure } => {
                match self.refused.get(&slot.job_name(&self.study, number)) {
                    Some(message) => RunState::Failed(message.clone()),
                    None => RunState::Open { number, failure },
                }
            }
            over => over,
        }
    }

    /// The unfinished job; the first one, if another round created a second.
    pub(super) fn unfinished(&self) -> Option<&StudyJob> {
        self.jobs.iter().find(|job| !job.is_over())
    }

    /// Nodes with a recent GPU failure.
    pub(super) fn faulty_nodes(&self) -> BTreeSet<&str> {
        let is_recent = |time: &Time| self.now.duration_since(time.0) < FAULT_REMEMBERED;
        let faults = self.jobs.iter().filter_map(device_fault);
        let recent = faults.filter(|fault| fault.time.as_ref().is_some_and(is_recent));
        recent.filter_map(|fault| fault.node.as_deref()).collect()
    }
}

pub(super) fn is_being_deleted(job: &StudyJob) -> bool {
    job.job.metadata.deletion_timestamp.is_some()
}

/// The nodes of its gang, running or not.
pub(super) fn nodes(job: &StudyJob) -> &[String] {
    job.job.status.as_ref().map_or(&[], |status| status.nodes())
}

/// Why it waits.
pub(super) fn waits_for(job: &StudyJob) -> String {
    let status = job.job.status.as_ref();
    let condition = |type_| status.and_then(|status| status.condition(type_));
    let placed = condition(types::PLACED).filter(|placed| placed.status != "True");
    let found = placed.or(condition(types::RUNNING));
    found.map_or_else(
        || "has just been created".into(),
        |condition| condition.message.clone(),
    )
}

/// The failure of a GPU that ended the job.
pub(super) fn device_fault(job: &StudyJob) -> Option<&FailureStatus> {
    let failure = job.job.status.as_ref()?.last_failure.as_ref()?;
    (failure.class == FailureClass::DeviceFault.as_str()).then_some(failure)
}
