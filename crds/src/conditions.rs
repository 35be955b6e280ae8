//! Condition types, their reasons, and the reasons of Events.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;

/// Puts a condition in the place of the one of its type; the time of the transition moves only with its value
/// (`meta.SetStatusCondition` of Kubernetes' apimachinery).
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

/// A condition that has been so since `now`.
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
    /// A set of like GPUs that fits the whole gang is chosen.
    pub const PLACED: &str = "Placed";
    /// Every pod of the gang runs; of a study, a run trains.
    pub const RUNNING: &str = "Running";
    /// The job is suspended and holds no GPUs.
    pub const SUSPENDED: &str = "Suspended";
    /// All epochs are done; of a study, all runs were measured.
    pub const COMPLETE: &str = "Complete";
    /// The job failed and is not tried again; of a study, some runs.
    pub const FAILED: &str = "Failed";
    /// A job that is to be measured told what its steps took.
    pub const MEASURED: &str = "Measured";
    /// False while what is to be done for the job cannot be; not there otherwise.
    pub const RECONCILED: &str = "Reconciled";
}

/// Reasons of conditions and Events of studies alone.
pub mod study_reasons {
    /// Running, of a study: the message says which run trains.
    pub const RUN_TRAINS: &str = "RunTrains";
    /// Running of a study is false: a run waits for GPUs, or starts.
    pub const RUN_WAITS: &str = "RunWaits";
    /// Running of a study is false: all its runs are over.
    pub const NO_RUNS: &str = "NoRuns";
    /// Complete: every run of the study was measured.
    pub const ALL_RUNS_MEASURED: &str = "AllRunsMeasured";
    /// Failed: some runs of the study were not measured; the message names them. And Event: one of them.
    pub const RUNS_FAILED: &str = "RunsFailed";
    /// Event: a job was stopped because the manifest was changed and does not need its run any more.
    pub const RUN_STOPPED: &str = "RunStopped";
}

/// Reasons of conditions and Events: one word a cause; the message has the details.
pub mod reasons {
    /// Placed: the gang fits one group of like GPUs.
    pub const GANG_FITS: &str = "GangFits";
    /// Placed: no group of like GPUs fits the gang, or none was asked for; its GPUs are of several kinds.
    pub const MIXED_GPUS: &str = "MixedGpus";
    /// Placed is false: no group of like GPUs fits the gang now.
    pub const NO_FITTING_GROUP: &str = "NoFittingGroup";
    /// Placed is false: the PriorityClass of `workers.priorityClassName` does not exist.
    pub const NO_PRIORITY_CLASS: &str = "PriorityClassNotFound";
    /// Placed is false: the job waits until Kueue admits its Workload to the queue of `scheduling.queueName`.
    pub const IN_QUEUE: &str = "InQueue";
    /// Placed is false: Kueue has admitted the job, and GPUs are being looked for.
    pub const ADMITTED: &str = "Admitted";
    /// Placed is false: the job holds no GPUs, because it is suspended.
    pub const NOT_PLACED_SUSPENDED: &str = "Suspended";
    /// Placed is false: the job is over and holds no GPUs.
    pub const RELEASED: &str = "Released";
    /// Running: every pod of the gang is ready.
    pub const ALL_PODS_READY: &str = "AllPodsReady";
    /// Running is false: pods are being scheduled or started.
    pub const PODS_STARTING: &str = "PodsStarting";
    /// Running is false: the gang is being replaced after a failure.
    pub const RESTARTING: &str = "Restarting";
    /// Running is false: the gang is being replaced by one of another size.
    pub const RESIZING: &str = "Resizing";
    /// Running is false: a pod of a gang that starts no longer fits its node; the gang is placed again.
    pub const NODE_UNFIT: &str = "NodeUnfit";
    /// Running is false: Kueue has taken the quota back, pods are saving and stopping.
    pub const EVICTED: &str = "Evicted";
    /// Running is false: there are no pods.
    pub const NO_PODS: &str = "NoPods";
    /// Suspended: `spec.suspend` is set and all pods are gone.
    pub const SUSPENDED: &str = "Suspended";
    /// Suspended is false: `spec.suspend` is set, pods are saving and stopping.
    pub const SUSPENDING: &str = "Suspending";
    /// Suspended is false: `spec.suspend` is not set.
    pub const RESUMED: &str = "Resumed";
    /// Complete: every pod ended well.
    pub const ALL_EPOCHS_DONE: &str = "AllEpochsDone";
    /// Measured: `status.measurement` has what the steps took.
    pub const MEASURED: &str = "Measured";
    /// Measured is false: the message says why nothing can be told.
    pub const NOT_MEASURED: &str = "NotMeasured";
    /// Measured is false: the pod that measured is gone.
    pub const MEASUREMENT_LOST: &str = "MeasurementLost";
    /// Failed: the manifest cannot be run; the message names field, value and what would be right.
    pub const INVALID_SPEC: &str = "InvalidSpec";
    /// Failed: the failure's class is never retried.
    pub const NOT_RETRYABLE: &str = "NotRetryable";
    /// Failed: `failurePolicy.maxRestarts` is used up.
    pub const RESTARTS_EXHAUSTED: &str = "RestartsExhausted";
    /// Failed: `spec.activeDeadlineSeconds` is over.
    pub const DEADLINE_EXCEEDED: &str = "DeadlineExceeded";
    /// Event: an attempt failed.
    pub const ATTEMPT_FAILED: &str = "AttemptFailed";
    /// Reconciled and, of a gang that starts, Running are false, and Event: a call to the API server failed during reconciliation, or the job
    /// cannot be read.
    pub const RECONCILE_FAILED: &str = "ReconcileFailed";
    /// Event: a rank stays slower than the others, which wait for it in every step.
    pub const STRAGGLER_FOUND: &str = "StragglerFound";
    /// Event: a rank that was slower than the others is so no longer.
    pub const STRAGGLER_GONE: &str = "StragglerGone";
    /// Event: the job is deleted because its time after finishing is over.
    pub const EXPIRED: &str = "TimeToLiveExpired";
}
