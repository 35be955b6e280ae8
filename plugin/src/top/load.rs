//! The resource usage of ranks, from their agents' metrics.

use std::collections::BTreeMap;

use contract::metrics::{
    DEVICE_MEMORY_USED_BYTES, DEVICE_POWER_WATTS, DEVICE_TEMPERATURE_CELSIUS, DEVICE_THROTTLED,
    DEVICE_UTILIZATION_RATIO, IMAGES_TOTAL, LABEL_RANK, LABEL_REASON,
};
use crds::ViTTrainingJob;
use serde::Serialize;

use crate::exposition::{label, sample};
use crate::gang::Member;
use crate::step_times::StepTimes;

/// A rank; values it does not report are absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RankLoad {
    pub(super) rank: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) node: Option<String>,
    pub(super) pod: String,
    /// Mean since the attempt began, without checkpoints and evaluation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) images_per_second: Option<f64>,
    /// Means since the attempt began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) step_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) sync_share: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) gpu_load: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) gpu_memory_bytes: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) temperature_celsius: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) power_watts: Option<f64>,
    /// Why its clocks are throttled.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) throttled_by: Vec<String>,
    /// Compute time relative to the other ranks, if the job's status lists it as a straggler.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) slowdown: Option<f64>,
}

/// The ranks of these pods, with their agents' metrics.
pub(super) fn loads(job: &ViTTrainingJob, members: &[Member], expositions: &[String]) -> Vec<RankLoad> {
    let status = job.status.as_ref();
    let gpus = job.spec.workers.gpus_per_node.max(1);
    let mut ranks = BTreeMap::new();
    for member in members {
        let node = status.and_then(|status| status.nodes().get(usize::try_from(member.node_rank).ok()?));
        for rank in member.node_rank * gpus..(member.node_rank + 1) * gpus {
            let stragglers = status.map_or(&[][..], |status| &status.stragglers);
            let slow = stragglers.iter().find(|straggler| straggler.rank == rank);
            let rank = u32::try_from(rank).unwrap_or_default();
            let load = RankLoad {
                rank,
                node: node.cloned(),
                pod: member.pod.clone(),
                slowdown: slow.map(|slow| slow.slowdown),
                ..RankLoad::default()
            };
            ranks.insert(rank, load);
        }
    }
    let splits = StepTimes::read(expositions).by_rank();
    for (rank, (split, _)) in &splits {
        if let Some(load) = ranks.get_mut(rank) {
            load.step_seconds = Some(split.step_seconds);
            load.sync_share = Some(split.of("sync_exposed") + split.of("sync_straggler"));
        }
    }
    for (name, labels, value) in expositions
        .iter()
        .flat_map(|text| text.lines().filter_map(sample))
    {
        let rank = label(labels, LABEL_RANK).and_then(|rank| rank.parse().ok());
        let Some(load) = rank.and_then(|rank: u32| ranks.get_mut(&rank)) else {
            continue;
        };
        match name {
            IMAGES_TOTAL => {
                let seconds = splits.get(&load.rank).map(|(_, seconds)| *seconds);
                load.images_per_second = seconds.map(|seconds| value / seconds);
            }
            DEVICE_UTILIZATION_RATIO => load.gpu_load = Some(value),
            DEVICE_MEMORY_USED_BYTES => load.gpu_memory_bytes = Some(value),
            DEVICE_TEMPERATURE_CELSIUS => load.temperature_celsius = Some(value),
            DEVICE_POWER_WATTS => load.power_watts = Some(value),
            DEVICE_THROTTLED if value > 0.0 => {
                load.throttled_by
                    .extend(label(labels, LABEL_REASON).map(ToOwned::to_owned));
            }
            _ => {}
        }
    }
    ranks.into_values().collect()
}
