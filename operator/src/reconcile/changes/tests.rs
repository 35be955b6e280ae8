//! A job in a queue of Kueue, from its Workload to its end, with a simulated Kueue; the end-to-end
//! tests use the real one.

use std::collections::BTreeMap;

use crds::conditions::{reasons, types};
use crds::status::AdmissionStatus;
use crds::{ViTTrainingJob, conditions as job_conditions};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use planner::Decision;
use serde_json::{Value, json};

use super::*;
use crate::api::kueue::{ResourceFlavor, conditions};
use crate::fixtures::{self, at, observation};
use crate::policy::suspend::StopReason;
use crate::reconcile::plan;
use crate::reconcile::status;

/// A job in the queue `team-a` with priority 7.
fn queued(change: impl FnOnce(&mut ViTTrainingJob)) -> Observation {
    let mut job = fixtures::job();
    job.spec.scheduling.queue_name = Some("team-a".into());
    change(&mut job);
    let mut observation = observation(job, vec![]);
    observation.gang_was_created = false;
    observation.queue.is_known = true;
    observation.queue.priority = Some(7);
    observation
}

/// One round: records the status, and applies the operator's change of the Workload.
fn round(observation: &mut Observation) -> (Plan, Option<&'static str>) {
    let valid = crds::validate(&observation.job);
    let place = |_| Decision::Placed(fixtures::placement(["a", "b"]));
    let plan = plan::plan(observation, &valid, place, || None);
    let change = build(observation, valid.as_ref().ok(), &plan).workload;
    let status = status::next(observation, &plan);
    Arc::make_mut(&mut observation.job).status = Some(status);
    let what = change.as_ref().map(|change| match change {
        WorkloadChange::Create(_) => "create",
        WorkloadChange::Delete(_) => "delete",
        WorkloadChange::UpdateStatus(_) => "update status",
        WorkloadChange::TryUpdateStatus(_) => "try to update status",
    });
    match change {
        Some(
            WorkloadChange::Create(workload)
            | WorkloadChange::UpdateStatus(workload)
            | WorkloadChange::TryUpdateStatus(workload),
        ) => {
            observation.queue.workload = Some(Arc::new(workload));
        }
        Some(WorkloadChange::Delete(_)) => observation.queue.workload = None,
        None => {}
    }
    (plan, what)
}

/// Changes the Workload as Kueue or anyone else would.
fn change(observation: &mut Observation, change: impl FnOnce(&mut Workload)) {
    let workload = observation.queue.workload.as_mut().expect("a Workload");
    change(Arc::make_mut(workload));
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
    job_conditions::set(&mut workload.status.get_or_insert_default().conditions, condition);
}

/// Kueue admits the Workload for this many nodes of flavor `t4`, with a label and a toleration.
fn admit(observation: &mut Observation, nodes: i32) {
    change(observation, |workload| {
        set(workload, conditions::QUOTA_RESERVED, true, "QuotaReserved", "");
        set(workload, conditions::ADMITTED, true, "Admitted", "");
        set(workload, conditions::EVICTED, false, "QuotaReserved", "");
        workload.status.get_or_insert_default().admission = serde_json::from_value(json!({
            "clusterQueue": "research",
            "podSetAssignments": [{
                "name": "workers", "flavors": {"nvidia.com/gpu": "t4"}, "count": nodes,
                "resourceUsage": {"nvidia.com/gpu": nodes.to_string()},
            }],
        }))
        .expect("an admission");
        let status = workload.status.get_or_insert_default();
        status.admission_checks = serde_json::from_value(json!([{
            "name": "nodes", "state": "Ready", "message": "",
            "podSetUpdates": [
                {"name": "workers", "annotations": {"autoscaler": "consume"}},
                {"name": "others", "nodeSelector": {"pool": "none"}},
            ],
        }]))
        .expect("a check");
    });
    let flavor: ResourceFlavor = serde_json::from_value(json!({
        "metadata": {"name": "t4"},
        "spec": {
            "nodeLabels": {"pool": "t4"},
            "tolerations": [{"key": "team", "operator": "Exists"}],
        },
    }))
    .expect("a flavor");
    observation.queue.flavors = BTreeMap::from([("t4".into(), Arc::new(flavor))]);
}

fn evict(observation: &mut Observation, reason: &str) {
    change(observation, |workload| {
        set(
            workload,
            conditions::EVICTED,
            true,
            reason,
            "a workload of higher priority came",
        );
    });
}

fn phase(observation: &Observation) -> Phase {
    observation.status().phase.expect("a phase")
}

/// Reason and message of `Placed`.
fn why(observation: &Observation) -> (String, String) {
    let status = observation.status();
    let placed = status.condition(types::PLACED).expect("a condition");
    assert_eq!(placed.status, "False");
    (placed.reason.clone(), placed.message.clone())
}

/// A job with quota and a running gang.
fn running(change: impl FnOnce(&mut ViTTrainingJob)) -> Observation {
    let mut observation = queued(change);
    round(&mut observation);
    admit(&mut observation, 2);
    assert!(matches!(round(&mut observation).0, Plan::Admit(_)));
    assert!(matches!(
        round(&mut observation).0,
        Plan::Place { attempt: 1, .. }
    ));
    assert!(matches!(round(&mut observation).0, Plan::Create { .. }));
    observation.gang_was_created = true;
    observation.pods = fixtures::gang(1);
    assert_eq!(round(&mut observation), (Plan::Follow, None));
    assert_eq!(phase(&observation), Phase::Running);
    assert_eq!(
        round(&mut observation),
        (Plan::Follow, Some("try to update status"))
    );
    assert_eq!(round(&mut observation), (Plan::Follow, None));
    observation
}

/// Whether the job's Workload has quota.
fn has_quota(observation: &Observation) -> bool {
    let workload = observation.queue.workload.as_ref();
    workload.is_some_and(|workload| workload.has(conditions::QUOTA_RESERVED).is_some())
}

#[test]
fn a_job_asks_for_quota_before_it_looks_for_gpus() {
    let mut observation = queued(|job| {
        job.spec.workers.priority_class_name = Some("urgent".into());
        job.spec.workers.node_selector = BTreeMap::from([("zone".into(), "a".into())]);
    });
    assert_eq!(round(&mut observation).1, Some("create"));
    assert_eq!(phase(&observation), Phase::Pending);
    let workload = observation.queue.workload.clone().expect("a Workload");
    assert_eq!(
        serde_json::to_value(&workload.spec).expect("a spec"),
        json!({
            "queueName": "team-a",
            "podSets": [{
                "name": "workers", "count": 2,
                "template": {"spec": {
                    "restartPolicy": "Never",
                    "nodeSelector": {"zone": "a"}, "tolerations": [],
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
    assert_eq!(workload.metadata.owner_references.as_ref().map(Vec::len), Some(1));

    change(&mut observation, |workload| {
        let message = "couldn't assign flavors to pod set workers: insufficient unused quota";
        set(workload, conditions::QUOTA_RESERVED, false, "Pending", message);
    });
    assert_eq!(round(&mut observation).1, None);
    assert_eq!(
        why(&observation),
        (
            reasons::IN_QUEUE.into(),
            "its Workload waits in queue team-a: couldn't assign flavors to pod set workers: insufficient unused quota"
                .into()
        )
    );
}

#[test]
fn a_gang_stays_within_what_it_was_granted() {
    let mut observation = running(|_| ());
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
    assert_eq!(observation.status().admission, Some(expected.clone()));
    let valid = crds::validate(&observation.job).expect("valid");
    let plan = Plan::Create {
        node_ranks: vec![0, 1],
    };
    for pod in build(&observation, Some(&valid), &plan).create_pods {
        assert_eq!(pod.metadata.annotations.expect("some")["autoscaler"], "consume");
        let spec = pod.spec.expect("a spec");
        assert_eq!(spec.node_selector, Some(expected.node_selector.clone()));
        assert_eq!(spec.tolerations, Some(expected.tolerations.clone()));
    }
    // An operator that has not listed Kueue's objects yet keeps the gang.
    observation.queue.is_known = false;
    observation.queue.workload = None;
    assert_eq!(round(&mut observation), (Plan::Follow, None));
}

#[test]
fn an_elastic_gang_is_no_larger_than_its_quota() {
    let mut observation = queued(|job| {
        job.spec.workers.nodes = 4;
        job.spec.elastic = serde_json::from_value(json!({"minNodes": 1})).expect("a range");
    });
    round(&mut observation);
    let pod_sets = &observation.queue.workload.as_ref().expect("one").spec.pod_sets;
    assert_eq!((pod_sets[0].count, pod_sets[0].min_count), (4, Some(1)));
    admit(&mut observation, 3);
    let (Plan::Admit(granted), _) = round(&mut observation) else {
        panic!("not admitted: {observation:?}");
    };
    let valid = crds::validate(&observation.job).expect("valid");
    assert_eq!(valid.sizes, [4, 2, 1]);
    assert_eq!(valid.within(Some(&granted)).sizes, [2, 1]);
}

#[test]
fn an_evicted_gang_saves_and_stops_before_its_quota_goes_back() {
    for (reason, is_requeued) in [("Preempted", "True"), ("PodsReadyTimeout", "False")] {
        let mut observation = running(|_| ());
        evict(&mut observation, reason);
        let (plan, change) = round(&mut observation);
        assert_eq!(
            plan,
            Plan::Halt(StopReason::Evict("a workload of higher priority came".into()))
        );
        assert_eq!(change, None);
        assert_eq!(observation.status().admission, None);
        let running = observation.status().condition(types::RUNNING).cloned();
        assert_eq!(running.expect("one").reason, reasons::EVICTED);

        assert!(matches!(round(&mut observation).0, Plan::Drain { .. }));
        for pod in &mut observation.pods {
            pod.deletion_timestamp = Some(at(200));
        }
        round(&mut observation);
        assert!(has_quota(&observation), "pods are still there");

        observation.pods = vec![];
        let (plan, change) = round(&mut observation);
        assert!(
            matches!(plan, Plan::Wait(Waiting::InQueue(_))),
            "no back-off: {plan:?}"
        );
        assert_eq!(change, Some("update status"));
        assert!(!has_quota(&observation));
        let workload = observation.queue.workload.clone().expect("a Workload");
        assert!(workload.has(conditions::ADMITTED).is_none());
        assert_eq!(workload.status.as_ref().expect("one").admission, None);
        let requeued = workload.condition(conditions::REQUEUED).expect("one");
        assert_eq!(
            (requeued.status.as_str(), requeued.reason.as_str()),
            (is_requeued, reason)
        );
        // From here Kueue times the pods' start.
        let ready = workload.condition(conditions::PODS_READY).expect("one");
        assert_eq!(
            (ready.reason.as_str(), ready.last_transition_time.0),
            ("WaitForStart", at(100))
        );
        assert_eq!(round(&mut observation).1, None);
        assert_eq!(phase(&observation), Phase::Pending);
        assert_eq!(
            (observation.status().restarts, observation.status().start_time),
            (0, None)
        );

        admit(&mut observation, 2);
        assert!(matches!(round(&mut observation).0, Plan::Admit(_)));
        assert!(matches!(
            round(&mut observation).0,
            Plan::Place { attempt: 2, .. }
        ));
    }
}

#[test]
fn a_gang_whose_workload_is_deleted_stops_and_asks_again() {
    let mut observation = running(|_| ());
    observation.queue.workload = None;
    let (plan, change) = round(&mut observation);
    assert_eq!(
        (plan, change),
        (Plan::Halt(StopReason::Evict("its Workload is gone".into())), None)
    );
    observation.pods = vec![];
    assert_eq!(round(&mut observation).1, Some("create"));
}

#[test]
fn a_suspended_job_has_no_workload() {
    let mut observation = running(|_| ());
    Arc::make_mut(&mut observation.job).spec.suspend = true;
    assert_eq!(round(&mut observation), (Plan::Halt(StopReason::Suspend), None));
    observation.pods = vec![];
    assert_eq!(round(&mut observation), (Plan::Park, Some("delete")));
    assert_eq!(observation.status().admission, None);
    assert_eq!(round(&mut observation), (Plan::Rest(None), None));
    Arc::make_mut(&mut observation.job).spec.suspend = false;
    assert_eq!(round(&mut observation).1, Some("create"));
}

#[test]
fn a_workload_that_asks_for_something_else_is_made_anew_when_there_are_no_pods() {
    let mut observation = running(|_| ());
    let resources: Value = json!({"requests": {"cpu": "4"}});
    Arc::make_mut(&mut observation.job).spec.workers.resources =
        serde_json::from_value(resources).expect("resources");
    assert_eq!(round(&mut observation), (Plan::Follow, None));
    Arc::make_mut(&mut observation.job).spec.workers.nodes = 3;
    assert_eq!(round(&mut observation), (Plan::Halt(StopReason::Resize), None));
    observation.pods = vec![];
    let (plan, made_anew) = round(&mut observation);
    assert!(matches!(plan, Plan::Wait(Waiting::InQueue(_))), "{plan:?}");
    assert_eq!(made_anew, Some("delete"));
    assert_eq!(round(&mut observation).1, Some("create"));
    let workload = observation.queue.workload.clone().expect("a Workload");
    assert_eq!(workload.spec.pod_sets[0].count, 3);
    // Kueue's other encoding of the same request makes no difference.
    change(&mut observation, |workload| {
        let spec = workload.spec.pod_sets[0].template.spec.as_mut().expect("a spec");
        let resources = spec.containers[0].resources.as_mut().expect("resources");
        let quantity = serde_json::from_value(json!("4000m")).expect("a quantity");
        let requests = resources.requests.get_or_insert_default();
        requests.insert("cpu".into(), quantity);
    });
    assert_eq!(round(&mut observation).1, None);
}

#[test]
fn a_flavor_that_is_gone_leaves_the_gang_where_it_is() {
    let mut observation = running(|_| ());
    observation.queue.flavors.clear();
    assert_eq!(round(&mut observation), (Plan::Follow, None));
    // Without a record the quota's nodes are unknown.
    let mut observation = queued(|_| ());
    round(&mut observation);
    admit(&mut observation, 2);
    observation.queue.flavors.clear();
    assert_eq!(round(&mut observation).1, None);
    assert!(
        why(&observation).1.contains("ResourceFlavor t4"),
        "{:?}",
        why(&observation)
    );
}

#[test]
fn quota_goes_back_where_the_priority_class_is_gone() {
    let urgent = |job: &mut ViTTrainingJob| job.spec.workers.priority_class_name = Some("urgent".into());
    let mut observation = running(urgent);
    observation.queue.priority = None;
    evict(&mut observation, "Preempted");
    assert!(matches!(
        round(&mut observation).0,
        Plan::Halt(StopReason::Evict(_))
    ));
    observation.pods = vec![];
    assert_eq!(round(&mut observation).1, Some("update status"));
    assert!(!has_quota(&observation));
    assert_eq!(round(&mut observation).1, Some("delete"));
    assert_eq!(why(&observation).0, reasons::NO_PRIORITY_CLASS);
    assert_eq!(round(&mut observation).1, None);
    observation.queue.priority = Some(7);
    assert_eq!(round(&mut observation).1, Some("create"));
}

#[test]
fn an_operator_that_has_just_started_forgets_no_quota() {
    let mut observation = queued(|_| ());
    round(&mut observation);
    admit(&mut observation, 2);
    round(&mut observation);
    let recorded = observation.status().admission;
    assert!(recorded.is_some());
    observation.queue.is_known = false;
    assert!(matches!(round(&mut observation).0, Plan::Rest(Some(_))));
    assert_eq!(observation.status().admission, recorded);
}

#[test]
fn pods_that_cannot_be_waited_for_hold_no_quota() {
    let mut observation = running(|_| ());
    let job = Arc::make_mut(&mut observation.job);
    job.status.as_mut().expect("a status").phase = Some(Phase::Failed);
    observation.pods[0].lost = true;
    observation.pods[1].deletion_timestamp = Some(at(0));
    assert_eq!(round(&mut observation).1, Some("update status"));
}

#[test]
fn a_job_that_is_over_says_so_once_its_pods_have_ended() {
    for (end, reason) in [(Phase::Succeeded, "Succeeded"), (Phase::Failed, "Failed")] {
        let mut observation = running(|_| ());
        let job = Arc::make_mut(&mut observation.job);
        job.status.as_mut().expect("a status").phase = Some(end);
        assert_eq!(round(&mut observation).1, None, "pods still run");
        observation.pods = vec![];
        assert_eq!(round(&mut observation).1, Some("update status"));
        assert_eq!(round(&mut observation).1, None);
        let workload = observation.queue.workload.clone().expect("a Workload");
        assert_eq!(workload.has(conditions::FINISHED).expect("over").reason, reason);
    }
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
    let read: crate::api::kueue::WorkloadStatus = serde_json::from_value(status.clone()).expect("a status");
    assert_eq!(serde_json::to_value(read).expect("a status"), status);
}

#[test]
fn where_kueue_is_not_known_the_job_says_what_to_do() {
    let mut observation = queued(|_| ());
    observation.queue.is_known = false;
    assert_eq!(round(&mut observation).1, None);
    let (reason, message) = why(&observation);
    assert_eq!(reason, reasons::IN_QUEUE);
    assert!(
        message.contains("team-a") && message.contains("install Kueue"),
        "{message}"
    );

    observation.queue.is_known = true;
    observation.queue.priority = None;
    assert_eq!(round(&mut observation).1, None);
    assert_eq!(why(&observation).0, reasons::NO_PRIORITY_CLASS);
}

#[test]
fn pods_of_older_attempts_that_came_into_sight_late_are_deleted() {
    for phase in [Phase::Starting, Phase::Running] {
        let mut pods = fixtures::gang(1);
        pods.extend(fixtures::gang(2));
        let observation = observation(fixtures::job_in(phase, 2), pods);
        let valid = crds::validate(&observation.job).expect("valid");
        let changes = build(&observation, Some(&valid), &Plan::Follow);
        assert_eq!(changes.delete_pods, ["digits-1-0", "digits-1-1"].map(PodId::from));
        assert_eq!(changes.stop_seconds, Some(STOP_AFTER_FAILURE_SECONDS));
    }
}
