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
    let waits =
        |state: &AdmissionState, writes| Some(wait(seen, Next::of(seen).in_queue(name, state), writes));
    match &admission {
        AdmissionState::Evicted(_) => {
            let released = workload.map(|workload| workload::released(workload, seen.now).into());
            let writes = released.map(Write::UpdateWorkload).into_iter().collect();
            return waits(&admission, writes);
        }
        // An operator that has just started will know soon.
        AdmissionState::Unknown if recorded.is_some() => {
            return Some(Next::of(seen).record(LISTING));
        }
        AdmissionState::Unknown => return waits(&admission, vec![]),
        _ => {}
    }
    let delete = || workload.cloned().map(Write::DeleteWorkload).into_iter().collect();
    // Without its class the priority is unknown; the Workload is created again once the class exists.
    let Some(priority) = seen.queue.priority else {
        let class = valid.spec.workers.priority_class_name.clone().unwrap_or_default();
        let next = Next::of(seen).waits(&Waiting::NoPriorityClass(class));
        return Some(wait(seen, next, delete()));
    };
    let wanted = workload::build(&seen.job, valid, priority);
    if workload.is_some_and(|workload| !is_current(workload, &wanted)) {
        return waits(&AdmissionState::Outdated, delete());
    }
    match &admission {
        AdmissionState::Granted(granted) if is_recorded(granted, recorded) => None,
        AdmissionState::Granted(granted) => Some(Next::of(seen).admitted(granted).record(IN_MOTION)),
        AdmissionState::NoFlavor(_) if recorded.is_some() => None,
        AdmissionState::NoFlavor(_) | AdmissionState::Waits(_) => waits(&admission, vec![]),
        _ => {
            // One that is being deleted still has the name.
            let create = workload.is_none().then(|| Write::CreateWorkload(wanted.into()));
            waits(&admission, create.into_iter().collect())
        }
    }
}
