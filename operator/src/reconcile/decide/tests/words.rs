//! What the status says.

use contract::{FailureClass, Progress, RunConfig};
use crds::conditions::reasons;
use crds::conditions::types::{COMPLETE, PLACED, RUNNING};
use crds::spec::Strategy;
use crds::status::{
    CheckpointStatus, GpuGroup, StragglerStatus, ViTTrainingJobStatus, WaitStatus, WorkersStatus,
};
use crds::{Phase, ViTTrainingJob};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use planner::policy::placement::{Gpus, Placement};
use planner::{Decision, Waiting};

use super::super::super::next::Next;
use super::super::super::observation::Observation;
use super::super::super::step::{Object, Step, Write};
use super::super::decide;
use super::world::{World, saved_at};
use crate::build::config_map::RUN_CONFIG_KEY;
use crate::fixtures::{self, assert_contains, at, conditions_of, gang, job_in, observation, pod};
use crate::policy::failure::Failure;
use crate::policy::gang::{Fetch, PodState, PodView};
use crate::policy::restart::Verdict;

fn decided(job: ViTTrainingJob, decision: Decision) -> Step {
    let valid = crds::validate(&job);
    decide(&observation(job, vec![]), &valid, |_| Some(decision), || None)
}

/// The status of a job that waits in a cluster without GPUs.
fn waiting(job: ViTTrainingJob, wait: WaitStatus) -> ViTTrainingJobStatus {
    let rejected = vec![];
    *decided(job, Decision::Waits(Waiting::NoFit { rejected, wait })).status
}

fn message(status: &ViTTrainingJobStatus, type_: &str) -> String {
    status.condition(type_).expect("a condition").message.clone()
}

/// The status of a gang in this phase with these pods.
fn followed(phase: Phase, pods: Vec<PodView>) -> ViTTrainingJobStatus {
    let mut world = World::in_phase(phase, |_| ());
    world.seen.pods = pods;
    *world.decide().status
}

#[test]
fn a_job_that_was_to_be_measured_tells_what_it_measured_and_where_or_why_not() {
    let ended = |measured| {
        let mut job = job_in(Phase::Running, 1);
        job.spec.measure = Some(crds::spec::Measure::default());
        let mut observed = observation(job, gang(1));
        observed.measured = measured;
        *Next::of(&observed)
            .succeeded()
            .record(std::time::Duration::ZERO)
            .status
    };
    let json = r#"{"worldSize": 2, "globalBatchSize": 32, "trainImages": 64, "epochs": {"seconds": [], "loss": [],
        "trainAccuracy": []}, "steps": 7, "stepSeconds": 0.5, "imagesPerSecond": 64.0, "phases": {},
        "communicationSeconds": 0.0}"#;
    let status = ended(Some(Ok(serde_json::from_str(json).expect("a measurement"))));
    let measurement = status.measurement.as_ref().expect("a measurement");
    assert_eq!(
        (measurement.steps, measurement.nodes.join(" ")),
        (7, "a b".into())
    );
    assert_eq!(conditions_of(&status)["Measured"], ("True", "Measured"));
    let status = ended(Some(Err("all is warm-up".into())));
    assert_eq!(conditions_of(&status)["Measured"], ("False", "NotMeasured"));
    assert_eq!(message(&status, "Measured"), "all is warm-up");
    let lost = ended(None);
    assert!(status.measurement.is_none() && lost.measurement.is_none());
    assert_eq!(conditions_of(&lost)["Measured"], ("False", "MeasurementLost"));
}

#[test]
fn what_a_job_waits_for_is_written_as_data_and_as_a_sentence() {
    let told = |change: fn(&mut WaitStatus)| {
        let mut wait = WaitStatus {
            position: 2,
            waiting: 5,
            ..fixtures::alone()
        };
        change(&mut wait);
        let status = waiting(fixtures::job(), wait.clone());
        assert_eq!(
            status
                .placement
                .as_ref()
                .and_then(|placement| placement.wait.as_ref()),
            Some(&wait)
        );
        message(&status, PLACED)
    };
    let needs = "needs 2 x 1 identical nvidia.com/gpu: no node has nvidia.com/gpu";
    assert_eq!(told(|_| ()), format!("{needs} (position 2 of 5)"));
    assert_eq!(
        told(|wait| wait.held_back_for = Some("research/large".into())),
        format!("{needs}; held back for research/large (position 2 of 5)")
    );
    assert_eq!(
        told(|wait| (wait.reserved_nodes, wait.waiting) = (8, 1)),
        format!("{needs}; 8 nodes are reserved for it")
    );
}

#[test]
fn a_priority_class_that_does_not_exist_is_written() {
    let missing = Decision::Waits(Waiting::NoPriorityClass("urgent".into()));
    let status = decided(fixtures::job(), missing).status;
    assert_eq!(
        conditions_of(&status)[PLACED],
        ("False", reasons::NO_PRIORITY_CLASS)
    );
    assert_contains(
        &message(&status, PLACED),
        "spec.workers.priorityClassName is urgent: ",
    );
}

#[test]
fn times_of_transition_move_only_with_the_value() {
    let mut job = fixtures::job();
    let first = waiting(job.clone(), fixtures::alone());
    job.status = Some(first.clone());
    job.metadata.generation = Some(2);
    let second = waiting(
        job,
        WaitStatus {
            nodes: 3,
            ..fixtures::alone()
        },
    );
    let placed = |status: &ViTTrainingJobStatus| status.condition(PLACED).expect("a condition").clone();
    let (first, second) = (placed(&first), placed(&second));
    assert_eq!(first.last_transition_time, second.last_transition_time);
    assert_eq!(
        (&*second.message, second.observed_generation),
        (
            "needs 3 x 1 identical nvidia.com/gpu: no node has nvidia.com/gpu",
            Some(2)
        )
    );
}

#[test]
fn a_status_to_which_nothing_happened_stays_as_it_is() {
    let mut world = World::running();
    world.begin();
    world.seen.now = at(500);
    assert_eq!(*world.decide().status, world.status());
}

#[test]
fn pods_that_start_are_written_in_the_kubelet_s_words() {
    let pending = |node_rank| PodView {
        state: PodState::Pending,
        ready: false,
        ..pod(1, node_rank)
    };
    let stuck = PodView {
        stuck: Some("ErrImagePull: not found".into()),
        ..pending(1)
    };
    let status = followed(Phase::Starting, vec![pod(1, 0), stuck]);
    assert_eq!(
        message(&status, RUNNING),
        "1 of 2 pods are ready; pod digits-1-1: ErrImagePull: not found"
    );
    assert_eq!(status.phase, Some(Phase::Starting));
    assert_eq!(status.workers.map(|workers| workers.ready), Some(1));
    let fetching = |node_rank| PodView {
        fetch: Some(Fetch::Runs),
        ..pending(node_rank)
    };
    assert_eq!(
        message(
            &followed(Phase::Starting, vec![fetching(0), fetching(1)]),
            RUNNING
        ),
        "0 of 2 pods are ready; 2 fetch files or wait for another pod that does"
    );
    // A gang stays running while its pods finish one by one.
    let finished = PodView {
        state: PodState::Succeeded,
        ready: false,
        ..pod(1, 0)
    };
    let status = followed(Phase::Running, vec![finished, pod(1, 1)]);
    assert_eq!(conditions_of(&status)[RUNNING], ("True", reasons::ALL_PODS_READY));
}

#[test]
fn progress_is_taken_over_and_a_checkpoint_only_if_it_is_newer() {
    let mut world = World::in_phase(Phase::Running, |job| {
        let status = job.status.as_mut().expect("a status");
        status.restarts_since_checkpoint = 2;
        status.last_checkpoint = Some(CheckpointStatus {
            step: 40,
            path: "/checkpoints/digits/40".into(),
            time: None,
        });
    });
    world.seen.progress = Some(Progress {
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
        ..saved_at(40)
    });
    let status = world.decide().status;
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
    // As many decimals as a person reads.
    assert_eq!(
        (recorded.images_per_second, recorded.sync_share),
        (Some(2522.5), Some(0.092))
    );
    assert_eq!(
        (recorded.validation_accuracy, recorded.ema_validation_accuracy),
        (Some(0.9512), Some(0.9688))
    );
    world.seen.progress = Some(saved_at(45));
    let status = world.decide().status;
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
    let status = Next::of(&observed)
        .succeeded()
        .record(std::time::Duration::ZERO)
        .status;
    assert_eq!(status.completion_time, Some(Time(at(100))));
    assert_eq!(status.nodes().len(), 2);
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

/// The status of a job at this second, after it is placed on these nodes if given.
fn later(job: ViTTrainingJob, second: i64, nodes: Option<[&str; 2]>) -> ViTTrainingJobStatus {
    let mut observed = observation(job, gang(1));
    observed.now = at(second);
    let next = Next::of(&observed);
    let next = match nodes {
        Some(nodes) => next.placed(2, &fixtures::placement(nodes), None),
        None => next,
    };
    *next.record(std::time::Duration::ZERO).status
}

#[test]
fn a_large_gang_is_placed_on_nodes_of_which_the_message_names_three() {
    let observed = observation(job_in(Phase::Pending, 1), vec![]);
    let placement = fixtures::placement(["a", "b", "c", "d", "e"]);
    let next = Next::of(&observed).placed(2, &placement, None);
    let status = next.record(std::time::Duration::ZERO).status;
    let placed = status.condition(PLACED).expect("a condition");
    assert_eq!(placed.message, "Tesla-T4 on a, b, c and 2 more");
    assert_eq!(status.nodes().len(), 5);
}

#[test]
fn stragglers_are_named_with_their_node_until_another_gang_takes_their_place() {
    let mut job = job_in(Phase::Running, 1);
    job.spec.workers.gpus_per_node = 4;
    let mut observed = observation(job.clone(), gang(1));
    let slow = |rank, slowdown, saved| contract::SlowRank {
        rank,
        slowdown,
        saved_seconds: Some(saved),
    };
    observed.stragglers = Some(vec![slow(3, 1.5, 0.123_46), slow(5, 2.345_6, 0.000_04)]);
    let status = |observed: &Observation| *Next::of(observed).record(std::time::Duration::ZERO).status;
    let known = status(&observed);
    assert_eq!(
        known.stragglers,
        [
            fixtures::straggler(3, "a", 1.5),
            StragglerStatus {
                saved_seconds: None,
                ..fixtures::straggler(5, "b", 2.35)
            }
        ]
    );
    job.status = Some(known);
    assert_eq!(later(job.clone(), 100, None).stragglers.len(), 2, "no news");
    let replaced = later(job.clone(), 100, Some(["b", "c"]));
    assert_eq!(replaced.stragglers, []);
    let remembered = |status: &ViTTrainingJobStatus| -> Vec<(String, f64)> {
        let nodes = status.slow_nodes.iter();
        nodes.map(|node| (node.node.clone(), node.slowdown)).collect()
    };
    assert_eq!(remembered(&replaced), [("a".into(), 1.5), ("b".into(), 2.35)]);
    observed.stragglers = Some(vec![]);
    assert_eq!(status(&observed).stragglers, []);
    job.status = Some(replaced);
    assert_eq!(remembered(&later(job.clone(), 100 + 3600, None)), []);
    // A gang that trains without them does not grow onto them.
    job.status.as_mut().expect("a status").phase = Some(Phase::Running);
    assert_eq!(remembered(&later(job, 100 + 3600, None)).len(), 2);
}

#[test]
fn the_node_of_a_failure_is_remembered_for_an_hour() {
    let mut job = job_in(Phase::Running, 1);
    let observed = observation(job.clone(), gang(1));
    let failure = Failure::from_pod(&pod(1, 1), FailureClass::DeviceFault, "no GPU".into());
    let ended = Next::of(&observed).ended(&failure, Verdict::Restart, false);
    let status = ended.record(std::time::Duration::ZERO).status;
    assert_eq!(status.failed_nodes[0].node, "b");
    job.status = Some(*status);
    assert_eq!(later(job.clone(), 100 + 3599, None).failed_nodes.len(), 1);
    assert_eq!(later(job, 100 + 3600, None).failed_nodes, []);
}

#[test]
fn a_gang_trains_by_the_strategy_that_was_chosen_for_its_gpus() {
    let mut job = fixtures::job();
    job.spec.model.name = Some("vit_large_patch16_224".into());
    job.spec.parallelism.strategy = Strategy::Auto;
    let placement = Placement {
        gpus: Gpus::Identical(GpuGroup {
            memory_mebibytes: Some(6_000),
            ..fixtures::tesla_t4()
        }),
        ..fixtures::placement(["a", "b"])
    };
    let valid = crds::validate(&job).expect("valid");
    let status = decided(job.clone(), Decision::Placed(placement)).status;
    let placed = status.placement.as_ref().expect("a placement");
    let chosen = placed.strategy.clone().expect("a strategy");
    assert!(chosen.zero_stage > 0, "{chosen:?}");
    let words = format!("; strategy zeroStage {}", chosen.zero_stage);
    assert_contains(&message(&status, PLACED), &words);
    job.status = Some(*status);
    let mut world = World::new(job);
    world.begin();
    let Some(Write::Create(objects, _)) = world.writes.first() else {
        panic!("not created: {}", world.story());
    };
    let config_map = objects.iter().find_map(|object| match object {
        Object::ConfigMap(config_map) => config_map.data.as_ref(),
        _ => None,
    });
    let json = &config_map.expect("of the attempt")[RUN_CONFIG_KEY];
    let config: RunConfig = serde_json::from_str(json).expect("a run configuration");
    assert_eq!(i32::from(config.parallelism.zero_stage), chosen.zero_stage);
    assert_eq!(config.global_batch_size(), valid.run_config.global_batch_size());
}
