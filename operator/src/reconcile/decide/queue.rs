//! The queue of Kueue in which a job waits for quota.

use std::time::Duration;

use crds::ValidatedJob;
use crds::status::ViTTrainingJobStatus;
use planner::Waiting;

use super::super::next::Next;
use super::super::observation::Observation;
use super::super::pace::IN_MOTION;
use super::super::step::{Step, Write};
use super::wait;
use crate::build::workload::{self, is_current};
use crate::policy::admission::{AdmissionState, is_recorded};

/// Wait for the first list of Kueue's objects.
const LISTING: Duration = Duration::from_secs(2);

/// The step before a job that names a queue may get GPUs; `None` if it may now.
pub(super) fn queue(
    seen: &Observation,
    status: &ViTTrainingJobStatus,
    valid: &ValidatedJob,
    admission: AdmissionState,
) -> Option<Step> {
    let name = valid.spec.scheduling.queue_name.as_ref()?;
    let workload = seen.queue.workload.as_ref();
    let recorded = status.admission.as_ref();
    let waits = |why: String, writes: Vec<Write>| Some(wait(seen, &Waiting::InQueue(why), writes));
    match &admission {
        AdmissionState::Evicted(words) => {
            let released = workload.map(|workload| workload::released(workload, seen.now).into());
            let writes = released.map(Write::UpdateWorkload).into_iter().collect();
            return waits(format!("its Workload waits in queue {name}: {words}"), writes);
        }
        // An operator that has just started will know soon.
        AdmissionState::Unknown if recorded.is_some() => {
            return Some(Next::of(seen).record(LISTING));
        }
        AdmissionState::Unknown => {
            let why = format!(
                "spec.scheduling.queueName is {name}: no Workloads of kueue.x-k8s.io/v1beta2 are known; install Kueue 0.15 or \
                 newer, run the operator with --kueue=true, or create the job without a queue"
            );
            return waits(why, vec![]);
        }
        _ => {}
    }
    let delete = || workload.cloned().map(Write::DeleteWorkload).into_iter().collect();
    // Without its class the priority is unknown; the Workload is created again once the class exists.
    let Some(priority) = seen.queue.priority else {
        let class = valid.spec.workers.priority_class_name.clone().unwrap_or_default();
        return Some(wait(seen, &Waiting::NoPriorityClass(class), delete()));
    };
    let wanted = workload::build(&seen.job, valid, priority);
    if workload.is_some_and(|workload| !is_current(workload, &wanted)) {
        let why = format!("its Workload in queue {name} is outdated or finished and will be recreated");
        return waits(why, delete());
    }
    match admission {
        AdmissionState::Granted(granted) if is_recorded(&granted, recorded) => None,
        AdmissionState::Granted(granted) => Some(Next::of(seen).admitted(&granted).record(IN_MOTION)),
        AdmissionState::NoFlavor(_) if recorded.is_some() => None,
        AdmissionState::NoFlavor(flavor) => {
            let why = format!(
                "its Workload was admitted to queue {name} with the ResourceFlavor {flavor}, which does not exist"
            );
            waits(why, vec![])
        }
        AdmissionState::Waits(words) => waits(format!("its Workload waits in queue {name}: {words}"), vec![]),
        AdmissionState::NotAsked
        | AdmissionState::Unknown
        | AdmissionState::Evicted(_)
        | AdmissionState::Absent => {
            // One that is being deleted still has the name.
            let create = workload.is_none().then(|| Write::CreateWorkload(wanted.into()));
            waits(
                format!("its Workload is put into queue {name}"),
                create.into_iter().collect(),
            )
        }
    }
}
