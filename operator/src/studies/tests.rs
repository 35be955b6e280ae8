//! Stories of studies in a cluster where every change takes effect at once: each event, and what
//! the rounds after it do until one does nothing.

// As expect-test writes them.
#![allow(clippy::needless_raw_string_hashes)]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use contract::{FailureClass, Measurement};
use crds::conditions::{reasons, types};
use crds::status::{FailureStatus, PlacementStatus, ViTTrainingJobStatus};
use crds::study::status::ViTScalingStudyStatus;
use crds::{Phase, ViTScalingStudy, ViTTrainingJob};
use expect_test::{Expect, expect};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;
use planner::facts::inventory::{NodeFacts, NodeHealth, Shared, facts};
use serde_json::{Value, json};
use study::{Plan, StudyJob};

use super::next::{next, unplaced};
use super::observation::Observation;
use super::{runs, status};
use crate::fixtures::{self, assert_contains, at, condition};

const MANIFEST: &str = "
apiVersion: vit-operator.dev/v1alpha1
kind: ViTScalingStudy
metadata: {name: sizes, namespace: research, uid: study-uid, generation: 1}
spec:
  template:
    spec:
      image: localhost/vit-trainer:dev
      model: {name: vit_tiny_patch16_224, numClasses: 10}
      data: {format: synthetic, syntheticImages: 1000}
      training: {epochs: 90, microBatchSize: 16}
      workers: {nodes: 1, gpusPerNode: 1}
      checkpoint: {volume: {hostPath: {path: /srv/checkpoints}}, writers: EveryRank}
      ttlSecondsAfterFinished: 5
  measure: {epochs: 2, repetitions: 2, warmupSteps: 3, timeoutSeconds: 600}
  sweeps:
  - {name: strong, mode: Strong, ranks: [1, 2, 4]}
";

/// Most rounds after one event.
const ROUNDS: usize = 5;

pub(super) fn study() -> ViTScalingStudy {
    serde_saphyr::from_str(MANIFEST).expect("a manifest")
}

struct Cluster {
    study: ViTScalingStudy,
    jobs: Vec<ViTTrainingJob>,
    waits_for: Option<String>,
    /// Jobs that the API server refuses, with its messages.
    refused: BTreeMap<String, String>,
    /// The nodes.
    facts: BTreeMap<String, NodeFacts>,
    unready: BTreeMap<String, Duration>,
    /// Jobs with stopping pods.
    stopping: bool,
    now: Timestamp,
    story: String,
}

impl Cluster {
    /// With these fields of the study's spec. `measure` only replaces the given fields.
    fn with(fields: &str) -> Self {
        let mut study = json!(study());
        let fields: Value = serde_saphyr::from_str(fields).expect("fields");
        for (name, value) in fields.as_object().expect("fields") {
            match (value, &mut study["spec"][name]) {
                (Value::Object(some), Value::Object(all)) => all.extend(some.clone()),
                (value, known) => *known = value.clone(),
            }
        }
        Self {
            study: serde_json::from_value(study).expect("a study"),
            jobs: vec![],
            waits_for: None,
            refused: BTreeMap::new(),
            facts: ["a", "b", "c", "d", "e"]
                .map(|name| (name.to_owned(), node(name, "8")))
                .into(),
            unready: BTreeMap::new(),
            stopping: false,
            now: at(0),
            story: String::new(),
        }
    }

    /// Plays events of [`Self::happens`] and compares the story since the last call.
    fn plays(&mut self, events: &str, expected: Expect) {
        for event in events.split("; ") {
            self.on(event, |cluster| cluster.happens(event));
        }
        self.story_is(expected);
    }

    fn story_is(&mut self, expected: Expect) {
        expected.assert_eq(&std::mem::take(&mut self.story));
    }

    /// Something happens, and rounds follow.
    fn on(&mut self, event: &str, happens: impl FnOnce(&mut Self)) {
        happens(self);
        let _ = write!(self.story, "{event}:");
        for _ in 0..ROUNDS {
            let (words, is_idle) = self.round();
            if is_idle {
                return self.story.push('\n');
            }
            if !words.is_empty() {
                let start = if self.story.ends_with(':') { "" } else { "\n " };
                let _ = write!(self.story, "{start} {}", words.join(", "));
            }
        }
        panic!("the rounds do not end:\n{}", self.story);
    }

    fn happens(&mut self, event: &str) {
        let words: Vec<&str> = event.split(' ').collect();
        match words[..] {
            ["begin"] => {}
            ["trains", "on", ref nodes @ ..] => self.trains_on(nodes),
            ["measured"] => {
                let ranks = self.job().spec.workers.nodes;
                self.ends(Phase::Succeeded).measurement = Some(measurement(ranks));
            }
            ["unmeasured:", reason] => {
                self.ends(Phase::Succeeded).conditions = vec![condition(types::MEASURED, false, reason)];
            }
            ["failed:", reason] => {
                self.ends(Phase::Failed).conditions = vec![condition(types::FAILED, true, reason)];
            }
            ["suspend"] => self.study.spec.suspend = true,
            ["resume"] => self.study.spec.suspend = false,
            ["lost:", node] => drop(self.facts.remove(node)),
            ["cordoned:", node] => self.facts.get_mut(node).expect("a node").cordoned = true,
            [class] => {
                let status = self.ends(Phase::Failed);
                status.conditions = vec![condition(types::FAILED, true, reasons::RESTARTS_EXHAUSTED)];
                status.conditions[0].message = format!("attempt 1: {class}");
                status.last_failure = Some(FailureStatus {
                    class: class.into(),
                    ..FailureStatus::default()
                });
                assert!(FailureClass::ALL.into_iter().any(|known| known.as_str() == class));
            }
            _ => panic!("{event}"),
        }
    }

    fn observation(&self) -> Observation {
        let of_study = |job: &ViTTrainingJob| {
            StudyJob::new(Arc::new(job.clone()), &self.study).expect("a job of the study")
        };
        Observation {
            study: Arc::new(self.study.clone()),
            jobs: self.jobs.iter().map(of_study).collect(),
            has_pods: self.stopping,
            waits_for: self.waits_for.clone(),
            facts: self.facts.clone(),
            unready: self.unready.clone(),
            refused: self.refused.clone(),
            now: self.now,
        }
    }

    /// Runs a round. Returns what it did, with labels instead of keys of runs, and whether nothing.
    fn round(&mut self) -> (Vec<String>, bool) {
        let plan = runs::plan(&self.study).expect("a plan");
        let observation = self.observation();
        let next = next(&observation, &plan);
        let last = observation.status();
        let status = status::status(&observation, &plan, &next);
        let mut words = Vec::new();
        for deletion in &next.delete {
            self.jobs.retain(|job| job.uid() != deletion.job.uid());
            words.push(format!("delete {}", deletion.job.name_any()));
        }
        if let Some(creation) = &next.create {
            let mut job = creation.job.clone();
            job.metadata.uid = Some(job.name_any());
            job.metadata.creation_timestamp = Some(Time(self.now));
            words.push(format!("create {} {}", job.name_any(), nodes_of(&job)));
            self.jobs.push(job);
        }
        let is_idle = words.is_empty() && status == last;
        words.extend(changes(&last, &status));
        self.study.status = Some(status);
        let plain = |words: String| {
            plan.runs
                .iter()
                .fold(words, |words, run| words.replace(&run.key, &run.label))
        };
        (words.into_iter().map(plain).collect(), is_idle)
    }

    fn status(&self) -> &ViTScalingStudyStatus {
        self.study.status.as_ref().expect("a status")
    }

    /// The only unfinished job.
    fn job(&mut self) -> &mut ViTTrainingJob {
        let is_over = |job: &ViTTrainingJob| {
            let phase = job.status.as_ref().and_then(|status| status.phase);
            phase.is_some_and(Phase::is_terminal)
        };
        let mut unfinished = self.jobs.iter_mut().filter(|job| !is_over(job));
        let job = unfinished.next().expect("an unfinished job");
        assert!(unfinished.next().is_none(), "two jobs at once");
        job
    }

    fn trains_on(&mut self, nodes: &[&str]) {
        self.job().status = Some(ViTTrainingJobStatus {
            phase: Some(Phase::Running),
            placement: Some(PlacementStatus {
                nodes: nodes.iter().map(ToString::to_string).collect(),
                ..PlacementStatus::default()
            }),
            ..ViTTrainingJobStatus::default()
        });
    }

    fn ends(&mut self, phase: Phase) -> &mut ViTTrainingJobStatus {
        let status = self.job().status.get_or_insert_default();
        status.phase = Some(phase);
        status
    }
}

/// Where a job may run.
fn nodes_of(job: &ViTTrainingJob) -> String {
    let (placement, workers) = (&job.spec.placement, &job.spec.workers);
    match (placement.nodes.join(" "), placement.exclude_nodes.join(" ")) {
        (pinned, _) if !pinned.is_empty() => format!("on {pinned}"),
        (_, excluded) if !excluded.is_empty() => format!("without {excluded}"),
        _ => format!("for {} x {} GPUs", workers.nodes, workers.gpus_per_node),
    }
}

/// What changes in a status, in words. Running often says the same as the phase.
fn changes(last: &ViTScalingStudyStatus, next: &ViTScalingStudyStatus) -> Vec<String> {
    let mut words = Vec::new();
    if let Some(phase) = next.phase.filter(|phase| last.phase != Some(*phase)) {
        words.push(phase.as_str().to_owned());
    }
    if let Some(runs) = next
        .runs
        .as_ref()
        .filter(|runs| last.runs.as_ref() != Some(*runs))
    {
        words.push(format!("{} measured, {} failed", runs.summary, runs.failed));
    }
    for (index, point) in next.points.iter().enumerate() {
        let known = last.points.get(index).and_then(|point| point.failure.as_ref());
        if let Some(failure) = point.failure.as_ref().filter(|failure| known != Some(*failure)) {
            words.push(format!("{} ranks: {failure}", point.ranks));
        }
    }
    for condition in &next.conditions {
        let known = last.condition(&condition.type_).map(|known| &known.message);
        let is_plain = condition.type_ == types::RUNNING
            && (condition.status == "True" || condition.message.contains("created"));
        if !is_plain && known != Some(&condition.message) {
            let not = if condition.status == "True" { "" } else { "not " };
            words.push(format!("{not}{}: {}", condition.type_, condition.message));
        }
    }
    words
}

/// A node with one GPU that fits all runs.
fn node(name: &str, cpus: &str) -> NodeFacts {
    let mut node = fixtures::node(name, "Tesla-T4", 1);
    let status = node.status.get_or_insert_default();
    let allocatable = status.allocatable.get_or_insert_default();
    allocatable.insert("cpu".into(), Quantity(cpus.into()));
    facts(&node, &mut Shared::default())
}

fn measurement(ranks: i32) -> Box<Measurement> {
    let json = json!({
        "worldSize": ranks, "globalBatchSize": ranks * 16, "trainImages": 1000,
        "epochs": {"seconds": [0.0, 0.0], "loss": [0.0, 0.0], "trainAccuracy": [0.0, 0.0]},
        "steps": 100, "stepSeconds": 0.1, "imagesPerSecond": f64::from(ranks) * 160.0,
        "phases": {"forward": 0.09, "sync_exposed": 0.01}, "communicationSeconds": 0.02,
    });
    serde_json::from_value(json).expect("a measurement")
}

#[test]
fn a_run_leaves_nothing_behind_and_begins_once() {
    let mut cluster = Cluster::with("{}");
    cluster.round();
    let job = cluster.job().clone();
    assert!(job.name_any().len() <= 50);
    let spec = serde_json::to_value(&job.spec).expect("JSON");
    assert_eq!(spec["measure"], json!({"warmupSteps": 3}));
    assert_eq!(spec["training"]["epochs"], 2);
    assert_eq!(spec["failurePolicy"]["maxRestarts"], 0);
    assert_eq!(spec["activeDeadlineSeconds"], 600);
    assert_eq!(spec["ttlSecondsAfterFinished"], Value::Null);
    assert_eq!(spec["checkpoint"]["volume"], Value::Null);
    assert_eq!(spec["checkpoint"]["writers"], "Auto");
    crds::validate(&job).expect("a valid job");
    let owner = &job.owner_references()[0];
    assert_eq!((owner.uid.as_str(), owner.controller), ("study-uid", Some(true)));
    let running = cluster.status().condition(types::RUNNING).expect("a condition");
    assert_contains(&running.message, "strong-r4-b16 #1: job sizes-");
}

#[test]
fn every_run_is_measured_once_before_any_is_repeated_and_on_the_same_nodes() {
    let mut cluster = Cluster::with("{}");
    cluster.plays(
        "begin; trains on a b c d; measured; trains on a b; measured; trains on a; measured; trains on a b c d; \
         measured; measured; measured",
        expect![[r#"
            begin: create sizes-strong-r4-b16-1 for 4 x 1 GPUs, Pending, 0/6 measured, 0 failed
            trains on a b c d: Running
            measured: create sizes-strong-r2-b16-1 on a b, Pending, 1/6 measured, 0 failed
            trains on a b: Running
            measured: create sizes-strong-r1-b16-1 on a, Pending, 2/6 measured, 0 failed
            trains on a: Running
            measured: create sizes-strong-r4-b16-2 on a b c d, Pending, 3/6 measured, 0 failed
            trains on a b c d: Running
            measured: create sizes-strong-r2-b16-2 on a b, Pending, 4/6 measured, 0 failed
            measured: create sizes-strong-r1-b16-2 on a, 5/6 measured, 0 failed
            measured: Succeeded, 6/6 measured, 0 failed, not Running: the study is over, Complete: 6 runs were measured
        "#]],
    );
    let point = &cluster.status().points[2];
    assert_eq!((point.measured, point.images_per_second), (2, Some(640.0)));
    assert_eq!((point.efficiency, point.sync_share), (Some(1.0), Some(0.1)));
    // A run whose job was deleted is measured again.
    cluster.on("a job is deleted", |cluster| drop(cluster.jobs.remove(1)));
    cluster.plays("measured", expect![[r#"
        a job is deleted: create sizes-strong-r2-b16-1 on a b, Pending, 5/6 measured, 0 failed, not Complete: sweeps were added
        measured: Succeeded, 6/6 measured, 0 failed, not Running: the study is over, Complete: 6 runs were measured
    "#]]);
}

#[test]
fn named_nodes_join_in_the_order_of_their_list() {
    let sweep = "{name: strong, mode: Strong, ranks: [1, 2, 4], variants: [{name: ordered, spec: {placement: {nodes: \
                 [d, b, a, c]}}}]}";
    // Ranks are in another order.
    Cluster::with(&format!("{{measure: {{repetitions: 1}}, sweeps: [{sweep}]}}")).plays(
        "begin; trains on a b c d; measured; trains on b d; measured; trains on d; measured",
        expect![[r#"
            begin: create sizes-strong-r4-b16-ordered-1 on d b a c, Pending, 0/3 measured, 0 failed
            trains on a b c d: Running
            measured: create sizes-strong-r2-b16-ordered-1 on d b, Pending, 1/3 measured, 0 failed
            trains on b d: Running
            measured: create sizes-strong-r1-b16-ordered-1 on d, Pending, 2/3 measured, 0 failed
            trains on d: Running
            measured: Succeeded, 3/3 measured, 0 failed, not Running: the study is over, Complete: 3 runs were measured
        "#]],
    );
}

#[test]
fn a_failure_that_may_pass_is_tried_again_and_another_is_not() {
    Cluster::with("{measure: {repetitions: 1}}").plays(
        "begin; trains on a b c d; PodLost; PodLost; OutOfMemory; unmeasured: MeasurementLost; unmeasured: NotMeasured",
        expect![[r#"
            begin: create sizes-strong-r4-b16-1 for 4 x 1 GPUs, Pending, 0/3 measured, 0 failed
            trains on a b c d: Running
            PodLost: create sizes-strong-r4-b16-1-2 on a b c d, Pending, 4 ranks: attempt 1: PodLost
            PodLost: create sizes-strong-r2-b16-1 on a b, 0/3 measured, 1 failed
            OutOfMemory: create sizes-strong-r1-b16-1 on a, 0/3 measured, 2 failed, 2 ranks: attempt 1: OutOfMemory
            unmeasured: MeasurementLost: create sizes-strong-r1-b16-1-2 on a, 1 ranks: because
            unmeasured: NotMeasured: Failed, 0/3 measured, 3 failed, not Running: the study is over, Failed: 3 of 3 runs failed: strong-r4-b16 #1: attempt 1: PodLost; strong-r2-b16 #1: attempt 1: OutOfMemory; strong-r1-b16 #1: because
        "#]],
    );
    Cluster::with("{measure: {repetitions: 1}}").plays(
        "begin; failed: PendingTimeout; failed: DeadlineExceeded; measured",
        expect![[r#"
            begin: create sizes-strong-r4-b16-1 for 4 x 1 GPUs, Pending, 0/3 measured, 0 failed
            failed: PendingTimeout: create sizes-strong-r2-b16-1 for 2 x 1 GPUs, 0/3 measured, 1 failed, 4 ranks: because
            failed: DeadlineExceeded: create sizes-strong-r1-b16-1 for 1 x 1 GPUs, 0/3 measured, 2 failed, 2 ranks: it took more than measure.timeoutSeconds (600)
            measured: Failed, 1/3 measured, 2 failed, not Running: the study is over, Failed: 2 of 3 runs failed: strong-r4-b16 #1: because; strong-r2-b16 #1: it took more than measure.timeoutSeconds (600)
        "#]],
    );
    // The API server refuses a job for good.
    let mut cluster = Cluster::with("{measure: {repetitions: 1}}");
    cluster.round();
    let refused = cluster.jobs.remove(0).name_any();
    cluster.refused.insert(refused, "denied by a webhook".into());
    cluster.plays("begin; measured; measured", expect![[r#"
        begin: create sizes-strong-r2-b16-1 for 2 x 1 GPUs, 0/3 measured, 1 failed, 4 ranks: denied by a webhook
        measured: create sizes-strong-r1-b16-1 for 1 x 1 GPUs, 1/3 measured, 1 failed
        measured: Failed, 2/3 measured, 1 failed, not Running: the study is over, Failed: 1 of 3 runs failed: strong-r4-b16 #1: denied by a webhook
    "#]]);
}

#[test]
fn a_suspended_study_runs_nothing_and_counts_no_try() {
    let mut cluster = Cluster::with("{}");
    cluster.plays("begin; trains on a b c d; suspend; resume", expect![[r#"
        begin: create sizes-strong-r4-b16-1 for 4 x 1 GPUs, Pending, 0/6 measured, 0 failed
        trains on a b c d: Running
        suspend: delete sizes-strong-r4-b16-1, not Suspended: job sizes-strong-r4-b16-1 is being stopped; it starts over later
          Suspended, not Running: spec.suspend is set; measurements are kept, Suspended: spec.suspend is set; measurements are kept
        resume: create sizes-strong-r4-b16-1 for 4 x 1 GPUs, Pending, not Suspended: spec.suspend is not set
    "#]]);
}

#[test]
fn nodes_that_are_gone_cordoned_tainted_or_faulty_are_given_up() {
    // A running run reports a lost node by its failure, one that waits for it does not.
    let mut cluster = Cluster::with("{}");
    cluster.plays(
        "begin; trains on a b c d; lost: a; PodLost; trains on b c d e; measured; cordoned: c",
        expect![[r#"
            begin: create sizes-strong-r4-b16-1 for 4 x 1 GPUs, Pending, 0/6 measured, 0 failed
            trains on a b c d: Running
            lost: a:
            PodLost: create sizes-strong-r4-b16-1-2 for 4 x 1 GPUs, Pending, 4 ranks: attempt 1: PodLost
            trains on b c d e: Running
            measured: create sizes-strong-r2-b16-1 on b c, Pending, 1/6 measured, 0 failed
            cordoned: c: delete sizes-strong-r2-b16-1, not Running: strong-r2-b16 #1: job sizes-strong-r2-b16-1: is being deleted
              create sizes-strong-r2-b16-1 for 2 x 1 GPUs
        "#]],
    );
    let mut cluster = Cluster::with("{}");
    cluster.plays(
        "begin; trains on a b c d",
        expect![[r#"
        begin: create sizes-strong-r4-b16-1 for 4 x 1 GPUs, Pending, 0/6 measured, 0 failed
        trains on a b c d: Running
    "#]],
    );
    cluster.on("the GPU of b fails", |cluster| {
        cluster.happens("DeviceFault");
        let status = cluster.jobs[0].status.as_mut().expect("a status");
        let failure = status.last_failure.as_mut().expect("a failure");
        (failure.node, failure.time) = (Some("b".into()), Some(Time(at(0))));
    });
    // Not forever: there may be no other node.
    cluster.on("599 s later", |cluster| cluster.now = at(599));
    cluster.on("600 s later", |cluster| cluster.now = at(600));
    cluster.plays("trains on a c d e; measured", expect![[r#"
        the GPU of b fails: create sizes-strong-r4-b16-1-2 without b, Pending, 4 ranks: attempt 1: DeviceFault
        599 s later:
        600 s later: delete sizes-strong-r4-b16-1-2, not Running: strong-r4-b16 #1: job sizes-strong-r4-b16-1-2: is being deleted
          create sizes-strong-r4-b16-1-2 for 4 x 1 GPUs
        trains on a c d e: Running
        measured: create sizes-strong-r2-b16-1 on a c, Pending, 1/6 measured, 0 failed
    "#]]);
    cluster.on("a is tainted", |cluster| {
        let taint = json!({"key": "k", "effect": "NoSchedule"});
        cluster.facts.get_mut("a").expect("a node").taints =
            vec![serde_json::from_value(taint).expect("a taint")];
    });
    cluster.story_is(expect![[r#"
        a is tainted: delete sizes-strong-r2-b16-1, not Running: strong-r2-b16 #1: job sizes-strong-r2-b16-1: is being deleted
          create sizes-strong-r2-b16-1 for 2 x 1 GPUs
    "#]]);
    // A node that no run needs any more is not missed.
    let two = "{measure: {repetitions: 1}, sweeps: [{name: s, mode: Strong, ranks: [1, 2]}]}";
    Cluster::with(two).plays(
        "begin; trains on a b; lost: b; measured",
        expect![[r#"
        begin: create sizes-s-r2-b16-1 for 2 x 1 GPUs, Pending, 0/2 measured, 0 failed
        trains on a b: Running
        lost: b:
        measured: create sizes-s-r1-b16-1 on a, Pending, 1/2 measured, 0 failed
    "#]],
    );
    // One that is not ready has its time.
    let mut cluster = Cluster::with(two);
    cluster.plays(
        "begin; trains on a b; measured",
        expect![[r#"
        begin: create sizes-s-r2-b16-1 for 2 x 1 GPUs, Pending, 0/2 measured, 0 failed
        trains on a b: Running
        measured: create sizes-s-r1-b16-1 on a, Pending, 1/2 measured, 0 failed
    "#]],
    );
    for seconds in [29, 30] {
        cluster.on(&format!("a is unready for {seconds} s"), |cluster| {
            cluster.facts.get_mut("a").expect("a node").health = NodeHealth::NotReady;
            cluster.unready = [("a".to_owned(), Duration::from_secs(seconds))].into();
        });
    }
    cluster.story_is(expect![[r#"
        a is unready for 29 s:
        a is unready for 30 s: delete sizes-s-r1-b16-1, not Running: s-r1-b16 #1: job sizes-s-r1-b16-1: is being deleted
          create sizes-s-r1-b16-1 for 1 x 1 GPUs
    "#]]);
}

#[test]
fn nodes_that_are_too_small_for_another_variant_are_given_up_for_it_alone() {
    let sweeps = "{name: s, mode: Strong, ranks: [1, 2]}, {name: v, mode: Variants, variants: [{name: small}, {name: large, \
                  spec: {workers: {resources: {requests: {cpu: '48'}, limits: {cpu: '48'}}}}}]}";
    let mut cluster = Cluster::with(&format!("{{sweeps: [{sweeps}]}}"));
    let events = "begin; trains on a b; measured; trains on a; measured; trains on c; measured";
    cluster.plays(
        events,
        expect![[r#"
        begin: create sizes-s-r2-b16-1 for 2 x 1 GPUs, Pending, 0/6 measured, 0 failed
        trains on a b: Running
        measured: create sizes-s-r1-b16-1 on a, Pending, 1/6 measured, 0 failed
        trains on a: Running
        measured: create sizes-v-r1-b16-large-1 for 1 x 1 GPUs, Pending, 2/6 measured, 0 failed
        trains on c: Running
        measured: create sizes-s-r2-b16-2 for 2 x 1 GPUs, Pending, 3/6 measured, 0 failed
    "#]],
    );
    let mut cluster = Cluster::with(&format!("{{sweeps: [{sweeps}]}}"));
    cluster.facts.insert("a".into(), node("a", "64"));
    let events = "begin; trains on a b; measured; trains on a; measured; trains on a; measured";
    cluster.plays(
        events,
        expect![[r#"
        begin: create sizes-s-r2-b16-1 for 2 x 1 GPUs, Pending, 0/6 measured, 0 failed
        trains on a b: Running
        measured: create sizes-s-r1-b16-1 on a, Pending, 1/6 measured, 0 failed
        trains on a: Running
        measured: create sizes-v-r1-b16-large-1 on a, Pending, 2/6 measured, 0 failed
        trains on a: Running
        measured: create sizes-s-r2-b16-2 on a b, Pending, 3/6 measured, 0 failed
    "#]],
    );
}

#[test]
fn a_study_waits_for_another_one_of_its_namespace_and_for_pods_that_stop() {
    let mut cluster = Cluster::with("{}");
    cluster.waits_for = Some("older".into());
    cluster.plays("begin", expect![[r#"
        begin: Pending, 0/6 measured, 0 failed, not Running: study older measures first: one study at a time runs in a namespace
    "#]]);
    cluster.on("the older one is over", |cluster| cluster.waits_for = None);
    cluster.plays(
        "trains on a b c d",
        expect![[r#"
        the older one is over: create sizes-strong-r4-b16-1 for 4 x 1 GPUs
        trains on a b c d: Running
    "#]],
    );
    // The run ends before the older one starts.
    let older = Some("older".into());
    cluster.on("it is resumed", |cluster| cluster.waits_for = older);
    cluster.plays("Stalled", expect![[r#"
        it is resumed:
        Stalled: Pending, 4 ranks: attempt 1: Stalled, not Running: study older measures first: one study at a time runs in a namespace
    "#]]);
    cluster.on("it is over, but pods stop", |cluster| {
        (cluster.waits_for, cluster.stopping) = (None, true);
    });
    cluster.on("they are gone", |cluster| cluster.stopping = false);
    cluster.story_is(expect![[r#"
        it is over, but pods stop:
        they are gone: create sizes-strong-r4-b16-1-2 on a b c d
    "#]]);
}

#[test]
fn a_gang_of_a_study_that_is_refused_now_trains_on() {
    let mut cluster = Cluster::with("{}");
    let goes = |cluster: &Cluster| unplaced(&cluster.observation()).count();
    cluster.round();
    assert_eq!(goes(&cluster), 1);
    cluster.on("it is placed", |cluster| cluster.trains_on(&["a"]));
    assert_eq!(goes(&cluster), 0);
}

#[test]
fn of_two_jobs_at_once_one_goes() {
    let mut cluster = Cluster::with("{}");
    cluster.round();
    cluster.on("a second job", |cluster| {
        let mut second = cluster.job().clone();
        second.metadata.name = Some("sizes-second".into());
        second.metadata.uid = Some("second".into());
        let labels = second.metadata.labels.as_mut().expect("labels");
        labels.insert(crds::labels::REPETITION.into(), "2".into());
        cluster.jobs.push(second);
    });
    cluster.story_is(expect![[r#"
        a second job: delete sizes-second
    "#]]);
}

#[test]
fn runs_of_one_node_begin_with_the_one_that_needs_most_of_it() {
    let variant = "{name: v, spec: {workers: {gpusPerNode: 8}}}";
    Cluster::with(&format!(
        "{{sweeps: [{{name: s, mode: Strong, ranks: [1, 2, 8, 16], variants: [{variant}]}}]}}"
    ))
    .plays("begin; BadConfig; BadConfig; BadConfig", expect![[r#"
        begin: create sizes-s-r16-b16-v-1 for 2 x 8 GPUs, Pending, 0/8 measured, 0 failed
        BadConfig: create sizes-s-r8-b16-v-1 for 1 x 8 GPUs, 0/8 measured, 1 failed, 16 ranks: attempt 1: BadConfig
        BadConfig: create sizes-s-r2-b16-v-1 for 1 x 2 GPUs, 0/8 measured, 2 failed, 8 ranks: attempt 1: BadConfig
        BadConfig: create sizes-s-r1-b16-v-1 for 1 x 1 GPUs, 0/8 measured, 3 failed, 2 ranks: attempt 1: BadConfig
    "#]]);
}

#[test]
fn a_measurement_of_other_steps_or_ranks_is_none() {
    for (variants, is_edited, expected) in [
        (
            "",
            true,
            expect![[r#"
            measured on one rank: create sizes-s-r2-b16-1-2 for 2 x 1 GPUs, 2 ranks: the job was changed: it trained on 1 ranks with 16 images a step instead of 2 ranks with 32 images a step
        "#]],
        ),
        // Not the command's fault.
        (
            ", variants: [{name: v, spec: {external: {command: [x]}}}]",
            true,
            expect![[r#"
                measured on one rank: create sizes-s-r2-b16-v-1-2 for 2 x 1 GPUs, 2 ranks: the job was changed: it trained on 1 ranks with 16 images a step instead of 2 ranks with 32 images a step
            "#]],
        ),
        (
            ", variants: [{name: v, spec: {external: {command: [x]}}}]",
            false,
            expect![[r#"
                measured on one rank: create sizes-s-r1-b16-v-1 for 1 x 1 GPUs, 0/2 measured, 1 failed, 2 ranks: the command does not follow VIT_RUN_CONFIG: it trained on 1 ranks with 16 images a step instead of 2 ranks with 32 images a step
            "#]],
        ),
    ] {
        let mut cluster = Cluster::with(&format!(
            "{{measure: {{repetitions: 1}}, sweeps: [{{name: s, mode: Strong, ranks: [1, 2]{variants}}}]}}"
        ));
        cluster.round();
        if is_edited {
            cluster.job().spec.workers.nodes = 1;
        }
        cluster.on("measured on one rank", |cluster| {
            cluster.ends(Phase::Succeeded).measurement = Some(measurement(1));
        });
        expected.assert_eq(&cluster.story);
    }
}

#[test]
fn what_a_cluster_cannot_run_is_told_by_name() {
    let of_variant = |fields: &str| {
        format!("{{sweeps: [{{name: v, mode: Variants, variants: [{{name: a}}, {{name: b, {fields}}}]}}]}}")
    };
    for (fields, expected) in [
        (
            "{measure: {epochs: 51, repetitions: 1}}".to_owned(),
            "strong-r1-b16: spec.training.epochs is 51: must be at most 50 with measure: a termination message holds no more",
        ),
        (
            of_variant("spec: {external: {command: []}}"),
            "spec.external.command is empty: must name a program",
        ),
        (
            of_variant("spec: {workers: {device: cpu}}, speeds: [0.5]"),
            "v-r1-b16-b: speeds slow the ranks of one machine: in a cluster, set workers.resources.limits.cpu instead",
        ),
    ] {
        let why = runs::plan(&Cluster::with(&fields).study).expect_err("refused");
        assert_contains(&why, expected);
    }
}

#[test]
fn jobs_of_others_are_left_alone() {
    let cluster = Cluster::with("{}");
    let plan: Plan = runs::plan(&cluster.study).expect("a plan");
    let mut job = ViTTrainingJob::new("sizes-00000000-1", plan.runs[0].spec.clone());
    job.metadata.namespace = Some("research".into());
    assert!(StudyJob::new(Arc::new(job), &cluster.study).is_none());
}
