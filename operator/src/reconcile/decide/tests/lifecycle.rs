//! A job from its manifest to its deletion, without failures of ranks.

use std::sync::Arc;

use contract::Progress;
use crds::conditions::types;
use crds::status::{AdmittedPod, ProgressStatus};
use crds::{Phase, ViTTrainingJob};
use expect_test::expect;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::json;

use super::super::super::observation::{Isolation, Observation};
use super::world::{World, ended, saved_at};
use crate::fixtures::{self, assert_contains, at, gang, pod};
use crate::policy::gang::{PodState, PodView, Trainer};

fn suspend(job: &mut ViTTrainingJob) {
    job.spec.suspend = true;
}

fn resume(job: &mut ViTTrainingJob) {
    job.spec.suspend = false;
}

/// Invariant G6.
#[test]
fn a_job_is_placed_then_created_then_followed_to_its_end() {
    let mut world = World::new(fixtures::job());
    world.seen.has_service = false;
    world.seen.network_policy = Isolation::Missing;
    world.edit("a time to live of 60 s", |job| {
        job.spec.ttl_seconds_after_finished = Some(60);
    });
    world.start().exit(0, 0).exit(1, 0).pass(50).pass(10);
    world.story_is(expect![[r#"
        a time to live of 60 s; again in 5s
          Starting, attempt 1 on a b, Placed: GangFits
          update the status, create ConfigMap digits-1 Service NetworkPolicy digits-1-0 digits-1-1
        pods are ready; again in 2s
          Running
        rank 0 exits with 0; again in 2s
          update the status
        rank 1 exits with 0; again in 60s
        ! Succeeded, not Placed: Released, Complete: AllEpochsDone
        ! delete the Service, delete the NetworkPolicy
        50 s pass; again in 10s
        10 s pass
        ! delete the job
    "#]]);
}

#[test]
fn what_admission_adds_to_the_pods_is_known_before_gpus_are_looked_for() {
    let mut world = World::new(fixtures::job());
    world.seen.dry_run = None;
    world.begin().story_is(expect![[r#"
        begin; again in 5s
          dry run
          Starting, attempt 1 on a b, Placed: GangFits
          update the status, create ConfigMap digits-1 digits-1-0 digits-1-1
    "#]]);
    let mut world = World::new(fixtures::job());
    world.seen.dry_run = None;
    let added =
        json!({"requests": {"nvidia.com/gpu": "1"}, "containers": ["debug"], "nodeSelector": {"pool": "a"}});
    world.admitted = serde_json::from_value(added).expect("a pod");
    world.begin().story_is(expect![[r#"
        begin; again in 30s
          dry run
          update the status
          Pending, not Placed: NoFittingGroup
    "#]]);
    expect!["needs 2 x 1 identical nvidia.com/gpu: Tesla-T4 has 2 nodes without the labels of workers.nodeSelector (a, b); admission adds to each pod: container debug, 1 more nvidia.com/gpu, node label pool=a"].assert_eq(&world.condition(types::PLACED).1);
    world.on("the webhook is gone", |seen| {
        seen.dry_run = Some(AdmittedPod::default());
    });
    world.story_is(expect![[r#"
        the webhook is gone; again in 5s
          update the status
          Starting, attempt 1 on a b, Placed: GangFits
          update the status, create ConfigMap digits-1 digits-1-0 digits-1-1
    "#]]);
}

#[test]
fn a_gang_of_which_pods_are_missing_is_completed_unless_they_existed() {
    // An operator stopped between two pods. The first may have started, and wait for its peer.
    for state in [PodState::Pending, PodState::Running] {
        let mut world = World::in_phase(Phase::Starting, |_| ());
        world.seen.pods[0].state = state;
        world.seen.pods[0].ready = false;
        world.seen.pods.pop();
        world.begin().story_is(expect![[r#"
            begin; again in 5s
              update the status, create digits-1-1
        "#]]);
    }
    // The other pod was seen.
    let mut world = World::in_phase(Phase::Starting, |_| ());
    let gone = world.seen.pods.pop().expect("two");
    world.seen.departed = vec![PodView { lost: true, ..gone }];
    world.begin().story_is(expect![[r#"
        begin; again in 5s
        ! Restarting, PodLost of digits-1-1 on b, restarts 1 (1 without progress)
        ! delete digits-1-0/30s
    "#]]);
    // All of the gang ran.
    let mut world = World::running();
    world.seen.pods.pop();
    let step = world.decide();
    assert_eq!(step.status.last_failure.expect("a failure").class, "PodLost");
}

#[test]
fn a_pod_that_appears_after_all_pods_have_gone_is_deleted() {
    let mut world = World::in_phase(Phase::Starting, |_| ());
    world.edit("suspend", suspend).go();
    world.on("a pod of it appears", |seen| seen.pods = vec![pod(1, 1)]);
    world.go().story_is(expect![[r#"
        suspend; again in 5s
        ! Suspending, not Suspended: Suspending
        ! delete digits-1-0 digits-1-1
        deleted pods are gone; again in 300s
        ! Suspended, Suspended: Suspended, not Placed: Suspended
        a pod of it appears; again in 5s
        ! delete digits-1-1
        deleted pods are gone; again in 300s
    "#]]);
}

#[test]
fn a_manifest_that_cannot_be_run_is_refused_until_it_is_changed() {
    let mut job = fixtures::job();
    job.spec.model.image_size = Some(100);
    let mut world = World::new(job);
    world.begin();
    assert_contains(&world.condition(types::FAILED).1, "spec.model.imageSize is 100");
    world.edit("it is changed", |job| job.spec.model.image_size = None);
    world.story_is(expect![[r#"
        begin; again in 300s
        ! Failed, Failed: InvalidSpec
        ! delete the Service, delete the NetworkPolicy
        it is changed; again in 5s
          Starting, attempt 1 on a b, not Failed: Resumed, Placed: GangFits
          update the status, create ConfigMap digits-1 Service NetworkPolicy digits-1-0 digits-1-1
    "#]]);
    assert_eq!(world.status().completion_time, None);
    // Not a job that failed in another way.
    World::in_phase(Phase::Failed, |_| ())
        .begin()
        .story_is(expect![[r#"
        begin; again in 300s
        ! delete digits-1-0 digits-1-1, delete the Service, delete the NetworkPolicy
    "#]]);
}

/// An older version of the operator placed the gang.
#[test]
fn a_gang_trains_on_although_its_manifest_is_refused_now() {
    let world = || World::in_phase(Phase::Running, |job| job.spec.model.image_size = Some(100));
    let mut ends_well = world();
    ends_well.begin();
    assert_contains(
        &ends_well.condition(types::RECONCILED).1,
        "this version of the operator would not place it again: spec.model.imageSize is 100",
    );
    ends_well.exit(0, 0).exit(1, 0).story_is(expect![[r#"
        begin; again in 2s
          not Reconciled: NotRestartable
        rank 0 exits with 0; again in 2s
          update the status
        rank 1 exits with 0; again in 300s
        ! Succeeded, Complete: AllEpochsDone
        ! delete the Service, delete the NetworkPolicy
    "#]]);
    let mut fails = world();
    fails.begin().exit(1, 10).go().story_is(expect![[r#"
        begin; again in 2s
          not Reconciled: NotRestartable
        rank 1 exits with 10; again in 300s
        ! Failed, Failed: InvalidSpec
        ! delete digits-1-0, delete the Service, delete the NetworkPolicy
        deleted pods are gone; again in 300s
    "#]]);
    let mut is_suspended = world();
    is_suspended.edit("suspend", suspend).go().story_is(expect![[r#"
        suspend; again in 5s
        ! Suspending, not Suspended: Suspending
        ! delete digits-1-0 digits-1-1
        deleted pods are gone; again in 300s
        ! Failed, Failed: InvalidSpec
        ! delete the Service, delete the NetworkPolicy
    "#]]);
    let mut is_changed = world();
    is_changed
        .begin()
        .edit("the manifest is valid", |job| job.spec.model.image_size = None);
    is_changed.story_is(expect![[r#"
        begin; again in 2s
          not Reconciled: NotRestartable
        the manifest is valid; again in 2s
          update the status
    "#]]);
    // Nothing of it runs yet.
    let mut is_new = world();
    is_new.seen.pods.clear();
    is_new.begin().story_is(expect![[r#"
        begin; again in 300s
        ! Failed, Failed: InvalidSpec
        ! delete the Service, delete the NetworkPolicy
    "#]]);
}

#[test]
fn another_trainer_needs_an_agent_beside_it() {
    let external = |job: &mut ViTTrainingJob| {
        job.spec.external = serde_json::from_value(json!({"command": ["torchrun"]})).ok();
    };
    let mut world = World::new(fixtures::job());
    external(Arc::make_mut(&mut world.seen.job));
    world.begin();
    assert_contains(&world.condition(types::FAILED).1, "without --agent-image");
    world.on("an operator with an image", |seen| {
        seen.agent_image = Some("localhost/vit-operator:dev".into());
    });
    world.story_is(expect![[r#"
        begin; again in 300s
        ! Failed, Failed: InvalidSpec
        an operator with an image; again in 5s
          Starting, attempt 1 on a b, not Failed: Resumed, Placed: GangFits
          update the status, create ConfigMap digits-1 digits-1-0 digits-1-1
    "#]]);
    // A running gang keeps its GPUs.
    World::in_phase(Phase::Running, external)
        .begin()
        .story_is(expect![[r#"
        begin; again in 2s
          update the status
    "#]]);
}

#[test]
fn a_job_waits_for_gpus_as_long_as_it_may() {
    let mut world = World::new(fixtures::job());
    world.nodes = vec!["a"];
    world.begin().on("a node comes", |_| ()).story_is(expect![[r#"
        begin; again in 30s
          Pending, not Placed: NoFittingGroup
        a node comes; again in 30s
    "#]]);
    world.nodes.push("b");
    world.begin().story_is(expect![[r#"
        begin; again in 5s
          Starting, attempt 1 on a b, Placed: GangFits
          update the status, create ConfigMap digits-1 digits-1-0 digits-1-1
    "#]]);

    let mut job = fixtures::job();
    job.spec.scheduling.pending_timeout_seconds = Some(110);
    let mut world = World::new(job);
    world.nodes = vec!["a"];
    world.begin().pass(10).story_is(expect![[r#"
        begin; again in 10s
          Pending, not Placed: NoFittingGroup
        10 s pass; again in 300s
        ! Failed, not Placed: Released, Failed: PendingTimeout
        ! delete the Service, delete the NetworkPolicy
    "#]]);
    assert_eq!(
        world.condition(types::FAILED).1,
        "the job got no GPUs within 110 s (scheduling.pendingTimeoutSeconds): needs 2 x 1 identical nvidia.com/gpu: \
         Tesla-T4 has 1 node with 1 free"
    );
}

#[test]
fn suspend_saves_stops_and_resumes_as_a_new_attempt_that_is_no_restart() {
    let mut world = World::in_phase(Phase::Running, |job| {
        job.spec.active_deadline_seconds = Some(60);
        job.status.as_mut().expect("a status").start_time = Some(Time(at(50)));
    });
    // It saves and exits with 143, which is not a failure.
    world
        .edit("suspend", suspend)
        .exit(0, 143)
        .exit(1, 143)
        .go()
        .pass(1000);
    world.edit("resume", resume).story_is(expect![[r#"
        suspend; again in 5s
        ! Suspending, not Suspended: Suspending
        ! delete digits-1-0 digits-1-1
        rank 0 exits with 143; again in 5s
        rank 1 exits with 143; again in 300s
        ! Suspended, Suspended: Suspended, not Placed: Suspended
        deleted pods are gone; again in 300s
        1000 s pass; again in 300s
        resume; again in 5s
          Starting, attempt 2 on a b, not Suspended: Resumed, Placed: GangFits
          update the status, delete digits-1, create ConfigMap digits-2 digits-2-0 digits-2-1
    "#]]);
    assert_eq!(
        world.status().start_time,
        Some(Time(at(1100))),
        "its clock starts again"
    );
    world.start().pass(60).story_is(expect![[r#"
        pods are ready; again in 2s
          Running
        60 s pass; again in 300s
        ! Failed, not Placed: Released, Failed: DeadlineExceeded
        ! delete digits-2-0 digits-2-1, delete the Service, delete the NetworkPolicy
    "#]]);
    assert_eq!(
        world.condition(types::FAILED).1,
        "the job has had GPUs for 60 s (activeDeadlineSeconds)"
    );
}

#[test]
fn a_suspended_job_without_pods_has_nothing_to_stop() {
    let mut job = fixtures::job();
    suspend(&mut job);
    let mut world = World::new(job);
    world.begin().edit("resume", resume).story_is(expect![[r#"
        begin; again in 300s
        ! Suspended, Suspended: Suspended, not Placed: Suspended
        resume; again in 5s
          Starting, attempt 1 on a b, not Suspended: Resumed, Placed: GangFits
          update the status, create ConfigMap digits-1 digits-1-0 digits-1-1
    "#]]);
}

#[test]
fn a_pod_that_is_not_ready_for_a_moment_does_not_stop_a_gang() {
    let mut world = World::running();
    world.begin();
    let running = world
        .status()
        .condition(types::RUNNING)
        .expect("a condition")
        .clone();
    world.on("a probe fails", |seen| seen.pods[1].ready = false);
    let status = world.status();
    let now = status.condition(types::RUNNING).expect("a condition");
    assert_eq!(now.last_transition_time, running.last_transition_time);
    assert_eq!(
        (&*now.status, &*now.reason, &*now.message),
        ("True", "AllPodsReady", "1 of 2 pods are ready")
    );
    world.on("it passes", |seen| seen.pods[1].ready = true);
    assert_eq!(world.status().condition(types::RUNNING), Some(&running));
}

#[test]
fn a_gang_that_fails_to_save_when_it_is_stopped_is_recorded_before_the_job_rests() {
    let mut world = World::running();
    // The volume of one is full.
    world.edit("suspend", suspend).exit(0, 79).exit(1, 143).go();
    world.edit("resume", resume).story_is(expect![[r#"
        suspend; again in 5s
        ! Suspending, not Suspended: Suspending
        ! delete digits-1-0 digits-1-1
        rank 0 exits with 79; again in 5s
        rank 1 exits with 143; again in 300s
        ! Storage of digits-1-0 on a
        ! Suspended, Suspended: Suspended, not Placed: Suspended
        deleted pods are gone; again in 300s
        resume; again in 5s
          Starting, attempt 2 on a b, not Suspended: Resumed, Placed: GangFits
          update the status, delete digits-1, create ConfigMap digits-2 digits-2-0 digits-2-1
    "#]]);
}

#[test]
fn a_gang_that_has_ended_well_is_done_whatever_else_was_wanted_of_it() {
    let done = || -> Vec<PodView> { gang(1).into_iter().map(|pod| ended(pod, 0, at(99))).collect() };
    let changes: [fn(&mut ViTTrainingJob); 3] = [
        suspend,
        |job| {
            job.spec.active_deadline_seconds = Some(1);
            job.status.as_mut().expect("a status").start_time = Some(Time(at(0)));
        },
        |job| job.spec.workers.nodes = 1,
    ];
    for phase in [Phase::Starting, Phase::Running] {
        for change in changes {
            let mut world = World::in_phase(phase, change);
            world.seen.pods = done();
            assert_eq!(world.decide().status.phase, Some(Phase::Succeeded));
        }
    }
    // Its last epoch was over when it was asked to save and stop, or its pods are gone.
    let mut world = World::running();
    world
        .edit("suspend", suspend)
        .exit(0, 0)
        .exit(1, 0)
        .story_is(expect![[r#"
            suspend; again in 5s
            ! Suspending, not Suspended: Suspending
            ! delete digits-1-0 digits-1-1
            rank 0 exits with 0; again in 5s
            rank 1 exits with 0; again in 300s
            ! Succeeded, Complete: AllEpochsDone
            ! delete the Service, delete the NetworkPolicy
        "#]]);
    assert_eq!(world.status().condition(types::SUSPENDED), None);
    for phase in [Phase::Suspending, Phase::Restarting] {
        let mut world = World::in_phase(phase, suspend);
        world.seen.departed = std::mem::take(&mut world.seen.pods);
        world.seen.departed = done();
        assert_eq!(world.decide().status.phase, Some(Phase::Succeeded), "{phase:?}");
    }
    // If one has failed, the other's end says nothing.
    World::running().exit(0, 0).exit(1, 79).story_is(expect![[r#"
        rank 0 exits with 0; again in 2s
          update the status
        rank 1 exits with 79; again in 1s
        ! Restarting, Storage of digits-1-1 on b, restarts 1 (1 without progress)
        ! delete digits-1-0/30s digits-1-1/30s
    "#]]);
}

#[test]
fn a_gang_is_done_with_its_trainers_although_other_containers_run_on() {
    let mut world = World::in_phase(Phase::Starting, |_| ());
    let is_done = |world: &mut World, node_rank: usize| {
        world.on(&format!("trainer {node_rank} is done"), |seen| {
            seen.pods[node_rank] = PodView {
                state: PodState::Running,
                ..ended(seen.pods[node_rank].clone(), 0, seen.now)
            };
        });
    };
    is_done(&mut world, 0);
    world.on("its node is gone", |seen| seen.pods[0].lost = true);
    is_done(&mut world, 1);
    world.pass(29).pass(1).story_is(expect![[r#"
        trainer 0 is done; again in 2s
          Running
        its node is gone; again in 2s
        trainer 1 is done; again in 30s
        ! Succeeded, Complete: AllEpochsDone
        ! delete the Service, delete the NetworkPolicy
        29 s pass; again in 1s
        1 s pass; again in 300s
        ! delete digits-1-0 digits-1-1
    "#]]);
    // Even if the other containers fail.
    let mut world = World::running();
    world.seen.pods = gang(1).into_iter().map(|pod| ended(pod, 0, at(99))).collect();
    world.seen.pods[1].state = PodState::Failed;
    world.begin().story_is(expect![[r#"
        begin; again in 300s
        ! Succeeded, Complete: AllEpochsDone
        ! delete the Service, delete the NetworkPolicy
    "#]]);
    // An evicted trainer may have been told to stop.
    let mut world = World::running();
    world.exit(0, 0).on("rank 1 is evicted", |seen| {
        seen.pods[1] = PodView {
            state: PodState::Failed,
            disruption: Some("Evicted: low on disk".into()),
            ..ended(seen.pods[1].clone(), 0, seen.now)
        };
    });
    world.story_is(expect![[r#"
        rank 0 exits with 0; again in 2s
          update the status
        rank 1 is evicted; again in 1s
        ! Restarting, PodLost of digits-1-1 on b, restarts 1 (1 without progress)
        ! delete digits-1-0/30s digits-1-1/30s
    "#]]);
}

/// An external job in this phase whose ranks 0 and 1 ended with 0.
fn ended_external(phase: Phase, change: impl FnOnce(&mut Observation)) -> World {
    let mut world = World::in_phase(phase, |job| {
        job.spec.external = serde_json::from_value(json!({"command": ["torchrun"]})).ok();
        job.spec.suspend = phase == Phase::Suspending;
    });
    world.seen.agent_image = Some("localhost/vit-operator:dev".into());
    for pod in &mut world.seen.pods {
        let trainer = Trainer::External;
        *pod = PodView {
            trainer,
            ..ended(pod.clone(), 0, at(99))
        };
    }
    change(&mut world.seen);
    world
}

#[test]
fn another_trainer_that_ends_well_once_it_is_stopped_is_done_only_with_all_steps() {
    let delete = |seen: &mut Observation| seen.pods[1].deletion_timestamp = Some(at(120));
    let report = |seen: &mut Observation, step, total_steps| {
        let progress = Progress {
            step,
            total_steps,
            ..saved_at(step)
        };
        seen.progress = Some(progress);
    };
    ended_external(Phase::Suspending, |_| ())
        .begin()
        .story_is(expect![[r#"
            begin; again in 300s
            ! delete digits-1-0 digits-1-1
            ! Suspended, Suspended: Suspended, not Placed: Suspended
        "#]]);
    ended_external(Phase::Restarting, |_| ())
        .begin()
        .story_is(expect![[r#"
            begin; again in 5s
            ! delete digits-1-0 digits-1-1
              Starting, attempt 2 on a b, Placed: GangFits
              update the status, delete digits-1, create ConfigMap digits-2 digits-2-0 digits-2-1
        "#]]);
    ended_external(Phase::Running, delete)
        .begin()
        .story_is(expect![[r#"
            begin; again in 1s
            ! Restarting, PodLost of digits-1-1 on b, restarts 1 (1 without progress)
            ! delete digits-1-0/30s
        "#]]);
    // Nobody stopped it, or it reported all steps, now or before.
    let done = |phase, change: &dyn Fn(&mut Observation)| {
        let step = ended_external(phase, change).decide();
        assert_eq!(step.status.phase, Some(Phase::Succeeded), "{phase:?}");
    };
    done(Phase::Running, &|_| ());
    done(Phase::Suspending, &|seen| report(seen, 10, 10));
    done(Phase::Running, &|seen| {
        delete(seen);
        report(seen, 10, 10);
    });
    done(Phase::Suspending, &|seen| {
        report(seen, 10, 10);
        let progress = seen.progress.take().expect("reported");
        let status = Arc::make_mut(&mut seen.job).status.as_mut().expect("a status");
        status.progress = Some(ProgressStatus {
            step: progress.step.try_into().expect("few"),
            total_steps: progress.total_steps.try_into().expect("few"),
            ..ProgressStatus::default()
        });
    });
    for (step, total_steps) in [(9, 10), (0, 0)] {
        let mut world = ended_external(Phase::Suspending, |seen| report(seen, step, total_steps));
        assert_contains(&world.begin().story(), "Suspended: Suspended");
    }
}

#[test]
fn another_size_replaces_the_gang_without_counting_as_a_failure() {
    let mut world = World::running();
    world.edit("one node", |job| job.spec.workers.nodes = 1);
    assert_eq!(
        world.condition(types::RUNNING).1,
        "the gang of 2 is replaced by one of 1 nodes"
    );
    world.go().story_is(expect![[r#"
        one node; again in 5s
        ! Restarting
        ! delete digits-1-0 digits-1-1
        deleted pods are gone; again in 5s
          Starting, attempt 2 on a, Placed: GangFits
          update the status, delete digits-1, create ConfigMap digits-2 digits-2-0
    "#]]);
}

#[test]
fn an_elastic_gang_of_an_allowed_size_stays_until_a_larger_one_is_worth_it() {
    let elastic = |min_nodes| {
        World::in_phase(Phase::Running, |job| {
            job.spec.workers.nodes = 4;
            job.spec.elastic = serde_json::from_value(json!({"minNodes": min_nodes})).ok();
        })
    };
    elastic(4).begin().story_is(expect![[r#"
        begin; again in 5s
        ! Restarting
        ! delete digits-1-0 digits-1-1
    "#]]);
    let mut world = elastic(1);
    let report = |world: &mut World, event: &str, eta, step| {
        world.on(event, |seen| {
            let mut progress = saved_at(step);
            progress.eta_seconds = Some(eta);
            seen.progress = Some(progress);
        });
    };
    report(&mut world, "step 10, which is the last", 0, 10);
    report(&mut world, "an hour is left, but no new checkpoint", 3600, 10);
    world.story_is(expect![[r#"
        step 10, which is the last; again in 2s
          update the status
        an hour is left, but no new checkpoint; again in 2s
          update the status
    "#]]);
    // A failure comes first.
    world.seen.progress = Some(saved_at(20));
    let healthy = world.seen.pods[1].clone();
    world.seen.pods[1] = ended(healthy.clone(), 1, at(99));
    assert_eq!(world.decide().status.restarts, 1);
    world.seen.pods[1] = healthy;
    world.nodes = vec!["a", "b", "c", "d"];
    report(&mut world, "step 20", 3600, 20);
    assert_eq!(
        world.condition(types::RUNNING).1,
        "the gang of 2 is replaced by one of 4 nodes, which are free; after the checkpoint of step 20"
    );
    world.go().story_is(expect![[r#"
        step 20; again in 5s
        ! Restarting
        ! delete digits-1-0 digits-1-1
        deleted pods are gone; again in 5s
          Starting, attempt 2 on a b c d, Placed: GangFits
          update the status, delete digits-1, create ConfigMap digits-2 digits-2-0 digits-2-1 digits-2-2 digits-2-3
    "#]]);
}

#[test]
fn pods_of_an_attempt_that_the_status_has_lost_are_not_taken_for_new_ones() {
    let mut world = World::new(fixtures::job());
    world.seen.pods = gang(7);
    world.begin().on("one has ended", |seen| {
        seen.pods.pop();
        seen.pods[0] = ended(seen.pods[0].clone(), 0, at(101));
    });
    world.story_is(expect![[r#"
        begin; again in 5s
        ! update the status, delete digits-7-0 digits-7-1
        one has ended; again in 5s
          Starting, attempt 8 on a b, Placed: GangFits
          update the status, create ConfigMap digits-8 digits-8-0 digits-8-1
    "#]]);
}

#[test]
fn pods_of_older_attempts_that_came_into_sight_late_are_deleted() {
    for phase in [Phase::Starting, Phase::Running] {
        let mut world = World::new(fixtures::job_in(phase, 2));
        world.seen.config_maps = ["digits-1".to_owned(), "digits-2".to_owned()].into();
        world.seen.pods = [gang(1), gang(2)].concat();
        assert_contains(
            &world.begin().story(),
            "delete digits-1-0/30s digits-1-1/30s, delete digits-1\n",
        );
    }
}
