//! `vit-trainer import-deepspeed`: converts a DeepSpeed configuration to a manifest. Every key
//! becomes a field, is listed as one without effect, or is refused by name.
//!
//! ```text
//!   ds_config.json + --set  ->  Section, from which keys are taken  ->  Findings  ->  base manifest with the fields in it
//! ```

mod batch;
mod document;
mod keys;
mod optimizer;
mod precision;
mod section;

use std::path::{Path, PathBuf};

use contract::ExitCode;
use crds::ViTTrainingJob;

use crate::error::TrainError;
use crate::manifest::in_words;
use crate::output::write_line;
use batch::Batch;
use document::Node;
use section::{Findings, Section};

/// Defaults for what a DeepSpeed configuration leaves to its script, from the study.
const BASE: &str = include_str!("base.yaml");

/// The command line of `import-deepspeed`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "A DeepSpeed configuration has no model, data, volumes or number of epochs: they come from --base, or from a template to fill in. Every key is converted, listed at the top as one without effect, or refused by name.\n\nExample: vit-trainer import-deepspeed ds_config.json --nodes 2 --gpus-per-node 4 --base job.yaml > new-job.yaml"
)]
pub(crate) struct Arguments {
    /// DeepSpeed configuration (JSON; # comments and trailing commas are accepted)
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Manifest of a ViTTrainingJob to add the fields to
    #[arg(long, value_name = "FILE")]
    base: Option<PathBuf>,
    /// Number of nodes, in place of the base's workers.nodes
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    nodes: Option<u32>,
    /// Number of GPUs per node, in place of the base's workers.gpusPerNode
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    gpus_per_node: Option<u32>,
    /// Number of epochs, in place of the base's training.epochs
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    epochs: Option<u32>,
    /// Number of training images, to turn a schedule's steps into epochs
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    train_images: Option<u64>,
    /// A key of the configuration to add or replace, such as optimizer.params.lr=1e-4
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
}

/// Prints the manifest. Returns the exit code.
pub(crate) fn main(arguments: &Arguments) -> Result<ExitCode, TrainError> {
    let text = read(&arguments.file)?;
    let base = arguments.base.as_deref().map(read).transpose()?;
    let (manifest, different) = import(&text, base.as_deref(), arguments)?;
    for note in different {
        tracing::warn!("{note}");
    }
    write_line(manifest.trim_end());
    Ok(ExitCode::Done)
}

fn read(path: &Path) -> Result<String, TrainError> {
    fs_err::read_to_string(path).map_err(|error| TrainError::Config(error.to_string()))
}

/// The manifest, and its differences from DeepSpeed.
fn import(
    text: &str,
    base: Option<&str>,
    arguments: &Arguments,
) -> Result<(String, Vec<String>), TrainError> {
    let name = arguments.file.display();
    let mut config: Node = serde_saphyr::from_str(&document::without_comments(text))
        .map_err(|error| TrainError::Config(format!("{name} cannot be read: {}", in_words(&error))))?;
    for assignment in &arguments.set {
        set(&mut config, assignment)?;
    }
    let Node::Map(entries) = config else {
        return Err(TrainError::Config(format!("{name} is not a JSON object")));
    };
    let base_name = arguments.base.as_ref().map(|path| path.display().to_string());
    let mut manifest: Node = serde_saphyr::from_str(base.unwrap_or(BASE)).map_err(|error| {
        let base = base_name.as_deref().unwrap_or("the template");
        TrainError::Config(format!("{base} cannot be read: {}", in_words(&error)))
    })?;
    for (path, value) in [
        ("nodes", arguments.nodes),
        ("gpusPerNode", arguments.gpus_per_node),
    ] {
        if let Some(value) = value {
            manifest.set(&["spec", "workers", path], Node::Integer(i64::from(value)));
        }
    }
    if let Some(epochs) = arguments.epochs {
        manifest.set(&["spec", "training", "epochs"], Node::Integer(i64::from(epochs)));
    }

    let mut findings = Findings::default();
    translate(Section::root(entries), &manifest, arguments, &mut findings);
    if !findings.errors.is_empty() {
        let errors = findings.errors.join("\n  ");
        return Err(TrainError::Config(format!(
            "{name} cannot be converted:\n  {errors}"
        )));
    }
    for (path, value, from) in findings.fields {
        let path: Vec<_> = std::iter::once("spec").chain(path).collect();
        let value = match value {
            Node::Map(_) => value,
            value => value.commented(from),
        };
        manifest.set(&path, value);
    }
    let yaml = write(&manifest)?;
    check(&yaml)?;
    let heading = heading(
        &arguments.file,
        base_name.as_deref(),
        &findings.without_effect,
        &findings.different,
    );
    Ok((format!("{heading}{yaml}"), findings.different))
}

/// Converts every key of the configuration.
fn translate(mut root: Section, manifest: &Node, arguments: &Arguments, findings: &mut Findings) {
    let workers = |name| manifest.get(&["spec", "workers", name]).and_then(Node::as_count);
    let world = workers("nodes").unwrap_or(1) * workers("gpusPerNode").unwrap_or(1);
    let batch = Batch::take(&mut root, world, findings);
    let epochs = optimizer::Epochs {
        images: arguments.train_images.or_else(|| images_of(manifest)),
        global_batch_size: batch.map(|batch| batch.global),
        given: arguments.epochs,
    };
    optimizer::take(&mut root, &epochs, manifest, findings);
    precision::take(&mut root, findings);
    sequence(&mut root, findings);
    zero(&mut root, findings);

    match root.number("gradient_clipping", findings) {
        Some(norm) if norm > 0.0 => {
            findings.number(&["training", "clipGradNorm"], norm, "gradient_clipping");
        }
        Some(_) => findings.without_effect.push("gradient_clipping: is off".into()),
        None => findings.different.push(
            "gradient_clipping: not in the file, so nothing is clipped; DeepSpeed clips at 1 since version 0.19.3, \
             which --set gradient_clipping=1 does here"
                .into(),
        ),
    }
    if let Some(breakdown) = root.flag("wall_clock_breakdown", findings) {
        findings.field(
            &["training", "wallClockBreakdown"],
            Node::Bool(breakdown),
            "wall_clock_breakdown",
        );
    }
    if let Some(operation) = root.text("gradient_allreduce_op", findings)
        && !["mean", "avg", "average"].contains(&operation.to_lowercase().as_str())
    {
        findings.refuse("gradient_allreduce_op", operation, "gradients are averaged");
    }
    root.finish(keys::TOP, findings);
}

/// Number of training images, if the format or the manifest determines it.
fn images_of(manifest: &Node) -> Option<u64> {
    match manifest.get(&["spec", "data", "format"])? {
        Node::Text(format) if format.starts_with("cifar") => Some(50_000),
        _ => manifest.get(&["spec", "data", "syntheticImages"])?.as_count(),
    }
}

/// Ranks that shard sequences share images, so this key changes the meaning of the batch sizes.
fn sequence(root: &mut Section, findings: &mut Findings) {
    match root.count("sequence_parallel_size", findings) {
        None => {}
        Some(0 | 1) => findings
            .without_effect
            .push("sequence_parallel_size: is off".into()),
        Some(ranks) => findings.refuse(
            "sequence_parallel_size",
            ranks,
            "it changes the meaning of the batch sizes: remove it, and set parallelism.sequence in the manifest",
        ),
    }
}

fn zero(root: &mut Section, findings: &mut Findings) {
    let Some(mut section) = root.section("zero_optimization", findings) else {
        return;
    };
    match section.count("stage", findings) {
        Some(0) | None => findings
            .without_effect
            .push("zero_optimization.stage: 0 is data parallelism, as here".into()),
        Some(stage @ 1..=3) => findings.field(
            &["parallelism", "zeroStage"],
            Node::Integer(stage.cast_signed()),
            "zero_optimization.stage",
        ),
        Some(stage) => findings.refuse("zero_optimization.stage", stage, "must be between 0 and 3"),
    }
    for what in [
        ("offload_optimizer", "cpu_offload", "optimizer"),
        ("offload_param", "cpu_offload_param", "parameters"),
    ] {
        offload(&mut section, what, findings);
    }
    section.finish(keys::ZERO, findings);
}

/// From its section, or from the older flag.
fn offload(zero: &mut Section, (key, flag, field): (&str, &str, &'static str), findings: &mut Findings) {
    let field = &["parallelism", "offload", field];
    if zero.flag(flag, findings) == Some(true) {
        findings.field(field, Node::Text("CPU".into()), zero.path_of(flag));
    }
    let path = zero.path_of(key);
    let Some(mut section) = zero.section(key, findings) else {
        return;
    };
    match section.text("device", findings).as_deref() {
        None | Some("none") => findings.without_effect.push(format!("{path}: is off")),
        Some("cpu") => findings.field(field, Node::Text("CPU".into()), format!("{path}.device")),
        Some(other) => findings.refuse(
            &format!("{path}.device"),
            other,
            "must be cpu or none: NVMe is not supported",
        ),
    }
    section.finish(keys::OFFLOAD, findings);
}

/// Sets KEY=VALUE in the configuration.
fn set(config: &mut Node, assignment: &str) -> Result<(), TrainError> {
    let wrong = |why: &str| TrainError::Config(format!("--set is {assignment:?}: {why}"));
    let (key, value) = assignment
        .split_once('=')
        .ok_or_else(|| wrong("must be KEY=VALUE"))?;
    if key.is_empty() || key.split('.').any(str::is_empty) {
        return Err(wrong("the key must be names separated by dots"));
    }
    let value = serde_saphyr::from_str(value).map_err(|error| wrong(&error.to_string()))?;
    config.set(&key.split('.').collect::<Vec<_>>(), value);
    Ok(())
}

fn write(manifest: &Node) -> Result<String, TrainError> {
    serde_saphyr::to_string(manifest)
        .map_err(|error| TrainError::Config(format!("the manifest cannot be written: {error}")))
}

/// Checks that the manifest is a valid job.
fn check(yaml: &str) -> Result<(), TrainError> {
    let wrong = |error: &dyn std::fmt::Display| {
        TrainError::Config(format!("the resulting manifest is invalid: {error}"))
    };
    let job: ViTTrainingJob = serde_saphyr::from_str(yaml).map_err(|error| wrong(&error))?;
    crds::validate(&job).map_err(|error| wrong(&error))?;
    Ok(())
}

/// The comments at the top of the manifest.
fn heading(file: &Path, base: Option<&str>, without_effect: &[String], different: &[String]) -> String {
    let mut heading = format!(
        "# Converted from {} by vit-trainer import-deepspeed. Fields with a comment come from its keys,\n# the others from {}.\n",
        file.display(),
        base.unwrap_or("a template: replace its model, data, epochs, image and volumes")
    );
    for (title, notes) in [
        ("Different here", different),
        ("Without effect here", without_effect),
    ] {
        if !notes.is_empty() {
            heading.push_str(&format!("#\n# {title}:\n"));
        }
        for note in notes {
            heading.push_str(&format!("#   {note}\n"));
        }
    }
    heading
}

#[cfg(test)]
mod tests;
