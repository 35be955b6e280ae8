//! Jobs in every state, for tests of screens.

use crds::{ViTScalingStudy, ViTTrainingJob};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::cluster::Place;

/// The time of all tests.
pub(crate) fn now() -> Timestamp {
    "2026-11-22T12:00:00Z".parse().expect("a time")
}

/// Panics with the text if it lacks the part.
#[track_caller]
pub(crate) fn assert_contains(text: &str, part: &str) {
    assert!(text.contains(part), "{part:?} is not in:\n{text}");
}

/// The place of commands that tests propose.
pub(crate) fn place(flags: &str) -> Place {
    Place {
        namespace: "research".into(),
        flags: flags.into(),
    }
}

/// The job of the examples, two nodes of one GPU, with this status.
pub(crate) fn job(status: Value) -> ViTTrainingJob {
    serde_json::from_value(json!({
        "apiVersion": "vit-operator.dev/v1alpha1",
        "kind": "ViTTrainingJob",
        "metadata": {
            "name": "digits", "namespace": "research", "generation": 1, "creationTimestamp": "2026-11-22T11:00:00Z"},
        "spec": {
            "image": "vit-trainer:dev",
            "model": {"name": "vit_tiny_patch16_224", "numClasses": 10},
            "data": {"format": "cifar10", "volume": {"persistentVolumeClaim": {"claimName": "digits"}}},
            "training": {"epochs": 60, "microBatchSize": 16},
            "workers": {"nodes": 2},
            "checkpoint": {"volume": {"persistentVolumeClaim": {"claimName": "checkpoints"}}},
        },
        "status": merged(json!({"attempt": 1, "restarts": 0, "restartsSinceCheckpoint": 0, "observedGeneration": 1}), status),
    }))
    .expect("a job")
}

/// The study of the examples with this status.
pub(crate) fn study(status: Value) -> ViTScalingStudy {
    let manifest = include_str!("../../examples/studies/digits.yaml");
    let mut study: ViTScalingStudy = serde_saphyr::from_str(manifest).expect("a study");
    study.metadata.namespace = Some("research".into());
    study.status = Some(serde_json::from_value(status).expect("a status"));
    study
}

/// One object's fields over the other's.
fn merged(mut under: Value, over: Value) -> Value {
    for (key, value) in over.as_object().expect("an object") {
        under[key] = value.clone();
    }
    under
}

fn condition(type_: &str, status: bool, reason: &str, message: &str) -> Value {
    json!({
        "type": type_, "status": if status { "True" } else { "False" }, "reason": reason, "message": message,
        "lastTransitionTime": "2026-11-22T11:40:00Z"})
}

fn placement() -> Value {
    json!({
        "group": {"product": "Tesla-T4", "productLabel": "nvidia.com/gpu.product", "memoryMebibytes": 15360,
            "gpusPerNode": 1, "driverMajor": "580"},
        "nodes": ["node1", "node2"],
        "time": "2026-11-22T11:39:50Z",
        "rejectedGroups": [{"group": "NVIDIA-H200", "nodes": 1, "fittingNodes": 1}]})
}

fn progress() -> Value {
    json!({
        "epoch": 41, "totalEpochs": 60, "step": 1845, "totalSteps": 2700, "percent": 68, "loss": 0.6044,
        "trainAccuracy": 0.931, "validationAccuracy": 0.9549, "imagesPerSecond": 1235.3, "syncShare": 0.1764, "slowdown": 1.12,
        "etaSeconds": 95, "updatedAt": "2026-11-22T11:59:58Z"})
}

fn checkpoint() -> Value {
    json!({"step": 1800, "path": "/checkpoints/digits/step-1800", "time": "2026-11-22T11:58:30Z"})
}

fn killed() -> Value {
    json!({
        "attempt": 1, "rank": 1, "pod": "digits-1-1", "node": "node3", "exitCode": 137, "class": "Killed",
        "message": "rank 1 was ended by signal 9 (SIGKILL)", "time": "2026-11-22T11:39:00Z"})
}

/// A status of a job that trains on its second attempt, and whose second rank is slow.
pub(crate) fn training() -> Value {
    json!({
        "phase": "Running", "attempt": 2, "restarts": 1,
        "conditions": [
            condition("Placed", true, "GangFits", "Tesla-T4 on node1, node2"),
            condition("Running", true, "AllPodsReady", "every pod of the gang runs")],
        "startTime": "2026-11-22T11:01:00Z",
        "placement": placement(), "workers": {"desired": 2, "ready": 2, "failed": 0}, "progress": progress(),
        "lastCheckpoint": checkpoint(), "lastFailure": killed(),
        "timeSpent": {"effectiveRatio": 0.8, "usefulSeconds": 2800.0, "repeatedSeconds": 180.0, "startSeconds": 95.0,
            "restartSeconds": 70.0, "queueSeconds": 300.0, "evaluationSeconds": 50.0, "checkpointSeconds": 1.5},
        "stragglers": [{"rank": 1, "node": "node2", "slowdown": 1.52, "savedSeconds": 0.107}]})
}

/// A status of a job that waits for GPUs, the second of three.
pub(crate) fn waiting() -> Value {
    json!({
        "phase": "Pending", "attempt": 0,
        "conditions": [condition("Placed", false, "NoFittingGroup",
            "a sentence that nobody parses")],
        "placement": {
            "rejectedGroups": [
                {"group": "NVIDIA-H200", "nodes": 1, "fittingNodes": 1},
                {"group": "Tesla-T4", "nodes": 4, "fittingNodes": 1, "reasons": [
                    {"code": "InUse", "nodes": 2, "names": ["node0", "node1"]},
                    {"code": "Cordoned", "nodes": 1, "names": ["node5"]}]}],
            "wait": {"nodes": 4, "position": 2, "waiting": 3, "reservedNodes": 0, "heldBackFor": "default/large"}},
        "workers": {"desired": 0, "ready": 0, "failed": 0}})
}

/// A status of a job that ran out of memory.
pub(crate) fn out_of_memory() -> Value {
    json!({
        "phase": "Failed", "attempt": 1, "completionTime": "2026-11-22T11:45:00Z", "startTime": "2026-11-22T11:01:00Z",
        "conditions": [
            condition("Placed", false, "Released", "the job is over"),
            condition("Failed", true, "NotRetryable", "attempt 1: OutOfMemory: CUDA out of memory")],
        "placement": placement(), "workers": {"desired": 0, "ready": 0, "failed": 1}, "progress": progress(),
        "lastFailure": {"attempt": 1, "rank": 0, "pod": "digits-1-0", "node": "node1", "exitCode": 77,
            "class": "OutOfMemory", "memory": "GPU", "message": "CUDA out of memory. Tried to allocate 1.50 GiB",
            "time": "2026-11-22T11:45:00Z"}})
}

/// A status of a job that is suspended.
pub(crate) fn suspended() -> Value {
    json!({
        "phase": "Suspended", "attempt": 1,
        "conditions": [
            condition("Suspended", true, "Suspended", "spec.suspend is set; the job holds no GPUs"),
            condition("Placed", false, "Suspended", "spec.suspend is set; the job holds no GPUs")],
        "workers": {"desired": 0, "ready": 0, "failed": 0}, "progress": progress(), "lastCheckpoint": checkpoint()})
}

/// A status of a job that is done.
pub(crate) fn done() -> Value {
    let all = json!({"epoch": 60, "step": 2700, "percent": 100, "loss": 0.5041, "validationAccuracy": 0.9887, "etaSeconds": 0});
    json!({
        "phase": "Succeeded", "attempt": 1, "startTime": "2026-11-22T11:01:00Z", "completionTime": "2026-11-22T11:45:00Z",
        "conditions": [
            condition("Placed", false, "Released", "the job is over"),
            condition("Complete", true, "AllEpochsDone", "every pod succeeded")],
        "placement": placement(), "workers": {"desired": 0, "ready": 0, "failed": 0},
        "progress": merged(progress(), all),
        "lastCheckpoint": {"step": 2700, "path": "/checkpoints/digits/step-2700", "time": "2026-11-22T11:44:59Z"}})
}

/// A job that waits for quota.
pub(crate) fn queued() -> ViTTrainingJob {
    let mut job = job(json!({
        "phase": "Pending", "attempt": 0,
        "conditions": [condition("Placed", false, "InQueue",
            "Workload digits waits in LocalQueue team-a: insufficient unused quota for nvidia.com/gpu in flavor h200, 2 more needed")],
        "placement": {}, "workers": {"desired": 0, "ready": 0, "failed": 0}}));
    job.spec.scheduling.queue_name = Some("team-a".into());
    job
}
