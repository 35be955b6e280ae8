//! Measurements of a run.

mod columns;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Number, Value};

/// The measurements of one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Measurement {
    /// worldSize is the number of ranks.
    pub world_size: u32,
    /// globalBatchSize is the number of images of a step.
    pub global_batch_size: u64,
    /// trainImages is the number of images of an epoch.
    pub train_images: u64,
    /// device is the product of the GPUs; absent on CPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// epochs are all epochs, the first with its warmup, with one list per value.
    #[serde(with = "columns")]
    #[schemars(with = "columns::Columns")]
    pub epochs: Vec<Epoch>,
    /// steps is the number of steps after warmup; the following fields are means over them.
    pub steps: u64,
    /// stepSeconds is the time of a step of rank 0.
    pub step_seconds: f64,
    /// imagesPerSecond is the rate of training images over all ranks.
    pub images_per_second: f64,
    /// phases are the seconds of rank 0's step by phase.
    pub phases: PhaseSeconds,
    /// ranks are compute times over all ranks; absent for a single rank, and if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ranks: Option<RankSeconds>,
    /// communicationSeconds is the time per step with running collectives, hidden or not.
    pub communication_seconds: f64,
    /// memoryBytes is the peak of tensor memory on rank 0's GPU, or of its process without a GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// gpu has the driver's readings of rank 0's GPU, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<GpuUse>,
    /// nodes are the gang's nodes by node rank, if known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<String>,
    /// machine is rank 0's machine, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<Machine>,
}

/// An epoch of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Epoch {
    /// Seconds of its steps, without evaluation and checkpoints.
    pub seconds: f64,
    /// Mean training loss.
    pub loss: f64,
    /// Share of its training images classified right during training, 0..1.
    pub train_accuracy: f64,
    /// Share of held-out images classified right after it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation_accuracy: Option<f64>,
}

/// gpu has the driver's readings of rank 0's GPU during training. Unavailable values are absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GpuUse {
    /// utilization is the share of time with a running kernel, 0 to 1, mean over the steps after
    /// warmup.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub utilization: Option<f64>,
    /// memoryUsedBytes is the peak memory of all processes on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_used_bytes: Option<u64>,
    /// temperatureCelsius is the maximum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature_celsius: Option<f64>,
    /// powerWatts is the power of its board, mean over the steps after warmup.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_watts: Option<f64>,
    /// throttled is the share of readings with reduced clocks after warmup, 0 to 1, weighted by
    /// steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub throttled: Option<f64>,
}

/// phases are the seconds of a step by phase, named as in [`crate::metrics::STEP_PHASES`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct PhaseSeconds {
    /// data: images into tensors.
    pub data: f64,
    /// forward pass.
    pub forward: f64,
    /// backward pass, without waiting.
    pub backward: f64,
    /// sync_exposed is waiting for collectives that every rank had started.
    pub sync_exposed: f64,
    /// sync_straggler is waiting for ranks that had not started a collective.
    pub sync_straggler: f64,
    /// optimizer: checks, clipping, the optimizer, and the host's work between steps.
    pub optimizer: f64,
}

/// ranks are the seconds of a step in which ranks compute, from its start until the last gradient,
/// without waiting.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RankSeconds {
    /// meanComputeSeconds is the mean over the ranks that have images.
    pub mean_compute_seconds: f64,
    /// slowestComputeSeconds is the mean of each step's slowest rank.
    pub slowest_compute_seconds: f64,
}

/// machine is a rank's machine and trainer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Machine {
    /// processor is the product name of its processors.
    pub processor: String,
    /// processors is the number of usable processors.
    pub processors: usize,
    /// memoryBytes of the machine.
    pub memory_bytes: u64,
    /// trainer is the version of vit-trainer.
    pub trainer: String,
}

impl PhaseSeconds {
    /// Everything except waiting.
    pub fn compute(&self) -> f64 {
        self.data + self.forward + self.backward + self.optimizer
    }

    /// Waiting for synchronization, which DeepSpeed reports as `bwd_allreduce`.
    pub fn waiting(&self) -> f64 {
        self.sync_exposed + self.sync_straggler
    }
}

impl Measurement {
    /// Maximum number of epochs that fits a [`TerminationRecord`](crate::TerminationRecord).
    pub const MOST_EPOCHS: usize = 50;
    /// Maximum length in it of the product names of GPU and processor and of the trainer's version.
    const MOST_LETTERS: [usize; 3] = [56, 60, 16];
    /// Maximum share of a step outside all phases.
    const MOST_UNATTRIBUTED: f64 = 0.05;

    /// Whether the phases of a step are worth showing, given its seconds outside all of them.
    pub fn phases_cover(unattributed: f64, step: f64) -> bool {
        unattributed <= Self::MOST_UNATTRIBUTED * step
    }

    /// Seconds of a step outside all phases; other trainers may not report them.
    pub fn unattributed_seconds(&self) -> f64 {
        (self.step_seconds - self.phases.compute() - self.phases.waiting()).max(0.0)
    }

    /// Whether the phases cover nearly all of a step.
    pub fn phases_cover_step(&self) -> bool {
        Self::phases_cover(self.unattributed_seconds(), self.step_seconds)
    }

    /// Steps of an epoch; incomplete ones are dropped.
    pub fn steps_per_epoch(&self) -> u64 {
        self.train_images / self.global_batch_size.max(1)
    }

    /// Time of an epoch after warmup.
    pub fn epoch_seconds(&self) -> f64 {
        self.steps_per_epoch() as f64 * self.step_seconds
    }

    /// The mean over all epochs, including the first, as in the study that started this project.
    pub fn mean_epoch_seconds(&self) -> f64 {
        self.epochs.iter().map(|epoch| epoch.seconds).sum::<f64>() / self.epochs.len().max(1) as f64
    }

    /// Shortened: numbers to six digits, accuracies to five, names to their maximum length.
    #[must_use]
    pub fn rounded(mut self) -> Self {
        let [of_device, of_processor, of_trainer] = Self::MOST_LETTERS;
        let device = self.device.as_mut().map(|device| (device, of_device));
        let names = self.machine.as_mut().map(|machine| {
            [
                (&mut machine.processor, of_processor),
                (&mut machine.trainer, of_trainer),
            ]
        });
        for (name, most) in names.into_iter().flatten().chain(device) {
            *name = name.chars().take(most).collect();
        }
        let mut json = serde_json::to_value(&self).unwrap_or_default();
        round(&mut json, 6);
        serde_json::from_value(json).unwrap_or(self)
    }
}

/// Rounds numbers with decimals at any depth.
fn round(value: &mut Value, digits: usize) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                round(field, if name.ends_with("Accuracy") { 5 } else { digits });
            }
        }
        Value::Array(values) => values.iter_mut().for_each(|value| round(value, digits)),
        Value::Number(number) if number.is_f64() => {
            let value = number.as_f64().unwrap_or_default();
            let rounded = format!("{value:.*e}", digits - 1).parse();
            *number = rounded.ok().and_then(Number::from_f64).unwrap_or(number.clone());
        }
        _ => {}
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The longest possible measurement.
    pub(crate) fn longest() -> Measurement {
        // No time of six digits has more characters.
        let value = 0.000_012_345_67;
        let epoch = Epoch {
            seconds: 123_456.789,
            loss: 0.001_234_567,
            train_accuracy: 1.0 / 3.0,
            validation_accuracy: Some(2.0 / 3.0),
        };
        Measurement {
            world_size: u32::MAX,
            global_batch_size: u64::MAX,
            train_images: u64::MAX,
            device: Some("d".repeat(500)),
            epochs: vec![epoch; Measurement::MOST_EPOCHS],
            steps: u64::MAX,
            step_seconds: value,
            images_per_second: value,
            phases: PhaseSeconds {
                data: value,
                forward: value,
                backward: value,
                sync_exposed: value,
                sync_straggler: value,
                optimizer: value,
            },
            ranks: Some(RankSeconds {
                mean_compute_seconds: value,
                slowest_compute_seconds: value,
            }),
            communication_seconds: value,
            memory_bytes: Some(u64::MAX),
            gpu: Some(GpuUse {
                utilization: Some(1.0 / 3.0),
                memory_used_bytes: Some(u64::MAX),
                temperature_celsius: Some(100.0),
                power_watts: Some(1_234.567_89),
                throttled: Some(1.0 / 3.0),
            }),
            nodes: vec![],
            machine: Some(Machine {
                processor: "p".repeat(500),
                processors: usize::MAX,
                memory_bytes: u64::MAX,
                trainer: "v".repeat(500),
            }),
        }
    }

    #[test]
    fn a_measurement_reads_back_with_few_digits() {
        let rounded = longest().rounded();
        let json = serde_json::to_value(&rounded).expect("JSON");
        assert_eq!(json["epochs"]["trainAccuracy"][3], 0.333_33);
        assert_eq!(json["epochs"]["seconds"][3], 123_457.0);
        assert_eq!(json["epochs"]["loss"][0], 0.001_234_57);
        assert_eq!(
            serde_json::from_value::<Measurement>(json).expect("reads back"),
            rounded
        );
        let mut unevaluated = rounded;
        unevaluated.epochs.truncate(1);
        unevaluated.epochs[0].validation_accuracy = None;
        let json = serde_json::to_string(&unevaluated).expect("JSON");
        assert!(!json.contains("validation"), "{json}");
        assert_eq!(
            serde_json::from_str::<Measurement>(&json).expect("reads back"),
            unevaluated
        );
    }
}
