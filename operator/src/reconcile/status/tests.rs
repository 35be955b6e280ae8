use std::sync::Arc;

use contract::{FailureClass, Progress, RunConfig};
use crds::ViTTrainingJob;
use crds::spec::Strategy;
use crds::status::{CheckpointStatus, GpuGroup, WorkersStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use planner::Waiting;
use planner::policy::placement::{Gpus, Unplaceable};
use planner::policy::queue::QueueStatus;

use super::*;
use crate::build::config_map::RUN_CONFIG_KEY;
use crate::fixtures::{self, assert_contains, at, conditions_of, gang, job_in, observation, pod};
use crate::policy::failure::Failure;
use crate::policy::gang::{Fetch, PodState};
use crate::policy::restart::Verdict;
use crate::reconcile::changes;

fn no_fit(message: &str, queue: QueueStatus) -> Plan {
    let why = Unplaceable {
        rejected: vec![],
        message: message.into(),
    };
    Plan::Wait(Waiting::NoFit { why, queue })
}

#[test]
fn a_job_that_was_to_be_measured_tells_what_it_measured_and_where_or_why_not() {
    let mut job = job_in(Phase::Running, 1);
    job.spec.measure = Some(crds::spec::Measure::default());
    let ended = |measured| {
        let mut observed = observation(job.clone(), gang(1));
        observed.measured = measured;
        next(&observed, &Plan::Finish)
    };
    let json = r#"{"worldSize": 2, "globalBatchSize": 32, "trainImages": 64, "epochs": {"seconds": [], "loss": [],
        "trainAccuracy": []}, "steps": 7, "stepSeconds": 0.5, "imagesPerSecond": 64.0, "phases": {},
        "communicationSeconds": 0.0, "communicationBytes": 0.0}"#;
    let status = ended(Some(Ok(serde_json::from_str(json).expect("a measurement"))));
    let measurement = status.measurement.as_ref().expect("a measurement");
    assert_eq!(
        (measurement.steps, &measurement.nodes[..]),
        (7, &["a".to_owned(), "b".to_owned()][..])
    );
    assert_eq!(conditions_of(&status)["Measured"], ("True", "Measured"));
    let status = ended(Some(Err("all is warm-up".into())));
    assert_eq!(conditions_of(&status)["Measured"], ("False", "NotMeasured"));
    assert_eq!(
        status.condition("Measured").expect("a condition").message,
        "all is warm-up"
    );
    let lost = ended(None);
    assert!(status.measurement.is_none() && lost.measurement.is_none());
    assert_eq!(conditions_of(&lost)["Measured"], ("False", "MeasurementLost"));
}

#[test]
fn a_place_in_the_queue_is_written_but_no_news_by_itself() {
    let at = |position| QueueStatus {
        position,
        waiting: 5,
        ..fixtures::alone()
    };
    let mut job = fixtures::job();
    let first = next(&observation(job.clone(), vec![]), &no_fit("needs 2", at(3)));
    let placed = |status: &ViTTrainingJobStatus| {
        let condition = status.condition(PLACED).expect("a condition");
        condition.message.clone()
    };
    assert_eq!(placed(&first), "needs 2 (3rd of 5 waiting)");
    job.status = Some(first.clone());
    let observed = observation(job, vec![]);
    assert_eq!(next(&observed, &no_fit("needs 2", at(2))), first);
    let held_back = QueueStatus {
        held_back_for: Some("research/large".into()),
        ..at(2)
    };
    assert_eq!(
        placed(&next(&observed, &no_fit("needs 2", held_back))),
        "needs 2; held back for research/large (2nd of 5 waiting)"
    );
    let keeps = QueueStatus {
        reserved_nodes: 8,
        ..at(1)
    };
    assert_eq!(
        placed(&next(&observed, &no_fit("needs 8", keeps))),
        "needs 8; 8 nodes are reserved for it (1st of 5 waiting)"
    );
}

#[test]
fn a_priority_class_that_does_not_exist_is_written() {
    let plan = Plan::Wait(Waiting::NoPriorityClass("urgent".into()));
    let status = next(&observation(fixtures::job(), vec![]), &plan);
    let placed = status.condition(PLACED).expect("a condition");
    assert_eq!(status.phase, Some(Phase::Pending));
    assert_eq!(placed.reason, reasons::NO_PRIORITY_CLASS);
    assert_contains(&placed.message, "spec.workers.priorityClassName is urgent: ");
}

#[test]
fn a_status_to_which_nothing_happened_stays_as_it_is() {
    let mut job = job_in(Phase::Running, 1);
    let mut observed = observation(job.clone(), gang(1));
    job.status = Some(next(&observed, &Plan::Follow));
    observed = observation(job.clone(), gang(1));
    observed.now = at(500);
    assert_eq!(next(&observed, &Plan::Follow), job.status.expect("a status"));
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
    job.status = Some(next(&observation(job.clone(), ready(0)), &Plan::Follow));
    let after = |job: &ViTTrainingJob, pods| next(&observation(job.clone(), pods), &Plan::Follow);
    let moves =
        |job: &ViTTrainingJob, next| only_counters_changed(&job.status.clone().expect("a status"), &next);
    assert!(moves(&job, after(&job, ready(1))));
    let mut stuck = ready(1);
    stuck[1].stuck = Some("no such image".into());
    assert!(moves(&job, after(&job, stuck)), "words come a moment later");
    assert!(
        !moves(&job, after(&job, ready(2))),
        "that all are ready is written at once"
    );

    job.status = Some(after(&job, ready(2)));
    let mut observed = observation(job.clone(), ready(2));
    observed.progress = Some(Progress {
        step: 7,
        ..Progress::default()
    });
    let progressed = next(&observed, &Plan::Follow);
    assert_ne!(Some(&progressed), job.status.as_ref());
    assert!(moves(&job, progressed));
    let checkpoint = contract::CheckpointRecord {
        step: 7,
        path: "step-7".into(),
        time: at(7).to_string(),
    };
    let progress = observed.progress.as_mut().expect("a record");
    progress.last_checkpoint = Some(checkpoint);
    assert!(
        !moves(&job, next(&observed, &Plan::Follow)),
        "a checkpoint is written at once"
    );
    let mut slow = job.status.clone().expect("a status");
    slow.stragglers = vec![fixtures::straggler(1, "b", 2.5)];
    assert!(!moves(&job, slow.clone()));
    let mut slowed = job.clone();
    slowed.status = Some(slow.clone());
    slow.stragglers[0].slowdown = 3.0;
    slow.stragglers[0].saved_seconds = None;
    assert!(moves(&slowed, slow));
    let replaced = next(&observed, &Plan::Halt(StopReason::Suspend));
    assert!(!moves(&job, replaced));
}

#[test]
fn times_of_transition_move_only_with_the_value() {
    let waiting = |message: &str| no_fit(message, fixtures::alone());
    let mut observed = observation(fixtures::job(), vec![]);
    let first = next(&observed, &waiting("needs 2"));
    let mut job = fixtures::job();
    job.status = Some(first.clone());
    job.metadata.generation = Some(2);
    observed = observation(job, vec![]);
    observed.now = at(200);
    let second = next(&observed, &waiting("needs 3"));
    let (first, second) = (
        first.condition(PLACED).expect("a condition"),
        second.condition(PLACED).expect("a condition"),
    );
    assert_eq!(first.last_transition_time, second.last_transition_time);
    assert_eq!(
        (second.message.as_str(), second.observed_generation),
        ("needs 3", Some(2))
    );
}

#[test]
fn a_pod_that_cannot_start_is_written_in_the_kubelet_s_words() {
    let stuck = PodView {
        state: PodState::Pending,
        ready: false,
        stuck: Some("ErrImagePull: not found".into()),
        ..pod(1, 1)
    };
    let observed = observation(job_in(Phase::Starting, 1), vec![pod(1, 0), stuck]);
    let status = next(&observed, &Plan::Follow);
    let running = status.condition(RUNNING).expect("a condition");
    assert_eq!(
        running.message,
        "1 of 2 pods are ready; pod digits-1-1: ErrImagePull: not found"
    );
    assert_eq!(status.phase, Some(Phase::Starting));
    assert_eq!(status.workers.map(|workers| workers.ready), Some(1));
}

#[test]
fn pods_that_fetch_are_told_of() {
    let fetching = |node_rank| PodView {
        state: PodState::Pending,
        ready: false,
        fetch: Some(Fetch::Runs),
        ..pod(1, node_rank)
    };
    let observed = observation(job_in(Phase::Starting, 1), vec![fetching(0), fetching(1)]);
    let status = next(&observed, &Plan::Follow);
    assert_eq!(
        status.condition(RUNNING).expect("a condition").message,
        "0 of 2 pods are ready; 2 fetch data.from or wait for another that does"
    );
}

#[test]
fn a_gang_that_runs_stays_running_while_its_pods_finish_one_by_one() {
    let finished = PodView {
        state: PodState::Succeeded,
        ready: false,
        ..pod(1, 0)
    };
    let observed = observation(job_in(Phase::Running, 1), vec![finished, pod(1, 1)]);
    let status = next(&observed, &Plan::Follow);
    assert_eq!(conditions_of(&status)[RUNNING], ("True", reasons::ALL_PODS_READY));
}

#[test]
fn progress_is_taken_over_and_a_checkpoint_only_if_it_is_newer() {
    let mut job = job_in(Phase::Running, 1);
    let status = job.status.as_mut().expect("a status");
    status.restarts_since_checkpoint = 2;
    status.last_checkpoint = Some(CheckpointStatus {
        step: 40,
        path: "/checkpoints/digits/40".into(),
        time: None,
    });
    let mut observed = observation(job, gang(1));
    let mut progress = Progress {
        attempt: 1,
        epoch: 2,
        total_epochs: 20,
        step: 45,
        total_steps: 1000,
        loss: Some(1.5),
        validation_accuracy: Some(0.951_249),
        ema_validation_accuracy: Some(0.968_751),
        images_per_second: Some(2_522.517_309_888_216_5),
        sync_share: Some(0.092_041_618),
        eta_seconds: Some(90),
        updated_at: at(99).to_string(),
        last_checkpoint: Some(contract::CheckpointRecord {
            step: 40,
            path: "/checkpoints/digits/40".into(),
            time: at(90).to_string(),
        }),
        ..Progress::default()
    };
    observed.progress = Some(progress.clone());
    let status = next(&observed, &Plan::Follow);
    assert_eq!(status.restarts_since_checkpoint, 2);
    let recorded = status.progress.expect("progress");
    assert_eq!(
        (
            recorded.epoch,
            recorded.step,
            recorded.percent,
            recorded.eta_seconds
        ),
        (2, 45, 4, Some(90))
    );
    assert_eq!(recorded.updated_at, Some(Time(at(99))));
    assert_eq!(
        (recorded.images_per_second, recorded.sync_share),
        (Some(2522.5), Some(0.092)),
        "as many decimals as a person reads"
    );
    assert_eq!(
        (recorded.validation_accuracy, recorded.ema_validation_accuracy),
        (Some(0.9512), Some(0.9688))
    );
    progress.last_checkpoint.as_mut().expect("a checkpoint").step = 45;
    observed.progress = Some(progress);
    let status = next(&observed, &Plan::Follow);
    assert_eq!(status.restarts_since_checkpoint, 0);
    assert_eq!(status.last_checkpoint.expect("a checkpoint").step, 45);
}

#[test]
fn a_finished_job_tells_where_it_was_and_that_it_holds_nothing() {
    let mut job = job_in(Phase::Running, 1);
    job.status.as_mut().expect("a status").conditions = vec![
        fixtures::condition(PLACED, true, reasons::GANG_FITS),
        fixtures::condition(RUNNING, true, reasons::ALL_PODS_READY),
    ];
    let observed = observation(job, vec![]);
    let status = next(&observed, &Plan::Finish);
    assert_eq!(status.phase, Some(Phase::Succeeded));
    assert_eq!(status.completion_time, Some(Time(at(100))));
    assert_eq!(
        status.placement.as_ref().map(|placement| placement.nodes.len()),
        Some(2)
    );
    assert_eq!(status.workers, Some(WorkersStatus::default()));
    assert_eq!(
        conditions_of(&status),
        [
            (PLACED, ("False", reasons::RELEASED)),
            (RUNNING, ("False", reasons::NO_PODS)),
            (COMPLETE, ("True", reasons::ALL_EPOCHS_DONE)),
        ]
        .into()
    );
}

#[test]
fn a_suspended_job_tells_so_and_so_does_a_resumed_one() {
    let observed = observation(job_in(Phase::Suspending, 1), vec![]);
    let suspended = next(&observed, &Plan::Park);
    assert_eq!(conditions_of(&suspended)[SUSPENDED], ("True", reasons::SUSPENDED));
    let mut job = job_in(Phase::Suspended, 1);
    job.status = Some(suspended);
    let waiting = no_fit("needs 2", fixtures::alone());
    assert_eq!(
        conditions_of(&next(&observation(job.clone(), vec![]), &waiting))[SUSPENDED],
        ("False", reasons::RESUMED)
    );
    let plan = Plan::Place {
        attempt: 2,
        placement: fixtures::placement(["a", "b"]),
    };
    let resumed = next(&observation(job, vec![]), &plan);
    assert_eq!(conditions_of(&resumed)[SUSPENDED], ("False", reasons::RESUMED));
    assert_eq!((resumed.attempt, resumed.restarts), (2, 0));
}

#[test]
fn stragglers_are_named_with_their_node_until_another_gang_takes_their_place() {
    let mut job = job_in(Phase::Running, 1);
    job.spec.workers.gpus_per_node = 4;
    let mut observed = observation(job, gang(1));
    let slow = |rank, slowdown, saved| contract::SlowRank {
        rank,
        slowdown,
        saved_seconds: Some(saved),
    };
    observed.stragglers = Some(vec![slow(3, 1.5, 0.123_46), slow(5, 2.345_6, 0.000_04)]);
    let status = next(&observed, &Plan::Follow);
    assert_eq!(
        status.stragglers,
        [
            fixtures::straggler(3, "a", 1.5),
            StragglerStatus {
                saved_seconds: None,
                ..fixtures::straggler(5, "b", 2.35)
            }
        ]
    );
    std::sync::Arc::make_mut(&mut observed.job).status = Some(status);
    observed.stragglers = None;
    assert_eq!(next(&observed, &Plan::Follow).stragglers.len(), 2);
    let again = Plan::Place {
        attempt: 2,
        placement: fixtures::placement(["b", "c"]),
    };
    let replaced = next(&observed, &again);
    assert_eq!(replaced.stragglers, []);
    let remembered = |status: &ViTTrainingJobStatus| -> Vec<(String, f64)> {
        let nodes = status.slow_nodes.iter();
        nodes.map(|node| (node.node.clone(), node.slowdown)).collect()
    };
    assert_eq!(remembered(&replaced), [("a".into(), 1.5), ("b".into(), 2.35)]);
    observed.stragglers = Some(vec![]);
    assert_eq!(next(&observed, &Plan::Follow).stragglers, []);
    observed.stragglers = None;
    std::sync::Arc::make_mut(&mut observed.job).status = Some(replaced);
    observed.now = at(100 + 3600);
    let forgotten = next(&observed, &Plan::Follow);
    assert_eq!(remembered(&forgotten), []);
    // A gang that trains without them does not grow onto them.
    let status = std::sync::Arc::make_mut(&mut observed.job)
        .status
        .as_mut()
        .expect("a status");
    status.phase = Some(Phase::Running);
    assert_eq!(remembered(&next(&observed, &Plan::Rest(None))).len(), 2);
}

#[test]
fn what_keeps_a_plan_from_being_carried_out_is_written_in_every_phase_until_it_is_gone() {
    let error = Error::NameTaken {
        kind: "Service",
        name: "digits".into(),
        owner: "job",
    };
    for phase in Phase::ALL {
        let observed = observation(job_in(phase, 1), gang(1));
        let status = observed.status();
        let failed = with_error(&observed, status.clone(), Some(&error));
        let condition = failed.condition(RECONCILED).expect("failed");
        assert_eq!(
            (condition.status.as_str(), &condition.message),
            ("False", &error.to_string())
        );
        assert!(!only_counters_changed(&status, &failed), "{phase:?}: it is news");
        assert_eq!(with_error(&observed, failed.clone(), Some(&error)), failed);
        let gone = with_error(&observed, failed, None);
        assert!(gone.condition(RECONCILED).is_none());
        if phase != Phase::Starting {
            assert_eq!(gone, status);
        }
    }
}

#[test]
fn the_node_of_a_failure_is_remembered_for_an_hour() {
    let mut observed = observation(job_in(Phase::Running, 1), gang(1));
    let failure = Failure::from_pod(&pod(1, 1), FailureClass::DeviceFault, "no GPU".into());
    let end = Plan::End {
        failure,
        verdict: Verdict::Restart,
        again: false,
    };
    let status = next(&observed, &end);
    assert_eq!(
        (status.failed_nodes.len(), status.failed_nodes[0].node.as_str()),
        (1, "b")
    );
    std::sync::Arc::make_mut(&mut observed.job).status = Some(status);
    observed.now = at(100 + 3599);
    assert_eq!(next(&observed, &Plan::Rest(None)).failed_nodes.len(), 1);
    observed.now = at(100 + 3600);
    assert_eq!(next(&observed, &Plan::Rest(None)).failed_nodes, []);
}

#[test]
fn a_gang_trains_by_the_strategy_that_was_chosen_for_its_gpus() {
    let mut job = fixtures::job();
    job.spec.model.name = Some("vit_large_patch16_224".into());
    job.spec.parallelism.strategy = Strategy::Auto;
    let mut placement = fixtures::placement(["a", "b"]);
    placement.gpus = Gpus::Identical(GpuGroup {
        memory_mebibytes: Some(6_000),
        ..fixtures::tesla_t4()
    });
    let place = Plan::Place {
        attempt: 1,
        placement,
    };
    let mut observed = observation(job, vec![]);
    let status = next(&observed, &place);
    let chosen = status
        .placement
        .as_ref()
        .and_then(|placement| placement.strategy.clone());
    let chosen = chosen.expect("a strategy");
    assert!(chosen.zero_stage > 0, "{chosen:?}");
    assert_contains(
        &status.condition(PLACED).expect("a condition").message,
        &format!("; strategy zeroStage {}", chosen.zero_stage),
    );
    Arc::make_mut(&mut observed.job).status = Some(status);
    let valid = crds::validate(&observed.job).expect("valid");
    let create = Plan::Create {
        node_ranks: vec![0, 1],
    };
    let changes = changes::build(&observed, Some(&valid), &create);
    let config_map = changes.create_config_map.expect("of the attempt");
    let data = config_map.data.expect("data");
    let config: RunConfig = serde_json::from_str(&data[RUN_CONFIG_KEY]).expect("a run configuration");
    assert_eq!(i32::from(config.parallelism.zero_stage), chosen.zero_stage);
    assert_eq!(config.global_batch_size(), valid.run_config.global_batch_size());
}
