//! Files between `vit-trainer bench` and its ranks: a plan that the environment names, and beside
//! it a result per rank.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use torch_ext::{Arithmetic, SyncTimes};

use crate::data::StageSeconds;
use crate::distributed::BucketTime;
use crate::error::TrainError;
use crate::metrics::Phases;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Plan {
    pub(crate) warmup_steps: u32,
    /// Measured steps, one right after the other.
    pub(crate) steps: u32,
    /// Pairs of steps after them, with and without a gradient reduction.
    pub(crate) pairs: u32,
    /// Whether the step that counts operators fails if the host would wait for a GPU.
    pub(crate) forbid_host_stops: bool,
    /// Sizes of gradient buckets for timed all-reduces after them, bytes.
    pub(crate) buckets: Vec<u64>,
    /// Where rank 0 writes a trace of one step after all measured ones.
    pub(crate) trace: Option<PathBuf>,
    /// When the command was started, seconds since 1970.
    pub(crate) started: f64,
    pub(crate) folder: PathBuf,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct RankResult {
    pub(crate) rank: u32,
    pub(crate) images_per_second: f64,
    pub(crate) step_ms: Distribution,
    pub(crate) phases: Phases,
    pub(crate) sync: SyncTimes,
    /// All-reduces with nothing else running, the same on every rank.
    pub(crate) buckets: Vec<BucketTime>,
    /// If host threads prepare batches.
    pub(crate) input: Option<InputAlone>,
    /// Share of a step spent waiting for gradients that all ranks had ready, timed inside it.
    pub(crate) exposed_sync_share_in_place: f64,
    /// Share of a step saved without a gradient reduction: medians of the paired steps.
    pub(crate) exposed_sync_share: Option<f64>,
    /// From the start of the command to the end of the first step.
    pub(crate) seconds_to_first_step: f64,
    /// How often the host waits for the device in a step, by operator. The CPU runs the same
    /// operators without waiting.
    pub(crate) host_stops: BTreeMap<String, u64>,
    /// Settings of libtorch for a GPU.
    pub(crate) arithmetic: Arithmetic,
    pub(crate) peak_rss_bytes: Option<u64>,
    pub(crate) peak_device_bytes: Option<u64>,
    /// The GPU's product name; `None` on the CPU.
    pub(crate) gpu: Option<String>,
}

/// Speed of a rank's threads that prepare batches, without a model.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct InputAlone {
    pub(crate) threads: usize,
    pub(crate) images_per_second: f64,
    /// Of one thread.
    pub(crate) seconds_per_image: StageSeconds,
}

/// Order statistics of durations, milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Distribution {
    pub(crate) mean: f64,
    pub(crate) p50: f64,
    pub(crate) p90: f64,
    pub(crate) p99: f64,
}

impl Distribution {
    /// From at least one duration in seconds.
    pub(crate) fn from_seconds(seconds: &[f64]) -> Self {
        let mut sorted = seconds.to_vec();
        sorted.sort_by(f64::total_cmp);
        // The smallest value that is at least as large as `share` of all values.
        let percentile = |share: f64| {
            let rank = (share * sorted.len() as f64).ceil() as usize;
            sorted[rank.clamp(1, sorted.len()) - 1] * 1e3
        };
        Self {
            mean: seconds.iter().sum::<f64>() / seconds.len() as f64 * 1e3,
            p50: percentile(0.5),
            p90: percentile(0.9),
            p99: percentile(0.99),
        }
    }
}

impl Plan {
    /// Environment variable with the path of the plan; a rank that has it measures instead of training.
    pub(crate) const VARIABLE: &str = "VIT_BENCH_PLAN";

    /// The plan that the environment names; `None` if this rank is to train.
    pub(crate) fn from_environment() -> Result<Option<Self>, TrainError> {
        let Some(path) = std::env::var_os(Self::VARIABLE) else {
            return Ok(None);
        };
        let plan = fs_err::read(Path::new(&path))
            .and_then(|bytes| serde_json::from_slice(&bytes).map_err(std::io::Error::other))
            .map_err(TrainError::system("failed to read the plan of the benchmark"))?;
        Ok(Some(plan))
    }

    /// Writes the plan for the ranks. Returns its path.
    pub(crate) fn write(&self) -> Result<PathBuf, TrainError> {
        let path = self.folder.join("plan.json");
        write_json(&path, self).map_err(TrainError::system("failed to write the plan of the benchmark"))?;
        Ok(path)
    }

    pub(crate) fn report(&self, result: &RankResult) -> Result<(), TrainError> {
        write_json(&self.result(result.rank), result)
            .map_err(TrainError::system("failed to write the measurements"))
    }

    /// The results of all ranks, by rank.
    pub(crate) fn results(&self, ranks: u32) -> Result<Vec<RankResult>, TrainError> {
        let read = |rank| {
            let bytes = fs_err::read(self.result(rank))?;
            serde_json::from_slice(&bytes).map_err(std::io::Error::other)
        };
        let results: std::io::Result<Vec<RankResult>> = (0..ranks).map(read).collect();
        results.map_err(TrainError::system("failed to read the measurements of a rank"))
    }

    fn result(&self, rank: u32) -> PathBuf {
        self.folder.join(format!("rank-{rank}.json"))
    }
}

fn write_json(path: &Path, value: &impl Serialize) -> std::io::Result<()> {
    fs_err::write(path, serde_json::to_vec(value).map_err(std::io::Error::other)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occurred() {
        let seconds: Vec<f64> = (1..=10).rev().map(f64::from).collect();
        let of_ten = Distribution::from_seconds(&seconds);
        assert_eq!(
            of_ten,
            Distribution {
                mean: 5500.0,
                p50: 5000.0,
                p90: 9000.0,
                p99: 10_000.0
            }
        );
        assert_eq!(
            Distribution::from_seconds(&[0.5]),
            Distribution::from_seconds(&[0.5, 0.5])
        );
    }

    #[test]
    fn a_plan_and_its_results_read_back() {
        let folder = tempfile::tempdir().expect("a folder");
        let plan = Plan {
            warmup_steps: 1,
            steps: 2,
            pairs: 3,
            forbid_host_stops: true,
            buckets: vec![1_048_576],
            trace: Some("trace.json".into()),
            started: 4.5,
            folder: folder.path().into(),
        };
        let path = plan.write().expect("writes");
        let read: Plan = serde_json::from_slice(&fs_err::read(path).expect("reads")).expect("a plan");
        assert_eq!(read, plan);
        let error = plan.results(1).expect_err("nobody measured yet").to_string();
        assert!(error.contains("rank-0.json"), "{error}");
    }
}
