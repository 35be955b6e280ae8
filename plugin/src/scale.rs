//! `kubectl vit scale`: changes the number of nodes.

use crds::{ValidatedJob, ViTTrainingJob, validate};
use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::error::{Error, Exit};
use crate::kind::{JobName, end};
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
    Ok(Plan {
        patch,
        words,
        note,
        sizes,
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
        && status.phase == Some(crds::Phase::Running)
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
}
