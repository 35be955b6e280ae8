//! A job in a queue of Kueue, from its Workload to its end, with a simulated Kueue; the end-to-end
//! tests use the real one.

use std::collections::BTreeMap;
use std::sync::Arc;

use crds::conditions::{reasons, types};
use crds::status::AdmissionStatus;
use crds::{Phase, ViTTrainingJob};
use expect_test::expect;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use serde_json::json;

use super::super::super::step::Write;
use super::world::World;
use crate::api::kueue::{ResourceFlavor, Workload, WorkloadStatus, conditions};
use crate::fixtures::{self, at};

/// A job in the queue `team-a` with priority 7.
fn queued(change: impl FnOnce(&mut ViTTrainingJob)) -> World {
    let mut job = fixtures::job();
    job.spec.scheduling.queue_name = Some("team-a".into());
    change(&mut job);
    let mut world = World::new(job);
    world.seen.queue.is_known = true;
    world.seen.queue.priority = Some(7);
    world
}

/// Changes the Workload as Kueue or anyone else would.
fn change(world: &mut World, event: &str, change: impl FnOnce(&mut Workload)) {
    world.on(event, |seen| {
        change(Arc::make_mut(seen.queue.workload.as_mut().expect("a Workload")));
    });
}

fn set(workload: &mut Workload, type_: &str, value: bool, reason: &str, message: &str) {
    let condition = Condition {
        type_: type_.into(),
        status: if value { "True" } else { "False" }.into(),
        reason: reason.into(),
        message: message.into(),
        observed_generation: None,
        last_transition_time: Time(at(1)),
    };
    crds::conditions::set(&mut workload.status.get_or_insert_default().conditions, condition);
}

/// Kueue admits the Workload for this many nodes of flavor `t4`, with a label and a toleration.
fn admit(world: &mut World, nodes: i32) {
    let flavor: ResourceFlavor = serde_json::from_value(json!({
        "metadata": {"name": "t4"},
        "spec": {"nodeLabels": {"pool": "t4"}, "tolerations": [{"key": "team", "operator": "Exists"}]},
    }))
    .expect("a flavor");
    world.seen.queue.flavors = BTreeMap::from([("t4".into(), Arc::new(flavor))]);
    change(world, "admitted", |workload| {
        set(workload, conditions::QUOTA_RESERVED, true, "QuotaReserved", "");
        set(workload, conditions::ADMITTED, true, "Admitted", "");
        set(workload, conditions::EVICTED, false, "QuotaReserved", "");
        let status = workload.status.get_or_insert_default();
        status.admission = serde_json::from_value(json!({
            "clusterQueue": "research",
            "podSetAssignments": [{
                "name": "workers", "flavors": {"nvidia.com/gpu": "t4"}, "count": nodes,
                "resourceUsage": {"nvidia.com/gpu": nodes.to_string()},
            }],
        }))
        .expect("an admission");
        status.admission_checks = serde_json::from_value(json!([{
            "name": "nodes", "state": "Ready", "message": "",
            "podSetUpdates": [
                {"name": "workers", "annotations": {"autoscaler": "consume"}},
                {"name": "others", "nodeSelector": {"pool": "none"}},
            ],
        }]))
        .expect("a check");
    });
}

fn evict(world: &mut World, reason: &str) {
    change(world, reason, |workload| {
        let message = "a workload of higher priority came";
        set(workload, conditions::EVICTED, true, reason, message);
    });
}

fn workload(world: &World) -> &Workload {
    world.seen.queue.workload.as_ref().expect("a Workload")
}

/// A job with quota and a running gang.
fn running(change: impl FnOnce(&mut ViTTrainingJob)) -> World {
    let mut world = queued(change);
    world.begin();
    admit(&mut world, 2);
    // Flavors choose their nodes.
    world.start();
    assert_eq!(world.status().phase, Some(Phase::Running), "{}", world.story());
    world
}

#[test]
fn a_job_asks_for_quota_before_it_looks_for_gpus() {
    let mut world = queued(|job| {
        job.spec.workers.priority_class_name = Some("urgent".into());
        job.spec.workers.node_selector = BTreeMap::from([("zone".into(), "a".into())]);
    });
    world.begin();
    assert_eq!(
        serde_json::to_value(&workload(&world).spec).expect("a spec"),
        json!({
            "queueName": "team-a",
            "podSets": [{
                "name": "workers", "count": 2,
                "template": {"spec": {
                    "restartPolicy": "Never",
                    "nodeSelector": {"zone": "a"},
                    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
                    "priorityClassName": "urgent",
                    "containers": [{
                        "name": "trainer", "image": "localhost/vit-trainer:dev",
                        "resources": {"limits": {"nvidia.com/gpu": "1"}, "requests": {"nvidia.com/gpu": "1"}},
                    }],
                }},
            }],
            "priorityClassRef": {"group": "scheduling.k8s.io", "kind": "PriorityClass", "name": "urgent"},
            "priority": 7,
        })
    );
    assert_eq!(
        workload(&world).metadata.owner_references.as_ref().map(Vec::len),
        Some(1)
    );
    let message = "couldn't assign flavors to pod set workers: insufficient unused quota";
    change(&mut world, "no quota", |workload| {
        set(workload, conditions::QUOTA_RESERVED, false, "Pending", message);
    });
    world.story_is(expect![[r#"
        begin; again in 30s
          Pending, not Placed: InQueue, create the Workload
          update the status
        no quota; again in 30s
          update the status
    "#]]);
    assert_eq!(
        world.condition(types::PLACED).1,
        format!("its Workload waits in queue team-a: {message}")
    );
}

#[test]
fn a_gang_stays_within_what_it_was_granted() {
    let mut world = queued(|_| ());
    world.begin();
    admit(&mut world, 2);
    let expected = AdmissionStatus {
        cluster_queue: "research".into(),
        flavors: vec!["t4".into()],
        nodes: 2,
        node_selector: BTreeMap::from([("pool".into(), "t4".into())]),
        tolerations: serde_json::from_value(json!([{"key": "team", "operator": "Exists"}])).expect("one"),
        pod_labels: BTreeMap::new(),
        pod_annotations: BTreeMap::from([("autoscaler".into(), "consume".into())]),
        time: Some(Time(at(100))),
    };
    assert_eq!(world.status().admission, Some(expected.clone()));
    world.story_is(expect![[r#"
        begin; again in 30s
          Pending, not Placed: InQueue, create the Workload
          update the status
        admitted; again in 5s
          not Placed: Admitted
          Starting, attempt 1 on a b, Placed: GangFits
          update the status, create ConfigMap digits-1 digits-1-0 digits-1-1
    "#]]);
    world.seen.pods.clear();
    let writes = world.decide().writes;
    let Some(Write::Create(_, pods)) = writes.last() else {
        panic!("no pods: {writes:?}");
    };
    for pod in pods {
        let annotations = pod.metadata.annotations.as_ref().expect("some");
        assert_eq!(annotations["autoscaler"], "consume");
        let spec = pod.spec.as_ref().expect("a spec");
        assert_eq!(spec.node_selector.as_ref(), Some(&expected.node_selector));
        let tolerations = spec.tolerations.as_deref().expect("some");
        assert_eq!(tolerations[..expected.tolerations.len()], expected.tolerations);
    }
}

#[test]
fn a_gang_keeps_its_gpus_while_nothing_else_is_known() {
    let mut world = running(|_| ());
    world.story();
    world.on("no flavor is known", |seen| seen.queue.flavors.clear());
    world.on("an operator that has not listed Kueue's objects", |seen| {
        seen.queue.is_known = false;
        seen.queue.workload = None;
    });
    world.story_is(expect![[r#"
        no flavor is known; again in 2s
        an operator that has not listed Kueue's objects; again in 2s
    "#]]);
    // Nor does it forget the quota of a job without a gang.
    let mut world = queued(|_| ());
    world.nodes.clear();
    world.begin();
    admit(&mut world, 2);
    world.story();
    world.on("an operator that has not listed Kueue's objects", |seen| {
        seen.queue.is_known = false;
        seen.queue.workload = None;
    });
    world.story_is(expect![[r#"
        an operator that has not listed Kueue's objects; again in 2s
    "#]]);
    assert!(world.status().admission.is_some());
}

#[test]
fn a_flavor_that_does_not_exist_is_named() {
    let mut world = queued(|_| ());
    world.begin();
    world.seen.queue.is_known = false;
    admit(&mut world, 2);
    world.on("Kueue is listed, but not its flavors", |seen| {
        seen.queue.is_known = true;
        seen.queue.flavors.clear();
    });
    assert_eq!(
        world.condition(types::PLACED).1,
        "its Workload was admitted to queue team-a with the ResourceFlavor t4, which does not exist"
    );
}

#[test]
fn an_elastic_gang_is_no_larger_than_its_quota() {
    let mut world = queued(|job| {
        job.spec.workers.nodes = 4;
        job.spec.elastic = serde_json::from_value(json!({"minNodes": 1})).expect("a range");
    });
    world.begin();
    let pod_sets = &workload(&world).spec.pod_sets;
    assert_eq!((pod_sets[0].count, pod_sets[0].min_count), (4, Some(1)));
    world.nodes.clear();
    admit(&mut world, 3);
    let valid = crds::validate(&world.seen.job).expect("valid");
    assert_eq!(valid.sizes, [4, 2, 1]);
    assert_eq!(valid.within(world.status().admission.as_ref()).sizes, [2, 1]);
}

#[test]
fn an_evicted_gang_saves_and_stops_before_its_quota_goes_back() {
    for (reason, is_requeued) in [("Preempted", "True"), ("PodsReadyTimeout", "False")] {
        let mut world = running(|_| ());
        world.story();
        evict(&mut world, reason);
        assert_eq!(world.condition(types::RUNNING).0, reasons::EVICTED);
        assert!(
            workload(&world).has(conditions::QUOTA_RESERVED).is_some(),
            "pods are there"
        );
        world.go();
        let workload = workload(&world);
        assert!(workload.has(conditions::QUOTA_RESERVED).is_none());
        assert!(workload.has(conditions::ADMITTED).is_none());
        assert_eq!(workload.status.as_ref().expect("one").admission, None);
        let requeued = workload.condition(conditions::REQUEUED).expect("one");
        assert_eq!((&*requeued.status, &*requeued.reason), (is_requeued, reason));
        // From here Kueue times the pods' start.
        let ready = workload.condition(conditions::PODS_READY).expect("one");
        assert_eq!(
            (&*ready.reason, ready.last_transition_time.0),
            ("WaitForStart", at(100))
        );
        assert_eq!(world.status().start_time, None);
        admit(&mut world, 2);
        let story = world.story();
        if reason == "Preempted" {
            expect![[r#"
                Preempted; again in 5s
                ! Restarting
                ! delete digits-1-0 digits-1-1, try to update the Workload
                deleted pods are gone; again in 30s
                  Pending, not Placed: InQueue, update the Workload
                admitted; again in 5s
                  not Placed: Admitted
                  Starting, attempt 2 on a b, Placed: GangFits
                  update the status, delete digits-1, create ConfigMap digits-2 digits-2-0 digits-2-1
            "#]]
            .assert_eq(&story);
        }
    }
}

#[test]
fn a_gang_without_its_workload_or_suspended_asks_again() {
    let mut world = running(|_| ());
    world.story();
    world.on("its Workload is deleted", |seen| seen.queue.workload = None);
    world.go().story_is(expect![[r#"
        its Workload is deleted; again in 5s
        ! Restarting
        ! delete digits-1-0 digits-1-1
        deleted pods are gone; again in 30s
          Pending, not Placed: InQueue, create the Workload
          update the status
    "#]]);
    let mut world = running(|_| ());
    world.story();
    world.edit("suspend", |job| job.spec.suspend = true).go();
    assert_eq!(world.status().admission, None);
    world
        .edit("resume", |job| job.spec.suspend = false)
        .story_is(expect![[r#"
            suspend; again in 5s
            ! Suspending, not Suspended: Suspending
            ! delete digits-1-0 digits-1-1, try to update the Workload
            deleted pods are gone; again in 300s
            ! Suspended, not Placed: Suspended, Suspended: Suspended, delete the Workload
            resume; again in 30s
              Pending, not Placed: InQueue, not Suspended: Resumed, create the Workload
              update the status
        "#]]);
}

#[test]
fn a_workload_that_asks_for_something_else_is_created_again_when_there_are_no_pods() {
    let mut world = running(|_| ());
    world.story();
    world.edit("more CPUs", |job| {
        job.spec.workers.resources =
            serde_json::from_value(json!({"requests": {"cpu": "4"}})).expect("resources");
    });
    world.edit("three nodes", |job| job.spec.workers.nodes = 3).go();
    assert_eq!(workload(&world).spec.pod_sets[0].count, 3);
    change(
        &mut world,
        "Kueue's other encoding of the same request",
        |workload| {
            let spec = workload.spec.pod_sets[0].template.spec.as_mut().expect("a spec");
            let resources = spec.containers[0].resources.as_mut().expect("resources");
            let quantity = serde_json::from_value(json!("4000m")).expect("a quantity");
            resources
                .requests
                .get_or_insert_default()
                .insert("cpu".into(), quantity);
        },
    );
    world.story_is(expect![[r#"
        more CPUs; again in 2s
        three nodes; again in 5s
        ! Restarting
        ! delete digits-1-0 digits-1-1, try to update the Workload
        deleted pods are gone; again in 30s
          Pending, not Placed: InQueue, delete the Workload
          update the status, create the Workload
          update the status
        Kueue's other encoding of the same request; again in 30s
    "#]]);
}

#[test]
fn quota_goes_back_where_the_priority_class_is_gone() {
    let mut world = running(|job| job.spec.workers.priority_class_name = Some("urgent".into()));
    world.story();
    world.seen.queue.priority = None;
    evict(&mut world, "Preempted");
    world.go();
    world.on("the class comes back", |seen| seen.queue.priority = Some(7));
    world.story_is(expect![[r#"
        Preempted; again in 5s
        ! Restarting
        ! delete digits-1-0 digits-1-1, try to update the Workload
        deleted pods are gone; again in 30s
          Pending, not Placed: InQueue, update the Workload
          not Placed: PriorityClassNotFound, delete the Workload
        the class comes back; again in 30s
          not Placed: InQueue, create the Workload
          update the status
    "#]]);
}

#[test]
fn a_job_that_is_over_says_so_once_its_pods_have_ended() {
    for (end, reason) in [(Phase::Succeeded, "Succeeded"), (Phase::Failed, "Failed")] {
        let mut world = running(|_| ());
        world.story();
        world.on("it is over", |seen| {
            let job = Arc::make_mut(&mut seen.job);
            job.status.as_mut().expect("a status").phase = Some(end);
        });
        world.go().story_is(expect![[r#"
            it is over; again in 300s
            ! delete digits-1-0 digits-1-1, delete the Service, delete the NetworkPolicy
            deleted pods are gone; again in 300s
            ! update the Workload
        "#]]);
        assert_eq!(
            workload(&world).has(conditions::FINISHED).expect("over").reason,
            reason
        );
    }
    // Pods that cannot be waited for hold no quota.
    let mut world = running(|_| ());
    world.story();
    world.seen.pods[0].lost = true;
    world.seen.pods[1].deletion_timestamp = Some(at(0));
    world.on("it is over", |seen| {
        let job = Arc::make_mut(&mut seen.job);
        job.status.as_mut().expect("a status").phase = Some(Phase::Failed);
    });
    world.story_is(expect![[r#"
        it is over; again in 300s
        ! delete digits-1-0, delete the Service, delete the NetworkPolicy, update the Workload
    "#]]);
}

#[test]
fn what_kueue_wrote_is_kept() {
    let status = json!({
        "conditions": [],
        "admission": {"clusterQueue": "research", "podSetAssignments": [
            {"name": "workers", "flavors": {"cpu": "t4"}, "resourceUsage": {"cpu": "8"}}
        ]},
        "requeueState": {"count": 2},
        "admissionChecks": [{
            "name": "prov", "state": "Ready", "message": "", "lastTransitionTime": at(1).to_string(),
            "podSetUpdates": [{"name": "workers", "labels": {"a": "b"}}],
        }],
    });
    let read: WorkloadStatus = serde_json::from_value(status.clone()).expect("a status");
    assert_eq!(serde_json::to_value(read).expect("a status"), status);
}

#[test]
fn where_kueue_is_not_known_the_job_says_what_to_do() {
    let mut world = queued(|_| ());
    world.seen.queue.is_known = false;
    world.begin();
    let (reason, message) = world.condition(types::PLACED);
    assert_eq!(reason, reasons::IN_QUEUE);
    assert!(
        message.contains("team-a") && message.contains("install Kueue"),
        "{message}"
    );
    world.on("Kueue is known, but not the class", |seen| {
        (seen.queue.is_known, seen.queue.priority) = (true, None);
    });
    world.story_is(expect![[r#"
        begin; again in 30s
          Pending, not Placed: InQueue
        Kueue is known, but not the class; again in 30s
          not Placed: PriorityClassNotFound
    "#]]);
}
