//! `kubectl vit scale`: changes the number of nodes.

use crds::status::WaitStatus;
use crds::{Phase, ValidatedJob, ViTTrainingJob, labels, validate, words};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use planner::Survey;
use planner::policy::request::GangRequest;
use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::error::{Error, Exit};
use crate::kind::{JobName, end};
use crate::nodes::{list_nodes, list_pods};
use crate::output::{print, report};
use crate::summary::phase;
use crate::text::counted;
use crate::wait::{Timeout, wait};

/// Change the number of nodes of a job, or the bounds of an elastic one
///
/// The gang saves a checkpoint, stops, and continues in the new size. An elastic job keeps its global batch; that of
/// another job changes.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  kubectl vit scale digits --nodes 4\n  kubectl vit scale digits --min-nodes 2 --max-nodes 8"
)]
#[command(group(clap::ArgGroup::new("size").required(true).multiple(true)))]
pub(crate) struct Arguments {
    /// The job
    #[arg(value_name = "JOB", add = crate::completion::jobs())]
    job: JobName,
    /// Nodes of a job that is not elastic
    #[arg(long, value_name = "N", group = "size", conflicts_with_all = ["min_nodes", "max_nodes"], allow_negative_numbers = true)]
    nodes: Option<i32>,
    /// Minimum number of nodes of an elastic job
    #[arg(long, value_name = "N", group = "size", allow_negative_numbers = true)]
    min_nodes: Option<i32>,
    /// Maximum number of nodes of an elastic job
    #[arg(long, value_name = "N", group = "size", allow_negative_numbers = true)]
    max_nodes: Option<i32>,
    /// Scale it even if a running gang would have to stop and wait for GPUs
    #[arg(long)]
    force: bool,
    /// Wait until the gang trains in the new size
    #[arg(long)]
    wait: bool,
    #[command(flatten)]
    timeout: Timeout,
}

pub(crate) async fn run(cluster: &Cluster, arguments: &Arguments) -> Result<Exit, Error> {
    let name = &arguments.job;
    let job = cluster.get(name).await?;
    let plan = plan(&job, arguments)?;
    if let Some(request) = plan.grows.as_ref().filter(|_| !arguments.force) {
        check_fit(cluster, &job, request).await?;
    }
    cluster.patch(name, &plan.patch).await?;
    print(&format!("{}\n", plan.words))?;
    if let Some(note) = &plan.note {
        report(note);
    }
    if arguments.wait {
        let outcome = |job: Option<&ViTTrainingJob>| outcome(name, &plan.sizes, job);
        let words = wait(cluster, name, "the new size", arguments.timeout, outcome).await?;
        print(&format!("{words}\n"))?;
    }
    Ok(Exit::Done)
}

/// The change, and the messages about it.
#[derive(Debug, PartialEq)]
struct Plan {
    patch: Value,
    words: String,
    note: Option<String>,
    /// Acceptable sizes of the gang.
    sizes: Vec<i32>,
    /// The smallest of them, if a running gang has to grow to it.
    grows: Option<GangRequest>,
}

/// Refuses a size that does not fit: a running gang would stop and wait for it.
async fn check_fit(cluster: &Cluster, job: &ViTTrainingJob, request: &GangRequest) -> Result<(), Error> {
    let (nodes, pods) = match (list_nodes(cluster).await, list_pods(cluster).await) {
        (Ok(nodes), Ok(pods)) => (nodes, pods),
        (Err(error @ Error::Refused { .. }), _) | (_, Err(error @ Error::Refused { .. })) => {
            report(&format!("note: whether the new size fits is unknown: {error}"));
            return Ok(());
        }
        (Err(error), _) | (_, Err(error)) => return Err(error),
    };
    let name = job.name_any();
    let is_own =
        |pod: &Pod| pod.namespace() == job.namespace() && pod.labels().get(labels::JOB_NAME) == Some(&name);
    let others = pods.into_iter().filter(|pod| !is_own(pod));
    let Err(groups) = Survey::new(nodes, others).place(request) else {
        return Ok(());
    };
    let wait = WaitStatus {
        nodes: i32::try_from(request.nodes).unwrap_or(i32::MAX),
        ..WaitStatus::default()
    };
    let needs = words::waits(&job.spec, &wait, Some(&groups));
    Err(Error::Usage(format!(
        "job {name} would stop training and wait: {needs}; --force scales it nevertheless"
    )))
}

/// Plans the change and checks it by the operator's rules.
fn plan(job: &ViTTrainingJob, arguments: &Arguments) -> Result<Plan, Error> {
    let name = &arguments.job;
    if let Some(phase) = phase(job).filter(|phase| phase.is_terminal()) {
        let phase = phase.as_str();
        return Err(Error::Usage(format!(
            "job {name} is {phase}: it has no gang to scale"
        )));
    }
    if [arguments.nodes, arguments.max_nodes].contains(&Some(0)) {
        return Err(Error::Usage(format!(
            "a gang has at least 1 node; to pause job {name} and release its GPUs: kubectl vit suspend {name}"
        )));
    }
    let mut next = job.clone();
    let refused = |words: &str| Err(Error::Usage(format!("job {name} is {words}")));
    let patch = match (&mut next.spec.elastic, arguments.nodes) {
        (Some(_), Some(_)) => {
            let reason = "elastic: workers.nodes defines its global batch; give --min-nodes or --max-nodes";
            return refused(reason);
        }
        (None, None) => return refused("not elastic: give --nodes"),
        (None, Some(nodes)) => {
            next.spec.workers.nodes = nodes;
            json!({"spec": {"workers": {"nodes": nodes}}})
        }
        (Some(elastic), None) => {
            elastic.min_nodes = arguments.min_nodes.unwrap_or(elastic.min_nodes);
            elastic.max_nodes = arguments.max_nodes.or(elastic.max_nodes);
            json!({"spec": {"elastic": elastic}})
        }
    };
    let valid = validate(&next)?;
    let sizes: Vec<i32> = valid.sizes.iter().map(|size| *size as i32).collect();
    let (words, note) = if let Some(nodes) = arguments.nodes {
        let words = format!("{name} is scaled to {}", counted(nodes, "node"));
        (words, batch_note(job, &valid))
    } else {
        let sizes: Vec<String> = sizes.iter().map(ToString::to_string).collect();
        let sizes = sizes.join(", ");
        (
            format!("{name} uses the largest size that fits: {sizes} nodes"),
            None,
        )
    };
    let status = job.status.as_ref();
    let size = status.and_then(|status| status.workers).unwrap_or_default();
    let admitted = status.and_then(|status| status.admitted_pod.as_ref());
    let request = GangRequest::from(&valid).admitted(admitted);
    let is_larger = usize::try_from(size.desired).is_ok_and(|size| request.nodes > size);
    Ok(Plan {
        patch,
        words,
        note,
        sizes,
        grows: Some(request).filter(|_| is_larger && phase(job) == Some(Phase::Running)),
    })
}

/// A note that scaling changes the global batch of a job that is not elastic.
fn batch_note(before: &ViTTrainingJob, after: &ValidatedJob) -> Option<String> {
    let before = validate(before).ok()?.run_config.global_batch_size();
    let after = after.run_config.global_batch_size();
    (before != after).then(|| {
        format!(
            "note: a step now uses {after} images instead of {before}; training.learningRateScaling sets the learning \
             rate"
        )
    })
}

fn outcome(name: &JobName, sizes: &[i32], job: Option<&ViTTrainingJob>) -> Option<Result<String, Error>> {
    if let Some(over) = end(name, job) {
        return Some(over.map(|()| format!("{name} had already finished")));
    }
    let (job, status) = (job?, job?.status.as_ref()?);
    let size = status.workers.unwrap_or_default().desired;
    let is_there = status.observed_generation >= job.metadata.generation
        && status.phase == Some(Phase::Running)
        && sizes.contains(&size);
    let nodes = counted(size, "node");
    is_there.then(|| Ok(format!("{name} trains on {nodes}, attempt {}", status.attempt)))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::fixtures::{assert_contains, job};

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn planned(job: &ViTTrainingJob, line: &str) -> Result<Plan, Error> {
        let words = ["scale", "digits"].into_iter().chain(line.split_whitespace());
        let line = Line::try_parse_from(words).unwrap_or_else(|error| panic!("{error}"));
        plan(job, &line.arguments)
    }

    #[test]
    fn another_size_means_another_batch() {
        let plan = planned(&job(json!({"attempt": 0})), "--nodes 4").expect("fits");
        assert_eq!(plan.patch, json!({"spec": {"workers": {"nodes": 4}}}));
        assert_eq!(plan.words, "digits is scaled to 4 nodes");
        let note = plan.note.expect("the batch changes");
        assert_contains(&note, "a step now uses 64 images instead of 32");
    }

    #[test]
    fn a_size_that_cannot_be_is_refused_before_it_is_sent() {
        for nodes in [5000, -1] {
            let error =
                planned(&job(json!({"attempt": 0})), &format!("--nodes {nodes}")).expect_err("refused");
            assert_eq!(error.exit(), Exit::Usage);
            assert_contains(&error.to_string(), &format!("spec.workers.nodes is {nodes}"));
        }
    }

    #[test]
    fn no_nodes_is_a_pause() {
        let error = planned(&job(json!({"attempt": 0})), "--nodes 0").expect_err("refused");
        assert_eq!(error.exit(), Exit::Usage);
        assert_contains(&error.to_string(), "kubectl vit suspend digits");
    }

    #[test]
    fn bounds_are_for_elastic_jobs_and_sizes_for_the_others() {
        let plain = job(json!({"attempt": 0}));
        let mut elastic = plain.clone();
        elastic.spec.elastic = serde_json::from_value(json!({"minNodes": 1})).ok();
        assert_eq!(
            planned(&plain, "--max-nodes 4").expect_err("refused").to_string(),
            "job digits is not elastic: give --nodes"
        );
        let error = planned(&elastic, "--nodes 4").expect_err("refused").to_string();
        assert!(error.ends_with("give --min-nodes or --max-nodes"), "{error}");
        let plan = planned(&elastic, "--max-nodes 4").expect("fits");
        assert_eq!(
            plan.patch,
            json!({"spec": {"elastic": {"minNodes": 1, "maxNodes": 4}}})
        );
        assert_eq!(
            plan.words,
            "digits uses the largest size that fits: 4, 2, 1 nodes"
        );
        let over = job(json!({"phase": "Failed", "attempt": 1}));
        assert!(planned(&over, "--nodes 4").is_err());
    }

    /// Scales a job that trains on two of three nodes; returns the error and whether the job was changed.
    async fn scaled(line: &str, may_list: bool) -> (Option<String>, bool) {
        let has_changed = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let changed = has_changed.clone();
        let gpu = json!({"nvidia.com/gpu": "1"});
        let nodes = ["node1", "node2", "node3"].map(|name| {
            json!({"metadata": {"name": name, "labels": {"nvidia.com/gpu.product": "Tesla-T4"}},
                "status": {"capacity": {"nvidia.com/gpu": "1", "cpu": "64", "memory": "512Gi", "pods": "110"},
                    "allocatable": {"nvidia.com/gpu": "1", "cpu": "64", "memory": "512Gi", "pods": "110"},
                    "conditions": [{"type": "Ready", "status": "True"}]}})
        });
        let pods = ["node1", "node2"].map(|node| {
            json!({"metadata": {"name": format!("digits-1-{node}"), "namespace": "research",
                    "labels": {"vit-operator.dev/job-name": "digits"}},
                "spec": {"nodeName": node, "containers": [{"name": "trainer", "resources": {"limits": gpu}}]},
                "status": {"phase": "Running"}})
        });
        let cluster = crate::mock::server(move |request| {
            use crate::mock::Answer;
            if request.method == "PATCH" {
                changed.store(true, std::sync::atomic::Ordering::Relaxed);
            }
            match request.path.as_str() {
                "/api/v1/nodes" | "/api/v1/pods" if !may_list => Answer::refusal(403, "not for you"),
                "/api/v1/nodes" => Answer::list(&nodes),
                "/api/v1/pods" => Answer::list(&pods),
                _ => Answer::json(&job(crate::fixtures::training())),
            }
        });
        let words = ["scale", "digits"].into_iter().chain(line.split_whitespace());
        let outcome = run(&cluster, &Line::parse_from(words).arguments).await;
        let error = outcome.err().map(|error| error.to_string());
        (error, has_changed.load(std::sync::atomic::Ordering::Relaxed))
    }

    #[tokio::test]
    async fn a_size_that_does_not_fit_does_not_stop_training() {
        let (error, has_changed) = scaled("--nodes 4", true).await;
        assert_eq!(
            error.as_deref(),
            Some(
                "job digits would stop training and wait: needs 4 x 1 identical nvidia.com/gpu: Tesla-T4 has 3 nodes \
                 with 1 free; --force scales it nevertheless"
            )
        );
        assert!(!has_changed, "it was changed");
        for line in ["--nodes 3", "--nodes 1", "--nodes 4 --force"] {
            assert_eq!(scaled(line, true).await, (None, true), "{line}");
        }
        assert_eq!(scaled("--nodes 4", false).await, (None, true), "unknown");
    }
}
