//! The measurements of all ranks as one result.

use std::collections::{BTreeMap, BTreeSet};

use contract::gpu::peak_flops;
use contract::{ExitCode, RunConfig};
use serde::Serialize;

use super::buckets::Buckets;
use super::input::Input;
use crate::error::Failure;
use crate::train::{Distribution, RankResult};

/// Operators of a step after which the host waits for its device.
#[derive(Debug, thiserror::Error)]
#[error("a step makes the host wait for its device, in {operators}: no step may read a value on the host")]
pub(super) struct HostStops {
    operators: String,
}

impl Failure for HostStops {
    fn exit_code(&self) -> ExitCode {
        ExitCode::Other(1)
    }
}

/// `host_stops` has each rank's operators and how often they were called.
fn require_none<'a>(host_stops: impl Iterator<Item = &'a BTreeMap<String, u64>>) -> Result<(), HostStops> {
    let operators: BTreeSet<&str> = host_stops
        .flat_map(|of_rank| of_rank.keys().map(String::as_str))
        .collect();
    if operators.is_empty() {
        return Ok(());
    }
    Err(HostStops {
        operators: operators.into_iter().collect::<Vec<_>>().join(", "),
    })
}

#[derive(Debug, Serialize)]
pub(super) struct Summary {
    device: String,
    world_size: u32,
    /// Images of one rank's step, or of a step of the ranks that compute a model together.
    batch: u64,
    images_per_second: f64,
    step_ms: Distribution,
    exposed_sync_share: Option<f64>,
    exposed_sync_share_in_place: f64,
    seconds_to_first_step: f64,
    /// Maximum of all ranks.
    peak_rss_bytes: Option<u64>,
    /// Maximum of all ranks.
    peak_device_bytes: Option<u64>,
    flops_per_image: f64,
    /// Model FLOPs utilization: share of the GPU's dense half-precision peak.
    mfu: Option<f64>,
    /// If threads of the host prepare batches.
    input: Option<Input>,
    /// Bandwidth of the links between ranks.
    buckets: Option<Buckets>,
    ranks: Vec<RankResult>,
}

impl Summary {
    /// `ranks` holds every rank's result. Step times are rank 0's: ranks wait for one another.
    pub(super) fn new(config: &RunConfig, ranks: Vec<RankResult>, link_gigabits: Option<f64>) -> Self {
        let first = &ranks[0];
        let images_per_second = ranks.iter().map(|rank| rank.images_per_second).sum();
        let flops_per_image = config.model.flops_per_image();
        let peak = first.gpu.as_deref().and_then(peak_flops);
        Self {
            device: first.gpu.clone().unwrap_or_else(|| "cpu".into()),
            world_size: config.world_size(),
            batch: config.global_batch_size() / u64::from(config.replicas()),
            images_per_second,
            step_ms: first.step_ms,
            exposed_sync_share: first.exposed_sync_share,
            exposed_sync_share_in_place: first.exposed_sync_share_in_place,
            seconds_to_first_step: first.seconds_to_first_step,
            peak_rss_bytes: ranks.iter().filter_map(|rank| rank.peak_rss_bytes).max(),
            peak_device_bytes: ranks.iter().filter_map(|rank| rank.peak_device_bytes).max(),
            flops_per_image,
            mfu: peak
                .map(|peak| images_per_second * flops_per_image / (peak * f64::from(config.world_size()))),
            input: Input::new(&ranks, config.global_batch_size()),
            buckets: Buckets::new(&first.buckets, link_gigabits),
            ranks,
        }
    }

    /// Operators of all ranks.
    fn host_stops(&self) -> String {
        self.require_no_host_stops()
            .err()
            .map_or_else(|| "none".into(), |stops| stops.operators)
    }

    /// An error if a rank's step makes the host wait.
    pub(super) fn require_no_host_stops(&self) -> Result<(), HostStops> {
        require_none(self.ranks.iter().map(|rank| &rank.host_stops))
    }

    pub(super) fn table(&self, config: &RunConfig) -> String {
        let megabytes = |bytes: Option<u64>| {
            bytes.map_or_else(
                || "unknown".into(),
                |bytes| format!("{:.0} MB", bytes as f64 / 1e6),
            )
        };
        let percent = |share: Option<f64>| {
            share.map_or_else(
                || "not measured".into(),
                |share| format!("{:.1} %", share * 100.0),
            )
        };
        let model = &config.model;
        let mut rows = vec![
            (
                "model",
                format!(
                    "{} px, patch {}, width {}, depth {}, {} heads",
                    model.image_size, model.patch_size, model.hidden_size, model.depth, model.heads
                ),
            ),
            (
                "ranks",
                format!("{} x {} images on {}", self.world_size, self.batch, self.device),
            ),
            ("images/s", format!("{:.1}", self.images_per_second)),
            (
                "step ms p50 p90 p99",
                format!(
                    "{:.1} {:.1} {:.1}",
                    self.step_ms.p50, self.step_ms.p90, self.step_ms.p99
                ),
            ),
            (
                "exposed sync, in place",
                percent(Some(self.exposed_sync_share_in_place)),
            ),
            ("exposed sync, difference", percent(self.exposed_sync_share)),
            (
                "seconds to first step",
                format!("{:.2}", self.seconds_to_first_step),
            ),
            ("host stops of a step", self.host_stops()),
            ("peak resident memory", megabytes(self.peak_rss_bytes)),
        ];
        if self.peak_device_bytes.is_some() {
            rows.push(("peak device memory", megabytes(self.peak_device_bytes)));
        }
        if self.mfu.is_some() {
            rows.push(("MFU", percent(self.mfu)));
        }
        if let Some(input) = &self.input {
            rows.extend(input.rows());
        }
        let mut lines: Vec<String> = rows
            .into_iter()
            .map(|(name, value)| format!("{name:<26}{value}"))
            .collect();
        lines.push(String::new());
        lines.push(
            "rank   images/s  data ms  forward  backward  exposed  straggler  optimizer  step p99".into(),
        );
        for rank in &self.ranks {
            let [data, forward, backward, exposed, straggler, optimizer] =
                rank.phases.values().map(|seconds| seconds * 1e3);
            lines.push(format!(
                "{:<4}{:>11.1}{data:>9.1}{forward:>9.1}{backward:>10.1}{exposed:>9.1}{straggler:>11.1}{optimizer:>11.1}{:>10.1}",
                rank.rank, rank.images_per_second, rank.step_ms.p99
            ));
        }
        lines.extend(self.buckets.iter().flat_map(Buckets::lines));
        lines.join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_that_makes_one_rank_wait_is_an_error_that_names_the_operators() {
        let none = BTreeMap::new();
        require_none([&none, &none].into_iter()).expect("nobody waits");
        let some = BTreeMap::from([("aten::nonzero".to_owned(), 2), ("aten::equal".to_owned(), 1)]);
        let error = require_none([&none, &some].into_iter()).expect_err("one waits");
        assert!(
            error.to_string().contains("in aten::equal, aten::nonzero:"),
            "{error}"
        );
        assert_eq!(error.exit_code(), ExitCode::Other(1));
    }
}
