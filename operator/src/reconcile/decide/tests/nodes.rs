//! Nodes that fail, are taken, or do not end pods.

use std::sync::Arc;

use crds::Phase;
use crds::conditions::{reasons, types};
use expect_test::expect;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::runtime::watcher::Event;
use planner::facts::fleet::Fleet;
use planner::facts::inventory::NodeFacts;
use planner::facts::resources::{Holder, Requests, hold};

use super::super::super::observation::Observation;
use super::world::{World, ended};
use crate::fixtures::{self, at, pod, pod_objects};
use crate::policy::gang::{PodState, PodView, Rejected};

fn unready(world: &mut World, node: &str, since: i64) {
    let event = format!("node {node} is not ready since second {since}");
    world.on(&event, |seen| {
        seen.unready_nodes = [(node.to_owned(), at(since))].into();
    });
}

#[test]
fn a_pod_that_someone_deletes_ends_the_attempt() {
    let mut world = World::running();
    world.on("a pod is deleted", |seen| {
        seen.pods[1].deletion_timestamp = Some(at(130));
    });
    world.story_is(expect![[r#"
        a pod is deleted; again in 5s
        ! Restarting, PodLost of digits-1-1 on b, restarts 1 (1 without progress)
        ! delete digits-1-0/30s
    "#]]);
}

#[test]
fn a_pod_that_went_away_unseen_is_to_blame_before_the_peer_that_stopped_with_it() {
    // While no operator ran.
    let mut world = World::running();
    world.seen.pods.remove(0);
    world.exit(1, 143).story_is(expect![[r#"
        rank 1 exits with 143; again in 1s
        ! Restarting, PodLost of digits-1-0 on a, restarts 1 (1 without progress)
        ! delete digits-1-1/30s
    "#]]);
    // The peer is seen first.
    let mut world = World::running();
    world.exit(1, 143).on("its peer's node shuts down", |seen| {
        seen.pods[0] = ended(seen.pods[0].clone(), 143, at(101));
        seen.pods[0].disruption = Some("TerminationByKubelet".into());
    });
    world.go().pass(1).story_is(expect![[r#"
        rank 1 exits with 143; again in 3s
        ! Restarting, PodLost of digits-1-1 on b, restarts 1 (1 without progress)
        its peer's node shuts down; again in 1s
        ! PodLost of digits-1-0 on a
        ! delete digits-1-0/30s digits-1-1/30s
        deleted pods are gone; again in 1s
        1 s pass; again in 5s
          Starting, attempt 2 on a b, Placed: GangFits
          update the status, delete digits-1, create ConfigMap digits-2 digits-2-0 digits-2-1
    "#]]);
    // Nothing shows which pod was signaled.
    World::running()
        .exit(0, 143)
        .exit(1, 143)
        .go()
        .pass(1)
        .story_is(expect![[r#"
        rank 0 exits with 143; again in 3s
        ! Restarting, PodLost of digits-1-0 on a, restarts 1 (1 without progress)
        rank 1 exits with 143; again in 1s
        ! delete digits-1-0/30s digits-1-1/30s
        deleted pods are gone; again in 1s
        1 s pass; again in 5s
          Starting, attempt 2 on a b, Placed: GangFits
          update the status, delete digits-1, create ConfigMap digits-2 digits-2-0 digits-2-1
    "#]]);
}

#[test]
fn pods_of_a_node_that_stays_silent_end_the_attempt_and_are_deleted_by_force() {
    let mut world = World::running();
    unready(&mut world, "b", 71);
    world.pass(1).story_is(expect![[r#"
        node b is not ready since second 71; again in 2s
          update the status
        1 s pass; again in 5s
        ! Restarting, PodLost of digits-1-1 on b, restarts 1 (1 without progress)
        ! delete digits-1-0/30s digits-1-1/30s
        ! delete digits-1-1/0s
    "#]]);
    let failure = world.status().last_failure.expect("a failure");
    assert_eq!(
        failure.message,
        "node b has not been ready for 30 s (failurePolicy.nodeLostSeconds)"
    );
}

#[test]
fn pods_of_a_node_that_is_gone_are_not_waited_for() {
    let mut world = World::running();
    world
        .exit(1, 137)
        .on("node a is gone", |seen| seen.pods[0].lost = true);
    world.pass(1).story_is(expect![[r#"
        rank 1 exits with 137; again in 5s
        ! Restarting, Killed of digits-1-1 on b, restarts 1 (1 without progress)
        ! delete digits-1-0/30s digits-1-1/30s
        node a is gone; again in 1s
        1 s pass; again in 5s
          Starting, attempt 2 on a b, Placed: GangFits
          update the status, delete digits-1, create ConfigMap digits-2 digits-2-0 digits-2-1
    "#]]);
}

#[test]
fn a_node_that_died_without_a_word_is_the_cause_of_an_echo() {
    let echo = || {
        let mut world = World::running();
        world.exit(0, 75).pass(50);
        world.story();
        world
    };
    let mut world = echo();
    unready(&mut world, "b", 149);
    world.pass(1).story_is(expect![[r#"
        node b is not ready since second 149; again in 5s
        ! PodLost of digits-1-1 on b
        1 s pass; again in 5s
    "#]]);
    assert_eq!(
        world.status().last_failure.expect("a failure").message,
        "node b is not ready"
    );
    assert_eq!(world.status().failed_nodes[0].node, "b");

    let mut other_echo = echo();
    other_echo.seen.pods[1].end = ended(pod(1, 1), 75, at(99)).end;
    unready(&mut other_echo, "b", 149);
    other_echo.story_is(expect![[r#"
        node b is not ready since second 149; again in 5s
    "#]]);

    let mut gone = echo();
    gone.on("node b is gone", |seen| {
        seen.pods[1].lost = true;
        seen.pods[1].disruption = Some("node b is gone".into());
    });
    gone.story_is(expect![[r#"
        node b is gone; again in 5s
        ! PodLost of digits-1-1 on b
          Starting, attempt 2 on a b, Placed: GangFits
          update the status, delete digits-1, create ConfigMap digits-2 digits-2-0 digits-2-1
    "#]]);
    assert_eq!(
        gone.status().last_failure.expect("a failure").message,
        "node b is gone"
    );

    let mut overdue = echo();
    overdue.pass(60).story_is(expect![[r#"
        60 s pass; again in 5s
        ! PodLost of digits-1-1 on b
          Starting, attempt 2 on a b, Placed: GangFits
          update the status, delete digits-1, create ConfigMap digits-2 digits-2-0 digits-2-1
    "#]]);
    assert_eq!(
        overdue.status().last_failure.expect("a failure").message,
        "node b did not end the pod in time"
    );
}

#[test]
fn a_pod_that_does_not_end_is_not_waited_for_and_keeps_its_gpus() {
    let words = "; the GPUs of pod digits-1-1 on node b stay in use: deleted, but not ended in time";
    let stuck = |phase, nodes: &[&'static str]| {
        let mut world = World::in_phase(phase, |job| job.spec.suspend = phase == Phase::Suspending);
        world.nodes = nodes.to_vec();
        world.holders = pod_objects(1, "Running").split_off(1);
        world.seen.pods.remove(0);
        world.seen.pods[0].deletion_timestamp = Some(at(71));
        world.begin().pass(1);
        world
    };
    let mut world = stuck(Phase::Restarting, &["a", "b", "c"]);
    world.story_is(expect![[r#"
        begin; again in 5s
        1 s pass; again in 5s
          Starting, attempt 2 on a c, Placed: GangFits
          update the status, delete digits-1, create ConfigMap digits-2 digits-2-0 digits-2-1
    "#]]);
    assert_eq!(
        world.condition(types::PLACED).1,
        format!("Tesla-T4 on a, c{words}")
    );
    let mut world = stuck(Phase::Restarting, &["a", "b"]);
    world.story_is(expect![[r#"
        begin; again in 5s
        1 s pass; again in 30s
          Pending, not Placed: NoFittingGroup
    "#]]);
    assert_eq!(
        world.condition(types::PLACED).1,
        format!(
            "needs 2 x 1 identical nvidia.com/gpu: Tesla-T4 has 1 node with 1 free, 1 node with too few free GPUs (b){words}"
        )
    );
    // Nor does it keep the job from being suspended. By force only once its node is unready, too.
    let mut world = stuck(Phase::Suspending, &["a", "b"]);
    assert_eq!(
        world.condition(types::SUSPENDED).1,
        format!("spec.suspend is set{words}")
    );
    unready(&mut world, "b", 71);
    world.story_is(expect![[r#"
        begin; again in 5s
        1 s pass; again in 300s
        ! Suspended, Suspended: Suspended, not Placed: Suspended
        node b is not ready since second 71; again in 300s
        ! delete digits-1-1/0s
    "#]]);
}

#[test]
fn a_job_that_is_over_takes_its_pods_off_a_dead_node_before_it_goes() {
    let mut world = World::in_phase(Phase::Failed, |job| {
        job.spec.ttl_seconds_after_finished = Some(0);
        job.status.as_mut().expect("a status").completion_time = Some(Time(at(100)));
    });
    world.seen.pods.pop();
    unready(&mut world, "a", 90);
    world.pass(19).pass(1).story_is(expect![[r#"
        node a is not ready since second 90; again in 5s
        ! delete digits-1-0, delete the Service, delete the NetworkPolicy
        19 s pass; again in 5s
        1 s pass
        ! delete digits-1-0/0s
        ! delete the job
    "#]]);
}

/// A gang in this phase whose pod on node `b` was rejected; another pod holds the GPU if `is_taken`.
fn displaced(phase: Phase, is_taken: bool) -> World {
    let mut world = World::in_phase(phase, |_| ());
    let rejected = &mut world.seen.pods[1];
    (rejected.state, rejected.ready) = (PodState::Failed, false);
    rejected.rejected = Some(Box::default());
    rejected.disruption = Some("OutOfnvidia.com/gpu: Pod was rejected".into());
    let mut fleet = Fleet::default();
    fleet.follow_nodes(&Event::Apply(fixtures::node("b", "Tesla-T4", 1)));
    let mut node: NodeFacts = fleet.inventory().nodes["b"].clone();
    if is_taken {
        hold(&mut node.resources, &gpu(), Holder::Other, 1);
    }
    world.seen.rejecting_nodes = [("b".to_owned(), node)].into();
    world
}

fn gpu() -> Requests {
    [("nvidia.com/gpu".to_owned(), 1)].into()
}

#[test]
fn a_gang_whose_node_was_taken_makes_room_without_having_failed() {
    let mut world = displaced(Phase::Starting, true);
    world.begin().on("they go", |seen: &mut Observation| {
        seen.pods.clear();
        seen.rejecting_nodes.clear();
    });
    world.story_is(expect![[r#"
        begin; again in 5s
        ! Restarting
        ! delete digits-1-0 digits-1-1
        they go; again in 5s
          Starting, attempt 2 on a b, Placed: GangFits
          update the status, delete digits-1, create ConfigMap digits-2 digits-2-0 digits-2-1
    "#]]);
    // An echo of it is none either; a failure of its own is.
    let mut world = displaced(Phase::Starting, true);
    world.seen.pods[0] = ended(pod(1, 0), 75, at(99));
    world.begin();
    let (reason, message) = world.condition(types::RUNNING);
    let words =
        "the gang of 2 is placed again: pod digits-1-1 no longer fits node b (with too few free GPUs)";
    assert_eq!((&*reason, &*message), (reasons::NODE_UNFIT, words));
    assert_eq!(
        (world.status().restarts, &world.status().failed_nodes[..]),
        (0, &[][..])
    );
    displaced(Phase::Starting, true).exit(0, 3).story_is(expect![[r#"
        rank 0 exits with 3; again in 300s
        ! Failed, BadData of digits-1-0 on a, Failed: NotRetryable
        ! delete the Service, delete the NetworkPolicy
    "#]]);
    // A gang that has run is not placed again for free.
    displaced(Phase::Running, true).begin().story_is(expect![[r#"
        begin; again in 5s
        ! Restarting, PodLost of digits-1-1 on b, restarts 1 (1 without progress)
        ! delete digits-1-0/30s digits-1-1/30s
    "#]]);
}

#[test]
fn a_pod_that_a_node_rejects_for_a_reason_of_its_own_is_a_failure() {
    displaced(Phase::Starting, false).begin().story_is(expect![[r#"
        begin; again in 5s
        ! Restarting, PodLost of digits-1-1 on b, restarts 1 (1 without progress)
        ! delete digits-1-0/30s digits-1-1/30s
    "#]]);
    // The unbound pod holds the GPU there itself.
    let mut world = displaced(Phase::Starting, false);
    let node = world.seen.rejecting_nodes.get_mut("b").expect("a node");
    hold(&mut node.resources, &gpu(), Holder::Gang, 1);
    world.seen.pods[1] = PodView {
        state: PodState::Pending,
        ready: false,
        rejected: Some(Box::new(Rejected {
            requests: gpu(),
            unschedulable_since: Some(at(90)),
        })),
        ..pod(1, 1)
    };
    world.begin().story_is(expect![[r#"
        begin; again in 5s
          update the status
    "#]]);
    // Its volume is elsewhere: after a minute the gang avoids the node.
    let placement = Arc::make_mut(&mut world.seen.job).status.as_mut();
    let placement = placement.and_then(|status| status.placement.as_mut());
    placement.expect("a placement").time = Some(Time(at(80)));
    world.seen.pods[1].stuck = Some("Unschedulable: 1 node(s) had volume node affinity conflict".into());
    world.pass(49).pass(1).story_is(expect![[r#"
        49 s pass; again in 1s
          update the status
        1 s pass; again in 5s
        ! Restarting, StartFailed of digits-1-1 on b, restarts 1 (0 without progress), failed starts 1
        ! delete digits-1-0/30s digits-1-1/30s
    "#]]);
    let avoided = &world.status().failed_nodes[0];
    assert!(
        avoided.node == "b" && avoided.avoided_until.is_some(),
        "{avoided:?}"
    );
}
