//! Condition types, their reasons, and the reasons of Events.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;

/// Replaces the condition of the same type. The transition time changes only with the status, as in
/// `meta.SetStatusCondition` of Kubernetes' apimachinery.
pub fn set(conditions: &mut Vec<Condition>, mut condition: Condition) {
    let last = conditions.iter_mut().find(|last| last.type_ == condition.type_);
    match last {
        Some(last) => {
            if last.status == condition.status {
                condition.last_transition_time = last.last_transition_time.clone();
            }
            *last = condition;
        }
        None => conditions.push(condition),
    }
}

/// A condition whose last transition was at `now`.
pub fn condition(
    type_: &str,
    value: bool,
    (reason, message): (&str, &str),
    generation: Option<i64>,
    now: Timestamp,
) -> Condition {
    Condition {
        type_: type_.into(),
        status: if value { "True" } else { "False" }.into(),
        reason: reason.into(),
        message: message.into(),
        observed_generation: generation,
        last_transition_time: Time(now),
    }
}

/// Types of `status.conditions`.
pub mod types {
    /// Identical GPUs that fit the whole gang are chosen.
    pub const PLACED: &str = "Placed";
    /// Every pod of the gang runs; for a study: a run trains.
    pub const RUNNING: &str = "Running";
    /// The job is suspended and holds no GPUs.
    pub const SUSPENDED: &str = "Suspended";
    /// All epochs are done; for a study: all runs were measured.
    pub const COMPLETE: &str = "Complete";
    /// The job failed and is not retried; for a study: some runs failed.
    pub const FAILED: &str = "Failed";
    /// A job with `measure` reported its measurement.
    pub const MEASURED: &str = "Measured";
    /// False while the job cannot be reconciled; absent otherwise.
    pub const RECONCILED: &str = "Reconciled";
}

/// Reasons of conditions and Events that only studies have.
pub mod study_reasons {
    /// Running: the message names the run that trains.
    pub const RUN_TRAINS: &str = "RunTrains";
    /// Running is false: a run waits for GPUs or starts.
    pub const RUN_WAITS: &str = "RunWaits";
    /// Running is false: all runs of the study have ended.
    pub const NO_RUNS: &str = "NoRuns";
    /// Complete: every run of the study was measured.
    pub const ALL_RUNS_MEASURED: &str = "AllRunsMeasured";
    /// Failed: the message names the runs that were not measured.
    pub const RUNS_FAILED: &str = "RunsFailed";
}

/// Reasons of conditions and Events: one word per cause; the message has the details.
pub mod reasons {
    /// Placed: the gang fits one group of identical GPUs.
    pub const GANG_FITS: &str = "GangFits";
    /// Placed: the gang has several kinds of GPUs, as no group of identical ones fits or is
    /// required.
    pub const MIXED_GPUS: &str = "MixedGpus";
    /// Placed is false: no group of identical GPUs fits the gang now.
    pub const NO_FITTING_GROUP: &str = "NoFittingGroup";
    /// Placed is false: the PriorityClass of `workers.priorityClassName` does not exist.
    pub const NO_PRIORITY_CLASS: &str = "PriorityClassNotFound";
    /// Placed is false: a `ResourceQuota` of the namespace refused a pod; the job is tried again within 90 seconds.
    pub const QUOTA_EXCEEDED: &str = "QuotaExceeded";
    /// Placed is false: starts fail one after another; the job gets no nodes until the next.
    pub const START_FAILING: &str = "StartFailing";
    /// Placed is false: the job waits until Kueue admits its Workload to the queue of `scheduling.queueName`.
    pub const IN_QUEUE: &str = "InQueue";
    /// Placed is false: Kueue has admitted the job, which is not placed yet.
    pub const ADMITTED: &str = "Admitted";
    /// Placed is false: the job is suspended and holds no GPUs.
    pub const NOT_PLACED_SUSPENDED: &str = "Suspended";
    /// Placed is false: the job has finished and holds no GPUs.
    pub const RELEASED: &str = "Released";
    /// Running: every pod of the gang is ready.
    pub const ALL_PODS_READY: &str = "AllPodsReady";
    /// Running is false: pods are being scheduled or started.
    pub const PODS_STARTING: &str = "PodsStarting";
    /// Running is false: the gang is being replaced after a failure.
    pub const RESTARTING: &str = "Restarting";
    /// Running is false: the gang is being replaced by one of another size.
    pub const RESIZING: &str = "Resizing";
    /// Running is false: a pod of a starting gang no longer fits its node; the gang is replaced.
    pub const NODE_UNFIT: &str = "NodeUnfit";
    /// Running is false: Kueue evicted the job; pods save a checkpoint and stop.
    pub const EVICTED: &str = "Evicted";
    /// Running is false: the job has no pods.
    pub const NO_PODS: &str = "NoPods";
    /// Suspended: `spec.suspend` is set and all pods are gone.
    pub const SUSPENDED: &str = "Suspended";
    /// Suspended is false: `spec.suspend` is set; pods save a checkpoint and stop.
    pub const SUSPENDING: &str = "Suspending";
    /// Suspended is false: `spec.suspend` is not set.
    pub const RESUMED: &str = "Resumed";
    /// Complete: every pod succeeded.
    pub const ALL_EPOCHS_DONE: &str = "AllEpochsDone";
    /// Measured: `status.measurement` has the result.
    pub const MEASURED: &str = "Measured";
    /// Measured is false: the message says why there is nothing to report.
    pub const NOT_MEASURED: &str = "NotMeasured";
    /// Measured is false: the pod that measured is gone.
    pub const MEASUREMENT_LOST: &str = "MeasurementLost";
    /// Failed: the manifest is invalid; the message names field, value and valid values.
    pub const INVALID_SPEC: &str = "InvalidSpec";
    /// Failed: failures of this class are never retried.
    pub const NOT_RETRYABLE: &str = "NotRetryable";
    /// Failed: all `failurePolicy.maxRestarts` were used.
    pub const RESTARTS_EXHAUSTED: &str = "RestartsExhausted";
    /// Failed: `spec.activeDeadlineSeconds` has passed.
    pub const DEADLINE_EXCEEDED: &str = "DeadlineExceeded";
    /// Failed: the job got no GPUs within `scheduling.pendingTimeoutSeconds`.
    pub const PENDING_TIMEOUT: &str = "PendingTimeout";
    /// Event: an attempt failed.
    pub const ATTEMPT_FAILED: &str = "AttemptFailed";
    /// Reconciled is false, as is Running for a starting gang, and Event: a call to the API server
    /// failed, or this version cannot read the job.
    pub const RECONCILE_FAILED: &str = "ReconcileFailed";
    /// The gang trains on, but this version of the operator refuses its manifest.
    pub const NOT_RESTARTABLE: &str = "NotRestartable";
    /// Event: a rank stays slower than the others, which wait for it in every step.
    pub const STRAGGLER_FOUND: &str = "StragglerFound";
    /// Event: a straggler is as fast as the others again.
    pub const STRAGGLER_GONE: &str = "StragglerGone";
    /// Event: the job is deleted because `spec.ttlSecondsAfterFinished` has passed.
    pub const EXPIRED: &str = "TimeToLiveExpired";
}
