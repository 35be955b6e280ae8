//! Jobs in every state, as they are shown.

use serde_json::{Value, json};

use super::*;
use crate::cluster::Place;

/// When all tests look.
const NOW: &str = "2026-11-22T12:00:00Z";

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
        "rejected": [{"group": "NVIDIA-H200", "reason": "only 1 node with 1 free", "nodes": 1}]})
}

fn progress() -> Value {
    json!({
        "epoch": 41, "totalEpochs": 60, "step": 1845, "totalSteps": 2700, "percent": 68, "loss": 0.6044,
        "trainAccuracy": 0.931, "validationAccuracy": 0.9549, "imagesPerSecond": 1235.3, "syncShare": 0.1764,
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
        "stragglers": [{"rank": 1, "node": "node2", "slowdown": 1.52}]})
}

/// A status of a job that waits for GPUs, the second of three.
pub(crate) fn waiting() -> Value {
    json!({
        "phase": "Pending", "attempt": 0,
        "conditions": [condition("Placed", false, "NoFittingGroup",
            "needs 4 x 1 like nvidia.com/gpu: NVIDIA-H200 has 1 node with 1 free; Tesla-T4 has 1 node with 1 free, 2 nodes \
             with too few free GPUs (node0, node1), 1 node cordoned (node5); held back for default/large (2nd of 3 waiting)")],
        "placement": {"rejected": [
            {"group": "NVIDIA-H200", "reason": "1 node with 1 free", "nodes": 1},
            {"group": "Tesla-T4", "nodes": 4, "reason":
                "1 node with 1 free, 2 nodes with too few free GPUs (node0, node1), 1 node cordoned (node5)"}]},
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
            "class": "OutOfMemory", "message": "CUDA out of memory. Tried to allocate 1.50 GiB",
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
            condition("Complete", true, "AllEpochsDone", "every pod ended well")],
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

/// What two agents tell after so many steps of a second.
pub(crate) fn times(steps: u32) -> StepTimes {
    let mut times = StepTimes::default();
    for rank in 0..2 {
        let mut text = String::new();
        for (phase, seconds) in [
            ("data", 0.02),
            ("forward", 0.24),
            ("backward", 0.5),
            ("sync_exposed", 0.12),
            ("sync_straggler", 0.055),
            ("optimizer", 0.065),
        ] {
            let labels = format!("{{phase=\"{phase}\",rank=\"{rank}\"}}");
            let total = f64::from(steps) * seconds;
            text +=
                &format!("vit_step_seconds_sum{labels} {total}\nvit_step_seconds_count{labels} {steps}\n");
        }
        let total = f64::from(steps) * 0.2;
        text += &format!("vit_sync_seconds_total{{kind=\"total\",rank=\"{rank}\"}} {total}\n");
        times.add(&text);
    }
    times
}

fn member(node_rank: i32, state: &str) -> Member {
    Member {
        attempt: 2,
        node_rank,
        pod: format!("digits-2-{node_rank}"),
        state: state.into(),
        is_ready: state == "ready",
        has_run: true,
    }
}

fn view(job: ViTTrainingJob) -> View {
    View {
        job,
        now: NOW.parse().expect("a time"),
        members: Found::None,
        step_times: Found::None,
        is_of_late: false,
        losses: Found::None,
    }
}

/// A job that trains, with all that its pods tell.
pub(crate) fn running() -> View {
    let log: String = (0..200_u32)
        .map(|line| {
            let (step, loss) = (9 * line + 5, 0.6 + 1.7 * (-f64::from(line) / 40.0).exp());
            format!(
                "2026-11-22T11:{:02}:{:02}Z epoch 1/60 step {step}/2700  loss {loss:.4}  train 0.5\n",
                40 + line / 12,
                5 * (line % 12)
            )
        })
        .collect();
    View {
        members: Found::Yes(vec![member(0, "ready"), member(1, "ready")]),
        step_times: Found::Yes(times(1000)),
        losses: Found::Yes(Losses::read(&log)),
        ..view(job(training()))
    }
}

fn shown(view: &View, paint: Paint) -> String {
    let place = Place {
        namespace: "research".into(),
        flags: String::new(),
    };
    let why = why::explain(&view.job, &place, view.now);
    render(view, &why, false, paint)
}

fn plain(job: ViTTrainingJob) -> String {
    shown(&view(job), Paint::plain(120))
}

#[test]
fn a_job_that_trains() {
    insta::assert_snapshot!(shown(&running(), Paint::plain(120)));
}

#[test]
fn a_job_that_trains_on_a_narrow_terminal() {
    let text = shown(&running(), Paint::plain(80));
    insta::assert_snapshot!(text);
    // Commands are not wrapped.
    for line in text.lines().filter(|line| !line.contains("kubectl")) {
        let columns = console::measure_text_width(line);
        assert!(columns <= 80, "{columns} columns: {line}");
    }
}

#[test]
fn a_job_that_waits_for_gpus() {
    insta::assert_snapshot!(plain(job(waiting())));
}

#[test]
fn a_job_that_failed() {
    insta::assert_snapshot!(plain(job(out_of_memory())));
}

#[test]
fn a_job_that_is_suspended() {
    insta::assert_snapshot!(plain(job(suspended())));
}

#[test]
fn a_job_that_is_done() {
    insta::assert_snapshot!(plain(job(done())));
}

#[test]
fn a_job_in_a_queue() {
    insta::assert_snapshot!(plain(queued()));
}

#[test]
fn a_job_that_nobody_has_looked_at() {
    let mut new = job(json!({}));
    new.status = None;
    insta::assert_snapshot!(plain(new));
}

#[test]
fn what_a_user_may_not_see_is_said_once() {
    let why = "cannot ask the agent of pod digits-2-0: pods \"digits-2-0:9402\" is forbidden: User \"reader\" cannot get \
               resource \"pods/proxy\" in API group \"\" in the namespace \"research\"";
    let view = View {
        step_times: Found::No(why.into()),
        losses: Found::No(why.into()),
        ..running()
    };
    let text = shown(&view, Paint::plain(120));
    assert_eq!(text.matches("not shown").count(), 1, "{text}");
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        words.contains("where step time goes: cannot ask the agent"),
        "{text}"
    );
}

#[test]
fn nodes_of_a_large_gang_are_counted() {
    let mut status = training();
    let nodes: Vec<String> = (0..64).map(|node| format!("node{node:02}")).collect();
    status["placement"]["nodes"] = json!(nodes);
    let view = View {
        members: Found::Yes((0..64).map(|rank| member(rank, "ready")).collect()),
        ..view(job(status))
    };
    let text = shown(&view, Paint::plain(120));
    assert!(text.contains("node06  ") && !text.contains("node07  "), "{text}");
    assert!(
        text.contains("and 57 more nodes (-o wide names them); 64 of 64 pods ready"),
        "{text}"
    );
}

#[test]
fn a_record_that_is_old_is_told_as_such() {
    let mut status = training();
    status["progress"]["updatedAt"] = "2026-11-22T11:55:00Z".into();
    let text = plain(job(status));
    assert!(text.contains("rank 0 told this 5m ago"), "{text}");
}

#[test]
fn colours_are_used_where_they_are_wanted_only() {
    let colours = Paint {
        has_colours: true,
        width: 120,
    };
    let coloured = shown(&running(), colours);
    assert!(coloured.contains("\u{1b}["));
    assert_eq!(
        console::strip_ansi_codes(&coloured),
        shown(&running(), Paint::plain(120))
    );
}
