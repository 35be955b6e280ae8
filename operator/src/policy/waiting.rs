//! Why a job waits, in sentences, unless for GPUs: those are in [`crds::words`].

use super::admission::AdmissionState;

/// The PriorityClass does not exist.
pub(crate) fn no_priority_class(class: &str) -> String {
    format!(
        "spec.workers.priorityClassName is {class}: no such PriorityClass exists; create it, or a job with another"
    )
}

/// The job waits in a queue of Kueue.
pub(crate) fn in_queue(queue: &str, state: &AdmissionState) -> String {
    match state {
        AdmissionState::Unknown => format!(
            "spec.scheduling.queueName is {queue}: no Workloads of kueue.x-k8s.io/v1beta2 are known; install Kueue 0.15 or \
             newer, run the operator with --kueue=true, or create the job without a queue"
        ),
        AdmissionState::Waits(_) | AdmissionState::Evicted(_) => {
            format!("its Workload waits in queue {queue}: {}", no_quota(state))
        }
        AdmissionState::Outdated => {
            format!("its Workload in queue {queue} is outdated or finished and will be recreated")
        }
        AdmissionState::NoFlavor(flavor) => format!(
            "its Workload was admitted to queue {queue} with the ResourceFlavor {flavor}, which does not exist"
        ),
        AdmissionState::NotAsked | AdmissionState::Absent | AdmissionState::Granted(_) => {
            format!("its Workload is put into queue {queue}")
        }
    }
}

/// Why a job has no quota, mostly in Kueue's words.
pub(crate) fn no_quota(state: &AdmissionState) -> &str {
    match state {
        AdmissionState::Waits(Some(words)) | AdmissionState::Evicted(words) => words,
        AdmissionState::Waits(None) => "Kueue has not looked at it yet",
        _ => "its Workload is gone",
    }
}
