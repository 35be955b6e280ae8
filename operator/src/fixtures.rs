//! Values for tests, named as facts.

use std::collections::{BTreeMap, BTreeSet};

use crds::status::{GpuGroup, PlacementStatus, StragglerStatus, ViTTrainingJobStatus};
use crds::{Phase, ViTTrainingJob, conditions, labels};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use serde_json::json;

use crate::build;
use crate::build::pod::Member;
use crate::policy::admission::Queue;
use crate::policy::gang::{PodId, PodState, PodView};
use crate::policy::queue::Standing;
use crate::reconcile::{Isolation, Observation};

/// Uid of [`job`].
pub(crate) const UID: &str = "0b9f3c2e-5d0a-4c59-9a4e-0d6c1f1b2a3d";

/// Uid of the pod of this name.
pub(crate) fn uid_of(pod: &str) -> String {
    format!("uid-of-{pod}")
}

impl From<&str> for PodId {
    fn from(name: &str) -> Self {
        Self {
            name: name.into(),
            uid: uid_of(name),
        }
    }
}

/// A second of the time in which tests live.
pub(crate) fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_790_000_000 + second).expect("a time")
}

/// A job of two nodes with one GPU each, as the API server has it.
pub(crate) fn job() -> ViTTrainingJob {
    serde_json::from_value(json!({
        "apiVersion": "vit-operator.dev/v1alpha1",
        "kind": "ViTTrainingJob",
        "metadata": {
            "name": "digits", "namespace": "research", "uid": UID, "generation": 1, "resourceVersion": "100",
            "creationTimestamp": at(0).to_string(),
        },
        "spec": {
            "image": "localhost/vit-trainer:dev",
            "model": {"name": "vit_tiny_patch16_224", "numClasses": 10},
            "data": {"format": "cifar10", "volume": {"persistentVolumeClaim": {"claimName": "digits"}}},
            "training": {"epochs": 3, "microBatchSize": 16},
            "workers": {"nodes": 2},
            "checkpoint": {"volume": {"persistentVolumeClaim": {"claimName": "checkpoints"}}},
        },
    }))
    .expect("a job")
}

/// [`job`] in a phase, with the status that goes with it.
pub(crate) fn job_in(phase: Phase, attempt: i32) -> ViTTrainingJob {
    let mut job = job();
    job.status = Some(status(phase, attempt));
    job
}

/// A status in a phase; with a placement on nodes `a` and `b` where it has one.
pub(crate) fn status(phase: Phase, attempt: i32) -> ViTTrainingJobStatus {
    let is_placed = matches!(
        phase,
        Phase::Starting | Phase::Running | Phase::Restarting | Phase::Suspending
    );
    ViTTrainingJobStatus {
        phase: Some(phase),
        attempt,
        observed_generation: Some(1),
        selector: Some(format!("{}=digits", labels::JOB_NAME)),
        placement: is_placed.then(|| PlacementStatus {
            group: Some(tesla_t4()),
            nodes: vec!["a".into(), "b".into()],
            ..PlacementStatus::default()
        }),
        ..ViTTrainingJobStatus::default()
    }
}

/// A rank that is slow.
pub(crate) fn straggler(rank: i32, node: &str, slowdown: f64) -> StragglerStatus {
    StragglerStatus {
        rank,
        node: Some(node.into()),
        slowdown,
    }
}

/// A group of nodes with one Tesla T4.
pub(crate) fn tesla_t4() -> GpuGroup {
    GpuGroup {
        product: "Tesla-T4".into(),
        product_label: "nvidia.com/gpu.product".into(),
        gpus_per_node: 1,
        ..GpuGroup::default()
    }
}

/// A condition that has been so since second 0.
pub(crate) fn condition(type_: &str, value: bool, reason: &str) -> Condition {
    Condition {
        type_: type_.into(),
        status: if value { "True" } else { "False" }.into(),
        reason: reason.into(),
        message: "because".into(),
        observed_generation: Some(1),
        last_transition_time: Time(at(0)),
    }
}

/// A pod of [`job`] that runs, on node `a` or `b`.
pub(crate) fn pod(attempt: i32, node_rank: usize) -> PodView {
    PodView {
        name: format!("digits-{attempt}-{node_rank}"),
        uid: uid_of(&format!("digits-{attempt}-{node_rank}")),
        attempt,
        node_rank,
        gang_size: 2,
        node: Some(["a", "b"][node_rank].into()),
        state: PodState::Running,
        ready: true,
        ..PodView::default()
    }
}

/// The gang of an attempt of [`job`], running.
pub(crate) fn gang(attempt: i32) -> Vec<PodView> {
    vec![pod(attempt, 0), pod(attempt, 1)]
}

/// The same gang as objects of the API server; `phase` as in their status.
pub(crate) fn pod_objects(attempt: i32, phase: &str) -> Vec<Pod> {
    let job = job();
    let valid = crds::validate(&job).expect("valid");
    ["a", "b"]
        .into_iter()
        .enumerate()
        .map(|(node_rank, node)| {
            let member = Member {
                attempt,
                node_rank,
                gang_size: 2,
                node,
                is_grouped: false,
            };
            let mut pod = build::pod::build(&job, &valid, member);
            pod.metadata.uid = pod.metadata.name.as_deref().map(uid_of);
            pod.spec.as_mut().expect("a spec").node_name = Some(node.into());
            pod.status = serde_json::from_value(json!({"phase": phase})).expect("a status");
            pod
        })
        .collect()
}

/// What is observed of a job, its gang healthy and on ready nodes.
pub(crate) fn observation(job: ViTTrainingJob, pods: Vec<PodView>) -> Observation {
    Observation {
        job: job.into(),
        pods,
        departed: vec![],
        unseen_pods: std::collections::HashMap::new(),
        gang_was_created: true,
        unready_nodes: std::collections::HashMap::new(),
        rejecting_nodes: std::collections::HashMap::new(),
        has_service: true,
        network_policy: Isolation::There,
        pod_groups: None,
        config_maps: BTreeSet::new(),
        progress: None,
        standstill: None,
        silence: None,
        stragglers: None,
        growth: None,
        queue: Queue::default(),
        now: at(100),
    }
}

/// A ready node with GPUs of a product.
pub(crate) fn node(name: &str, product: &str, gpus: i64) -> Node {
    let amounts = json!({"nvidia.com/gpu": gpus.to_string(), "cpu": "8", "memory": "32Gi", "pods": "110"});
    serde_json::from_value(json!({
        "metadata": {"name": name, "labels": {"nvidia.com/gpu.product": product}},
        "status": {
            "capacity": amounts, "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }))
    .expect("a node")
}

/// The standing of the only job that waits.
pub(crate) fn alone() -> Standing {
    Standing {
        position: 1,
        waiting: 1,
        keeps: 0,
        kept_from_it_for: None,
    }
}

/// A PriorityClass.
pub(crate) fn priority_class(name: &str, value: i32, is_default: bool) -> PriorityClass {
    serde_json::from_value(json!({"metadata": {"name": name}, "value": value, "globalDefault": is_default}))
        .expect("a class")
}

/// Types of all conditions with their values and reasons.
pub(crate) fn conditions_of(status: &ViTTrainingJobStatus) -> BTreeMap<&str, (&str, &str)> {
    status
        .conditions
        .iter()
        .map(|condition| {
            (
                condition.type_.as_str(),
                (condition.status.as_str(), condition.reason.as_str()),
            )
        })
        .collect()
}

/// A job that was refused.
pub(crate) fn refused() -> ViTTrainingJob {
    let mut job = job_in(Phase::Failed, 0);
    let status = job.status.as_mut().expect("a status");
    status.conditions = vec![condition(
        conditions::types::FAILED,
        true,
        conditions::reasons::INVALID_SPEC,
    )];
    status.completion_time = Some(Time(at(1)));
    job
}
