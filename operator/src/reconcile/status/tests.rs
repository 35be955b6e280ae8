use contract::{CheckpointRecord, Progress};
use crds::ViTTrainingJob;

use super::super::next::Next;
use super::*;
use crate::error::Error;
use crate::fixtures::{self, at, gang, job_in, observation};
use crate::policy::gang::PodView;
use crate::policy::suspend::StopReason;

/// The next status of a gang with these pods and this progress.
fn followed(job: &ViTTrainingJob, pods: Vec<PodView>, progress: Option<Progress>) -> ViTTrainingJobStatus {
    let mut observed = observation(job.clone(), pods);
    observed.progress = progress;
    let step = Next::of(&observed).followed().record(std::time::Duration::ZERO);
    *step.status
}

#[test]
fn only_progress_and_pods_that_get_ready_can_wait() {
    let ready = |count| {
        let mut pods = gang(1);
        for pod in &mut pods[count..] {
            pod.ready = false;
        }
        pods
    };
    let mut job = job_in(Phase::Starting, 1);
    job.status = Some(followed(&job, ready(0), None));
    let moves =
        |job: &ViTTrainingJob, next| only_counters_changed(&job.status.clone().expect("a status"), &next);
    assert!(moves(&job, followed(&job, ready(1), None)));
    let mut stuck = ready(1);
    stuck[1].stuck = Some("no such image".into());
    assert!(
        moves(&job, followed(&job, stuck, None)),
        "words come a moment later"
    );
    assert!(!moves(&job, followed(&job, ready(2), None)), "all are ready");

    job.status = Some(followed(&job, ready(2), None));
    let mut progress = Progress {
        step: 7,
        ..Progress::default()
    };
    let progressed = followed(&job, ready(2), Some(progress.clone()));
    assert_ne!(Some(&progressed), job.status.as_ref());
    assert!(moves(&job, progressed));
    progress.last_checkpoint = Some(CheckpointRecord {
        step: 7,
        path: "step-7".into(),
        time: at(7).to_string(),
    });
    assert!(
        !moves(&job, followed(&job, ready(2), Some(progress))),
        "a checkpoint"
    );
    let mut slow = job.status.clone().expect("a status");
    slow.stragglers = vec![fixtures::straggler(1, "b", 2.5)];
    assert!(!moves(&job, slow.clone()));
    let mut slowed = job.clone();
    slowed.status = Some(slow.clone());
    slow.stragglers[0].slowdown = 3.0;
    slow.stragglers[0].saved_seconds = None;
    assert!(moves(&slowed, slow));
    let observed = observation(job.clone(), ready(2));
    let halted = Next::of(&observed).halted(&StopReason::Suspend);
    assert!(!moves(&job, *halted.record(std::time::Duration::ZERO).status));
}

#[test]
fn a_failed_call_is_written_in_every_phase_until_it_succeeds() {
    let error = Error::NameTaken {
        kind: "Service",
        name: "digits".into(),
        owner: "job",
    }
    .to_string();
    for phase in Phase::ALL {
        let observed = observation(job_in(phase, 1), gang(1));
        let status = observed.status();
        let failed = with_error(&observed, status.clone(), Some(&error));
        let condition = failed.condition(RECONCILED).expect("failed");
        assert_eq!((&*condition.status, &condition.message), ("False", &error));
        assert!(!only_counters_changed(&status, &failed), "{phase:?}: it is news");
        assert_eq!(with_error(&observed, failed.clone(), Some(&error)), failed);
        let gone = with_error(&observed, failed, None);
        assert!(gone.condition(RECONCILED).is_none());
        if phase != Phase::Starting {
            assert_eq!(gone, status);
        }
    }
}
