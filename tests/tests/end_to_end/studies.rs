//! Scaling studies in a cluster: measurements, stored results, and faults.

use anyhow::{Context as _, Result, ensure};
use crds::study::status::{StudyPhase, ViTScalingStudyStatus};
use crds::{Phase, ViTScalingStudy, ViTTrainingJob};
use kube::ResourceExt as _;
use kube::api::{Api, PostParams};
use rustix::process::Signal;
use serde_json::{Value, json};
use vit_tests::plugin::{command, ended};

use crate::context::{Context, Namespace};
use crate::steps::{check_contains, nodes_of, until};

/// Suspension, a failure, the death of a node, the report, and deletion of a study. A fault may
/// cost only the run that it hits.
///
/// Invariant G17.
pub(crate) fn study_is_measured_through_faults_and_leaves_nothing(context: &Context<'_>) -> Result<()> {
    let namespace = context.namespace("study")?;
    let study = namespace.study(
        "sizes",
        json!({
            "template": {"spec": {"failurePolicy": {"nodeLostSeconds": 5}}},
            "measure": {"epochs": 8, "warmupSteps": 1, "repetitions": 1, "retries": 2},
            "sweeps": [{"name": "strong", "mode": "Strong", "ranks": [1, 2]}],
        }),
    )?;
    let plan = study::plan(&study.spec)?;
    // A foreign object has the name that it needs.
    let mut taken = ViTTrainingJob::new(
        &format!("sizes-{}-1", plan.runs[1].key),
        study.spec.template.spec.clone(),
    );
    taken.spec.suspend = true;
    namespace.apply_all(&[serde_json::to_value(&taken)?])?;
    namespace.create_study(&study)?;
    let told = |what: &str| {
        namespace.wait_study("sizes", what, |status| {
            let condition = status.condition("Reconciled");
            condition.is_some_and(|condition| condition.message.contains(what))
        })
    };
    told("failed to create ViTTrainingJob sizes-")?;
    namespace.kubectl(["delete", "vtj", &taken.name_any()])?;

    // Suspended during a run, which starts again.
    let first = namespace.wait_run("sizes", 2)?;
    namespace.patch_study("sizes", json!({"suspend": true}))?;
    namespace.wait_study("sizes", "is suspended", |status| {
        status.phase == Some(StudyPhase::Suspended)
    })?;
    ensure!(namespace.pods()?.is_empty(), "a suspended study has no pods");
    namespace.patch_study("sizes", json!({"suspend": false}))?;
    ensure!(namespace.wait_run("sizes", 2)? == first, "another run started");

    // A rank is killed: the run is retried, and the first job stays for inspection.
    namespace.signal_rank(&first, 1, Signal::KILL)?;
    let second = format!("{first}-2");
    namespace.wait_study("sizes", "tries again", |status| current(status) == second)?;
    ensure!(
        namespace.status(&first)?.phase == Some(Phase::Failed),
        "the first job is gone"
    );

    // One of its nodes dies: the remaining runs use other nodes.
    let training = namespace.wait_run("sizes", 2)?;
    ensure!(training == second, "{training} trains instead of {second}");
    let dead = nodes_of(&namespace.status(&second)?)?.remove(0);
    context.cluster.kill_node(&dead)?;
    let went_on = namespace.wait_study("sizes", "is over", |status| {
        status.phase.is_some_and(StudyPhase::is_terminal)
    });
    context.block_on(context.cluster.start_node(&dead))?;
    let status = went_on?;
    ensure!(status.phase == Some(StudyPhase::Succeeded), "{status:#?}");
    for point in &status.points {
        ensure!(
            point.measured == 1 && point.images_per_second.is_some_and(|rate| rate > 0.0),
            "{point:?}"
        );
    }

    // The results are the measurements of its jobs, and the report shows them.
    let third = namespace.status(&format!("{first}-3"))?;
    let measured = third.measurement.context("the last try measured nothing")?;
    ensure!(
        measured.world_size == 2 && measured.nodes.len() == 2 && !measured.nodes.contains(&dead),
        "{measured:?}"
    );
    let shown = namespace.plugin(&["study", "status", "sizes"])?;
    check_contains(
        &shown,
        &[
            "study/sizes  Succeeded",
            "2 of 2 runs measured",
            "strong (Strong)",
        ],
    )?;
    let folder = namespace.folder.join("report");
    namespace.plugin(&["study", "report", "sizes", "--to", &folder.display().to_string()])?;
    let report: Value = serde_json::from_str(&fs_err::read_to_string(folder.join("report.json"))?)?;
    ensure!(
        report["points"][1]["imagesPerSecond"]["median"] == measured.images_per_second,
        "{report}"
    );
    ensure!(fs_err::read_to_string(folder.join("report.html"))?.contains("<svg"));

    // Deleting the study deletes all its objects.
    namespace.kubectl(["delete", "vits", "sizes"])?;
    until(|| {
        let left = namespace.kubectl(["get", "vtj,configmaps,pods", "-o", "name"])?;
        let left: Vec<&str> = left
            .lines()
            .filter(|name| !name.contains("kube-root-ca.crt"))
            .collect();
        ensure!(left.is_empty(), "left: {left:?}");
        Ok(())
    })
}

/// Two studies of a namespace; one with an unplaceable sweep.
pub(crate) fn studies_take_turns_and_skip_what_fits_nowhere(context: &Context<'_>) -> Result<()> {
    let namespace = context.namespace("studies")?;
    let over = |status: &ViTScalingStudyStatus| status.phase.is_some_and(StudyPhase::is_terminal);
    let batch = |name: &str, sizes: &[i32]| json!({"name": name, "mode": "Batch", "microBatchSize": sizes});
    let measure = || json!({"epochs": 2, "warmupSteps": 1, "repetitions": 1});
    let study = |name: &str, sizes: &[i32]| {
        namespace.study(
            name,
            json!({"measure": measure(), "sweeps": [batch("batch", sizes)]}),
        )
    };
    namespace.create_study(&study("first", &[16, 32])?)?;
    namespace.wait_run("first", 1)?;
    namespace.create_study(&study("second", &[8, 24])?)?;
    // Its sweeps can be added to, and not changed.
    let changed = namespace.patch_study("first", json!({"sweeps": [batch("batch", &[16, 64])]}));
    let refused = changed.err().context("a sweep was changed")?.to_string();
    check_contains(&refused, &["a sweep cannot be changed"])?;
    let added = json!({"sweeps": [batch("batch", &[16, 32]), batch("more", &[16, 64])]});
    namespace.patch_study("first", added)?;
    let (mut at_once, mut waited) = (Ok(false), false);
    let status = namespace.wait_study("second", "is over", |status| {
        let both = namespace.jobs_on_nodes().map(|jobs| {
            let of = |study: &str| jobs.iter().any(|job| job.starts_with(study));
            of("first-") && of("second-")
        });
        if !matches!((&at_once, &both), (Ok(true) | Err(_), _)) {
            at_once = both;
        }
        let running = status.condition("Running");
        waited |= running.is_some_and(|running| running.message.starts_with("study first measures first"));
        over(status)
    })?;
    let both_at_once = at_once?;
    ensure!(!both_at_once, "two studies ran at the same time");
    ensure!(waited, "the second study does not name the one it waits for");
    ensure!(status.phase == Some(StudyPhase::Succeeded), "{status:#?}");
    let first = namespace.wait_study("first", "is over", over)?;
    let sizes: Vec<(&str, i32, i32)> = first
        .points
        .iter()
        .map(|point| (point.sweep.as_str(), point.micro_batch_size, point.measured))
        .collect();
    ensure!(
        sizes
            == [
                ("batch", 16, 1),
                ("batch", 32, 1),
                ("more", 16, 1),
                ("more", 64, 1)
            ],
        "{sizes:?}"
    );

    // The larger run comes first but fits no group; the other one continues without it.
    let sweeps = json!([{"name": "strong", "mode": "Strong", "ranks": [1, 8]}]);
    let limited = json!({"spec": {"scheduling": {"pendingTimeoutSeconds": 10}}});
    let large = namespace.study(
        "large",
        json!({"template": limited, "measure": measure(), "sweeps": sweeps}),
    )?;
    namespace.create_study(&large)?;
    let status = namespace.wait_study("large", "is over", over)?;
    ensure!(status.phase == Some(StudyPhase::Failed), "{status:#?}");
    let failed = status.condition("Failed").context("no condition Failed")?;
    check_contains(
        &failed.message,
        &[
            "1 of 2 runs failed: strong-r8-b",
            "the job got no GPUs within 10 s (scheduling.pendingTimeoutSeconds)",
            "needs 8",
        ],
    )?;
    ensure!(
        status.points[0].measured == 1 && status.points[1].images_per_second.is_none(),
        "{status:#?}"
    );

    // A study that a cluster cannot run fails at once.
    let sweeps = json!([{"name": "a", "mode": "Variants", "variants": [{"name": "b"}, {"name": "c", "speeds": [0.5]}]}]);
    let slow = json!({
        "template": {"spec": {"workers": {"device": "cpu"}}}, "measure": measure(), "sweeps": sweeps,
    });
    namespace.create_study(&namespace.study("slow", slow)?)?;
    let status = namespace.wait_study("slow", "is refused", over)?;
    let failed = status.condition("Failed").context("no condition Failed")?;
    ensure!(failed.reason == "InvalidSpec", "{failed:?}");
    check_contains(&failed.message, &["speeds slow the ranks of one machine"])
}

fn current(status: &ViTScalingStudyStatus) -> &str {
    status.current.as_ref().map_or("", |current| &current.job)
}

impl Namespace<'_> {
    /// A small study of the digits, with `spec` merged into its spec.
    pub(crate) fn study(&self, name: &str, spec: Value) -> Result<ViTScalingStudy> {
        let mut job: Value = serde_saphyr::from_str(include_str!("../../../examples/digits.yaml"))?;
        let smaller = json!({
            "model": {"hiddenSize": 64, "depth": 2}, "training": {"schedule": {"warmupEpochs": 0}},
            "workers": {"nodes": 1},
        });
        json_patch::merge(&mut job["spec"], &smaller);
        let mut study = json!({
            "apiVersion": "vit-operator.dev/v1alpha1", "kind": "ViTScalingStudy",
            "metadata": {"name": name, "namespace": self.name}, "spec": {"template": {"spec": job["spec"]}},
        });
        json_patch::merge(&mut study["spec"], &spec);
        Ok(serde_json::from_value(study)?)
    }

    fn studies(&self) -> Api<ViTScalingStudy> {
        Api::namespaced(self.context.client.clone(), &self.name)
    }

    pub(crate) fn create_study(&self, study: &ViTScalingStudy) -> Result<()> {
        let studies = self.studies();
        self.context
            .block_on(async { studies.create(&PostParams::default(), study).await })?;
        Ok(())
    }

    fn patch_study(&self, name: &str, spec: Value) -> Result<()> {
        let patch = json!({"spec": spec}).to_string();
        self.kubectl(["patch", "vits", name, "--type=merge", "-p", &patch])?;
        Ok(())
    }

    pub(crate) fn wait_study(
        &self,
        name: &str,
        what: &str,
        mut wanted: impl FnMut(&ViTScalingStudyStatus) -> bool,
    ) -> Result<ViTScalingStudyStatus> {
        let studies = self.studies();
        until(|| {
            let study = self.context.block_on(async { studies.get(name).await })?;
            let status = study.status.unwrap_or_default();
            ensure!(
                wanted(&status),
                "waiting until study {name} {what}; its status is {status:#?}"
            );
            Ok(status)
        })
    }

    /// Waits until a run with this many nodes trains, and returns the name of its job.
    fn wait_run(&self, study: &str, nodes: usize) -> Result<String> {
        let status = self.wait_study(study, "trains a run", |status| {
            status.phase == Some(StudyPhase::Running)
        })?;
        let job = current(&status).to_owned();
        let placed = self.status(&job)?;
        ensure!(placed.nodes().len() == nodes, "{job}: {placed:#?}");
        Ok(job)
    }

    /// Jobs with unfinished pods.
    fn jobs_on_nodes(&self) -> Result<Vec<String>> {
        let holds = |pod: &&k8s_openapi::api::core::v1::Pod| {
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
            !matches!(phase, Some("Succeeded" | "Failed"))
        };
        let job = |pod: &k8s_openapi::api::core::v1::Pod| pod.labels().get(crds::labels::JOB_NAME).cloned();
        Ok(self.pods()?.iter().filter(holds).filter_map(job).collect())
    }

    /// Runs `kubectl vit` in this namespace and returns its standard output.
    fn plugin(&self, arguments: &[&str]) -> Result<String> {
        let arguments: Vec<&str> = arguments.iter().copied().chain(["-n", &self.name]).collect();
        let outcome = ended(&mut command(&self.context.cluster, &arguments)?)?;
        Ok(outcome.check(0, &[])?.stdout)
    }
}
