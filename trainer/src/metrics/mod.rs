//! Measurements of a rank, sent to the agent (Prometheus, progress) and to the JSONL log.

mod breakdown;
mod compute;
mod log;
mod observer;
pub(crate) mod prometheus;
mod reporter;
mod window;

use contract::gpu::GpuReading;
use contract::{Activity, FailureRecord, Progress};
use serde::{Deserialize, Serialize};
use torch_ext::{SyncCost, SyncTimes};

pub(crate) use log::LOG_NAME;
pub(crate) use observer::{Observer, RunShape};
pub(crate) use reporter::Reporter;

/// A line from a rank to its agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "kind")]
pub(crate) enum Report {
    Step(StepReport),
    /// The training loop starts an activity or makes progress in it; steps have a separate report.
    Activity {
        activity: Activity,
    },
    /// A checkpoint write starts or ends; only from rank 0. The writer sends it, since training may
    /// be waiting for a lost rank.
    Writing {
        under_way: bool,
    },
    /// A checkpoint is complete on storage and known to training; only from rank 0.
    Checkpoint(CheckpointCost),
    /// Progress of the run; only from rank 0.
    Progress(Progress),
    /// Another rank is lost: this one cannot continue, and may wait for it on a GPU.
    LostPeer {
        peer: u32,
    },
    Failed(FailureRecord),
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CheckpointCost {
    /// Seconds that training paused while values were copied.
    pub(crate) snapshot_seconds: f64,
    /// Seconds of writing while training continued.
    pub(crate) write_seconds: f64,
    pub(crate) bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StepReport {
    /// Steps finished, over all attempts.
    pub(crate) step: u64,
    /// Epochs finished.
    pub(crate) epoch: u32,
    /// Images of this rank; its share of images that ranks compute together.
    pub(crate) images: f64,
    /// Micro-batches of this rank.
    pub(crate) micro_batches: u32,
    /// Time by phase.
    pub(crate) phases: Phases,
    pub(crate) sync: SyncTimes,
    /// Seconds by which steps would have been shorter without this rank, since the last report.
    #[serde(default)]
    pub(crate) slowdown_seconds: f64,
    /// Mean loss over all ranks.
    pub(crate) loss: f64,
    /// Share of the running epoch's images classified correctly, over all ranks.
    pub(crate) train_accuracy: f64,
    pub(crate) learning_rate: f64,
    /// Loss scale for the next step; only with fp16.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) loss_scale: Option<f64>,
    /// Steps so far that were skipped because gradients overflowed fp16.
    #[serde(default)]
    pub(crate) skipped_steps: u64,
    /// Resident memory of this process, if `/proc` reports it.
    pub(crate) resident_bytes: Option<u64>,
    /// The state of the rank's GPU; `None` on the CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) device: Option<DeviceReport>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct DeviceReport {
    /// Peak memory of tensors, bytes.
    pub(crate) memory_peak_bytes: u64,
    /// Dense half-precision peak of its product, FLOP/s, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) peak_flops: Option<f64>,
    /// The driver's reading, after the first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reading: Option<GpuReading>,
}

/// Seconds of a step by phase, named as in [`contract::metrics::STEP_PHASES`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Phases {
    /// From images to tensors.
    pub(crate) data: f64,
    pub(crate) forward: f64,
    /// Without waiting for synchronization, like the forward pass.
    pub(crate) backward: f64,
    /// Waiting for collectives that every rank had started, mostly for reduced gradients.
    pub(crate) sync_exposed: f64,
    /// Waiting for ranks that had not started: mostly for the last rank's gradients.
    pub(crate) sync_straggler: f64,
    /// Checks, clipping, the optimizer, and host work until the next step.
    pub(crate) optimizer: f64,
}

impl Phases {
    /// In the order of [`contract::metrics::STEP_PHASES`].
    pub(crate) fn values(&self) -> [f64; 6] {
        let Self {
            data,
            forward,
            backward,
            sync_exposed,
            sync_straggler,
            optimizer,
        } = *self;
        [data, forward, backward, sync_exposed, sync_straggler, optimizer]
    }

    fn from_values([data, forward, backward, sync_exposed, sync_straggler, optimizer]: [f64; 6]) -> Self {
        Self {
            data,
            forward,
            backward,
            sync_exposed,
            sync_straggler,
            optimizer,
        }
    }

    /// The mean, if this is the sum over `count` steps.
    pub(crate) fn mean(&self, count: f64) -> Self {
        Self::from_values(self.values().map(|value| value / count))
    }

    /// The rank's own compute time until its last gradient was ready.
    pub(crate) fn compute(&self) -> f64 {
        self.data + self.forward + self.backward
    }

    pub(crate) fn sum(&self) -> f64 {
        self.values().iter().sum()
    }
}

impl std::ops::AddAssign for Phases {
    fn add_assign(&mut self, other: Self) {
        let (own, other) = (self.values(), other.values());
        *self = Self::from_values(std::array::from_fn(|phase| own[phase] + other[phase]));
    }
}

/// Seconds in the order of [`contract::metrics::SYNC_KINDS`].
fn sync_seconds(cost: &SyncCost) -> [f64; 3] {
    [cost.total, cost.exposed, cost.straggler]
}

/// Costs in the order of [`contract::metrics::SYNC_OPERATIONS`].
fn sync_operations(times: &SyncTimes) -> [SyncCost; 4] {
    [
        times.all_reduce,
        times.reduce_scatter,
        times.all_gather,
        times.all_to_all,
    ]
}

/// The current time, RFC 3339 in UTC.
fn now() -> String {
    jiff::Timestamp::now().to_string()
}

/// Resident memory of this process in bytes, from `/proc`.
pub(crate) fn resident_bytes() -> Option<u64> {
    bytes_of_status("VmRSS:")
}

/// Peak resident memory of this process in bytes, from `/proc`.
pub(crate) fn peak_resident_bytes() -> Option<u64> {
    bytes_of_status("VmHWM:")
}

fn bytes_of_status(field: &str) -> Option<u64> {
    let status = fs_err::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    use contract::metrics::{STEP_PHASES, SYNC_KINDS, SYNC_OPERATIONS};

    use super::*;

    #[test]
    fn values_come_in_the_order_of_their_names() {
        let phases = Phases {
            data: 0.0,
            forward: 1.0,
            backward: 2.0,
            sync_exposed: 3.0,
            sync_straggler: 4.0,
            optimizer: 5.0,
        };
        let json = serde_json::to_value(phases).expect("serializes");
        for (name, value) in STEP_PHASES.iter().zip(phases.values()) {
            assert_eq!(json[name], value, "{name}");
        }
        let cost = SyncCost {
            total: 1.0,
            exposed: 2.0,
            straggler: 3.0,
            bytes: 4,
            collectives: 5,
        };
        let json = serde_json::to_value(cost).expect("serializes");
        for (name, value) in SYNC_KINDS.iter().zip(sync_seconds(&cost)) {
            assert_eq!(json[name], value, "{name}");
        }
        let of_bytes = |bytes| SyncCost { bytes, ..cost };
        let times = SyncTimes {
            all: of_bytes(9),
            all_reduce: of_bytes(1),
            reduce_scatter: of_bytes(2),
            all_gather: of_bytes(3),
            all_to_all: of_bytes(4),
            waited_in_forward: 0.5,
        };
        let json = serde_json::to_value(times).expect("serializes");
        assert_eq!(json["bytes"], 9, "{json}");
        for (name, value) in SYNC_OPERATIONS.iter().zip(sync_operations(&times)) {
            assert_eq!(json[name]["bytes"], value.bytes, "{name}");
        }
        assert_eq!(
            serde_json::from_value::<SyncTimes>(json).expect("reads back"),
            times
        );
    }

    #[test]
    fn a_process_knows_its_memory() {
        let now = resident_bytes().expect("on Linux");
        assert!(now > 1024 * 1024);
        assert!(peak_resident_bytes().expect("on Linux") >= now);
    }
}
