//! A study from its first job to its last, with disturbances.

use std::collections::BTreeMap;
use std::sync::Arc;

use contract::{Epoch, FailureClass, Measurement, PhaseSeconds};
use crds::conditions::{reasons, types};
use crds::status::{FailureStatus, PlacementStatus, ViTTrainingJobStatus};
use crds::study::status::{StudyPhase, ViTScalingStudyStatus};
use crds::{Phase, ViTScalingStudy, ViTTrainingJob};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;
use planner::facts::inventory::{NodeFacts, Shared, facts};
use serde_json::{Value, json};
use study::{Plan, StudyJob};

use super::next::{Next, next};
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

/// A cluster with one study that applies every change at once.
struct Cluster {
    study: ViTScalingStudy,
    jobs: Vec<ViTTrainingJob>,
    waits_for: Option<String>,
    /// Jobs that the API server refuses, with its messages.
    refused: BTreeMap<String, String>,
    /// The nodes.
    facts: BTreeMap<String, NodeFacts>,
    /// Jobs with stopping pods.
    stopping: bool,
    now: Timestamp,
}

impl Cluster {
    fn new() -> Self {
        Self::with("{}")
    }

    /// With these fields of the study's spec.
    fn with(fields: &str) -> Self {
        let mut study: Value = serde_saphyr::from_str(MANIFEST).expect("a manifest");
        let fields: Value = serde_saphyr::from_str(fields).expect("fields");
        for (name, value) in fields.as_object().expect("fields") {
            match value.as_object() {
                Some(inner) if study["spec"][name].is_object() => {
                    for (name_inside, value) in inner {
                        study["spec"][name][name_inside] = value.clone();
                    }
                }
                _ => study["spec"][name] = value.clone(),
            }
        }
        Self {
            study: serde_json::from_value(study).expect("a study"),
            jobs: vec![],
            waits_for: None,
            refused: BTreeMap::new(),
            facts: ["a", "b", "c", "d", "e"]
                .map(|name| (name.to_owned(), node(name)))
                .into(),
            stopping: false,
            now: at(0),
        }
    }

    fn plan(&self) -> Plan {
        runs::plan(&self.study).expect("a plan")
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
            refused: self.refused.clone(),
            now: self.now,
        }
    }

    /// Runs a round.
    fn round(&mut self) -> Next {
        let (observation, plan) = (self.observation(), self.plan());
        let slots = runs::slots(&plan);
        let next = next(&observation, &plan, &slots);
        self.study.status = Some(status::status(&observation, &plan, &slots, &next));
        self.jobs
            .retain(|job| next.delete.iter().all(|deletion| deletion.name != job.name_any()));
        if let Some(creation) = &next.create {
            let mut job = creation.job.clone();
            job.metadata.uid = Some(job.name_any());
            job.metadata.creation_timestamp = Some(Time(self.now));
            self.jobs.push(job);
        }
        next
    }

    fn status(&self) -> &ViTScalingStudyStatus {
        self.study.status.as_ref().expect("a status")
    }

    fn message(&self, type_: &str) -> &str {
        &self.status().condition(type_).expect(type_).message
    }

    /// The only unfinished job.
    fn job(&mut self) -> &mut ViTTrainingJob {
        let is_over = |job: &ViTTrainingJob| {
            let phase = job.status.as_ref().and_then(|status| status.phase);
            phase.is_some_and(Phase::is_terminal)
        };
        let mut under_way = self.jobs.iter_mut().filter(|job| !is_over(job));
        let job = under_way.next().expect("an unfinished job");
        assert!(under_way.next().is_none(), "two jobs at once");
        job
    }

    /// The job gets nodes and trains.
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

    fn job_status_of(&mut self, place: usize) -> &mut ViTTrainingJobStatus {
        self.jobs[place].status.get_or_insert_default()
    }

    fn ends_well(&mut self) {
        let job = self.job();
        let ranks = u32::try_from(job.spec.workers.nodes).expect("nodes");
        let job_status = job.status.get_or_insert_default();
        job_status.phase = Some(Phase::Succeeded);
        job_status.measurement = Some(Box::new(measurement(ranks)));
    }

    fn fails(&mut self, class: FailureClass) {
        let job_status = self.job().status.get_or_insert_default();
        job_status.phase = Some(Phase::Failed);
        job_status.last_failure = Some(FailureStatus {
            class: class.as_str().into(),
            ..FailureStatus::default()
        });
        let mut failed = condition(types::FAILED, true, reasons::RESTARTS_EXHAUSTED);
        failed.message = format!("attempt 1: {class}: it broke");
        job_status.conditions = vec![failed];
    }
}

/// A node that fits all runs.
fn node(name: &str) -> NodeFacts {
    facts(&fixtures::node(name, "Tesla-T4", 1), &mut Shared::default())
}

fn measurement(ranks: u32) -> Measurement {
    Measurement {
        world_size: ranks,
        global_batch_size: u64::from(ranks) * 16,
        train_images: 1000,
        device: None,
        epochs: vec![Epoch::default(); 2],
        steps: 100,
        step_seconds: 0.1,
        images_per_second: f64::from(ranks) * 160.0,
        phases: PhaseSeconds {
            forward: 0.09,
            sync_exposed: 0.01,
            ..PhaseSeconds::default()
        },
        ranks: None,
        communication_seconds: 0.02,
        memory_bytes: None,
        gpu: None,
        nodes: vec![],
        machine: None,
    }
}

/// Repetition and try: the end of a job's name.
fn number(job: &ViTTrainingJob) -> String {
    let name = job.name_any();
    name.splitn(3, '-').nth(2).expect("a number").to_owned()
}

#[test]
fn a_run_leaves_nothing_behind_and_begins_once() {
    let mut cluster = Cluster::new();
    cluster.round();
    let job = cluster.job().clone();
    assert_eq!(
        job.spec.workers.nodes, 4,
        "the one that needs most nodes goes first"
    );
    assert!(job.name_any().len() <= 50);
    let spec = serde_json::to_value(&job.spec).expect("JSON");
    assert_eq!(spec["measure"], json!({"warmupSteps": 3}));
    assert_eq!(spec["training"]["epochs"], 2);
    assert_eq!(spec["failurePolicy"]["maxRestarts"], 0);
    assert_eq!(spec["activeDeadlineSeconds"], 600);
    assert_eq!(spec["ttlSecondsAfterFinished"], Value::Null);
    assert_eq!(
        (&spec["checkpoint"]["volume"], &spec["checkpoint"]["writers"]),
        (&Value::Null, &json!("Auto"))
    );
    crds::validate(&job).expect("a valid job");
    let owner = &job.owner_references()[0];
    assert_eq!((owner.uid.as_str(), owner.controller), ("study-uid", Some(true)));
    assert_eq!(cluster.status().phase, Some(StudyPhase::Pending));
    assert_contains(cluster.message(types::RUNNING), "strong-r4-b16 #1: job sizes-");
}

#[test]
fn every_run_is_measured_once_before_any_is_repeated_and_on_the_same_nodes() {
    let mut cluster = Cluster::new();
    let mut measured = Vec::new();
    cluster.round();
    for _ in 0..6 {
        let job = cluster.job().clone();
        let nodes = usize::try_from(job.spec.workers.nodes).expect("nodes");
        measured.push((nodes, number(&job)));
        if measured.len() > 1 {
            assert_eq!(job.spec.placement.nodes, &["a", "b", "c", "d"][..nodes]);
        }
        cluster.trains_on(&["a", "b", "c", "d"][..nodes]);
        cluster.round();
        assert_eq!(cluster.status().phase, Some(StudyPhase::Running));
        cluster.ends_well();
        cluster.round();
    }
    let expected = [(4, "1"), (2, "1"), (1, "1"), (4, "2"), (2, "2"), (1, "2")];
    assert_eq!(
        measured,
        expected.map(|(nodes, number)| (nodes, number.to_owned()))
    );
    assert_eq!(cluster.jobs.len(), 6, "finished jobs are the results");
    let status = cluster.status();
    assert_eq!(status.phase, Some(StudyPhase::Succeeded));
    assert_eq!(status.runs.as_ref().expect("runs").summary, "6/6");
    assert_eq!(cluster.message(types::COMPLETE), "6 runs were measured");
    let point = &status.points[2];
    assert_eq!(
        (point.ranks, point.measured, point.images_per_second),
        (4, 2, Some(640.0))
    );
    assert_eq!((point.efficiency, point.sync_share), (Some(1.0), Some(0.1)));
    assert!(cluster.round().create.is_none());
}

#[test]
fn named_nodes_join_in_the_order_of_their_list() {
    let mut cluster = Cluster::with(
        "sweeps: [{name: strong, mode: Strong, ranks: [1, 2, 4], variants: [{name: ordered, \
         spec: {placement: {nodes: [d, b, a, c]}}}]}]",
    );
    cluster.round();
    let order = ["d", "b", "a", "c"];
    for count in [4, 2, 1, 4, 2, 1] {
        assert_eq!(cluster.job().spec.placement.nodes, &order[..count]);
        // Ranks are in another order.
        let mut nodes = order[..count].to_vec();
        nodes.sort_unstable();
        cluster.trains_on(&nodes);
        cluster.ends_well();
        cluster.round();
    }
    assert_eq!(cluster.status().phase, Some(StudyPhase::Succeeded));
}

#[test]
fn a_failure_that_may_pass_is_tried_again_and_another_is_not() {
    let mut cluster = Cluster::new();
    cluster.round();
    cluster.trains_on(&["a", "b", "c", "d"]);
    cluster.fails(FailureClass::PodLost);
    cluster.round();
    assert_eq!(
        cluster.status().points[2].failure.as_deref(),
        Some("attempt 1: PodLost: it broke")
    );
    assert_eq!(number(cluster.job()), "1-2", "the second try");
    cluster.fails(FailureClass::PodLost);
    cluster.round();
    assert_eq!(cluster.job().spec.workers.nodes, 2, "the next run");
    cluster.fails(FailureClass::OutOfMemory);
    cluster.round();
    assert_eq!(cluster.job().spec.workers.nodes, 1);
    assert_eq!(cluster.status().runs.as_ref().expect("runs").failed, 2);
}

#[test]
fn a_study_of_which_runs_failed_says_so() {
    let mut cluster = Cluster::with("{measure: {retries: 0, repetitions: 1}}");
    cluster.round();
    cluster.fails(FailureClass::Diverged);
    cluster.round();
    cluster.job().status = Some(ViTTrainingJobStatus {
        phase: Some(Phase::Succeeded),
        conditions: vec![{
            let mut unmeasured = condition(types::MEASURED, false, reasons::NOT_MEASURED);
            unmeasured.message = "all is warm-up".into();
            unmeasured
        }],
        ..ViTTrainingJobStatus::default()
    });
    cluster.round();
    cluster.ends_well();
    cluster.round();
    assert_eq!(cluster.status().phase, Some(StudyPhase::Failed));
    let message = cluster.message(types::FAILED);
    assert_eq!(
        message,
        "2 of 3 runs failed: strong-r4-b16 #1: attempt 1: Diverged: it broke; strong-r2-b16 #1: all is warm-up"
    );
    let points = &cluster.status().points;
    assert_eq!(points[1].failure.as_deref(), Some("all is warm-up"));
    assert_eq!(
        (points[1].images_per_second, points[0].images_per_second),
        (None, Some(160.0))
    );
}

#[test]
fn a_run_that_takes_too_long_or_waits_too_long_is_not_repeated() {
    let mut cluster = Cluster::new();
    cluster.round();
    cluster.fails(FailureClass::Stalled);
    let failed = &mut cluster.job_status_of(0).conditions[0];
    failed.reason = reasons::PENDING_TIMEOUT.into();
    failed.message = "the job got no GPUs within 60 s".into();
    cluster.job_status_of(0).last_failure = None;
    cluster.round();
    assert_eq!(
        cluster.status().points[2].failure.as_deref(),
        Some("the job got no GPUs within 60 s")
    );
    cluster.trains_on(&["a", "b"]);
    cluster.fails(FailureClass::Stalled);
    cluster.job_status_of(1).conditions[0].reason = reasons::DEADLINE_EXCEEDED.into();
    cluster.round();
    assert_eq!(
        cluster.status().points[1].failure.as_deref(),
        Some("it took more than measure.timeoutSeconds (600)")
    );
    assert_eq!(
        (cluster.job().spec.workers.nodes, number(cluster.job())),
        (1, "1".into())
    );
}

#[test]
fn a_suspended_study_runs_nothing_and_starts_the_run_anew() {
    let mut cluster = Cluster::new();
    cluster.round();
    cluster.trains_on(&["a", "b", "c", "d"]);
    cluster.round();
    cluster.study.spec.suspend = true;
    assert_eq!(cluster.round().delete.len(), 1);
    assert_contains(cluster.message(types::SUSPENDED), "is being stopped");
    assert!(cluster.round().create.is_none());
    assert_eq!(cluster.status().phase, Some(StudyPhase::Suspended));
    cluster.study.spec.suspend = false;
    cluster.round();
    let job = cluster.job();
    assert_eq!(
        (job.spec.workers.nodes, number(job)),
        (4, "1".into()),
        "no try is counted"
    );
}

#[test]
fn a_node_that_is_gone_is_replaced_for_all_runs() {
    let mut cluster = Cluster::new();
    cluster.round();
    cluster.trains_on(&["a", "b", "c", "d"]);
    cluster.round();
    cluster.facts.remove("a");
    assert!(
        cluster.round().delete.is_empty(),
        "a running run reports this by its failure"
    );
    cluster.fails(FailureClass::PodLost);
    cluster.round();
    assert!(cluster.job().spec.placement.nodes.is_empty());
    cluster.trains_on(&["b", "c", "d", "e"]);
    cluster.round();
    cluster.ends_well();
    cluster.round();
    assert_eq!(cluster.job().spec.placement.nodes, ["b", "c"]);
    // It waits for them; if one disappears, it gets others.
    cluster.facts.get_mut("c").expect("a node").cordoned = true;
    assert_eq!(cluster.round().delete.len(), 1);
    cluster.round();
    assert!(cluster.job().spec.placement.nodes.is_empty());
}

#[test]
fn a_study_waits_while_another_one_of_its_namespace_measures() {
    let mut cluster = Cluster::new();
    cluster.waits_for = Some("older".into());
    assert!(cluster.round().create.is_none());
    assert_eq!(
        cluster.message(types::RUNNING),
        "study older measures first: one study at a time runs in a namespace"
    );
    cluster.waits_for = None;
    cluster.round();
    cluster.trains_on(&["a", "b", "c", "d"]);
    // An older one was resumed: the run ends before it starts.
    cluster.waits_for = Some("older".into());
    assert!(cluster.round().delete.is_empty());
    assert_eq!(cluster.status().phase, Some(StudyPhase::Running));
    cluster.ends_well();
    assert!(cluster.round().create.is_none());
}

#[test]
fn a_job_that_the_api_server_refuses_fails_its_run_alone() {
    let mut cluster = Cluster::with("{measure: {repetitions: 1}}");
    let refused = cluster.round().create.expect("a job").job.name_any();
    cluster.jobs.clear();
    cluster.refused.insert(refused, "denied by a webhook".into());
    cluster.round();
    assert_eq!(cluster.job().spec.workers.nodes, 2, "the next run");
    cluster.ends_well();
    cluster.round();
    cluster.ends_well();
    cluster.round();
    assert_eq!(
        cluster.message(types::FAILED),
        "1 of 3 runs failed: strong-r4-b16 #1: denied by a webhook"
    );
}

#[test]
fn a_run_whose_job_was_deleted_is_measured_again() {
    let mut cluster = Cluster::with("{measure: {repetitions: 1}}");
    for _ in 0..3 {
        cluster.round();
        cluster.ends_well();
    }
    cluster.round();
    assert_eq!(cluster.status().phase, Some(StudyPhase::Succeeded));
    let two = cluster.jobs.iter().position(|job| job.spec.workers.nodes == 2);
    cluster.jobs.remove(two.expect("a run of two nodes"));
    cluster.round();
    assert_eq!(cluster.status().phase, Some(StudyPhase::Pending));
    assert_eq!(cluster.job().spec.workers.nodes, 2);
}

#[test]
fn the_next_run_does_not_start_beside_pods_that_still_stop() {
    let mut cluster = Cluster::new();
    cluster.round();
    cluster.trains_on(&["a", "b", "c", "d"]);
    cluster.fails(FailureClass::Stalled);
    cluster.stopping = true;
    assert!(cluster.round().create.is_none());
    cluster.stopping = false;
    assert!(cluster.round().create.is_some());
}

#[test]
fn of_two_jobs_at_once_one_goes() {
    let mut cluster = Cluster::new();
    cluster.round();
    let mut second = cluster.job().clone();
    second.metadata.name = Some("sizes-second".into());
    second.metadata.uid = Some("second".into());
    let labels = second.metadata.labels.as_mut().expect("labels");
    labels.insert(crds::labels::REPETITION.into(), "2".into());
    cluster.jobs.push(second);
    let deleted = cluster.round().delete;
    assert_eq!(deleted.len(), 1);
    assert_eq!(
        deleted[0].name, "sizes-second",
        "the later one in the order of runs"
    );
}

#[test]
fn runs_of_one_node_begin_with_the_one_that_needs_most_of_it() {
    let mut cluster = Cluster::with(
        "{sweeps: [{name: s, mode: Strong, ranks: [1, 2, 8, 16], variants: [{name: v, spec: {workers: {gpusPerNode: 8}}}]}]}",
    );
    let sizes: Vec<(i32, i32)> = (0..4)
        .map(|_| {
            cluster.round();
            let workers = &cluster.job().spec.workers;
            let size = (workers.nodes, workers.gpus_per_node);
            let nodes = ["a", "b"];
            cluster.trains_on(&nodes[..size.0 as usize]);
            cluster.fails(FailureClass::BadConfig);
            size
        })
        .collect();
    assert_eq!(sizes, [(2, 8), (1, 8), (1, 2), (1, 1)]);
}

#[test]
fn nodes_with_a_faulty_gpu_or_a_taint_are_given_up() {
    let mut cluster = Cluster::new();
    cluster.round();
    cluster.trains_on(&["a", "b", "c", "d"]);
    cluster.fails(FailureClass::DeviceFault);
    let failure = cluster.job_status_of(0).last_failure.as_mut().expect("a failure");
    failure.node = Some("b".into());
    failure.time = Some(Time(at(0)));
    cluster.round();
    let placement = &cluster.job().spec.placement;
    assert!(placement.nodes.is_empty());
    assert_eq!(placement.exclude_nodes, ["b"]);
    // Not forever: there may be no other node.
    cluster.now = at(600);
    assert_eq!(cluster.round().delete.len(), 1);
    cluster.round();
    assert_eq!(cluster.job().spec.placement.exclude_nodes, [] as [String; 0]);
    cluster.trains_on(&["a", "c", "d", "e"]);
    cluster.ends_well();
    cluster.round();
    assert_eq!(cluster.job().spec.placement.nodes, ["a", "c"]);
    let taint = json!({"key": "k", "effect": "NoSchedule"});
    cluster.facts.get_mut("a").expect("a node").taints =
        vec![serde_json::from_value(taint).expect("a taint")];
    assert_eq!(cluster.round().delete.len(), 1);
    cluster.round();
    assert!(cluster.job().spec.placement.nodes.is_empty());
}

#[test]
fn a_measurement_of_other_steps_or_ranks_is_none() {
    let mut cluster =
        Cluster::with("{measure: {repetitions: 1}, sweeps: [{name: s, mode: Strong, ranks: [1, 2]}]}");
    cluster.round();
    cluster.trains_on(&["a", "b"]);
    // The job was edited.
    cluster.job().spec.workers.nodes = 1;
    cluster.ends_well();
    cluster.round();
    assert_contains(
        cluster.status().points[1].failure.as_deref().expect("a failure"),
        "it trained on 1 ranks with 16 images a step instead of 2 ranks with 32 images a step",
    );
    assert_eq!(number(cluster.job()), "1-2");
}

#[test]
fn a_measurement_that_was_lost_is_made_again() {
    let mut cluster = Cluster::new();
    cluster.round();
    cluster.job().status = Some(ViTTrainingJobStatus {
        phase: Some(Phase::Succeeded),
        conditions: vec![condition(types::MEASURED, false, reasons::MEASUREMENT_LOST)],
        ..ViTTrainingJobStatus::default()
    });
    cluster.round();
    let job = cluster.job();
    assert_eq!((job.spec.workers.nodes, number(job)), (4, "1-2".into()));
}

#[test]
fn another_trainer_that_does_something_else_is_not_tried_again() {
    let other = "{measure: {repetitions: 1}, sweeps: [{name: s, mode: Strong, ranks: [1, 2], \
                 variants: [{name: v, spec: {external: {command: [x]}}}]}]}";
    let mut cluster = Cluster::with(other);
    cluster.round();
    cluster.ends_well();
    let measured = measurement(1);
    cluster.job_status_of(0).measurement = Some(Box::new(measured));
    cluster.round();
    assert_contains(
        cluster.status().points[1].failure.as_deref().expect("a failure"),
        "the command does not follow VIT_RUN_CONFIG: it trained on 1 ranks with 16 images a step instead of 2 ranks",
    );
    assert_eq!(cluster.job().spec.workers.nodes, 1, "the next run");
    // Not the command's fault.
    let mut cluster = Cluster::with(other);
    cluster.round();
    cluster.job().spec.workers.nodes = 1;
    cluster.ends_well();
    cluster.job_status_of(0).measurement = Some(Box::new(measurement(1)));
    cluster.round();
    assert_contains(
        cluster.status().points[1].failure.as_deref().expect("a failure"),
        "the job was changed: it trained on 1 ranks",
    );
    let job = cluster.job();
    assert_eq!((job.spec.workers.nodes, number(job)), (2, "1-2".into()));
}

#[test]
fn nodes_that_are_too_small_for_another_variant_are_given_up() {
    let mut cluster = Cluster::with(
        "{sweeps: [{name: s, mode: Variants, variants: [{name: small}, \
         {name: large, spec: {workers: {resources: {requests: {cpu: '64'}, limits: {cpu: '64'}}}}}]}]}",
    );
    cluster.round();
    cluster.trains_on(&["a"]);
    cluster.round();
    cluster.ends_well();
    cluster.round();
    let job = cluster.job();
    assert!(job.spec.workers.resources.requests.is_some(), "the large one");
    assert_eq!(job.spec.placement.nodes, [] as [String; 0]);
}

#[test]
fn nodes_are_not_judged_by_a_run_that_has_just_ended() {
    let mut cluster =
        Cluster::with("{measure: {repetitions: 1}, sweeps: [{name: s, mode: Strong, ranks: [1, 2]}]}");
    cluster.round();
    cluster.trains_on(&["a", "b"]);
    cluster.round();
    cluster.facts.remove("b");
    cluster.ends_well();
    cluster.round();
    assert_eq!(cluster.job().spec.placement.nodes, ["a"], "b is no longer needed");
}

#[test]
fn a_node_is_not_given_up_for_a_variant_that_does_not_use_it() {
    let cpus = "{requests: {cpu: '48'}, limits: {cpu: '48'}}";
    let mut cluster = Cluster::with(&format!(
        "{{sweeps: [{{name: s, mode: Strong, ranks: [1, 2]}}, {{name: v, mode: Variants, variants: [{{name: small}}, \
         {{name: large, spec: {{workers: {{resources: {cpus}}}}}}}]}}]}}"
    ));
    let mut large = fixtures::node("a", "Tesla-T4", 1);
    let status = large.status.get_or_insert_default();
    let allocatable = status.allocatable.get_or_insert_default();
    allocatable.insert("cpu".into(), Quantity("64".into()));
    cluster
        .facts
        .insert("a".into(), facts(&large, &mut Shared::default()));
    cluster.round();
    cluster.trains_on(&["a", "b"]);
    cluster.ends_well();
    for _ in 0..2 {
        cluster.round();
        assert_eq!(cluster.job().spec.placement.nodes, ["a"]);
        cluster.trains_on(&["a"]);
        cluster.ends_well();
    }
    cluster.round();
    assert_eq!(
        cluster.job().spec.placement.nodes,
        ["a", "b"],
        "the first run again"
    );
}

#[test]
fn what_a_cluster_cannot_run_is_told_by_name() {
    let why = |fields| runs::plan(&Cluster::with(fields).study).expect_err("refused");
    assert_eq!(
        why("{measure: {epochs: 51, repetitions: 1}}"),
        "strong-r1-b16: spec.training.epochs is 51: must be at most 50 with measure: a termination message holds no more"
    );
    let variants = "{sweeps: [{name: v, mode: Variants, variants: [{name: a}, {name: b, spec: {external: {command: []}}}]}]}";
    assert_contains(
        &why(variants),
        "spec.external.command is empty: must name a program",
    );
    let slow = "{sweeps: [{name: v, mode: Variants, variants: [{name: a}, {name: b, spec: {workers: {device: cpu}}, speeds: [0.5]}]}]}";
    assert_contains(&why(slow), "v-r1-b16-b: speeds slow the ranks of one machine");
}

#[test]
fn jobs_of_others_are_left_alone() {
    let cluster = Cluster::new();
    let mut job = ViTTrainingJob::new("sizes-00000000-1", cluster.plan().runs[0].spec.clone());
    job.metadata.namespace = Some("research".into());
    assert!(StudyJob::new(Arc::new(job), &cluster.study).is_none());
}
