//! Failures of ranks: which is the cause, and what follows.

use std::sync::Arc;
use std::time::Duration;

use contract::{Activity, Heartbeat, Heartbeats, Memory};
use crds::conditions::types;
use crds::spec::Strategy;
use crds::{Phase, ViTTrainingJob};
use expect_test::expect;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::json;

use super::super::super::status;
use super::super::over_quota;
use super::world::{World, ended, saved_at};
use crate::error::Error;
use crate::fixtures::{self, assert_contains, at, pod};
use crate::policy::gang::{CannotStart, PodState, PodView, Trainer};
use crate::policy::restart::pause_over_quota;
use crate::policy::stall::{SilentAgent, StallSigns};

/// Invariant G5.
#[test]
fn a_killed_rank_is_followed_by_a_new_attempt_once_its_gang_is_gone() {
    // A pod that is deleted but not gone uses its GPU.
    let mut world = World::running();
    world.exit(1, 137).pass(2).go().start().exit(0, 137).go().pass(2);
    world.story_is(expect![[r#"
        rank 1 exits with 137; again in 5s
        ! Restarting, Killed of digits-1-1 on b, restarts 1 (1 without progress)
        ! delete digits-1-0/30s digits-1-1/30s
        2 s pass; again in 5s
        deleted pods are gone; again in 5s
          Starting, attempt 2 on a b, Placed: GangFits
          update the status, delete digits-1, create ConfigMap digits-2 digits-2-0 digits-2-1
        pods are ready; again in 2s
          Running
        rank 0 exits with 137; again in 5s
        ! Restarting, Killed of digits-2-0 on a, restarts 2 (2 without progress)
        ! delete digits-2-0/30s digits-2-1/30s
        deleted pods are gone; again in 2s
        2 s pass; again in 5s
          Starting, attempt 3 on a b
          update the status, delete digits-2, create ConfigMap digits-3 digits-3-0 digits-3-1
    "#]]);
}

#[test]
fn a_back_off_is_waited_for() {
    let mut world = World::running();
    world.exit(1, 137).go().pass(1).story_is(expect![[r#"
        rank 1 exits with 137; again in 5s
        ! Restarting, Killed of digits-1-1 on b, restarts 1 (1 without progress)
        ! delete digits-1-0/30s digits-1-1/30s
        deleted pods are gone; again in 1s
        1 s pass; again in 5s
          Starting, attempt 2 on a b, Placed: GangFits
          update the status, delete digits-1, create ConfigMap digits-2 digits-2-0 digits-2-1
    "#]]);
}

#[test]
fn data_errors_are_never_retried_and_the_pod_that_failed_stays_for_its_logs() {
    let mut world = World::running();
    world.exit(0, 3).story_is(expect![[r#"
        rank 0 exits with 3; again in 300s
        ! Failed, BadData of digits-1-0 on a, Failed: NotRetryable
        ! delete digits-1-1/30s, delete the Service, delete the NetworkPolicy
    "#]]);
    // So does one whose container has ended, even before the kubelet reports the pod's end.
    let mut world = World::running();
    world.seen.pods[1] = PodView {
        state: PodState::Running,
        ..ended(pod(1, 1), 75, at(100))
    };
    world.exit(0, 3).story_is(expect![[r#"
        rank 0 exits with 3; again in 30s
        ! Failed, BadData of digits-1-0 on a, Failed: NotRetryable
        ! delete the Service, delete the NetworkPolicy
    "#]]);
    world.on("its kubelet is silent", |seen| {
        seen.unready_nodes = [("b".to_owned(), at(99))].into();
    });
    world.story_is(expect![[r#"
        its kubelet is silent; again in 5s
        ! delete digits-1-1/30s
    "#]]);
}

#[test]
fn a_job_that_has_trained_goes_elsewhere_where_a_node_s_own_disk_lacks_its_data() {
    let mut world = World::in_phase(Phase::Starting, |job| {
        job.spec.data.volume =
            serde_json::from_value(json!({"hostPath": {"path": "/data"}})).expect("a volume");
    });
    world.seen.progress = Some(saved_at(40));
    world.begin();
    world.seen.progress = None;
    world.exit(1, 3).story_is(expect![[r#"
        begin; again in 2s
          Running
        rank 1 exits with 3; again in 5s
        ! Restarting, BadData of digits-1-1 on b, restarts 1 (1 without progress)
        ! delete digits-1-0/30s digits-1-1/30s
    "#]]);
    let avoided = &world.status().failed_nodes[0];
    assert_eq!((&*avoided.node, &*avoided.class), ("b", "BadData"));
    assert!(avoided.avoided_until.is_some());
}

#[test]
fn a_rank_out_of_memory_is_followed_by_a_gang_that_divides_more_where_the_operator_chooses() {
    let out_of_memory = |world: &mut World| {
        world.on("a rank is out of GPU memory", |seen| {
            let mut failed = ended(seen.pods[0].clone(), 77, seen.now);
            let record = failed.end.as_mut().and_then(|end| end.record.as_mut());
            let failure = record.and_then(|record| record.failure.as_mut());
            failure.expect("it failed").memory = Some(Memory::Gpu);
            seen.pods[0] = failed;
        });
    };
    let mut world = World::running();
    out_of_memory(&mut world);
    world.story_is(expect![[r#"
        a rank is out of GPU memory; again in 300s
        ! Failed, OutOfMemory of digits-1-0 on a, Failed: NotRetryable
        ! delete digits-1-1/30s, delete the Service, delete the NetworkPolicy
    "#]]);

    let mut job = crate::fixtures::job();
    job.spec.parallelism.strategy = Strategy::Auto;
    let mut world = World::new(job);
    world.begin().start();
    let strategy = |world: &World| {
        let placement = world.status().placement.expect("a placement");
        placement.strategy.expect("a strategy")
    };
    let first = strategy(&world);
    assert_eq!(first.zero_stage, 0);
    out_of_memory(&mut world);
    assert_eq!(world.status().failed_nodes, [], "no node is at fault");
    world.go().pass(1);
    let second = strategy(&world);
    assert!(second.memory_mebibytes < first.memory_mebibytes, "{second:?}");
    assert_contains(
        &world.condition(types::PLACED).1,
        "; zeroStage 0 ran out of memory",
    );
    // A failure of another class does not bring the first strategy back.
    world.start().exit(1, 137).go().pass(2).story_is(expect![[r#"
        begin; again in 5s
          Starting, attempt 1 on a b, Placed: GangFits
          update the status, create ConfigMap digits-1 digits-1-0 digits-1-1
        pods are ready; again in 2s
          Running
        a rank is out of GPU memory; again in 5s
        ! Restarting, OutOfMemory of digits-1-0 on a, restarts 1 (1 without progress)
        ! delete digits-1-0/30s digits-1-1/30s
        deleted pods are gone; again in 1s
        1 s pass; again in 5s
          Starting, attempt 2 on a b
          update the status, delete digits-1, create ConfigMap digits-2 digits-2-0 digits-2-1
        pods are ready; again in 2s
          Running
        rank 1 exits with 137; again in 5s
        ! Restarting, Killed of digits-2-1 on b, restarts 2 (2 without progress)
        ! delete digits-2-0/30s digits-2-1/30s
        deleted pods are gone; again in 2s
        2 s pass; again in 5s
          Starting, attempt 3 on a b
          update the status, delete digits-2, create ConfigMap digits-3 digits-3-0 digits-3-1
    "#]]);
    assert_eq!(strategy(&world), second);
}

#[test]
fn the_cause_of_an_echo_is_waited_for() {
    let mut world = World::running();
    world.exit(0, 75).exit(1, 3).story_is(expect![[r#"
        rank 0 exits with 75; again in 3s
        ! Restarting, PeerLost of digits-1-0 on a, restarts 1 (1 without progress)
        rank 1 exits with 3; again in 300s
        ! Failed, BadData of digits-1-1 on b, restarts 0 (0 without progress), Failed: NotRetryable
        ! delete the Service, delete the NetworkPolicy
    "#]]);
    assert_eq!(
        world.status().last_failure.expect("a failure").time,
        Some(Time(at(100)))
    );
    // A restart is counted once.
    World::running().exit(0, 75).exit(1, 137).story_is(expect![[r#"
        rank 0 exits with 75; again in 3s
        ! Restarting, PeerLost of digits-1-0 on a, restarts 1 (1 without progress)
        rank 1 exits with 137; again in 1s
        ! Killed of digits-1-1 on b
        ! delete digits-1-0/30s digits-1-1/30s
    "#]]);
    // Only so long; and a pod that the operator ended is not the cause.
    World::running()
        .exit(0, 75)
        .pass(3)
        .exit(1, 137)
        .story_is(expect![[r#"
            rank 0 exits with 75; again in 3s
            ! Restarting, PeerLost of digits-1-0 on a, restarts 1 (1 without progress)
            3 s pass; again in 5s
            ! delete digits-1-0/30s digits-1-1/30s
            rank 1 exits with 137; again in 5s
              Starting, attempt 2 on a b, Placed: GangFits
              update the status, delete digits-1, create ConfigMap digits-2 digits-2-0 digits-2-1
        "#]]);
    // By a clock that is a minute ahead, unless the operator may have ended it.
    let mut world = World::running();
    world.exit(0, 75).on("rank 1 failed a minute from now", |seen| {
        seen.pods[1] = ended(seen.pods[1].clone(), 3, at(160));
    });
    world.story_is(expect![[r#"
        rank 0 exits with 75; again in 3s
        ! Restarting, PeerLost of digits-1-0 on a, restarts 1 (1 without progress)
        rank 1 failed a minute from now; again in 300s
        ! Failed, BadData of digits-1-1 on b, restarts 0 (0 without progress), Failed: NotRetryable
        ! delete the Service, delete the NetworkPolicy
    "#]]);
    // The cause is seen only after its pod is gone.
    let mut world = World::running();
    world.seen.departed = vec![PodView {
        lost: true,
        ..ended(world.seen.pods.pop().expect("two"), 3, at(98))
    }];
    world.exit(0, 75).story_is(expect![[r#"
        rank 0 exits with 75; again in 300s
        ! Failed, BadData of digits-1-1 on b, Failed: NotRetryable
        ! delete the Service, delete the NetworkPolicy
    "#]]);
}

#[test]
fn a_failed_job_that_is_suspended_can_be_changed_and_resumed() {
    let once = |job: &mut ViTTrainingJob| {
        job.spec.failure_policy.max_restarts = 0;
        job.spec.active_deadline_seconds = Some(60);
    };
    let mut world = World::in_phase(Phase::Running, once);
    world.exit(1, 137).pass(60).go();
    world.edit("suspend", |job| job.spec.suspend = true).go();
    world.edit("another micro-batch, and resume", |job| {
        job.spec.training.micro_batch_size = 8;
        job.spec.suspend = false;
    });
    world.story_is(expect![[r#"
        rank 1 exits with 137; again in 300s
        ! Failed, Killed of digits-1-1 on b, Failed: RestartsExhausted
        ! delete digits-1-0/30s, delete the Service, delete the NetworkPolicy
        60 s pass; again in 300s
        deleted pods are gone; again in 300s
        suspend; again in 300s
        ! Suspended, not Failed: Resumed, Suspended: Suspended, not Placed: Suspended
        ! delete digits-1-1/30s
        deleted pods are gone; again in 300s
        another micro-batch, and resume; again in 5s
          Starting, attempt 2 on a b, not Suspended: Resumed, Placed: GangFits
          update the status, delete digits-1, create ConfigMap digits-2 Service NetworkPolicy digits-2-0 digits-2-1
    "#]]);
    let status = world.status();
    assert_eq!(
        (status.completion_time, status.restarts_since_checkpoint),
        (None, 0)
    );
    // It ends as it is if it cannot run.
    let mut refused = World::in_phase(Phase::Running, once);
    refused.exit(1, 137).pass(60).go().story();
    refused.edit("suspend, and an impossible size", |job| {
        job.spec.suspend = true;
        job.spec.model.image_size = Some(100);
    });
    refused.story_is(expect![[r#"
        suspend, and an impossible size; again in 300s
    "#]]);
}

#[test]
fn the_pods_of_the_last_failed_attempts_are_kept_for_their_logs() {
    let keep = |job: &mut ViTTrainingJob| job.spec.failure_policy.keep_failed_pods = 2;
    let mut world = World::in_phase(Phase::Running, keep);
    for rank in [1, 0, 1] {
        world.exit(rank, 137).go().pass(60).start();
    }
    world.story_is(expect![[r#"
        rank 1 exits with 137; again in 5s
        ! Restarting, Killed of digits-1-1 on b, restarts 1 (1 without progress)
        ! delete digits-1-0/30s
        deleted pods are gone; again in 1s
        60 s pass; again in 5s
          Starting, attempt 2 on a b, Placed: GangFits
          update the status, delete digits-1, create ConfigMap digits-2 digits-2-0 digits-2-1
        pods are ready; again in 2s
          Running
        rank 0 exits with 137; again in 5s
        ! Restarting, Killed of digits-2-0 on a, restarts 2 (2 without progress)
        ! delete digits-2-1/30s
        deleted pods are gone; again in 2s
        60 s pass; again in 5s
          Starting, attempt 3 on a b
          update the status, delete digits-2, create ConfigMap digits-3 digits-3-0 digits-3-1
        pods are ready; again in 2s
          Running
        rank 1 exits with 137; again in 5s
        ! Restarting, Killed of digits-3-1 on b, restarts 3 (3 without progress)
        ! delete digits-1-1/30s digits-3-0/30s
        deleted pods are gone; again in 4s
        60 s pass; again in 5s
          Starting, attempt 4 on a b
          update the status, delete digits-3, create ConfigMap digits-4 digits-4-0 digits-4-1
        pods are ready; again in 2s
          Running
    "#]]);
    let pods = world.seen.pods.iter().map(|pod| pod.name.as_str());
    assert_eq!(
        pods.collect::<Vec<_>>(),
        ["digits-2-0", "digits-3-1", "digits-4-0", "digits-4-1"]
    );
    // An injected container runs on in the blamed pod.
    let mut world = World::in_phase(Phase::Running, keep);
    world.on("rank 1 is killed, its pod runs on", |seen| {
        let now = seen.now;
        let pod = ended(seen.pods[1].clone(), 137, now);
        seen.pods[1] = PodView {
            state: PodState::Running,
            ..pod
        };
    });
    world.go().pass(29).pass(1).story_is(expect![[r#"
        rank 1 is killed, its pod runs on; again in 5s
        ! Restarting, Killed of digits-1-1 on b, restarts 1 (1 without progress)
        ! delete digits-1-0/30s
        deleted pods are gone; again in 5s
        29 s pass; again in 5s
        1 s pass; again in 5s
        ! delete digits-1-1/30s
    "#]]);
}

#[test]
fn a_job_that_is_over_stays_over_when_the_cause_turns_up() {
    let once = |job: &mut ViTTrainingJob| job.spec.failure_policy.max_restarts = 0;
    World::in_phase(Phase::Running, once)
        .exit(0, 75)
        .exit(1, 3)
        .story_is(expect![[r#"
            rank 0 exits with 75; again in 3s
            ! Failed, PeerLost of digits-1-0 on a, Failed: RestartsExhausted
            rank 1 exits with 3; again in 300s
            ! BadData of digits-1-1 on b, Failed: NotRetryable
            ! delete the Service, delete the NetworkPolicy
        "#]]);
    let mut world = World::in_phase(Phase::Running, once);
    world.exit(0, 75);
    // Not even a larger budget revives it.
    Arc::make_mut(&mut world.seen.job)
        .spec
        .failure_policy
        .max_restarts = 5;
    world.exit(1, 137).story_is(expect![[r#"
        rank 0 exits with 75; again in 3s
        ! Failed, PeerLost of digits-1-0 on a, Failed: RestartsExhausted
        rank 1 exits with 137; again in 300s
        ! Killed of digits-1-1 on b
        ! delete the Service, delete the NetworkPolicy
    "#]]);
}

#[test]
fn another_trainer_that_crashed_may_have_lost_its_peer() {
    let mut world = World::in_phase(Phase::Running, |job| {
        job.spec.external = serde_json::from_value(json!({"command": ["torchrun"]})).ok();
    });
    world.seen.agent_image = Some("localhost/vit-operator:dev".into());
    let crash = |world: &mut World, node_rank: usize, code, reason: &str| {
        world.on(reason, |seen| {
            let mut pod = ended(seen.pods[node_rank].clone(), code, seen.now);
            pod.trainer = Trainer::External;
            let end = pod.end.as_mut().expect("an end");
            (end.record, end.reason) = (None, reason.into());
            seen.pods[node_rank] = pod;
        });
    };
    crash(&mut world, 0, 1, "Error");
    crash(&mut world, 1, 137, "OOMKilled");
    world.story_is(expect![[r#"
        Error; again in 3s
        ! Restarting, Crashed of digits-1-0 on a, restarts 1 (1 without progress)
        OOMKilled; again in 300s
        ! Failed, OutOfMemory of digits-1-1 on b, restarts 0 (0 without progress), Failed: NotRetryable
        ! delete the Service, delete the NetworkPolicy
    "#]]);
    let failure = world.status().last_failure.expect("a failure");
    assert_eq!(failure.memory, Some(Memory::Host));
}

#[test]
fn another_trainer_that_was_told_to_stop_may_end_as_it_likes() {
    for (trainer, failure) in [(Trainer::Own, Some("Crashed")), (Trainer::External, None)] {
        let mut world = World::in_phase(Phase::Suspending, |job| job.spec.suspend = true);
        world.seen.departed = std::mem::take(&mut world.seen.pods)
            .into_iter()
            .map(|pod| PodView {
                lost: true,
                trainer,
                ..ended(pod, 1, at(99))
            })
            .collect();
        let known = world.decide().status.last_failure;
        assert_eq!(known.as_ref().map(|failure| &*failure.class), failure);
    }
}

#[test]
fn a_new_checkpoint_renews_the_restart_budget() {
    let mut world = World::in_phase(Phase::Running, |job| {
        job.spec.failure_policy.max_restarts = 1;
        job.status.as_mut().expect("a status").restarts_since_checkpoint = 1;
    });
    let failed = ended(pod(1, 1), 137, at(99));
    world.seen.pods[1] = failed;
    assert_eq!(world.decide().status.phase, Some(Phase::Failed));
    world.seen.progress = Some(saved_at(10));
    world.begin().story_is(expect![[r#"
        begin; again in 5s
        ! Restarting, Killed of digits-1-1 on b, restarts 1 (1 without progress)
        ! delete digits-1-0/30s digits-1-1/30s
    "#]]);
    assert_eq!(world.status().last_checkpoint.expect("a checkpoint").step, 10);
}

#[test]
fn a_gang_that_does_not_start_in_time_gives_its_gpus_back() {
    let starting = || {
        World::in_phase(Phase::Starting, |job| {
            job.spec.scheduling.start_timeout_seconds = 60;
            let placement = job.status.as_mut().expect("a status").placement.as_mut();
            placement.expect("a placement").time = Some(Time(at(50)));
        })
    };
    let mut world = starting();
    (world.seen.pods[1].ready, world.seen.pods[1].state) = (false, PodState::Pending);
    world.seen.pods[1].stuck = Some("Unschedulable: no".into());
    world.begin().pass(9).pass(1).story_is(expect![[r#"
        begin; again in 5s
          update the status
        9 s pass; again in 1s
        1 s pass; again in 5s
        ! Restarting, StartFailed of digits-1-1 on b, restarts 1 (0 without progress), failed starts 1
        ! delete digits-1-0/30s digits-1-1/30s
    "#]]);
    // The timeout no longer applies to a gang that has run.
    let mut world = starting();
    world
        .begin()
        .on("a pod is not ready", |seen| seen.pods[1].ready = false);
    world.pass(1000).story_is(expect![[r#"
        begin; again in 2s
          Running
        a pod is not ready; again in 2s
          update the status
        1000 s pass; again in 2s
    "#]]);
    // A pod that could not be created has no node at fault.
    let mut world = starting();
    world.seen.pods.pop();
    world.seen.now = at(110);
    let step = world.decide();
    let failure = step.status.last_failure.expect("a failure");
    assert_eq!((failure.class.as_str(), failure.node), ("StartFailed", None));
    assert_contains(&failure.message, "pod digits-1-1: it could not be created");
    let error = Error::NameTaken {
        kind: "Pod",
        name: "digits-1-1".into(),
        owner: "job",
    };
    let status = status::with_error(&world.seen, world.status(), Some(&error.to_string()));
    Arc::make_mut(&mut world.seen.job).status = Some(status);
    let failure = world.decide().status.last_failure.expect("a failure");
    assert_contains(&failure.message, &format!("pod digits-1-1: {error}"));
    // A failure of another pod comes first.
    world.exit(0, 3).story_is(expect![[r#"
        rank 0 exits with 3; again in 300s
        ! Failed, BadData of digits-1-0 on a, Failed: NotRetryable
        ! delete the Service, delete the NetworkPolicy
    "#]]);
}

fn fail_to_start(world: &mut World, event: &str, why: CannotStart) {
    world.on(event, |seen| {
        for pod in &mut seen.pods {
            (pod.state, pod.ready) = (PodState::Pending, false);
            pod.cannot_start = Some(why);
            pod.stuck = Some(event.into());
        }
    });
}

#[test]
fn a_registry_that_is_down_is_waited_for_without_gpus() {
    let mut world = World::in_phase(Phase::Starting, |job| {
        job.spec.failure_policy.max_restarts = 1;
    });
    let down = |world: &mut World| fail_to_start(world, "no registry", CannotStart::Unavailable);
    down(&mut world);
    world.go().pass(1);
    down(&mut world);
    world.go();
    let placed = "2 starts failed; the next follows 2 s after that of attempt 2: no registry";
    assert_eq!(
        world.condition(types::PLACED),
        ("StartFailing".into(), placed.into())
    );
    world.pass(1).pass(1);
    down(&mut world);
    assert_eq!(world.status().failed_nodes, []);
    world.go().pass(4).start().exit(1, 137);
    world.story_is(expect![[r#"
        no registry; again in 5s
        ! Restarting, StartFailed of digits-1-0 on a, restarts 1 (0 without progress), failed starts 1
        ! delete digits-1-0/30s digits-1-1/30s
        deleted pods are gone; again in 1s
        1 s pass; again in 5s
          Starting, attempt 2 on a b, Placed: GangFits
          update the status, delete digits-1, create ConfigMap digits-2 digits-2-0 digits-2-1
        no registry; again in 5s
        ! Restarting, StartFailed of digits-2-0 on a, restarts 2 (0 without progress), failed starts 2
        ! delete digits-2-0/30s digits-2-1/30s
        deleted pods are gone; again in 2s
          Pending, not Placed: StartFailing
        1 s pass; again in 1s
        1 s pass; again in 5s
          Starting, attempt 3 on a b, Placed: GangFits
          update the status, delete digits-2, create ConfigMap digits-3 digits-3-0 digits-3-1
        no registry; again in 5s
        ! Restarting, StartFailed of digits-3-0 on a, restarts 3 (0 without progress), failed starts 3
        ! delete digits-3-0/30s digits-3-1/30s
        deleted pods are gone; again in 4s
          Pending, not Placed: StartFailing
        4 s pass; again in 5s
          Starting, attempt 4 on a b, Placed: GangFits
          update the status, delete digits-3, create ConfigMap digits-4 digits-4-0 digits-4-1
        pods are ready; again in 2s
          Running, failed starts 0
        rank 1 exits with 137; again in 5s
        ! Restarting, Killed of digits-4-1 on b, restarts 4 (1 without progress)
        ! delete digits-4-0/30s digits-4-1/30s
    "#]]);
    assert_eq!(world.status().start_failed_since, None);
    // Half an hour after the first failed start the budget counts.
    let mut world = World::in_phase(Phase::Starting, |job| {
        job.spec.failure_policy.max_restarts = 1;
        let status = job.status.as_mut().expect("a status");
        (status.failed_starts, status.start_failed_since) = (9, Some(Time(at(100))));
    });
    let mut before = World::in_phase(Phase::Starting, |_| ());
    before.seen.job = Arc::clone(&world.seen.job);
    before.seen.now = at(100 + 30 * 60 - 1);
    world.seen.now = at(100 + 30 * 60);
    down(&mut before);
    down(&mut world);
    before.story_is(expect![[r#"
        no registry; again in 5s
        ! Restarting, StartFailed of digits-1-0 on a, restarts 1 (0 without progress), failed starts 10
        ! delete digits-1-0/30s digits-1-1/30s
    "#]]);
    world.story_is(expect![[r#"
        no registry; again in 300s
        ! Failed, StartFailed of digits-1-0 on a, Failed: RestartsExhausted
        ! delete digits-1-0/30s digits-1-1/30s, delete the Service, delete the NetworkPolicy
    "#]]);
}

#[test]
fn what_does_not_exist_may_appear() {
    let absent = |world: &mut World| fail_to_start(world, "secret not found", CannotStart::Absent);
    let mut world = World::new(fixtures::job());
    world.begin();
    absent(&mut world);
    world.pass(119).pass(1);
    world.story_is(expect![[r#"
        begin; again in 5s
          Starting, attempt 1 on a b, Placed: GangFits
          update the status, create ConfigMap digits-1 digits-1-0 digits-1-1
        secret not found; again in 5s
          update the status
        119 s pass; again in 5s
        1 s pass; again in 300s
        ! Failed, BadConfig of digits-1-0 on a, not Placed: Released, Failed: NotRetryable
        ! delete digits-1-0/30s digits-1-1/30s, delete the Service, delete the NetworkPolicy
    "#]]);
    // Of a job that has begun before, it is not the manifest's fault.
    let mut world = World::in_phase(Phase::Restarting, |_| ());
    world.go().on("no pods", |seen| seen.pods.clear());
    absent(&mut world);
    world.story_is(expect![[r#"
        deleted pods are gone; again in 5s
        ! delete digits-1-0 digits-1-1
        no pods; again in 5s
          Starting, attempt 2 on a b, Placed: GangFits
          update the status, delete digits-1, create ConfigMap digits-2 digits-2-0 digits-2-1
        secret not found; again in 5s
        ! Restarting, StartFailed of digits-2-0 on a, restarts 1 (0 without progress), failed starts 1
        ! delete digits-2-0/30s digits-2-1/30s
    "#]]);
}

#[test]
fn a_suspension_ends_the_failing_of_starts() {
    let mut world = World::in_phase(Phase::Suspending, |job| {
        job.spec.suspend = true;
        let status = job.status.as_mut().expect("a status");
        (status.failed_starts, status.start_failed_since) = (9, Some(Time(at(100))));
    });
    world.begin().go().story_is(expect![[r#"
        begin; again in 5s
        ! delete digits-1-0 digits-1-1
        deleted pods are gone; again in 300s
        ! Suspended, failed starts 0, Suspended: Suspended, not Placed: Suspended
    "#]]);
    assert_eq!(world.status().start_failed_since, None);
}

#[test]
fn a_gang_over_quota_is_tried_again_after_a_minute() {
    let mut world = World::in_phase(Phase::Starting, |_| ());
    world.on("a quota refuses the second pod", |seen| {
        seen.pods.pop();
        let refused = kube::core::Status::failure("exceeded quota: gpus", "Forbidden").with_code(403);
        let error = Error::api("create", "Pod", "digits-1-1")(kube::Error::Api(Box::new(refused)));
        let status = over_quota(seen, &error).status;
        Arc::make_mut(&mut seen.job).status = Some(*status);
    });
    world.go();
    let pause = pause_over_quota(fixtures::UID, 1).as_secs();
    assert!((60..90).contains(&pause), "{pause}");
    // Another try has another pause.
    assert_ne!(pause_over_quota(fixtures::UID, 2).as_secs(), pause);
    world.pass(pause - 1).pass(1);
    world.story_is(expect![[r#"
        a quota refuses the second pod; again in 5s
        ! delete digits-1-0
        deleted pods are gone; again in 30s
        69 s pass; again in 1s
        1 s pass; again in 5s
          Starting, attempt 2 on a b, Placed: GangFits
          update the status, delete digits-1, create ConfigMap digits-2 digits-2-0 digits-2-1
    "#]]);
    assert_eq!(world.condition(types::PLACED).0, "GangFits");
}

/// Invariant G11.
#[test]
fn a_gang_that_stands_still_trains_again_unless_a_pod_of_it_tells_more() {
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
    let mut world = World::running();
    world.seen.stall_signs = Some(StallSigns {
        lasted: Duration::from_secs(61),
        bound: Duration::from_secs(60),
        answers: vec![(0, heartbeats(0)), (1, heartbeats(1))],
    });
    let mut faulty = World::running();
    faulty.seen.stall_signs = world.seen.stall_signs.clone();
    world.begin().story_is(expect![[r#"
        begin; again in 5s
        ! Restarting, Stalled of digits-1-0 on no node, restarts 1 (1 without progress)
        ! delete digits-1-0/30s digits-1-1/30s
    "#]]);
    faulty.exit(1, 76).story_is(expect![[r#"
        rank 1 exits with 76; again in 5s
        ! Restarting, DeviceFault of digits-1-1 on b, restarts 1 (1 without progress)
        ! delete digits-1-0/30s digits-1-1/30s
    "#]]);
}

#[test]
fn a_gang_whose_rank_0_is_silent_trains_again() {
    let mut world = World::running();
    world.seen.silence = Some(SilentAgent {
        lasted: Duration::from_secs(301),
        bound: Duration::from_secs(300),
    });
    world.begin();
    world.on("its kubelet finds it not ready", |seen| {
        seen.pods[0].ready = false;
    });
    world.story_is(expect![[r#"
        begin; again in 2s
          update the status
        its kubelet finds it not ready; again in 5s
        ! Restarting, Stalled of digits-1-0 on a, restarts 1 (1 without progress)
        ! delete digits-1-0/30s digits-1-1/30s
    "#]]);
}
