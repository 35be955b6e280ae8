//! The lines of a run's `log.jsonl`, and the measurement in them.

use serde::Deserialize;

use crate::gpu::GpuReading;
use crate::{Activity, Epoch, GpuUse, Measurement, PhaseSeconds, RankSeconds};

/// What is wrong with a log.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// A line is not a valid record, or training diverged.
    #[error("line {line} of the log {reason}")]
    Line {
        /// From 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// Training has not started.
    #[error("the log has no line of kind start: training has not started")]
    NotStarted,
    /// The run has several attempts, whose times must not be mixed.
    #[error("the log has {attempts} attempts: a measurement needs an uninterrupted run")]
    SeveralAttempts {
        /// Lines of kind `start`.
        attempts: usize,
    },
    /// The run ended early, or is still running.
    #[error("the log ends at step {step} of {total}")]
    Unfinished {
        /// Steps done.
        step: u64,
        /// Steps of the run.
        total: u64,
    },
    /// All steps are warm-up.
    #[error(
        "no line of the log begins after a warm-up of {warmup} of the run's {total} steps: lower measure.warmupSteps, train longer, or make an external trainer start a line after the warm-up"
    )]
    OnlyWarmup {
        /// Steps of the run.
        total: u64,
        /// Steps to exclude.
        warmup: u64,
    },
}

/// A line of the log of `vit-trainer` or an external trainer.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", tag = "kind")]
pub enum LogRecord {
    /// An attempt starts training.
    Start {
        /// Completed optimizer steps.
        #[serde(default)]
        step: u64,
        /// Optimizer steps of the whole run.
        total_steps: u64,
        /// Number of ranks.
        world_size: u32,
        /// Images per step.
        global_batch_size: u64,
        /// Images per epoch.
        train_images: u64,
        /// Product name of the GPUs.
        device: Option<String>,
    },
    /// Means over some steps.
    Train(Box<LoggedSteps>),
    /// An evaluation on held-out images.
    Evaluation {
        /// Completed epochs.
        epoch: u32,
        /// Share of correctly classified images, 0..1.
        accuracy: f64,
    },
    /// The ranks' shares of a step changed.
    Shares {},
    /// A checkpoint is complete on storage.
    Checkpoint {
        /// Its optimizer steps.
        step: u64,
        /// Its path.
        path: String,
    },
    /// An external trainer's next activity.
    Activity {
        /// The activity.
        activity: Activity,
    },
}

/// Python writes these, which are not valid JSON.
const NO_NUMBERS: [&str; 3] = ["NaN", "-Infinity", "Infinity"];

impl LogRecord {
    /// Parses a line. Python's NaN and infinities become null.
    pub fn parse(line: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(line).or_else(|error| {
            if !NO_NUMBERS.iter().any(|name| line.contains(name)) {
                return Err(error);
            }
            let mut line = line.to_owned();
            for name in NO_NUMBERS {
                line = line.replace(name, "null");
            }
            serde_json::from_str(&line)
        })
    }

    /// Why a run with this record has no measurement.
    fn fault(&self) -> Option<String> {
        match self {
            Self::Start {
                world_size: ranks,
                global_batch_size: images,
                ..
            } if *ranks == 0 || *images == 0 => Some(format!(
                "has worldSize {ranks} and globalBatchSize {images}: both must be at least 1"
            )),
            Self::Train(line) if line.count > line.step => Some(format!(
                "has steps {} and step {}: steps must be at most step",
                line.count, line.step
            )),
            Self::Train(line) if line.step_seconds <= 0.0 => Some(format!(
                "has stepSeconds {}: must be above 0, the mean of its steps in seconds",
                line.step_seconds
            )),
            Self::Train(line) if line.loss.is_none() => {
                Some("has a loss that is not a finite number: training diverged".into())
            }
            _ => None,
        }
    }
}

/// Means over some steps of one epoch.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LoggedSteps {
    /// Epochs completed before these steps.
    pub epoch: u32,
    /// The last step.
    pub step: u64,
    /// Number of steps.
    #[serde(rename = "steps")]
    pub count: u64,
    /// Training loss; `None` if it was not finite.
    pub loss: Option<f64>,
    /// Share of the epoch's images so far that were classified correctly, 0..1.
    pub accuracy: f64,
    /// Mean seconds of a step.
    pub step_seconds: f64,
    /// Its phases; all zero if an external trainer does not log them.
    #[serde(default)]
    pub phases: PhaseSeconds,
    /// Compute times over all ranks.
    pub ranks: Option<RankSeconds>,
    /// Its collectives.
    #[serde(default)]
    pub sync: LoggedSync,
    /// Resident memory of rank 0's process.
    pub resident_bytes: Option<u64>,
    /// Peak memory of tensors on rank 0's GPU.
    pub device_memory_peak_bytes: Option<u64>,
    /// The driver's latest reading of rank 0's GPU.
    pub gpu: Option<GpuReading>,
}

/// Collectives of a step.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub struct LoggedSync {
    /// Seconds in which collectives ran.
    pub total: f64,
}

/// Reads a run's measurement from its log. Times exclude the first `warmup` steps, and with them
/// whole lines that are partly warm-up.
pub fn read_log(text: &str, warmup: u32) -> Result<Measurement, LogError> {
    let warmup = u64::from(warmup);
    let mut starts = Vec::new();
    let mut lines: Vec<LoggedSteps> = Vec::new();
    let mut evaluations = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        let invalid = |reason| LogError::Line {
            line: number + 1,
            reason,
        };
        let record = LogRecord::parse(line);
        let record = record.map_err(|error| invalid(format!("is not a valid record: {error}")))?;
        if let Some(reason) = record.fault() {
            return Err(invalid(reason));
        }
        match record {
            LogRecord::Start { .. } => starts.push(record),
            LogRecord::Train(steps) => lines.push(*steps),
            LogRecord::Evaluation { epoch, accuracy } => evaluations.push((epoch, accuracy)),
            LogRecord::Shares {} | LogRecord::Checkpoint { .. } | LogRecord::Activity { .. } => {}
        }
    }
    if starts.len() > 1 {
        return Err(LogError::SeveralAttempts {
            attempts: starts.len(),
        });
    }
    let Some(LogRecord::Start {
        total_steps,
        world_size,
        global_batch_size,
        train_images,
        device,
        ..
    }) = starts.pop()
    else {
        return Err(LogError::NotStarted);
    };
    let step = lines.last().map_or(0, |line| line.step);
    if step < total_steps {
        return Err(LogError::Unfinished {
            step,
            total: total_steps,
        });
    }
    let measured: Vec<&LoggedSteps> = lines
        .iter()
        .filter(|line| line.step - line.count >= warmup)
        .collect();
    let over = |value: fn(&LoggedSteps) -> f64| {
        let values = measured.iter().map(|line| (value(line), line.count));
        mean(values).ok_or(LogError::OnlyWarmup {
            total: total_steps,
            warmup,
        })
    };
    let step_seconds = over(|line| line.step_seconds)?;
    let on_device = lines.iter().filter_map(|line| line.device_memory_peak_bytes);
    let resident = lines.iter().filter_map(|line| line.resident_bytes);
    Ok(Measurement {
        world_size,
        global_batch_size,
        train_images,
        device,
        epochs: epochs(&lines, &evaluations),
        steps: measured.iter().map(|line| line.count).sum(),
        step_seconds,
        images_per_second: global_batch_size as f64 / step_seconds,
        phases: PhaseSeconds {
            data: over(|line| line.phases.data)?,
            forward: over(|line| line.phases.forward)?,
            backward: over(|line| line.phases.backward)?,
            sync_exposed: over(|line| line.phases.sync_exposed)?,
            sync_straggler: over(|line| line.phases.sync_straggler)?,
            optimizer: over(|line| line.phases.optimizer)?,
        },
        ranks: ranks(&measured),
        communication_seconds: over(|line| line.sync.total)?,
        memory_bytes: on_device.max().or_else(|| resident.max()),
        gpu: gpu_use(&measured),
        nodes: vec![],
        machine: None,
    })
}

/// The mean of values, each over a number of steps; `None` without any.
fn mean(values: impl Iterator<Item = (f64, u64)>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0), |(sum, count), (value, steps)| {
        (sum + value * steps as f64, count + steps)
    });
    (count > 0).then(|| sum / count as f64)
}

/// Means over these lines' steps; `None` if a line lacks them.
fn ranks(lines: &[&LoggedSteps]) -> Option<RankSeconds> {
    let ranks = lines.iter().map(|line| Some((line.ranks?, line.count)));
    let ranks: Vec<(RankSeconds, u64)> = ranks.collect::<Option<_>>()?;
    let over =
        |value: fn(&RankSeconds) -> f64| mean(ranks.iter().map(|(ranks, steps)| (value(ranks), *steps)));
    Some(RankSeconds {
        mean_compute_seconds: over(|ranks| ranks.mean_compute_seconds)?,
        slowest_compute_seconds: over(|ranks| ranks.slowest_compute_seconds)?,
    })
}

/// GPU use over these lines' steps; `None` if no line has a reading.
fn gpu_use(lines: &[&LoggedSteps]) -> Option<GpuUse> {
    let readings = || {
        lines
            .iter()
            .filter_map(|line| Some((line.gpu.as_ref()?, line.count)))
    };
    readings().next()?;
    let over = |value: fn(&GpuReading) -> Option<f64>| {
        mean(readings().filter_map(|(reading, steps)| Some((value(reading)?, steps))))
    };
    let temperatures = readings().filter_map(|(reading, _)| reading.temperature_celsius);
    Some(GpuUse {
        utilization: over(|reading| reading.utilization),
        memory_used_bytes: readings()
            .filter_map(|(reading, _)| reading.memory_used_bytes)
            .max(),
        temperature_celsius: temperatures.max_by(f64::total_cmp),
        power_watts: over(|reading| reading.power_watts),
        throttled: over(|reading| Some(f64::from(u8::from(!reading.throttled_by.as_ref()?.is_empty())))),
    })
}

/// A line never covers two epochs. Lines of steps count the epochs completed before them,
/// evaluations also the one just completed.
fn epochs(lines: &[LoggedSteps], evaluations: &[(u32, f64)]) -> Vec<Epoch> {
    let epoch = |lines: &[LoggedSteps]| {
        let number = lines[0].epoch;
        let seconds = lines.iter().map(|line| line.step_seconds * line.count as f64);
        let losses = lines
            .iter()
            .map(|line| (line.loss.unwrap_or_default(), line.count));
        let evaluation = evaluations
            .iter()
            .find(|(after, _)| after.checked_sub(1) == Some(number));
        Epoch {
            seconds: seconds.sum(),
            loss: mean(losses).unwrap_or_default(),
            train_accuracy: lines.last().map_or(0.0, |line| line.accuracy),
            validation_accuracy: evaluation.map(|(_, accuracy)| *accuracy),
        }
    };
    lines
        .chunk_by(|left, right| left.epoch == right.epoch)
        .map(epoch)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(total: u64) -> String {
        format!(
            r#"{{"time":"t","attempt":1,"kind":"start","step":0,"totalSteps":{total},"worldSize":2,"globalBatchSize":32,"trainImages":70}}"#
        )
    }

    fn train(epoch: u32, step: u64, steps: u64, seconds: f64) -> String {
        format!(
            r#"{{"time":"t","attempt":1,"kind":"train","epoch":{epoch},"step":{step},"steps":{steps},"loss":{step}.0,"accuracy":0.{step},"learningRate":0.1,"imagesPerSecond":1.0,"stepSeconds":{seconds},"phases":{{"data":0.1,"forward":{seconds},"backward":0.2,"sync_exposed":0.3,"sync_straggler":0.4,"optimizer":0.5}},"sync":{{"total":0.6,"exposed":0.3,"straggler":0.4,"bytes":500,"waited_in_forward":0.0}},"residentBytes":{}}}"#,
            1000 * step
        )
    }

    const EVALUATION: &str = r#"{"time":"t","attempt":1,"kind":"evaluation","epoch":1,"step":2,"correct":1,"images":4,"accuracy":0.25,"seconds":0.1}"#;
    const CHECKPOINT: &str = r#"{"time":"t","attempt":1,"kind":"checkpoint","step":2,"path":"p","snapshotSeconds":0.1,"writeSeconds":0.1,"bytes":3}"#;

    fn measured(lines: &[String], warmup: u32) -> Result<Measurement, LogError> {
        read_log(&lines.join("\n"), warmup)
    }

    fn whole() -> Vec<String> {
        vec![
            start(4),
            train(0, 1, 1, 9.0),
            train(0, 2, 1, 1.0),
            EVALUATION.into(),
            CHECKPOINT.into(),
            train(1, 4, 2, 3.0),
        ]
    }

    #[test]
    fn times_are_means_over_the_steps_after_the_warm_up() {
        let found = measured(&whole(), 1).expect("measured");
        let seconds = (1.0 + 2.0 * 3.0) / 3.0;
        assert_eq!(
            (found.world_size, found.steps, found.steps_per_epoch()),
            (2, 3, 2)
        );
        assert!(
            (found.step_seconds - seconds).abs() < 1e-12,
            "{}",
            found.step_seconds
        );
        assert!((found.phases.forward - seconds).abs() < 1e-12);
        assert!((found.images_per_second - 32.0 / seconds).abs() < 1e-9);
        assert!((found.epoch_seconds() - 2.0 * seconds).abs() < 1e-12);
        assert!((found.phases.compute() - 0.8 - seconds).abs() < 1e-12);
        assert!((found.phases.waiting() - 0.7).abs() < 1e-12);
        assert!((found.communication_seconds - 0.6).abs() < 1e-12);
        assert_eq!((found.memory_bytes, found.device), (Some(4000), None));
        // The first step of the last line is warm-up, so the whole line is excluded.
        assert_eq!(measured(&whole(), 2).expect("measured").steps, 2);
    }

    /// The whole run with another field in a line.
    fn tell(lines: &mut [String], line: usize, field: &str) -> Measurement {
        let end = lines[line].len() - 1;
        lines[line].insert_str(end, &format!(",{field}"));
        measured(lines, 1).expect("measured")
    }

    #[test]
    fn compute_times_over_all_ranks_are_means_if_every_line_has_them() {
        let mut lines = whole();
        let one = r#""ranks":{"meanComputeSeconds":1.0,"slowestComputeSeconds":2.0}"#;
        assert_eq!(tell(&mut lines, 2, one).ranks, None);
        // These lines have one step and two steps.
        let two = r#""ranks":{"meanComputeSeconds":4.0,"slowestComputeSeconds":8.0}"#;
        let expected = RankSeconds {
            mean_compute_seconds: 3.0,
            slowest_compute_seconds: 6.0,
        };
        assert_eq!(tell(&mut lines, 5, two).ranks, Some(expected));
    }

    #[test]
    fn what_the_driver_told_of_a_gpu_is_of_the_steps_after_the_warm_up() {
        let mut lines = whole();
        let warm_up =
            r#""gpu":{"utilization":0.0,"memoryUsedBytes":900,"temperatureCelsius":99,"powerWatts":9}"#;
        assert_eq!(tell(&mut lines, 1, warm_up).gpu, None);
        // These lines have one step and two steps.
        let one = r#""gpu":{"utilization":0.4,"memoryUsedBytes":600,"temperatureCelsius":70,"powerWatts":300,"throttledBy":["power_cap"]}"#;
        let two =
            r#""gpu":{"utilization":1.0,"memoryUsedBytes":500,"temperatureCelsius":60,"throttledBy":[]}"#;
        tell(&mut lines, 2, one);
        assert_eq!(
            tell(&mut lines, 5, two).gpu,
            Some(GpuUse {
                utilization: Some((0.4 + 2.0 * 1.0) / 3.0),
                memory_used_bytes: Some(600),
                temperature_celsius: Some(70.0),
                power_watts: Some(300.0),
                throttled: Some(1.0 / 3.0),
            })
        );
    }

    #[test]
    fn an_epoch_is_told_with_its_warm_up() {
        let found = measured(&whole(), 1).expect("measured");
        let [first, second] = &found.epochs[..] else {
            panic!("{:?}", found.epochs)
        };
        assert_eq!(
            (first.seconds, first.loss, first.train_accuracy),
            (10.0, 1.5, 0.2)
        );
        assert_eq!(
            (first.validation_accuracy, second.validation_accuracy),
            (Some(0.25), None)
        );
        assert_eq!((second.seconds, second.train_accuracy), (6.0, 0.4));
        assert!((found.mean_epoch_seconds() - 8.0).abs() < 1e-12);
    }

    #[test]
    fn what_is_no_whole_run_measures_nothing() {
        let trained = |from: &str, to: &str| vec![start(1), train(0, 1, 1, 1.0).replace(from, to)];
        let begun = |from: &str, to: &str| vec![start(1).replace(from, to)];
        for (lines, warmup, expected) in [
            (
                vec![],
                0,
                "the log has no line of kind start: training has not started",
            ),
            (whole()[..3].to_vec(), 0, "the log ends at step 2 of 4"),
            (vec![start(4)], 0, "the log ends at step 0 of 4"),
            ([whole(), whole()].concat(), 0, "the log has 2 attempts"),
            (
                whole(),
                3,
                "no line of the log begins after a warm-up of 3 of the run's 4 steps",
            ),
            (
                vec![start(1), train(0, 1, 2, 1.0)],
                0,
                "line 2 of the log has steps 2 and step 1: steps must be at most step",
            ),
            (
                trained("\"loss\":1.0", "\"loss\":NaN"),
                0,
                "line 2 of the log has a loss that is not a finite number: training diverged",
            ),
            (
                trained("\"stepSeconds\":1", "\"stepSeconds\":0"),
                0,
                "line 2 of the log has stepSeconds 0: must be above 0",
            ),
            (
                trained("\"stepSeconds\":1", "\"stepSeconds\":-1"),
                0,
                "line 2 of the log has stepSeconds -1",
            ),
            (
                begun("\"worldSize\":2", "\"worldSize\":0"),
                0,
                "line 1 of the log has worldSize 0 and globalBatchSize 32",
            ),
            (
                begun("\"globalBatchSize\":32", "\"globalBatchSize\":0"),
                0,
                "line 1 of the log has worldSize 2 and globalBatchSize 0",
            ),
            (trained("}", ""), 0, "line 2 of the log is not a valid record: "),
        ] {
            let message = measured(&lines, warmup).expect_err(expected).to_string();
            assert!(message.starts_with(expected), "{message}");
        }
    }
}
