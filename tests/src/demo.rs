//! The demo: a cluster with the operator, a data set, one manifest, and the results.

use std::io::{IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Result, bail, ensure};
use crds::{Phase, ViTTrainingJob, ViTTrainingJobSpec, ViTTrainingJobStatus, words};
use kube::{Api, Client};

use crate::{Cluster, ClusterConfig, ClusterName, cache, cluster, command, digits, operator, root, volumes};

/// Name of the demo's cluster.
const CLUSTER: &str = "demo";
/// Namespace of the job.
const NAMESPACE: &str = "default";
/// Name of the job in `examples/digits.yaml`.
const JOB: &str = "digits";
/// Lowest held-out accuracy of a successful demo.
const LEAST_ACCURACY: f64 = 0.975;
/// Time limit of the job.
const DEADLINE: Duration = Duration::from_secs(600);

/// The results.
struct Outcome {
    spec: ViTTrainingJobSpec,
    status: ViTTrainingJobStatus,
    /// Both from Prometheus; `None` if the job failed early.
    images_per_second: Option<f64>,
    sync_share: Option<f64>,
}

/// Recreates the cluster, trains, and prints the results. Fails unless the job succeeds with at
/// least `LEAST_ACCURACY`.
pub async fn up(started: SystemTime) -> Result<()> {
    let cluster = operator::cluster_with_operator(ClusterConfig::demo(name()?, 1)).await?;
    let outcome = match train(&cluster).await {
        Ok(outcome) => outcome,
        Err(error) => bail!("{error:#}\n\n{}", cluster.dump()),
    };
    print(&cluster, &outcome, started.elapsed().unwrap_or_default());
    let progress = outcome.status.progress.unwrap_or_default();
    ensure!(
        outcome.status.phase == Some(Phase::Succeeded),
        "the job did not succeed"
    );
    let accuracy = progress.validation_accuracy.unwrap_or_default();
    ensure!(
        accuracy >= LEAST_ACCURACY,
        "held-out accuracy {accuracy:.3} is below {LEAST_ACCURACY}"
    );
    Ok(())
}

/// Removes the demo's cluster and data.
pub fn down() -> Result<()> {
    let folder = folder()?;
    if folder.exists() {
        fs_err::remove_dir_all(&folder)?;
    }
    cluster::down(&name()?)
}

fn name() -> Result<ClusterName> {
    CLUSTER.parse()
}

/// Folder of the demo's data set and checkpoints.
fn folder() -> Result<PathBuf> {
    Ok(cache::directory()?.join("demo"))
}

async fn train(cluster: &Cluster) -> Result<Outcome> {
    let client = cluster.client();
    prepare(&client, &folder()?).await?;
    let manifest = root().join("examples/digits.yaml");
    say("kubectl apply -f examples/digits.yaml");
    let applied = Instant::now();
    command::run(
        cluster
            .kubectl()
            .args(["-n", NAMESPACE, "apply", "-f"])
            .arg(&manifest),
    )?;
    let (spec, status) = follow(&client).await?;

    let window = format!("{}s", applied.elapsed().as_secs() + 1);
    let selector = format!(r#"namespace="{NAMESPACE}",job_name="{JOB}""#);
    let last = |metric: &str, more: &str| format!("last_over_time({metric}{{{selector}{more}}}[{window}])");
    let step_seconds = last("vit_step_seconds_sum", "");
    let images_per_second = query(
        cluster,
        &format!(
            "sum({}) / max(sum by (rank) ({step_seconds}))",
            last("vit_images_total", "")
        ),
    )?;
    let waited = last("vit_sync_seconds_total", r#",kind=~"exposed|straggler""#);
    let sync_share = query(cluster, &format!("sum({waited}) / sum({step_seconds})"))?;
    Ok(Outcome {
        spec,
        status,
        images_per_second,
        sync_share,
    })
}

/// Creates the data set, an empty checkpoint folder, and claims for both.
async fn prepare(client: &Client, folder: &Path) -> Result<()> {
    fs_err::create_dir_all(folder)?;
    let data = folder.join("digits");
    digits::write(&data)?;
    let checkpoints = folder.join("checkpoints");
    if checkpoints.exists() {
        fs_err::remove_dir_all(&checkpoints)?;
    }
    volumes::restricted_namespace(client, NAMESPACE).await?;
    volumes::claim_folder(client, NAMESPACE, "digits", &data).await?;
    volumes::claim_folder(client, NAMESPACE, "checkpoints", &checkpoints).await
}

fn query(cluster: &Cluster, expression: &str) -> Result<Option<f64>> {
    let samples = cluster.query(expression)?;
    Ok(samples.first().map(|sample| sample.value))
}

/// Follows the job until it ends: a live line on a terminal, a line every few seconds otherwise.
async fn follow(client: &Client) -> Result<(ViTTrainingJobSpec, ViTTrainingJobStatus)> {
    let jobs: Api<ViTTrainingJob> = Api::namespaced(client.clone(), NAMESPACE);
    let live = std::io::stderr().is_terminal();
    let began = Instant::now();
    let mut poll = tokio::time::interval(Duration::from_millis(500));
    let mut shown = (String::new(), began);
    while began.elapsed() < DEADLINE {
        poll.tick().await;
        let job = jobs.get(JOB).await?;
        let Some(status) = job.status else {
            continue;
        };
        let line = progress_line(&status);
        if live {
            let _ = write!(std::io::stderr(), "\r\x1b[K{line}");
        } else if line != shown.0 && (shown.0.is_empty() || shown.1.elapsed() >= Duration::from_secs(3)) {
            say(&line);
            shown = (line, Instant::now());
        }
        if status.phase.is_some_and(Phase::is_terminal) {
            if live {
                say("");
            }
            return Ok((job.spec, status));
        }
    }
    bail!("the job has not finished after {} s", DEADLINE.as_secs())
}

fn progress_line(status: &ViTTrainingJobStatus) -> String {
    let phase = status.phase.map_or("Created", Phase::as_str);
    let Some(progress) = &status.progress else {
        let waits = status
            .condition("Placed")
            .filter(|placed| placed.status == "False");
        return match waits {
            Some(condition) if status.phase == Some(Phase::Pending) => {
                format!("{phase}: {}", condition.message)
            }
            _ => phase.to_owned(),
        };
    };
    let filled = usize::try_from(progress.percent.clamp(0, 100) / 5).unwrap_or_default();
    let mut line = format!(
        "{phase} [{}{}] {:>3}%  epoch {}/{}",
        "#".repeat(filled),
        ".".repeat(20 - filled),
        progress.percent,
        progress.epoch,
        progress.total_epochs
    );
    if let Some(loss) = progress.loss {
        line += &format!("  loss {loss:.3}");
    }
    if let Some(accuracy) = progress.validation_accuracy {
        line += &format!("  accuracy {accuracy:.3}");
    }
    if let Some(rate) = progress.images_per_second {
        line += &format!("  {rate:.0} images/s");
    }
    if let Some(share) = progress.sync_share {
        line += &format!("  sync {:.0}%", share * 100.0);
    }
    line
}

#[expect(clippy::print_stdout, reason = "the summary is the demo's result")]
fn print(cluster: &Cluster, outcome: &Outcome, took: Duration) {
    let Outcome {
        spec,
        status,
        images_per_second,
        sync_share,
    } = outcome;
    let phase = status.phase.map_or("Unknown", Phase::as_str);
    let progress = status.progress.clone().unwrap_or_default();
    let placement = status.placement.clone().unwrap_or_default();
    let group = placement.group.clone().unwrap_or_default();
    let accuracy = progress.validation_accuracy.unwrap_or_default();
    let images_per_second = images_per_second.unwrap_or_default();
    let sync_share = sync_share.unwrap_or_default();
    println!();
    println!(
        "{NAMESPACE}/{JOB}: {phase}, {} of {} steps, attempt {}",
        progress.step, progress.total_steps, status.attempt
    );
    if let Some(failure) = &status.last_failure {
        println!(
            "  failure    {} on {}: {}",
            failure.class,
            failure.node.as_deref().unwrap_or("-"),
            failure.message
        );
    }
    println!("  placed on  {} ({})", placement.nodes.join(", "), group.product);
    for rejected in &placement.rejected_groups {
        let why = words::rejects(spec, rejected, true);
        println!("  refused    {}: {why}", rejected.name());
    }
    println!("  accuracy   {accuracy:.4} held out");
    println!("  throughput {images_per_second:.0} images/s over all ranks (Prometheus)");
    println!(
        "  waiting    {:.1} % of step time for synchronization (Prometheus)",
        sync_share * 100.0
    );
    println!();
    println!("Explore:");
    println!("  export KUBECONFIG={}", cluster.kubeconfig().display());
    // The plugin is built into the same folder as this program.
    let program = std::env::current_exe().unwrap_or_default();
    let built = program.parent().unwrap_or(Path::new("")).display();
    println!("  export PATH={built}:{}:$PATH", cluster.binaries().folders());
    println!("  kubectl vit status {JOB}");
    println!("  kubectl describe vtj {JOB}");
    println!("  kubectl logs -l vit-operator.dev/node-rank=0");
    if let Ok(url) = cluster.prometheus_url() {
        println!("  Prometheus: {url}");
    }
    println!("Remove everything: make demo-down");
    println!();
    println!(
        "demo: {phase} accuracy={accuracy:.4} images_per_second={images_per_second:.1} sync_share={sync_share:.4} nodes={} seconds={}",
        placement.nodes.len(),
        took.as_secs()
    );
}

#[expect(clippy::print_stderr, reason = "progress does not belong to the result")]
fn say(line: &str) {
    eprintln!("{line}");
}
