//! `vit-trainer eval`: classifies a job's held-out images with the weights of a checkpoint or a
//! file, in this process and in the job's precision.
//!
//! ```text
//!   manifest -> model <- weights of a checkpoint or a file
//!            -> held-out images -> logits -> counts -> lines or JSON
//! ```

mod progress;
mod report;
mod source;
mod tally;

use std::path::PathBuf;
use std::time::Instant;

use contract::{Device, ExitCode, OffloadTo, RunConfig};
use tch::{Kind, Tensor};

use crate::config;
use crate::data::{Classes, DataSet};
use crate::distributed::Accelerator;
use crate::error::{TrainError, catching};
use crate::evaluation::{Part, classify};
use crate::model::{Fit, VisionTransformer};
use crate::output::write_line;
use crate::parallel::TrainedWeights;
use crate::precision::Precision;
use crate::tensor_file::{self, Existing, Metadata};
use crate::{manifest, threads};
use progress::Display;
use report::Report;
use source::Source;
use tally::{Scores, Tally};

/// The command line of `eval`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit code 2 if the weights are not those of the manifest's model, 3 if the data set cannot be used, 78 if the loss is not a finite number, 79 if a checkpoint is damaged or a file cannot be written.\n\nExample: vit-trainer eval -f examples/digits.yaml --data target/digits --checkpoints /tmp/runs\nExample: vit-trainer eval -f job.yaml --data /data/imagenet --checkpoint vit_b_16.safetensors --json"
)]
pub(crate) struct Arguments {
    /// Manifest of a ViTTrainingJob, or - for standard input: the model, the data set, the precision
    #[arg(short = 'f', long = "file", value_name = "FILE")]
    manifest: PathBuf,
    /// Weights: the folder of a checkpoint (step-<n>) or of a job's checkpoints, or a safetensors file like model.pretrained's; the job's newest checkpoint if not given
    #[arg(long, value_name = "PATH", conflicts_with = "checkpoints")]
    checkpoint: Option<PathBuf>,
    /// Folder with the job's checkpoint folder, as for `run`
    #[arg(long, value_name = "DIR", default_value = "checkpoints")]
    checkpoints: PathBuf,
    /// Use the moving average of the weights (training.ema)
    #[arg(long)]
    ema: bool,
    /// Folder of the data set, in place of the manifest's volume
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Images per batch, in place of training.microBatchSize
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    batch_size: Option<u32>,
    /// Device of the tensors, in place of workers.device
    #[arg(long, value_parser = config::device())]
    device: Option<Device>,
    /// Also write each image's logits and label, in the data set's order, to this safetensors file, which must not exist
    #[arg(long, value_name = "FILE")]
    logits: Option<PathBuf>,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

/// Evaluates and prints the result. Returns the exit code.
pub(crate) fn main(arguments: &Arguments) -> Result<ExitCode, TrainError> {
    threads::use_all().map_err(TrainError::system("failed to start with all processors"))?;
    catching(|| eval(arguments))
}

fn eval(arguments: &Arguments) -> Result<ExitCode, TrainError> {
    let config = configure(arguments)?;
    if let Some(file) = &arguments.logits {
        Existing::Keep.allows(file)?;
    }
    let source = Source::find(
        arguments.checkpoint.as_deref(),
        &config.checkpoint.path,
        arguments.ema,
        &config.model,
    )?;
    let weights = source.weights()?;
    let accelerator = Accelerator::find(config.device, 0)?;
    let device = accelerator.device();
    let model = VisionTransformer::new(&config.model, config.training.seed, device);
    weights.load_into(&model, Fit::Exact)?;
    drop(weights);
    let precision = in_precision(&config, &model)?;
    let data = crate::data::load(&config, device)?.held_out(config.data.format)?;

    let start = Instant::now();
    let (scores, logits) = measure(&config, &model, precision, &data, arguments.logits.is_some())?;
    let report = Report {
        config: &config,
        source: &source,
        scores,
        held_out: data.len(),
        seconds: start.elapsed().as_secs_f64(),
        gpu: accelerator.identity()?.map(|gpu| gpu.product),
    };
    if let Some(file) = &arguments.logits {
        tensor_file::save(
            file,
            &logits,
            &Metadata::from([("format", "pt".into())]),
            Existing::Keep,
        )?;
    }
    if arguments.json {
        write_line(&report.json());
    } else {
        report.lines().iter().for_each(|line| write_line(line));
    }
    if scores.loss.is_finite() {
        return Ok(ExitCode::Done);
    }
    tracing::error!(
        "the loss is not a finite number: the weights of {} hold values that are not finite, or too large for the job's precision: try training.precision fp32, or an earlier checkpoint",
        source.path.display()
    );
    Ok(ExitCode::Diverged)
}

/// The manifest's job as one process, changed by the command line.
fn configure(arguments: &Arguments) -> Result<RunConfig, TrainError> {
    let mut config = manifest::read_config(
        &arguments.manifest,
        arguments.data.as_deref(),
        &arguments.checkpoints,
        None,
    )?;
    config.nodes = 1;
    config.ranks_per_node = 1;
    if let Some(device) = arguments.device {
        config.device = device;
    }
    if let Some(batch_size) = arguments.batch_size {
        config.training.micro_batch_size = batch_size;
    }
    Ok(config)
}

/// Converts the model to the job's precision for evaluation.
fn in_precision(config: &RunConfig, model: &VisionTransformer) -> Result<Precision, TrainError> {
    let precision = Precision::begin(&config.training)?;
    // With half-precision weights, only training needs the masters.
    drop(TrainedWeights::whole(
        model.parameters(),
        precision,
        OffloadTo::None,
    )?);
    Ok(precision)
}

/// Classifies all images. Returns their logits and labels if `keep_logits` is set.
fn measure(
    config: &RunConfig,
    model: &VisionTransformer,
    precision: Precision,
    data: &DataSet,
    keep_logits: bool,
) -> Result<(Scores, Vec<(String, Tensor)>), TrainError> {
    let display = Display::new(data.len());
    let mut tally = Tally::new(
        data.len(),
        Classes::of(&config.model, config.training.loss),
        data.device(),
    )?;
    let (mut logits, mut labels) = (Vec::new(), Vec::new());
    let part = Part {
        images: 0..data.len(),
        batch_size: config.training.micro_batch_size,
    };
    classify(model, precision, data, &part, |batch_logits, batch_labels| {
        tally.add(batch_logits, batch_labels)?;
        if keep_logits {
            logits.push(batch_logits.f_to_device(tch::Device::Cpu)?);
            labels.push(batch_labels.f_to_device(tch::Device::Cpu)?);
        }
        display.at(tally.images());
        Ok(())
    })?;
    let scores = tally.scores()?;
    display.end();
    let joined = |parts: &[Tensor]| Tensor::f_cat(parts, 0);
    let kept = if keep_logits {
        vec![
            ("logits".to_owned(), joined(&logits)?),
            ("labels".to_owned(), joined(&labels)?.f_to_kind(Kind::Int64)?),
        ]
    } else {
        Vec::new()
    };
    Ok((scores, kept))
}
