//! `parallelism.strategy: Auto`: what the ranks of a gang shard, by the memory of each.

use contract::{Device, FailureClass, Memory, RunConfig};
use crds::ValidatedJob;
use crds::spec::Strategy;
use crds::status::{GpuGroup, StrategyStatus, ViTTrainingJobStatus};
use footprint::{Settings, strategies};
use planner::facts::quantity::whole;
use planner::facts::resources::MEMORY;
use planner::policy::placement::Gpus;

use super::failure::Failure;

const MEBIBYTE: f64 = 1024.0 * 1024.0;

/// Share of GPU memory for tensors; CUDA, NCCL, libraries and fragmentation use the rest.
const SHARE_FOR_TENSORS: f64 = 0.85;

/// Memory of a CPU rank for anything but tensors: libraries, and images being decoded.
const BESIDE_TENSORS_MEBIBYTES: i64 = 512;

/// Most memory of a strategy relative to one that ran out of memory.
const SHARE_AFTER_OUT_OF_MEMORY: f64 = 0.9;

/// The strategy of a gang of this many nodes: the first that fits, else the one that uses the least
/// memory. If memory is unknown, the first, which shards nothing. `None` if the manifest chooses.
///
/// After a strategy ran out of memory, the next uses less, if any does.
pub(crate) fn choose(
    job: &ValidatedJob,
    nodes: u32,
    gpus: &Gpus,
    out_of_memory: Option<&StrategyStatus>,
) -> Option<StrategyStatus> {
    if job.spec.parallelism.strategy == Strategy::Manual {
        return None;
    }
    let available = match job.run_config.device {
        Device::Cpu => memory_of_limit(job),
        _ => memory_of_gpus(gpus, &job.spec.workers.gpu_resource),
    };
    let all = strategies(&job.run_config_on(nodes), None, None);
    let most = limit(available, out_of_memory);
    let chosen = all.iter().find(|strategy| fits(strategy, most)).or_else(|| {
        all.iter()
            .min_by(|one, other| one.total_bytes.total_cmp(&other.total_bytes))
    })?;
    let settings = chosen.settings;
    let mebibytes = |bytes: f64| (bytes / MEBIBYTE).ceil() as i64;
    Some(StrategyStatus {
        name: settings.name(),
        zero_stage: settings.zero_stage.into(),
        shard_within_node: settings.shard_within_node,
        sequence: count(settings.sequence),
        tensor: count(settings.tensor),
        activation_checkpointing: settings.activation_checkpointing,
        memory_mebibytes: mebibytes(chosen.total_bytes),
        available_mebibytes: available,
    })
}

/// The most memory a strategy may use, in MiB, given the available memory, if known, and the
/// strategy that ran out of it.
fn limit(available: Option<i64>, out_of_memory: Option<&StrategyStatus>) -> Option<i64> {
    let after = out_of_memory.map(|failed| most_after(failed, available));
    after.into_iter().chain(available).min()
}

/// Whether a strategy uses at most this many MiB, if a limit is known.
fn fits(strategy: &footprint::Strategy, most: Option<i64>) -> bool {
    most.is_none_or(|most| strategy.total_bytes <= most as f64 * MEBIBYTE)
}

/// The configuration with the chosen strategy; `None` if it cannot be applied.
pub(crate) fn applied(chosen: &StrategyStatus, config: &RunConfig) -> Option<RunConfig> {
    settings(chosen).applied_to(config)
}

/// Whether the next attempt uses less memory than this one, which ran out of it.
pub(crate) fn takes_less(failure: &Failure, job: &ValidatedJob, status: &ViTTrainingJobStatus) -> bool {
    let Some(failed) = status
        .placement
        .as_ref()
        .and_then(|placement| placement.strategy.as_ref())
    else {
        return false;
    };
    // Strategies do not reduce the host memory of a pod with GPUs.
    let is_of_ranks = job.run_config.device == Device::Cpu || failure.memory == Some(Memory::Gpu);
    let is_out_of_memory = failure.class == FailureClass::OutOfMemory && is_of_ranks;
    let nodes = u32::try_from(status.nodes().len()).unwrap_or(u32::MAX);
    let most = limit(failed.available_mebibytes, Some(failed));
    is_out_of_memory
        && job.spec.parallelism.strategy == Strategy::Auto
        && strategies(&job.run_config_on(nodes), None, None)
            .iter()
            .any(|strategy| fits(strategy, most))
}

/// The most memory, in MiB, a strategy may use after another ran out, scaled by the ranks' memory.
fn most_after(failed: &StrategyStatus, available_mebibytes: Option<i64>) -> i64 {
    let growth = match (available_mebibytes, failed.available_mebibytes) {
        (Some(now), Some(then)) if then > 0 => now as f64 / then as f64,
        _ => 1.0,
    };
    (failed.memory_mebibytes as f64 * growth * SHARE_AFTER_OUT_OF_MEMORY) as i64
}

/// Describes the choice, and the strategy that ran out of memory before it.
pub(crate) fn in_words(chosen: &StrategyStatus, out_of_memory: Option<&StrategyStatus>) -> String {
    let words = choice_in_words(chosen);
    let Some(failed) = out_of_memory else {
        return words;
    };
    let words = format!("{words}; {} ran out of memory", failed.name);
    if chosen.memory_mebibytes > most_after(failed, chosen.available_mebibytes) {
        words + ", and no strategy uses less here"
    } else {
        words
    }
}

fn choice_in_words(chosen: &StrategyStatus) -> String {
    let (name, takes) = (&chosen.name, chosen.memory_mebibytes);
    match chosen.available_mebibytes {
        None => format!(
            "strategy {name}, because the memory of a rank is unknown: no node label has that of its GPUs, or workers.device is \
             cpu and workers.resources has no memory limit"
        ),
        Some(available) if takes <= available => {
            format!("strategy {name} ({takes} of {available} MiB a rank)")
        }
        Some(available) => format!(
            "strategy {name}, which uses the least memory but more than is available ({takes} of {available} MiB a rank): \
             lower training.microBatchSize, or use more GPUs"
        ),
    }
}

fn settings(chosen: &StrategyStatus) -> Settings {
    let count = |ranks: i32| u32::try_from(ranks).unwrap_or(1).max(1);
    Settings {
        zero_stage: u8::try_from(chosen.zero_stage).unwrap_or(0),
        shard_within_node: chosen.shard_within_node,
        sequence: count(chosen.sequence),
        tensor: count(chosen.tensor),
        activation_checkpointing: chosen.activation_checkpointing,
    }
}

/// The memory for tensors of the smallest GPU, or share of one, in MiB.
fn memory_of_gpus(gpus: &Gpus, resource: &str) -> Option<i64> {
    let (_, name) = resource.split_once('/').unwrap_or_default();
    // If a node has slices of several sizes, its labels describe the whole GPU.
    if name.starts_with("mig-") {
        return None;
    }
    let of_rank = |group: &GpuGroup| {
        let is_shared = group.sharing_strategy.is_some() || name.ends_with(".shared");
        match group.replicas {
            None if is_shared => None,
            replicas => Some(group.memory_mebibytes? / replicas.unwrap_or(1).max(1)),
        }
    };
    let all = match gpus {
        Gpus::Identical(group) => of_rank(group),
        Gpus::Mixed(groups) => groups.keys().map(of_rank).min().flatten(),
    };
    all.map(|mebibytes| (mebibytes as f64 * SHARE_FOR_TENSORS) as i64)
}

/// A rank's share of its pod's memory limit, in MiB.
fn memory_of_limit(job: &ValidatedJob) -> Option<i64> {
    let limit = whole(job.spec.workers.resources.limits.as_ref()?.get(MEMORY)?)?;
    let of_rank = limit / i64::from(job.gpus_per_node()) / (1 << 20);
    Some((of_rank - BESIDE_TENSORS_MEBIBYTES).max(0))
}

fn count(ranks: u32) -> i32 {
    i32::try_from(ranks).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    // As expect-test writes them.
    #![allow(clippy::needless_raw_string_hashes)]

    use std::collections::BTreeMap;

    use crds::status::PlacementStatus;
    use expect_test::expect;
    use serde_json::json;

    use super::*;
    use crate::fixtures::{job, tesla_t4};
    use crate::policy::gang::PodView;

    /// ViT-L/16 on two nodes of four GPUs; the operator chooses the strategy.
    fn large(device: &str, limits: &serde_json::Value) -> ValidatedJob {
        let mut manifest = serde_json::to_value(job()).expect("JSON");
        manifest["spec"]["model"]["name"] = json!("vit_large_patch16_224");
        manifest["spec"]["parallelism"]["strategy"] = json!("Auto");
        manifest["spec"]["training"]["microBatchSize"] = json!(4);
        manifest["spec"]["training"]["gradientAccumulationSteps"] = json!(2);
        manifest["spec"]["workers"] =
            json!({"nodes": 2, "gpusPerNode": 4, "device": device, "resources": {"limits": limits}});
        crds::validate(&serde_json::from_value(manifest).expect("a job")).expect("valid")
    }

    fn gpus(memory_mebibytes: Option<i64>, replicas: Option<i64>) -> Gpus {
        Gpus::Identical(GpuGroup {
            memory_mebibytes,
            replicas,
            ..tesla_t4()
        })
    }

    /// The choice for two nodes.
    fn chosen(job: &ValidatedJob, gpus: &Gpus, failed: Option<&StrategyStatus>) -> StrategyStatus {
        choose(job, 2, gpus, failed).expect("a strategy")
    }

    #[test]
    fn it_shards_what_the_smallest_memory_of_a_rank_asks_for() {
        let job = large("cuda", &json!({}));
        let of = |job: &ValidatedJob, gpus: &Gpus| in_words(&chosen(job, gpus, None), None);
        let memories = [81_920, 5_500, 4_200, 3_000, 1_600, 100];
        let mut words: Vec<String> = memories.map(|memory| of(&job, &gpus(Some(memory), None))).into();
        words.push("two pods share a GPU:".into());
        words.push(of(&job, &gpus(Some(10_000), Some(2))));
        words.push("mixed GPUs, the smallest of them known or not:".into());
        for other in [Some(20_000), None] {
            let groups = [Some(10_000), other].map(|memory| match gpus(memory, None) {
                Gpus::Identical(group) => (group, 1),
                Gpus::Mixed(_) => unreachable!(),
            });
            words.push(of(&job, &Gpus::Mixed(BTreeMap::from(groups))));
        }
        words.push("the share of a GPU is unknown:".into());
        for resource in ["nvidia.com/mig-1g.10gb", "nvidia.com/gpu.shared"] {
            let mut slices = large("auto", &json!({}));
            slices.spec.workers.gpu_resource = resource.into();
            words.push(of(&slices, &gpus(Some(10_000), None)));
        }
        words.push("on CPUs, a fourth of the pod's memory, if it has a limit:".into());
        for limits in [json!({"memory": "8Gi"}), json!({"cpu": 1})] {
            words.push(of(&large("cpu", &limits), &gpus(Some(10_000), None)));
        }
        expect![[r#"
            strategy zeroStage 0 (5834 of 69632 MiB a rank)
            strategy zeroStage 1 (4050 of 4675 MiB a rank)
            strategy zeroStage 2 within node (3423 of 3570 MiB a rank)
            strategy zeroStage 3 (2072 of 2550 MiB a rank)
            strategy zeroStage 3, block (1010 of 1360 MiB a rank)
            strategy zeroStage 3, tensor 4, block, which uses the least memory but more than is available (764 of 85 MiB a rank): lower training.microBatchSize, or use more GPUs
            two pods share a GPU:
            strategy zeroStage 1 (4050 of 4250 MiB a rank)
            mixed GPUs, the smallest of them known or not:
            strategy zeroStage 0 (5834 of 8500 MiB a rank)
            strategy zeroStage 0, because the memory of a rank is unknown: no node label has that of its GPUs, or workers.device is cpu and workers.resources has no memory limit
            the share of a GPU is unknown:
            strategy zeroStage 0, because the memory of a rank is unknown: no node label has that of its GPUs, or workers.device is cpu and workers.resources has no memory limit
            strategy zeroStage 0, because the memory of a rank is unknown: no node label has that of its GPUs, or workers.device is cpu and workers.resources has no memory limit
            on CPUs, a fourth of the pod's memory, if it has a limit:
            strategy zeroStage 3, block (1010 of 1536 MiB a rank)
            strategy zeroStage 0, because the memory of a rank is unknown: no node label has that of its GPUs, or workers.device is cpu and workers.resources has no memory limit"#]].assert_eq(&words.join("\n"));
    }

    /// Whether a job restarts after a rank of the attempt ran out of this memory.
    fn restarts(job: &ValidatedJob, strategy: &StrategyStatus, memory: Memory, class: FailureClass) -> bool {
        let status = ViTTrainingJobStatus {
            placement: Some(PlacementStatus {
                nodes: vec!["a".into(), "b".into()],
                strategy: Some(strategy.clone()),
                ..PlacementStatus::default()
            }),
            ..ViTTrainingJobStatus::default()
        };
        let failure = Failure {
            memory: Some(memory),
            ..Failure::from_pod(&PodView::default(), class, "libtorch's message".into())
        };
        takes_less(&failure, job, &status)
    }

    #[test]
    fn what_ran_out_of_memory_is_sharded_further_until_nothing_takes_less() {
        let job = large("cuda", &json!({}));
        let gpus = |memory| gpus(Some(memory), None);
        let mut last = chosen(&job, &gpus(81_920), None);
        let mut words = vec![in_words(&last, None)];
        while restarts(&job, &last, Memory::Gpu, FailureClass::OutOfMemory) {
            let next = chosen(&job, &gpus(81_920), Some(&last));
            words.push(in_words(&next, Some(&last)));
            last = next;
        }
        words.push("on one node, each rank stores more:".into());
        let fewer = choose(&job, 1, &gpus(81_920), Some(&last)).expect("a strategy");
        words.push(in_words(&fewer, Some(&last)));
        words.push("on GPUs with more memory:".into());
        let failed = chosen(&job, &gpus(8_000), None);
        for memory in [8_000, 16_000] {
            words.push(in_words(
                &chosen(&job, &gpus(memory), Some(&failed)),
                Some(&failed),
            ));
        }
        expect![[r#"
            strategy zeroStage 0 (5834 of 69632 MiB a rank)
            strategy zeroStage 1 (4050 of 69632 MiB a rank); zeroStage 0 ran out of memory
            strategy zeroStage 2 within node (3423 of 69632 MiB a rank); zeroStage 1 ran out of memory
            strategy zeroStage 2 (2989 of 69632 MiB a rank); zeroStage 2 within node ran out of memory
            strategy zeroStage 3 within node (2651 of 69632 MiB a rank); zeroStage 2 ran out of memory
            strategy zeroStage 3 (2072 of 69632 MiB a rank); zeroStage 3 within node ran out of memory
            strategy zeroStage 3 within node, block (1589 of 69632 MiB a rank); zeroStage 3 ran out of memory
            strategy zeroStage 3, block (1010 of 69632 MiB a rank); zeroStage 3 within node, block ran out of memory
            strategy zeroStage 3, tensor 2, block (844 of 69632 MiB a rank); zeroStage 3, block ran out of memory
            on one node, each rank stores more:
            strategy zeroStage 0, tensor 4, block (1277 of 69632 MiB a rank); zeroStage 3, tensor 2, block ran out of memory, and no strategy uses less here
            on GPUs with more memory:
            strategy zeroStage 1 (4050 of 6800 MiB a rank); zeroStage 0 ran out of memory
            strategy zeroStage 0 (5834 of 13600 MiB a rank); zeroStage 0 ran out of memory"#]].assert_eq(&words.join("\n"));
    }

    #[test]
    fn what_no_strategy_helps_is_not_tried_again() {
        use FailureClass::{Killed, OutOfMemory};
        let (on_gpus, on_cpus) = (
            large("cuda", &json!({})),
            large("cpu", &json!({"memory": "80Gi"})),
        );
        let mut manual = on_cpus.clone();
        manual.spec.parallelism.strategy = Strategy::Manual;
        let whole = chosen(&on_gpus, &gpus(Some(81_920), None), None);
        for (job, memory, class, expected) in [
            (&on_gpus, Memory::Gpu, OutOfMemory, true),
            (&on_gpus, Memory::Host, OutOfMemory, false),
            (&on_cpus, Memory::Host, OutOfMemory, true),
            (&on_cpus, Memory::Host, Killed, false),
            (&manual, Memory::Host, OutOfMemory, false),
        ] {
            assert_eq!(
                restarts(job, &whole, memory, class),
                expected,
                "{memory:?} {class}"
            );
        }
        assert_eq!(choose(&manual, 2, &gpus(None, None), None), None);
        // The model's heads are not divisible by three.
        let other = StrategyStatus { tensor: 3, ..whole };
        assert_eq!(applied(&other, &on_gpus.run_config_on(2)), None);
    }
}
