use std::collections::HashMap;
use std::sync::Arc;

use contract::FailureClass::{
    BadData, Crashed, DeviceFault, Killed, OutOfMemory, PeerLost, PodLost, Stalled, StartFailed,
};
use contract::exit::ExitCode;
use contract::{
    Activity, CheckpointRecord, FailureClass, FailureRecord, Heartbeat, Heartbeats, Memory, Progress,
    TerminationRecord,
};
use crds::ViTTrainingJob;
use crds::conditions::{reasons, types};
use crds::spec::Strategy;
use crds::status::CheckpointStatus;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::runtime::watcher::Event;
use planner::facts::fleet::Fleet;
use planner::facts::inventory::Inventory;
use planner::facts::resources::{Holder, Requests, hold};
use planner::policy::placement::place;
use serde_json::json;

use super::*;
use crate::error::Error;
use crate::fixtures::{self, assert_contains, at, gang, job_in, observation, pod};
use crate::policy::gang::{End, Trainer};
use crate::policy::restart::SETTLE;
use crate::policy::restart::Verdict::{Exhausted, NotRetryable, Restart};
use crate::policy::stall::{SilentAgent, StallSigns};
use crate::reconcile::status;

/// A cluster of one-GPU nodes with these pods.
fn cluster(nodes: &[&str], pods: &[Pod]) -> Inventory {
    let mut fleet = Fleet::default();
    for name in nodes {
        fleet.follow_nodes(&Event::Apply(fixtures::node(name, "Tesla-T4", 1)));
    }
    for pod in pods {
        fleet.follow_pods(&Event::Apply(pod.clone()));
    }
    fleet.inventory().clone()
}

fn two_nodes() -> Inventory {
    cluster(&["a", "b"], &[])
}

fn decide(observation: &Observation) -> Plan {
    plan_on(observation, &two_nodes())
}

fn plan_on(observation: &Observation, inventory: &Inventory) -> Plan {
    let valid = crds::validate(&observation.job);
    let place = |_| {
        let request = GangRequest::from(valid.as_ref().expect("valid"));
        match place(&request, inventory) {
            Ok(placement) => Decision::Placed(placement),
            Err(why) => Decision::Waits(Waiting::NoFit {
                why,
                queue: fixtures::alone(),
            }),
        }
    };
    let growth = || observation.job.spec.elastic.as_ref().map(|_| 4);
    plan(observation, &valid, place, growth)
}

/// Pods that the cache does not show.
fn unseen<const PODS: usize>(names: [&str; PODS]) -> HashMap<String, String> {
    names.map(|name| (name.into(), fixtures::uid_of(name))).into()
}

/// Decides, and records the decision in the job.
fn step(observation: &mut Observation) -> Plan {
    let plan = decide(observation);
    let status = status::next(observation, &plan);
    Arc::make_mut(&mut observation.job).status = Some(status);
    plan
}

fn phase(observation: &Observation) -> Phase {
    observation.status().phase.expect("a phase")
}

fn ended(mut pod: PodView, code: u8, second: i64) -> PodView {
    pod.state = if code == 0 {
        PodState::Succeeded
    } else {
        PodState::Failed
    };
    pod.ready = false;
    let failure = ExitCode::from_code(code)
        .failure_class()
        .map(|class| FailureRecord {
            rank: u32::try_from(pod.node_rank).ok(),
            exit_code: code,
            class,
            memory: None,
            message: format!("reported by rank {}", pod.node_rank),
        });
    pod.end = Some(Box::new(End {
        exit: ExitCode::from_code(code),
        reason: "Error".into(),
        finished_at: Some(at(second)),
        record: Some(TerminationRecord {
            failure,
            ..TerminationRecord::default()
        }),
        message: None,
    }));
    pod
}

fn running(pods: Vec<PodView>) -> Observation {
    observation(job_in(Phase::Running, 1), pods)
}

fn job_of(observation: &mut Observation) -> &mut ViTTrainingJob {
    Arc::make_mut(&mut observation.job)
}

fn status_of(observation: &mut Observation) -> &mut ViTTrainingJobStatus {
    job_of(observation).status.as_mut().expect("a status")
}

fn drain<const PODS: usize, const FORCE: usize>(pods: [&str; PODS], force: [&str; FORCE]) -> Plan {
    Plan::Drain {
        pods: pods.map(PodId::from).into(),
        force: force.map(PodId::from).into(),
    }
}

/// Reason and message of a condition.
fn condition(status: &ViTTrainingJobStatus, type_: &str) -> (String, String) {
    let condition = status.condition(type_).expect("a condition");
    (condition.reason.clone(), condition.message.clone())
}

fn with_spec(phase: Phase, change: impl FnOnce(&mut ViTTrainingJob)) -> ViTTrainingJob {
    let mut job = job_in(phase, 1);
    change(&mut job);
    job
}

fn end(plan: Plan) -> (FailureClass, Verdict, bool) {
    match plan {
        Plan::End {
            failure,
            verdict,
            again,
        } => (failure.class, verdict, again),
        other => panic!("the attempt continues: {other:?}"),
    }
}

#[test]
fn a_new_job_is_placed_and_its_pods_are_created_in_the_next_round() {
    let mut observation = observation(fixtures::job(), vec![]);
    observation.gang_was_created = false;
    let Plan::Place {
        attempt: 1,
        placement,
    } = step(&mut observation)
    else {
        panic!("not placed");
    };
    assert_eq!(placement.nodes, ["a", "b"]);
    assert_eq!(
        step(&mut observation),
        Plan::Create {
            node_ranks: vec![0, 1]
        }
    );
    observation.unseen_pods = unseen(["digits-1-0", "digits-1-1"]);
    assert_eq!(step(&mut observation), Plan::Follow);
    assert_eq!(phase(&observation), Phase::Starting);
    observation.unseen_pods.clear();
    observation.pods = gang(1);
    assert_eq!(step(&mut observation), Plan::Follow);
    assert_eq!(phase(&observation), Phase::Running);
}

#[test]
fn an_operator_that_stopped_between_two_pods_creates_the_other_one() {
    let waiting = PodView {
        state: PodState::Pending,
        ready: false,
        ..pod(1, 0)
    };
    let mut observation = observation(job_in(Phase::Starting, 1), vec![waiting]);
    observation.gang_was_created = false;
    assert_eq!(decide(&observation), Plan::Create { node_ranks: vec![1] });
    // Its peer may have started meanwhile and be waiting for it.
    observation.pods = vec![pod(1, 0)];
    assert_eq!(decide(&observation), Plan::Create { node_ranks: vec![1] });
    // If the whole gang was created, or the other pod was seen, it existed.
    observation.gang_was_created = true;
    let lost = (PodLost, Restart, false);
    assert_eq!(end(decide(&observation)), lost);
    observation.gang_was_created = false;
    observation.departed = vec![PodView {
        lost: true,
        ..pod(1, 1)
    }];
    assert_eq!(end(decide(&observation)), lost);
}

#[test]
fn a_gang_of_which_a_pod_is_refused_has_its_time_and_a_failure_of_another_ends_it_at_once() {
    let mut observation = observation(job_in(Phase::Starting, 1), vec![pod(1, 0)]);
    observation.gang_was_created = false;
    let placed_at = Some(Time(observation.now - SignedDuration::from_hours(1)));
    let placement = status_of(&mut observation).placement.as_mut();
    placement.expect("placed").time = placed_at;
    let Plan::End { failure, .. } = decide(&observation) else {
        panic!("not ended");
    };
    assert_eq!(failure.class, StartFailed);
    assert_contains(&failure.message, "pod digits-1-1: it could not be created");
    let error = Error::NameTaken {
        kind: "Pod",
        name: "digits-1-1".into(),
        owner: "job",
    };
    let status = status::with_error(&observation, observation.status(), Some(&error));
    job_of(&mut observation).status = Some(status);
    let Plan::End { failure, .. } = decide(&observation) else {
        panic!("not ended");
    };
    assert_contains(&failure.message, &format!("pod digits-1-1: {error}"));
    observation.pods = vec![ended(pod(1, 0), 3, 99)];
    assert_eq!(end(decide(&observation)), (BadData, NotRetryable, false));
}

#[test]
fn a_gang_that_ran_is_not_created_again_under_the_same_attempt() {
    let mut observation = running(vec![]);
    observation.gang_was_created = false;
    assert_eq!(end(decide(&observation)), (PodLost, Restart, false));
}

#[test]
fn a_manifest_that_cannot_be_run_is_refused_until_it_is_changed() {
    let broken = |job: &mut ViTTrainingJob| job.spec.model.image_size = Some(100);
    let mut observation = observation(with_spec(Phase::Pending, broken), vec![]);
    let Plan::Refuse(message) = step(&mut observation) else {
        panic!("not refused");
    };
    assert_contains(&message, "spec.model.imageSize is 100");
    assert_eq!(phase(&observation), Phase::Failed);
    assert!(matches!(decide(&observation), Plan::CleanUp { .. }));
    job_of(&mut observation).spec.model.image_size = None;
    assert!(matches!(step(&mut observation), Plan::Place { attempt: 2, .. }));
    assert_eq!(observation.status().completion_time, None);
}

#[test]
fn a_refused_job_is_not_the_only_way_to_fail() {
    let observation = observation(job_in(Phase::Failed, 1), vec![]);
    assert!(matches!(decide(&observation), Plan::CleanUp { .. }));
    assert!(matches!(
        decide(&fixtures::observation(fixtures::refused(), vec![])),
        Plan::Place { attempt: 1, .. }
    ));
}

#[test]
fn a_job_that_fits_nowhere_waits_and_starts_once_it_does() {
    let observation = observation(job_in(Phase::Pending, 0), vec![]);
    assert!(matches!(
        plan_on(&observation, &Inventory::default()),
        Plan::Wait(_)
    ));
    assert!(matches!(decide(&observation), Plan::Place { attempt: 1, .. }));
}

#[test]
fn a_killed_rank_is_followed_by_a_new_attempt_once_its_gang_is_gone() {
    let mut observation = running(vec![pod(1, 0), ended(pod(1, 1), 137, 99)]);
    assert_eq!(end(step(&mut observation)), (Killed, Restart, false));
    let status = observation.status();
    assert_eq!((status.restarts, status.restarts_since_checkpoint), (1, 1));
    assert_eq!(decide(&observation), drain(["digits-1-0", "digits-1-1"], []));
    // Deleted but not gone: its GPU is in use.
    observation.pods = vec![PodView {
        deletion_timestamp: Some(at(130)),
        ..pod(1, 0)
    }];
    assert_eq!(decide(&observation), drain([], []));
    observation.pods.clear();
    assert_eq!(
        decide(&observation),
        Plan::Rest(Some(SignedDuration::from_secs(1)))
    );
    observation.now = at(101);
    assert!(matches!(step(&mut observation), Plan::Place { attempt: 2, .. }));
    assert_eq!(phase(&observation), Phase::Starting);
}

#[test]
fn another_trainer_needs_an_agent_beside_it() {
    let mut observation = observation(job_in(Phase::Pending, 0), vec![]);
    job_of(&mut observation).spec.external = serde_json::from_value(json!({"command": ["torchrun"]})).ok();
    let Plan::Refuse(message) = decide(&observation) else {
        panic!("refused")
    };
    assert_contains(&message, "without --agent-image");
    observation.agent_image = Some("localhost/vit-operator:dev".into());
    assert!(matches!(step(&mut observation), Plan::Place { attempt: 1, .. }));
    // The running gang keeps its GPUs.
    observation.agent_image = None;
    observation.pods = gang(1);
    status_of(&mut observation).phase = Some(Phase::Running);
    assert!(!matches!(decide(&observation), Plan::Refuse(_)));
}

#[test]
fn a_rank_out_of_memory_is_followed_by_a_gang_that_divides_more_where_the_operator_chooses() {
    let mut failed = ended(pod(1, 0), 77, 99);
    let record = failed.end.as_mut().and_then(|end| end.record.as_mut());
    let failure = record.and_then(|record| record.failure.as_mut());
    failure.expect("it failed").memory = Some(Memory::Gpu);
    let mut observation = running(vec![failed, pod(1, 1)]);
    assert_eq!(end(decide(&observation)), (OutOfMemory, NotRetryable, false));

    job_of(&mut observation).spec.parallelism.strategy = Strategy::Auto;
    status_of(&mut observation).phase = Some(Phase::Pending);
    let gang = std::mem::take(&mut observation.pods);
    step(&mut observation);
    let strategy = |observation: &Observation| {
        let placement = observation.status().placement.expect("a placement");
        placement.strategy.expect("a strategy")
    };
    let first = strategy(&observation);
    assert_eq!(first.zero_stage, 0);
    status_of(&mut observation).attempt = 1;
    observation.pods = gang;
    assert_eq!(end(step(&mut observation)), (OutOfMemory, Restart, false));
    // No node is at fault.
    assert_eq!(observation.status().failed_nodes, []);

    observation.pods.clear();
    observation.now = at(200);
    assert!(matches!(step(&mut observation), Plan::Place { attempt: 2, .. }));
    let second = strategy(&observation);
    assert!(second.memory_mebibytes < first.memory_mebibytes, "{second:?}");
    let (_, message) = condition(&observation.status(), types::PLACED);
    assert_contains(&message, "; zeroStage 0 ran out of memory");
    // A failure of another class does not bring the first strategy back.
    observation.pods = vec![pod(2, 0), ended(pod(2, 1), 137, 210)];
    assert_eq!(end(step(&mut observation)), (Killed, Restart, false));
    observation.pods.clear();
    observation.now = at(300);
    assert!(matches!(step(&mut observation), Plan::Place { attempt: 3, .. }));
    assert_eq!(strategy(&observation), second);
}

#[test]
fn data_errors_are_never_retried() {
    let mut observation = running(vec![ended(pod(1, 0), 3, 99), pod(1, 1)]);
    assert_eq!(end(step(&mut observation)), (BadData, NotRetryable, false));
    let status = observation.status();
    let failure = status.last_failure.expect("a failure");
    assert_eq!((failure.class.as_str(), failure.rank), ("BadData", Some(0)));
    assert_eq!(status.phase, Some(Phase::Failed));
    // The pod that failed stays for its logs.
    let Plan::CleanUp { pods, .. } = decide(&observation) else {
        panic!("not cleaned up");
    };
    assert_eq!(pods, ["digits-1-1".into()]);
    // So does one whose container has ended, even before the kubelet reports the pod's end.
    observation.pods[1] = PodView {
        state: PodState::Running,
        ..ended(pod(1, 1), 75, 100)
    };
    let cleaned_up = |observation: &Observation| {
        let Plan::CleanUp { pods, .. } = decide(observation) else {
            panic!("not cleaned up");
        };
        pods
    };
    assert_eq!(cleaned_up(&observation), []);
    observation.unready_nodes = [("a".to_owned(), at(99))].into();
    assert_eq!(cleaned_up(&observation), [], "another node");
    observation.unready_nodes = [("b".to_owned(), at(99))].into();
    assert_eq!(
        cleaned_up(&observation),
        ["digits-1-1".into()],
        "its kubelet may be dead"
    );
}

#[test]
fn a_job_that_has_trained_goes_elsewhere_where_a_node_s_own_disk_lacks_its_data() {
    let mut job = job_in(Phase::Starting, 2);
    job.spec.data.volume = serde_json::from_value(json!({"hostPath": {"path": "/data"}})).expect("a volume");
    let status = job.status.as_mut().expect("a status");
    status.last_checkpoint = Some(CheckpointStatus {
        step: 40,
        path: "/checkpoints/digits/40".into(),
        time: None,
    });
    let mut observation = observation(job, vec![pod(2, 0), ended(pod(2, 1), 3, 99)]);
    assert_eq!(end(step(&mut observation)), (BadData, Restart, false));
    let status = observation.status();
    assert_eq!((status.phase, status.restarts), (Some(Phase::Restarting), 1));
    let avoided = &status.failed_nodes[0];
    assert_eq!(
        (
            avoided.node.as_str(),
            avoided.class.as_str(),
            avoided.avoided_until.is_some()
        ),
        ("b", "BadData", true)
    );
}

#[test]
fn the_cause_of_an_echo_is_waited_for_and_ends_the_job_where_it_must() {
    let mut observation = running(vec![ended(pod(1, 0), 75, 99), pod(1, 1)]);
    assert_eq!(end(step(&mut observation)), (PeerLost, Restart, false));
    assert!(matches!(decide(&observation), Plan::Rest(Some(_))));
    observation.pods[1] = ended(pod(1, 1), 3, 100);
    assert_eq!(end(step(&mut observation)), (BadData, NotRetryable, true));
    let status = observation.status();
    assert_eq!((status.phase, status.restarts), (Some(Phase::Failed), 0));
    assert_eq!(status.last_failure.expect("a failure").time, Some(Time(at(100))));
}

#[test]
fn another_trainer_that_crashed_may_have_lost_its_peer() {
    let external = |mut pod: PodView| {
        pod.trainer = Trainer::External;
        if let Some(end) = &mut pod.end {
            end.record = None;
        }
        pod
    };
    let mut observation = running(vec![external(ended(pod(1, 0), 1, 99)), external(pod(1, 1))]);
    job_of(&mut observation).spec.external = serde_json::from_value(json!({"command": ["torchrun"]})).ok();
    observation.agent_image = Some("localhost/vit-operator:dev".into());
    assert_eq!(end(step(&mut observation)), (Crashed, Restart, false));
    assert!(matches!(decide(&observation), Plan::Rest(Some(_))));
    let mut killed = external(ended(pod(1, 1), 137, 100));
    killed.end.as_mut().expect("an end").reason = "OOMKilled".into();
    observation.pods[1] = killed;
    assert_eq!(end(step(&mut observation)), (OutOfMemory, NotRetryable, true));
    let failure = observation.status().last_failure.expect("a failure");
    assert_eq!(
        (failure.node.as_deref(), failure.memory),
        (Some("b"), Some(Memory::Host))
    );
}

#[test]
fn another_trainer_that_was_told_to_stop_may_end_as_it_likes() {
    for (trainer, is_failure) in [(Trainer::Own, true), (Trainer::External, false)] {
        let suspended = with_spec(Phase::Running, |job| job.spec.suspend = true);
        let mut observation = observation(suspended, gang(1));
        step(&mut observation);
        step(&mut observation);
        let gone = |rank| PodView {
            lost: true,
            trainer,
            ..ended(pod(1, rank), 1, 99)
        };
        observation.departed = vec![gone(0), gone(1)];
        observation.pods.clear();
        let recorded = matches!(decide(&observation), Plan::RecordFailedStop(_));
        assert_eq!(recorded, is_failure, "{trainer:?}");
    }
}

/// A job without restarts fails with an echo; then its cause appears.
fn the_cause_turns_up_after_the_end(exit_code: u8) -> (Observation, (FailureClass, Verdict, bool)) {
    let once = |job: &mut ViTTrainingJob| job.spec.failure_policy.max_restarts = 0;
    let mut observation = observation(
        with_spec(Phase::Running, once),
        vec![ended(pod(1, 0), 75, 99), pod(1, 1)],
    );
    assert_eq!(end(step(&mut observation)), (PeerLost, Exhausted, false));
    observation.pods[1] = ended(pod(1, 1), exit_code, 100);
    let end = end(step(&mut observation));
    (observation, end)
}

#[test]
fn a_job_that_is_over_stays_over_when_the_cause_turns_up() {
    let (observation, end) = the_cause_turns_up_after_the_end(137);
    assert_eq!(end, (Killed, Exhausted, true));
    let status = observation.status();
    assert_eq!((status.phase, status.restarts), (Some(Phase::Failed), 0));
    assert_eq!(status.restarts_since_checkpoint, 0);
    assert_eq!(status.last_failure.expect("a failure").class, "Killed");
    assert!(matches!(decide(&observation), Plan::CleanUp { .. }));
}

#[test]
fn a_cause_that_is_never_retried_is_recorded_of_a_job_that_is_over() {
    let (observation, end) = the_cause_turns_up_after_the_end(3);
    assert_eq!(end, (BadData, NotRetryable, true));
    let status = observation.status();
    assert_eq!((status.phase, status.restarts), (Some(Phase::Failed), 0));
    assert_eq!(condition(&status, types::FAILED).0, reasons::NOT_RETRYABLE);
}

#[test]
fn a_larger_budget_does_not_revive_a_job_whose_cause_turns_up_after_its_end() {
    let (mut observation, _) = the_cause_turns_up_after_the_end(137);
    let job = job_of(&mut observation);
    job.spec.failure_policy.max_restarts = 5;
    let failure = job
        .status
        .as_mut()
        .and_then(|status| status.last_failure.as_mut());
    failure.expect("a failure").class = PeerLost.as_str().into();
    assert_eq!(end(step(&mut observation)), (Killed, Exhausted, true));
    assert_eq!(phase(&observation), Phase::Failed);
}

#[test]
fn a_restart_is_counted_once_when_its_cause_turns_up() {
    let mut observation = running(vec![ended(pod(1, 0), 75, 99), pod(1, 1)]);
    step(&mut observation);
    observation.pods[1] = ended(pod(1, 1), 137, 100);
    assert_eq!(end(step(&mut observation)), (Killed, Restart, true));
    let status = observation.status();
    assert_eq!((status.phase, status.restarts), (Some(Phase::Restarting), 1));
    assert_eq!(status.restarts_since_checkpoint, 1);
}

#[test]
fn an_echo_without_a_cause_is_waited_for_only_so_long() {
    let mut observation = running(vec![ended(pod(1, 0), 75, 99), pod(1, 1)]);
    step(&mut observation);
    observation.now = at(100) + SETTLE;
    assert!(matches!(decide(&observation), Plan::Drain { .. }));
    // A pod that the operator ended is not the cause.
    observation.pods[1] = ended(pod(1, 1), 137, 103);
    assert!(matches!(decide(&observation), Plan::Drain { .. }));
    observation.pods[1] = ended(pod(1, 1), 137, 102);
    assert!(matches!(decide(&observation), Plan::End { again: true, .. }));
}

#[test]
fn a_node_that_died_without_a_word_is_the_cause_of_an_echo() {
    let echo = || {
        let mut observation = running(vec![ended(pod(1, 0), 75, 99), pod(1, 1)]);
        step(&mut observation);
        observation.now = at(150);
        observation.pods[1].deletion_timestamp = Some(at(130));
        observation
    };
    assert!(matches!(decide(&echo()), Plan::Drain { .. }));
    let cause = |mut observation: Observation| {
        let end = end(step(&mut observation));
        assert_eq!(end, (PodLost, Restart, true));
        let status = observation.status();
        assert_eq!((status.restarts, status.failed_nodes.len()), (1, 1));
        assert_eq!(status.failed_nodes[0].node, "b");
        // Only once: then it is waited for as before.
        assert!(matches!(
            decide(&observation),
            Plan::Drain { .. } | Plan::Place { .. }
        ));
        let failure = status.last_failure.expect("a failure");
        assert_eq!(failure.node.as_deref(), Some("b"));
        failure.message
    };
    let mut unready = echo();
    unready.unready_nodes = [("b".to_owned(), at(149))].into();
    assert_eq!(cause(unready), "node b is not ready");

    let mut other_echo = echo();
    other_echo.unready_nodes = [("b".to_owned(), at(149))].into();
    other_echo.pods[1].end = ended(pod(1, 1), 75, 99).end;
    assert!(matches!(decide(&other_echo), Plan::Drain { .. }));

    let mut gone = echo();
    gone.pods[1].lost = true;
    gone.pods[1].disruption = Some("node b is gone".into());
    assert_eq!(cause(gone), "node b is gone");

    let mut overdue = echo();
    overdue.now = at(160);
    assert_eq!(cause(overdue), "node b did not end the pod in time");
}

#[test]
fn a_job_that_is_over_takes_its_pods_off_a_dead_node_before_it_goes() {
    let mut job = with_spec(Phase::Failed, |job| job.spec.ttl_seconds_after_finished = Some(0));
    job.status.as_mut().expect("a status").completion_time = Some(Time(at(100)));
    let mut observation = observation(job, vec![pod(1, 0)]);
    observation.unready_nodes = [("a".to_owned(), at(90))].into();
    let cleaned_up = |observation: &Observation| match decide(observation) {
        Plan::CleanUp { pods, force, .. } => (pods.len(), force.len()),
        plan => panic!("{plan:?}"),
    };
    assert_eq!(cleaned_up(&observation), (1, 0));
    observation.pods[0].deletion_timestamp = Some(at(110));
    assert_eq!(cleaned_up(&observation), (0, 0));
    observation.now = at(120);
    assert_eq!(cleaned_up(&observation), (0, 1));
    observation.pods.clear();
    assert_eq!(decide(&observation), Plan::Expire);
}

#[test]
fn a_cause_that_is_seen_only_after_its_pod_is_gone_still_counts() {
    let mut observation = running(vec![ended(pod(1, 0), 75, 99)]);
    observation.departed = vec![PodView {
        lost: true,
        ..ended(pod(1, 1), 3, 98)
    }];
    assert_eq!(end(decide(&observation)), (BadData, NotRetryable, false));
}

#[test]
fn a_new_checkpoint_renews_the_restart_budget() {
    let mut job = with_spec(Phase::Running, |job| job.spec.failure_policy.max_restarts = 1);
    job.status.as_mut().expect("a status").restarts_since_checkpoint = 1;
    let mut observation = observation(job, vec![pod(1, 0), ended(pod(1, 1), 137, 99)]);
    assert_eq!(end(decide(&observation)), (Killed, Exhausted, false));
    observation.progress = Some(Progress {
        attempt: 1,
        last_checkpoint: Some(CheckpointRecord {
            step: 10,
            path: "/checkpoints/digits/10".into(),
            time: at(50).to_string(),
        }),
        ..Progress::default()
    });
    assert_eq!(end(step(&mut observation)), (Killed, Restart, false));
    let status = observation.status();
    assert_eq!(status.restarts_since_checkpoint, 1);
    assert_eq!(status.last_checkpoint.expect("a checkpoint").step, 10);
}

#[test]
fn a_pod_that_someone_deletes_ends_the_attempt() {
    let deleted = PodView {
        deletion_timestamp: Some(at(130)),
        ..pod(1, 1)
    };
    let mut observation = running(vec![pod(1, 0), deleted]);
    assert_eq!(end(decide(&observation)).0, PodLost);
    // Disappeared unnoticed.
    observation.pods.pop();
    assert_eq!(end(decide(&observation)).0, PodLost);
}

#[test]
fn pods_of_a_node_that_is_gone_are_not_waited_for() {
    let mut observation = observation(
        job_in(Phase::Restarting, 1),
        vec![PodView {
            deletion_timestamp: Some(at(130)),
            ..pod(1, 0)
        }],
    );
    assert_eq!(decide(&observation), drain([], []));
    // Unready only briefly: it may recover.
    observation.unready_nodes = [("a".to_owned(), at(99))].into();
    assert_eq!(decide(&observation), drain([], []));
    observation.unready_nodes = [("a".to_owned(), at(70))].into();
    assert_eq!(decide(&observation), drain([], ["digits-1-0"]));
    observation.pods[0].lost = true;
    observation.unready_nodes.clear();
    assert!(matches!(decide(&observation), Plan::Place { .. }));
}

#[test]
fn a_pod_that_does_not_end_is_not_waited_for_and_keeps_its_gpus() {
    let mut objects = fixtures::pod_objects(1, "Running");
    objects.remove(0);
    let [three, two] = [3, 2].map(|nodes| cluster(&["a", "b", "c"][..nodes], &objects));
    let due = |second| {
        let pod = PodView {
            deletion_timestamp: Some(at(second)),
            ..pod(1, 1)
        };
        observation(job_in(Phase::Restarting, 1), vec![pod])
    };
    let waited_for = drain([], []);
    assert_eq!(plan_on(&due(71), &three), waited_for, "29 of 30 seconds");
    let words = "; the GPUs of pod digits-1-1 on node b stay in use: deleted, but not ended in time";
    for (inventory, expected) in [
        (three, "Tesla-T4 on a, c"),
        (
            two,
            "needs 2 x 1 identical nvidia.com/gpu: Tesla-T4 has 1 node with 1 free, 1 node with too few free GPUs (b)",
        ),
    ] {
        let plan = plan_on(&due(70), &inventory);
        let status = status::next(&due(70), &plan);
        assert_eq!(condition(&status, types::PLACED).1, format!("{expected}{words}"));
    }
    // Nor does it keep the job from being suspended.
    let mut suspending = due(70);
    suspending.job = with_spec(Phase::Suspending, |job| job.spec.suspend = true).into();
    let plan = decide(&suspending);
    assert_eq!(plan, Plan::Park);
    let status = status::next(&suspending, &plan);
    assert_eq!(
        condition(&status, types::SUSPENDED).1,
        format!("spec.suspend is set{words}")
    );
    // It is deleted by force only once its node is unready, too.
    suspending.unready_nodes = [("b".to_owned(), at(70))].into();
    assert_eq!(decide(&suspending), drain([], ["digits-1-1"]));
}

#[test]
fn pods_of_a_node_that_stays_silent_end_the_attempt_and_are_deleted_by_force() {
    let mut observation = running(gang(1));
    observation.unready_nodes = [("b".to_owned(), at(71))].into();
    assert_eq!(decide(&observation), Plan::Follow, "29 of 30 seconds");
    observation.unready_nodes = [("b".to_owned(), at(70))].into();
    let Plan::End { failure, .. } = step(&mut observation) else {
        panic!("the attempt continues");
    };
    assert_eq!(
        (failure.class, failure.node.as_deref(), failure.message.as_str()),
        (
            PodLost,
            Some("b"),
            "node b has not been ready for 30 s (failurePolicy.nodeLostSeconds)"
        )
    );
    // First a normal deletion.
    let Plan::Drain { mut pods, force } = decide(&observation) else {
        panic!("not drained");
    };
    pods.sort();
    assert_eq!(
        (pods, force),
        (vec!["digits-1-0".into(), "digits-1-1".into()], vec![])
    );
    for pod in &mut observation.pods {
        pod.deletion_timestamp = Some(at(130));
    }
    assert_eq!(decide(&observation), drain([], ["digits-1-1"]));
}

/// A job placed a minute, its start timeout, before this second.
fn starting_until(second: i64) -> ViTTrainingJob {
    let mut job = with_spec(Phase::Starting, |job| {
        job.spec.scheduling.start_timeout_seconds = 60;
    });
    let placement = job.status.as_mut().expect("a status").placement.as_mut();
    placement.expect("a placement").time = Some(Time(at(second - 60)));
    job
}

#[test]
fn a_gang_that_does_not_start_in_time_gives_its_gpus_back() {
    let job = starting_until(110);
    let waiting = PodView {
        state: PodState::Pending,
        ready: false,
        stuck: Some("Unschedulable: no".into()),
        ..pod(1, 1)
    };
    let mut observation = observation(job, vec![pod(1, 0), waiting]);
    assert_eq!(decide(&observation), Plan::Follow);
    observation.now = at(110);
    assert_eq!(end(step(&mut observation)), (StartFailed, Restart, false));
    // The timeout no longer applies to a gang that has run.
    status_of(&mut observation).phase = Some(Phase::Running);
    assert_eq!(decide(&observation), Plan::Follow);
}

#[test]
fn a_gang_whose_pods_are_refused_gives_its_gpus_back_too() {
    let job = starting_until(110);
    let mut observation = observation(job, vec![]);
    observation.gang_was_created = false;
    observation.now = at(109);
    assert_eq!(
        decide(&observation),
        Plan::Create {
            node_ranks: vec![0, 1]
        }
    );
    observation.now = at(110);
    let plan = step(&mut observation);
    assert!(
        matches!(&plan, Plan::End { failure, .. } if failure.message.contains("it could not be created")),
        "{plan:?}"
    );
    assert_eq!(end(plan), (StartFailed, Restart, false));
}

#[test]
fn a_job_that_has_used_up_its_time_fails_and_its_pods_go() {
    let mut job = with_spec(Phase::Running, |job| job.spec.active_deadline_seconds = Some(60));
    job.status.as_mut().expect("a status").start_time = Some(Time(at(50)));
    let mut observation = observation(job, gang(1));
    assert_eq!(decide(&observation), Plan::Follow);
    observation.now = at(110);
    assert!(matches!(step(&mut observation), Plan::TimeOut { .. }));
    let status = observation.status();
    let (reason, message) = condition(&status, types::FAILED);
    assert_eq!(reason, reasons::DEADLINE_EXCEEDED);
    assert_eq!(message, "the job has had GPUs for 60 s (activeDeadlineSeconds)");
    let Plan::CleanUp { pods, .. } = decide(&observation) else {
        panic!("not cleaned up");
    };
    assert_eq!(pods.len(), 2);
}

#[test]
fn the_clock_of_a_job_starts_anew_when_it_is_resumed() {
    let mut job = with_spec(Phase::Suspending, |job| {
        job.spec.suspend = true;
        job.spec.active_deadline_seconds = Some(60);
    });
    job.status.as_mut().expect("a status").start_time = Some(Time(at(0)));
    let mut observation = observation(job, vec![]);
    assert_eq!(step(&mut observation), Plan::Park);
    job_of(&mut observation).spec.suspend = false;
    assert!(matches!(step(&mut observation), Plan::Place { .. }));
    assert_eq!(observation.status().start_time, Some(Time(at(100))));
}

#[test]
fn a_gang_succeeds_when_all_of_it_has() {
    let mut observation = running(vec![pod(1, 0), ended(pod(1, 1), 0, 99)]);
    assert_eq!(decide(&observation), Plan::Follow);
    observation.pods[0] = ended(pod(1, 0), 0, 100);
    assert_eq!(step(&mut observation), Plan::Finish);
    assert_eq!(phase(&observation), Phase::Succeeded);
    assert_eq!(
        decide(&observation),
        Plan::CleanUp {
            pods: vec![],
            force: vec![],
            expires_in: None
        }
    );
}

#[test]
fn suspend_saves_stops_and_resumes_as_a_new_attempt_that_is_no_restart() {
    let mut observation = observation(with_spec(Phase::Running, |job| job.spec.suspend = true), gang(1));
    assert_eq!(step(&mut observation), Plan::Halt(StopReason::Suspend));
    assert!(matches!(step(&mut observation), Plan::Drain { .. }));
    // It saves and exits with 143, which is not a failure.
    observation.pods = vec![PodView {
        deletion_timestamp: Some(at(130)),
        ..ended(pod(1, 0), 143, 99)
    }];
    assert_eq!(step(&mut observation), Plan::Park);
    assert_eq!(phase(&observation), Phase::Suspended);
    assert_eq!(decide(&observation), Plan::Rest(None));
    observation.pods.clear();
    job_of(&mut observation).spec.suspend = false;
    assert!(matches!(step(&mut observation), Plan::Place { attempt: 2, .. }));
    assert_eq!(observation.status().restarts, 0);
}

#[test]
fn a_gang_that_fails_to_save_when_it_is_stopped_is_recorded_before_the_job_rests() {
    let mut observation = observation(with_spec(Phase::Running, |job| job.spec.suspend = true), gang(1));
    step(&mut observation);
    step(&mut observation);
    // Its volume was full; the other pod stopped, and its deletion has been observed.
    observation.departed = vec![
        PodView {
            lost: true,
            ..ended(pod(1, 0), 79, 99)
        },
        PodView {
            lost: true,
            ..ended(pod(1, 1), 143, 98)
        },
    ];
    observation.pods.clear();
    assert!(matches!(step(&mut observation), Plan::RecordFailedStop(_)));
    let failure = observation.status().last_failure.expect("a failure");
    assert_eq!((failure.class.as_str(), failure.exit_code), ("Storage", Some(79)));
    assert_eq!(step(&mut observation), Plan::Park);
    let status = observation.status();
    assert_eq!((status.phase, status.restarts), (Some(Phase::Suspended), 0));
    // Nor does it stop the next gang from starting.
    Arc::make_mut(&mut observation.job).spec.suspend = false;
    assert!(matches!(step(&mut observation), Plan::Place { attempt: 2, .. }));
    assert_eq!(observation.status().restarts, 0);
}

#[test]
fn a_gang_that_has_ended_well_is_done_whatever_else_was_wanted_of_it() {
    let done = || {
        gang(1)
            .into_iter()
            .map(|pod| ended(pod, 0, 99))
            .collect::<Vec<_>>()
    };
    let suspended = |job: &mut ViTTrainingJob| job.spec.suspend = true;
    let out_of_time = |job: &mut ViTTrainingJob| {
        job.spec.active_deadline_seconds = Some(1);
        let status = job.status.as_mut().expect("a status");
        status.start_time = Some(Time(at(0)));
    };
    let smaller = |job: &mut ViTTrainingJob| job.spec.workers.nodes = 1;
    for phase in [Phase::Starting, Phase::Running] {
        let jobs = [
            with_spec(phase, suspended),
            with_spec(phase, out_of_time),
            with_spec(phase, smaller),
        ];
        for job in jobs {
            let observation = fixtures::observation(job, done());
            assert_eq!(decide(&observation), Plan::Finish, "{phase:?}");
        }
    }
    // Its last epoch was over when it was asked to save and stop.
    for phase in [Phase::Suspending, Phase::Restarting] {
        let mut observation = fixtures::observation(with_spec(phase, suspended), vec![]);
        observation.departed = done();
        assert_eq!(step(&mut observation), Plan::Finish, "{phase:?}");
        let status = observation.status();
        assert_eq!(status.phase, Some(Phase::Succeeded));
        let suspended = status.condition(types::SUSPENDED);
        assert!(suspended.is_none_or(|condition| condition.reason != reasons::SUSPENDING));
    }
    // All steps, with Running false because of the suspension.
    let mut observation = observation(with_spec(Phase::Running, suspended), gang(1));
    assert_eq!(step(&mut observation), Plan::Halt(StopReason::Suspend));
    observation.pods = done();
    assert_eq!(step(&mut observation), Plan::Finish);
    let status = observation.status();
    assert_eq!(status.condition(types::SUSPENDED), None);
    assert_eq!(condition(&status, types::RUNNING).0, reasons::NO_PODS);
    // If one pod has failed, the other's end says nothing.
    let mut half = done();
    half[1] = ended(pod(1, 1), 79, 99);
    assert!(matches!(
        decide(&fixtures::observation(job_in(Phase::Running, 1), half)),
        Plan::End { .. }
    ));
}

#[test]
fn pods_that_have_not_come_into_sight_are_deleted_and_waited_for() {
    let mut observation = observation(
        with_spec(Phase::Suspending, |job| job.spec.suspend = true),
        vec![],
    );
    observation.unseen_pods = unseen(["digits-1-1", "digits-1-0"]);
    let drained = drain(["digits-1-0", "digits-1-1"], []);
    assert_eq!(decide(&observation), drained);
    observation.unseen_pods.clear();
    assert_eq!(step(&mut observation), Plan::Park);
    // They appeared after the wait.
    observation.pods = gang(1);
    assert_eq!(decide(&observation), drained);
    observation.pods.clear();
    assert_eq!(decide(&observation), Plan::Rest(None));
}

#[test]
fn another_size_replaces_the_gang_without_counting_as_a_failure() {
    let mut observation = observation(
        with_spec(Phase::Running, |job| job.spec.workers.nodes = 1),
        gang(1),
    );
    assert_eq!(step(&mut observation), Plan::Halt(StopReason::Resize));
    assert!(matches!(step(&mut observation), Plan::Drain { .. }));
    observation.pods.clear();
    let Plan::Place {
        attempt: 2,
        placement,
    } = step(&mut observation)
    else {
        panic!("not placed");
    };
    assert_eq!(placement.nodes.len(), 1);
    assert_eq!(observation.status().restarts, 0);
}

#[test]
fn an_elastic_gang_of_an_allowed_size_stays_until_a_larger_one_is_worth_it() {
    let elastic = |min_nodes| {
        with_spec(Phase::Running, |job| {
            job.spec.workers.nodes = 4;
            job.spec.elastic = Some(crds::spec::Elastic {
                min_nodes,
                max_nodes: None,
            });
        })
    };
    assert_eq!(
        decide(&observation(elastic(4), gang(1))),
        Plan::Halt(StopReason::Resize)
    );
    let mut observation = observation(elastic(1), gang(1));
    assert_eq!(decide(&observation), Plan::Follow);
    let progress = |eta_seconds, step| Progress {
        attempt: 1,
        eta_seconds: Some(eta_seconds),
        last_checkpoint: Some(CheckpointRecord {
            step,
            path: format!("/checkpoints/digits/{step}"),
            time: at(50).to_string(),
        }),
        ..Progress::default()
    };
    observation.progress = Some(progress(0, 10));
    assert_eq!(step(&mut observation), Plan::Follow);
    observation.progress = Some(progress(3600, 10));
    assert_eq!(decide(&observation), Plan::Follow, "no new checkpoint");
    observation.progress = Some(progress(3600, 20));
    // A failure comes first.
    let mut failed = observation.clone();
    failed.pods[1] = ended(pod(1, 1), 1, 99);
    assert!(matches!(decide(&failed), Plan::End { .. }));
    assert_eq!(step(&mut observation), Plan::Halt(StopReason::Grow { to: 4 }));
    assert_eq!(
        condition(&observation.status(), types::RUNNING).1,
        "the gang of 2 is replaced by one of 4 nodes, which are free; after the checkpoint of step 20"
    );
    assert!(matches!(step(&mut observation), Plan::Drain { .. }));
    observation.pods.clear();
    assert!(matches!(step(&mut observation), Plan::Place { attempt: 2, .. }));
    assert_eq!(observation.status().restarts, 0);
}

#[test]
fn a_finished_job_is_deleted_when_its_time_is_over() {
    let mut job = with_spec(Phase::Succeeded, |job| {
        job.spec.ttl_seconds_after_finished = Some(60);
    });
    job.status.as_mut().expect("a status").completion_time = Some(Time(at(50)));
    let mut observation = observation(job, vec![]);
    assert_eq!(
        decide(&observation),
        Plan::CleanUp {
            pods: vec![],
            force: vec![],
            expires_in: Some(SignedDuration::from_secs(10))
        }
    );
    observation.now = at(110);
    assert_eq!(decide(&observation), Plan::Expire);
}

#[test]
fn pods_of_an_attempt_that_the_status_has_lost_are_not_taken_for_new_ones() {
    let mut observation = observation(fixtures::job(), gang(7));
    assert!(matches!(decide(&observation), Plan::Drain { .. }));
    observation.pods = vec![PodView {
        deletion_timestamp: Some(at(130)),
        ..ended(pod(7, 0), 0, 1)
    }];
    assert!(matches!(decide(&observation), Plan::Place { attempt: 8, .. }));
}

#[test]
fn a_gang_that_stands_still_trains_again_unless_a_pod_of_it_tells_more() {
    let mut observation = running(gang(1));
    assert_eq!(decide(&observation), Plan::Follow);
    let heartbeats = |rank| Heartbeats {
        attempt: 1,
        ranks: vec![Heartbeat {
            rank,
            activity: Activity::Training,
            step: Some(7),
            idle_seconds: 65.0,
            ..Heartbeat::default()
        }],
    };
    observation.stall_signs = Some(StallSigns {
        lasted: Duration::from_secs(61),
        bound: Duration::from_secs(60),
        answers: vec![(0, heartbeats(0)), (1, heartbeats(1))],
    });
    assert_eq!(end(step(&mut observation)), (Stalled, Restart, false));
    assert_eq!(phase(&observation), Phase::Restarting);
    let mut status = observation.status();
    assert_eq!(status.last_failure.take().expect("a failure").class, "Stalled");
    assert_eq!((status.restarts, status.restarts_since_checkpoint), (1, 1));

    observation.job = job_in(Phase::Running, 1).into();
    observation.pods[1] = ended(pod(1, 1), 76, 90);
    assert_eq!(end(decide(&observation)).0, DeviceFault);
}

#[test]
fn a_gang_whose_rank_0_is_silent_trains_again() {
    let mut observation = running(gang(1));
    observation.silence = Some(SilentAgent {
        lasted: Duration::from_secs(301),
        bound: Duration::from_secs(300),
    });
    assert_eq!(decide(&observation), Plan::Follow, "its kubelet finds it ready");
    observation.pods[0].ready = false;
    assert_eq!(end(decide(&observation)), (Stalled, Restart, false));
}

/// A starting gang whose second pod was rejected by node `b`; a foreign pod holds its GPU.
fn displaced() -> Observation {
    displaced_in(Phase::Starting)
}

fn displaced_in(phase: Phase) -> Observation {
    let rejected = PodView {
        state: PodState::Failed,
        ready: false,
        rejected: Some(Box::default()),
        disruption: Some("OutOfnvidia.com/gpu: Pod was rejected".into()),
        ..pod(1, 1)
    };
    let mut observation = observation(job_in(phase, 1), vec![pod(1, 0), rejected]);
    let mut inventory = two_nodes();
    let mut node = inventory.nodes.remove("b").expect("a node");
    let gpu = [("nvidia.com/gpu".to_owned(), 1)].into();
    hold(&mut node.resources, &gpu, Holder::Other, 1);
    observation.rejecting_nodes = [("b".to_owned(), node)].into();
    observation
}

#[test]
fn a_gang_whose_node_was_taken_makes_room_without_having_failed() {
    let mut observation = displaced();
    let plan = step(&mut observation);
    assert!(matches!(plan, Plan::Halt(StopReason::Unfit(_))), "{plan:?}");
    let status = observation.status();
    assert_eq!((status.phase, status.restarts), (Some(Phase::Restarting), 0));
    assert_eq!((&status.last_failure, &status.failed_nodes[..]), (&None, &[][..]));
    let (reason, message) = condition(&status, types::RUNNING);
    let words =
        "the gang of 2 is placed again: pod digits-1-1 no longer fits node b (with too few free GPUs)";
    assert_eq!((reason.as_str(), message.as_str()), (reasons::NODE_UNFIT, words));
    assert!(matches!(step(&mut observation), Plan::Drain { .. }));
    observation.pods.clear();
    observation.rejecting_nodes.clear();
    assert!(
        matches!(step(&mut observation), Plan::Place { attempt: 2, .. }),
        "at once"
    );
}

#[test]
fn a_failure_of_its_own_comes_before_a_node_that_was_taken() {
    let mut observation = displaced();
    observation.pods[0] = ended(pod(1, 0), 75, 99);
    assert!(
        matches!(decide(&observation), Plan::Halt(StopReason::Unfit(_))),
        "an echo"
    );
    observation.pods[0] = ended(pod(1, 0), 3, 99);
    assert_eq!(end(decide(&observation)), (BadData, NotRetryable, false));
}

#[test]
fn a_gang_that_has_run_is_not_placed_again_for_free() {
    let plan = decide(&displaced_in(Phase::Running));
    assert!(matches!(plan, Plan::End { .. }), "{plan:?}");
}

#[test]
fn a_pod_that_a_node_rejects_for_a_reason_of_its_own_is_a_failure() {
    let mut observation = displaced();
    observation.rejecting_nodes = two_nodes()
        .nodes
        .into_iter()
        .map(|(name, facts)| (name.to_string(), facts))
        .collect();
    assert_eq!(end(decide(&observation)), (PodLost, Restart, false));
    // The unbound pod holds the GPU there itself.
    let node = observation.rejecting_nodes.get_mut("b").expect("a node");
    let gpu: Requests = [("nvidia.com/gpu".to_owned(), 1)].into();
    hold(&mut node.resources, &gpu, Holder::Gang, 1);
    observation.pods[1] = PodView {
        state: PodState::Pending,
        ready: false,
        rejected: Some(Box::new(gpu)),
        ..pod(1, 1)
    };
    assert_eq!(decide(&observation), Plan::Follow);
}
