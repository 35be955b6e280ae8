//! `vit-trainer export`: a checkpoint's weights as one file that timm or torchvision loads.
//!
//! ```text
//!   checkpoint -> weights in 32 bits -> the library's names -> the wanted precision -> file
//! ```

mod describe;

use std::path::{Path, PathBuf};

use clap::builder::{PossibleValuesParser, TypedValueParser};
use contract::{ExitCode, Precision};
use serde_json::json;
use tch::{Kind, Tensor};

use crate::checkpoint::{SavedCheckpoint, WeightsKind, locate};
use crate::error::{Failure, TrainError, catching};
use crate::model::Naming;
use crate::output::write_line;
use crate::tensor_file::{self, Existing};
use describe::PythonModel;

const LARGEST_HALF: f64 = 65504.0;

/// The command line of `export`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The checkpoint's checksums are verified. No manifest is needed: a checkpoint describes its model. The weights are the optimizer's, in 32 bits, even if training.masterWeights is set and the model computes in half precision. Normalize images as in the job's data.normalization, which is not in the file.\n\nExample: vit-trainer export checkpoints/digits --output digits.safetensors\nExample: vit-trainer export checkpoints/cifar10/step-00019500 --ema --names torchvision --dtype bf16 --output cifar10.safetensors"
)]
pub(crate) struct Arguments {
    /// Folder of a checkpoint (step-<n>), or of a job's checkpoints to use the newest
    #[arg(value_name = "CHECKPOINT")]
    checkpoint: PathBuf,
    /// File to write
    #[arg(short = 'o', long, value_name = "FILE")]
    output: PathBuf,
    /// Library whose tensor names are used
    #[arg(long, value_enum, default_value = "timm")]
    names: Naming,
    /// Use the moving average of the weights (training.ema)
    #[arg(long)]
    ema: bool,
    /// Precision of the values
    #[arg(long, value_parser = precision(), default_value = "fp32")]
    dtype: Precision,
    /// Replace the file if it exists; without this, it is an error
    #[arg(long)]
    force: bool,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

fn precision() -> impl TypedValueParser<Value = Precision> {
    PossibleValuesParser::new(["fp32", "bf16", "fp16"])
        .map(|name| serde_json::from_value(name.into()).expect("the name of a precision"))
}

fn kind_of(precision: Precision) -> Kind {
    match precision {
        Precision::Fp32 => Kind::Float,
        Precision::Bf16 => Kind::BFloat16,
        Precision::Fp16 => Kind::Half,
    }
}

/// Why weights cannot be exported as asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExportError {
    #[error("{path} cannot have {naming}'s names: {naming}'s VisionTransformer has no {}; use --names timm", .lacks.join(", no "))]
    Names {
        path: PathBuf,
        naming: Naming,
        lacks: Vec<String>,
    },
    #[error("{name} has values that are not finite numbers: export an earlier checkpoint")]
    NotFinite { name: String },
    #[error(
        "{name} has a value of magnitude {largest:.3e}, above {LARGEST_HALF}, the maximum of fp16: use --dtype bf16 or fp32"
    )]
    Range { name: String, largest: f64 },
}

impl Failure for ExportError {
    fn exit_code(&self) -> ExitCode {
        ExitCode::BadConfig
    }
}

/// Exports, and prints how to load the file. Returns the exit code.
pub(crate) fn main(arguments: &Arguments) -> Result<ExitCode, TrainError> {
    catching(|| export(arguments))
}

fn export(arguments: &Arguments) -> Result<ExitCode, TrainError> {
    let Arguments {
        checkpoint,
        output,
        names,
        ema,
        dtype,
        force,
        json: _,
    } = arguments;
    let existing = if *force { Existing::Replace } else { Existing::Keep };
    existing.allows(output)?;
    let checkpoint = SavedCheckpoint::open(locate(checkpoint)?)?;
    let lacks = names.lacks(&checkpoint.state.model);
    if !lacks.is_empty() {
        return Err(ExportError::Names {
            path: checkpoint.path,
            naming: *names,
            lacks,
        }
        .into());
    }
    let kind = WeightsKind::of(*ema);
    let tensors = in_precision(
        checkpoint.weights(kind)?.named(*names, &checkpoint.state.model)?,
        *dtype,
    )?;
    let python = PythonModel::new(*names, &checkpoint.state.model);
    let metadata = describe::metadata(&checkpoint, kind, &python);
    let exported = Exported {
        bytes: tensor_file::save(output, &tensors, &metadata, existing)?,
        tensors: tensors.len(),
        parameters: tensors.iter().map(|(_, tensor)| tensor.numel()).sum(),
        checkpoint,
        kind,
        python,
    };
    if arguments.json {
        write_line(&exported.json(arguments));
    } else {
        exported.lines(arguments).iter().for_each(|line| write_line(line));
    }
    Ok(ExitCode::Done)
}

fn in_precision(
    tensors: Vec<(String, Tensor)>,
    dtype: Precision,
) -> Result<Vec<(String, Tensor)>, TrainError> {
    let converted = tensors.into_iter().map(|(name, tensor)| {
        let largest = tensor.f_abs()?.f_max()?.f_double_value(&[])?;
        if !largest.is_finite() {
            return Err(ExportError::NotFinite { name }.into());
        }
        if dtype == Precision::Fp16 && largest > LARGEST_HALF {
            return Err(ExportError::Range { name, largest }.into());
        }
        Ok((name, tensor.f_to_kind(kind_of(dtype))?))
    });
    converted.collect()
}

struct Exported {
    checkpoint: SavedCheckpoint,
    kind: WeightsKind,
    python: PythonModel,
    tensors: usize,
    parameters: usize,
    bytes: u64,
}

impl Exported {
    fn lines(&self, arguments: &Arguments) -> Vec<String> {
        let state = &self.checkpoint.state;
        let mut lines = vec![
            format!(
                "{}: the {} of step {} (epoch {}) in {}",
                state.job.name,
                self.kind,
                state.position.step,
                state.position.epoch,
                self.checkpoint.path.display()
            ),
            format!(
                "wrote {}: {} tensors of {} parameters under {}'s names, {}, {:.1} MB",
                arguments.output.display(),
                self.tensors,
                self.parameters,
                arguments.names,
                arguments.dtype,
                self.bytes as f64 / 1e6
            ),
            "in Python:".into(),
        ];
        let code = self.python.code(&absolute(&arguments.output));
        lines.extend(code.into_iter().map(|line| format!("  {line}")));
        lines
    }

    fn json(&self, arguments: &Arguments) -> String {
        let state = &self.checkpoint.state;
        json!({
            "path": arguments.output,
            "bytes": self.bytes,
            "tensors": self.tensors,
            "parameters": self.parameters,
            "names": arguments.names,
            "dtype": arguments.dtype,
            "weights": self.kind,
            "checkpoint": self.checkpoint.path,
            "step": state.position.step,
            "epoch": state.position.epoch,
            "model": self.python.name,
            "arguments": self.python.arguments(),
        })
        .to_string()
    }
}

/// A path that works from any folder.
fn absolute(path: &Path) -> String {
    std::path::absolute(path)
        .unwrap_or_else(|_| path.into())
        .display()
        .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_beyond_fp16_are_named_and_other_precisions_take_them() {
        let weight = |value: f32| vec![("head.bias".to_owned(), Tensor::from_slice(&[0.25, -value]))];
        for dtype in [Precision::Fp32, Precision::Bf16, Precision::Fp16] {
            let values = in_precision(weight(65504.0), dtype).expect("converts");
            assert_eq!(values[0].1.kind(), kind_of(dtype));
            assert!(
                (values[0].1.double_value(&[0]) - 0.25).abs() < f64::EPSILON,
                "{dtype}"
            );
        }
        in_precision(weight(7e4), Precision::Bf16).expect("converts");
        let error = in_precision(weight(7e4), Precision::Fp16).expect_err("refused");
        assert_eq!(
            error.to_string(),
            "head.bias has a value of magnitude 7.000e4, above 65504, the maximum of fp16: use --dtype bf16 or fp32"
        );
        assert_eq!(error.exit_code(), ExitCode::BadConfig);
        let error = in_precision(weight(f32::NAN), Precision::Fp32).expect_err("refused");
        assert!(
            error
                .to_string()
                .starts_with("head.bias has values that are not finite"),
            "{error}"
        );
    }
}
