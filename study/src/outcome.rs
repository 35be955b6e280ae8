//! The jobs of a study in a cluster. The finished ones are its results.

use std::sync::Arc;

use contract::{FailureClass, Measurement};
use crds::conditions::{reasons, types};
use crds::status::ViTTrainingJobStatus;
use crds::{Phase, ViTScalingStudy, ViTTrainingJob, labels};

use crate::plan::{Plan, Run};

/// The failure of a repetition that has not run.
pub const NOT_RUN: &str = "not run yet";

/// A job of a study: one try of a run's repetition.
#[derive(Clone, Debug)]
pub struct StudyJob {
    /// The job.
    pub job: Arc<ViTTrainingJob>,
    /// The run's [`Run::key`].
    key: String,
    /// From 0.
    repetition: u32,
    /// The number of the try, from 1.
    number: u32,
}

/// Why a job has no measurement.
struct Failure {
    message: String,
    /// Whether another try may succeed.
    may_pass: bool,
}

/// The state of a run's repetition.
#[derive(Clone, Debug, PartialEq)]
pub enum RunState {
    /// Its next try, or the unfinished one, has this number. An earlier one failed for this reason.
    Open {
        /// The number of the try, from 1.
        number: u32,
        /// Why the try before it failed.
        failure: Option<String>,
    },
    /// It was measured.
    Measured(Box<Measurement>),
    /// It failed, and is not tried again.
    Failed(String),
}

impl StudyJob {
    /// `None` for the jobs of others. The owner decides, because anyone can set labels.
    pub fn new(job: Arc<ViTTrainingJob>, study: &ViTScalingStudy) -> Option<Self> {
        let owners = job.metadata.owner_references.iter().flatten();
        let is_own = owners
            .map(|owner| Some(&owner.uid))
            .any(|owner| owner == study.metadata.uid.as_ref());
        if !is_own || job.metadata.namespace != study.metadata.namespace {
            return None;
        }
        let label = |name: &str| job.metadata.labels.as_ref()?.get(name);
        let count = |name: &str| label(name)?.parse::<u32>().ok();
        Some(Self {
            key: label(labels::RUN)?.clone(),
            repetition: count(labels::REPETITION)?.checked_sub(1)?,
            number: count(labels::TRY)?,
            job,
        })
    }

    /// Whether it is a try of this repetition, counted from 0.
    pub fn is_try_of(&self, run: &Run, repetition: u32) -> bool {
        (self.key.as_str(), self.repetition) == (run.key.as_str(), repetition)
    }

    /// Its repetition, counted from 0.
    pub fn repetition(&self) -> u32 {
        self.repetition
    }

    /// Its phase; `None` before the first round of the operator.
    pub fn phase(&self) -> Option<Phase> {
        self.job.status.as_ref()?.phase
    }

    /// Whether it has ended.
    pub fn is_over(&self) -> bool {
        self.phase().is_some_and(Phase::is_terminal)
    }

    /// `None` until it has ended.
    fn outcome(&self, run: &Run) -> Option<Result<Box<Measurement>, Failure>> {
        let status = self.job.status.as_ref()?;
        match status.phase? {
            Phase::Succeeded => Some(self.measured(status, run)),
            Phase::Failed => Some(Err(self.failed(status))),
            _ => None,
        }
    }

    fn measured(&self, status: &ViTTrainingJobStatus, run: &Run) -> Result<Box<Measurement>, Failure> {
        let Some(measurement) = &status.measurement else {
            let condition = status.condition(types::MEASURED);
            let why = condition.map_or("it measured nothing", |measured| measured.message.as_str());
            return Err(Failure {
                message: why.into(),
                may_pass: condition.is_none_or(|measured| measured.reason == reasons::MEASUREMENT_LOST),
            });
        };
        let Some(found) = run.mismatch(measurement) else {
            return Ok(measurement.clone());
        };
        let was_scaled = self.job.spec.workers.nodes != run.spec.workers.nodes;
        let may_pass = run.spec.external.is_none() || was_scaled;
        let why = if may_pass {
            "the job was changed"
        } else {
            "the command does not follow VIT_RUN_CONFIG"
        };
        Err(Failure {
            message: format!("{why}: {found}"),
            may_pass,
        })
    }

    fn failed(&self, status: &ViTTrainingJobStatus) -> Failure {
        let condition = status.condition(types::FAILED);
        if condition.is_some_and(|failed| failed.reason == reasons::DEADLINE_EXCEEDED) {
            let seconds = self.job.spec.active_deadline_seconds.unwrap_or_default();
            return Failure {
                message: format!("it took more than measure.timeoutSeconds ({seconds})"),
                may_pass: false,
            };
        }
        let class = status.last_failure.as_ref().map(|failure| failure.class.as_str());
        Failure {
            message: condition.map_or_else(|| "it failed".into(), |failed| failed.message.clone()),
            may_pass: FailureClass::ALL
                .into_iter()
                .any(|known| Some(known.as_str()) == class && known.is_retryable()),
        }
    }
}

impl Plan {
    /// The state of a run's repetition, counted from 0, given the study's jobs.
    pub fn state(&self, run: &Run, repetition: u32, jobs: &[StudyJob]) -> RunState {
        let tries = jobs.iter().filter(|job| job.is_try_of(run, repetition));
        let mut tries: Vec<&StudyJob> = tries.collect();
        tries.sort_by_key(|job| job.number);
        let Some(newest) = tries.pop() else {
            return RunState::Open {
                number: 1,
                failure: None,
            };
        };
        match newest.outcome(run) {
            Some(Ok(measurement)) => RunState::Measured(measurement),
            Some(Err(failure)) if failure.may_pass && newest.number <= self.retries => RunState::Open {
                number: newest.number + 1,
                failure: Some(failure.message),
            },
            Some(Err(failure)) => RunState::Failed(failure.message),
            None => RunState::Open {
                number: newest.number,
                failure: tries.pop().and_then(|job| Some(job.outcome(run)?.err()?.message)),
            },
        }
    }

    /// For each of [`Plan::runs`], the measurement or failure of each repetition.
    pub fn measured(&self, jobs: &[StudyJob]) -> Vec<Vec<Result<Measurement, String>>> {
        let result = |run, repetition| match self.state(run, repetition, jobs) {
            RunState::Measured(measurement) => Ok(*measurement),
            RunState::Failed(message) => Err(message),
            RunState::Open { failure, .. } => Err(failure.unwrap_or_else(|| NOT_RUN.into())),
        };
        let of_run = |run| {
            (0..self.repetitions)
                .map(|repetition| result(run, repetition))
                .collect()
        };
        self.runs.iter().map(of_run).collect()
    }
}
