//! `kubectl vit run`: a job from flags.

mod defaults;
mod manifest;

use contract::progress_line::significant;
use crds::{Stored, ValidatedJob, ViTTrainingJob, validate};
use kube::api::PostParams;

use crate::cluster::{Cluster, Connection, FIELD_MANAGER};
use crate::error::{Error, Exit};
use crate::kind::{JobName, Name};
use crate::output::{self, Format, print, report};
use crate::summary;
use crate::text::{counted, wrapped};
use crate::wait::Timeout;
use crate::watch;
use manifest::Job;

/// Columns of comments in a manifest.
const COMMENT: usize = 110;

/// Create a job from flags, or print its manifest
///
/// The operator's rules are applied before the job is sent. Other fields keep the API's defaults; --dry-run=client prints
/// the manifest with every default that applies, and what it means. --set sets fields without a flag.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  kubectl vit run cifar10 --image registry.example.com/vit/vit-trainer:0.1.0 --model vit_tiny_patch16_224 \\\n    --format cifar10 --data pvc:cifar10 --epochs 5 --micro-batch-size 64 --nodes 2 --checkpoints pvc:checkpoints\n  kubectl vit run try --image vit-trainer:dev --model vit_tiny_patch16_224 --format synthetic --synthetic-images 512 \\\n    --classes 10 --epochs 1 --micro-batch-size 16 --checkpoints pvc:checkpoints --dry-run=client > try.yaml"
)]
pub(crate) struct Arguments {
    #[command(flatten)]
    job: Job,
    /// Print the manifest without creating the job: client explains the defaults; server shows what the API server would
    /// store
    #[arg(long, value_enum, value_name = "HOW", num_args = 0..=1, default_missing_value = "client", require_equals = true)]
    dry_run: Option<DryRun>,
    /// Output format; YAML for a dry run by default
    #[arg(short, long, value_enum)]
    output: Option<Format>,
    /// Follow the job until it is over, as watch does; the exit code reports how it ended
    #[arg(short, long, conflicts_with = "dry_run")]
    watch: bool,
    #[command(flatten)]
    timeout: Timeout,
}

/// Where a dry run is evaluated.
#[derive(Clone, Copy, Debug, Eq, PartialEq, clap::ValueEnum)]
enum DryRun {
    /// This program
    Client,
    /// The API server
    Server,
}

pub(crate) async fn run(connection: &Connection, arguments: &Arguments) -> Result<Exit, Error> {
    if arguments.dry_run == Some(DryRun::Client) {
        // Needs no cluster; if one is configured, it provides the namespace.
        let namespace = match Cluster::connect(connection).await {
            Ok(cluster) => Some(cluster.namespace().to_owned()),
            Err(_) => connection.namespace.clone(),
        };
        let made = make(&arguments.job, namespace.as_deref())?;
        print_manifest(&made, arguments.output.unwrap_or(Format::Yaml))?;
        return Ok(Exit::Done);
    }
    let cluster = Cluster::connect(connection).await?;
    let made = make(&arguments.job, Some(cluster.namespace()))?;
    let params = PostParams {
        dry_run: arguments.dry_run.is_some(),
        field_manager: Some(FIELD_MANAGER.into()),
    };
    let name = &arguments.job.name;
    // Boxed, because jobs are large.
    let sent = Box::new(Stored::from(made.job.clone()));
    let created = match cluster.api::<ViTTrainingJob>().create(&params, &sent).await {
        Ok(created) => created.0?,
        Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => {
            return Err(exists(&cluster, name).await);
        }
        Err(error) => return Err(cluster.error(&format!("create job {name}"), error)),
    };
    if arguments.dry_run.is_some() {
        output::one(created, arguments.output.unwrap_or(Format::Yaml))?;
        return Ok(Exit::Done);
    }
    match arguments.output {
        Some(format) => output::one(created, format)?,
        None => print(&format!("{} created\n", name.qualified()))?,
    }
    report(&summary(&made.valid));
    if arguments.watch {
        return watch::follow_job(&cluster, name, arguments.timeout).await;
    }
    let watch = cluster.place().vit(&format!("watch {name}"));
    report(&format!("follow it with {watch}"));
    Ok(Exit::Done)
}

/// A job built from flags.
#[derive(Debug)]
struct Made {
    /// The manifest without defaults.
    given: serde_json::Value,
    job: ViTTrainingJob,
    valid: ValidatedJob,
}

fn make(asked: &Job, namespace: Option<&str>) -> Result<Made, Error> {
    let given = manifest::build(asked, namespace)?;
    let job: ViTTrainingJob = serde_path_to_error::deserialize(&given)
        .map_err(|error| Error::Usage(format!("{}: {}", error.path(), error.inner())))?;
    let valid = validate(&job)?;
    Ok(Made { given, job, valid })
}

async fn exists(cluster: &Cluster, name: &JobName) -> Error {
    let state = match cluster.api::<ViTTrainingJob>().get(name.as_str()).await {
        Ok(Stored(Ok(job))) => format!(", and is {}", summary::summary(&job)),
        _ => String::new(),
    };
    Error::Refused {
        doing: format!("create job {name}"),
        message: format!(
            "there is one of that name in namespace {}{state}; choose another name, or delete it first",
            cluster.namespace()
        ),
    }
}

fn print_manifest(made: &Made, format: Format) -> Result<(), Error> {
    if format == Format::Yaml {
        return print(&explained(made)?);
    }
    output::object(&made.given, &[Name::from_object(&made.job).qualified()], format)
}

/// The manifest as YAML, with a summary and every default that applies as comments.
fn explained(made: &Made) -> Result<String, Error> {
    let comment = |text: &str, indent| {
        let text = wrapped(text, COMMENT, indent);
        text.lines().map(|line| format!("# {line}\n")).collect::<String>()
    };
    let mut text = comment(&summary(&made.valid), 0);
    text += &serde_saphyr::to_string(&made.given)?;
    text += "#\n# Defaults that apply, and what they mean (details: kubectl explain vtj.spec):\n#\n";
    for default in defaults::of(&made.given) {
        text += &comment(
            &format!("{}: {}  ({})", default.field, default.value, default.meaning),
            4,
        );
    }
    Ok(text)
}

/// Facts that follow from several fields.
fn summary(valid: &ValidatedJob) -> String {
    let config = &valid.run_config;
    let training = &config.training;
    let ranks = counted(config.world_size(), "rank");
    let mut text = format!(
        "{}: {} x {} = {ranks}, {} images a step ({} x {} accumulated x {ranks}), {}",
        config.job.name,
        counted(config.nodes, "node"),
        counted(config.ranks_per_node, "GPU"),
        config.global_batch_size(),
        training.micro_batch_size,
        training.gradient_accumulation_steps,
        counted(training.epochs, "epoch"),
    );
    text += &format!(
        "; images of {0} x {0} of {1} classes, checkpoints in {2}",
        config.model.image_size,
        config.model.num_classes,
        config.checkpoint.path.display()
    );
    if let [most, .., least] = valid.sizes.as_slice() {
        text += &format!("; elastic, on {least} to {most} nodes");
    }
    let peak = training.peak_learning_rate(config.global_batch_size());
    text + &format!("; learning rate {} at its peak", significant(peak))
}

#[cfg(test)]
mod tests;
