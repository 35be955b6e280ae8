//! Pods with simulated GPUs: libtorch's CUDA device and NCCL's rules, but no real kernels.

use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use crds::Phase;
use rustix::process::Signal;
use serde_json::json;
use vit_tests::{image, operator, root};

use crate::context::Context;
use crate::steps::{check_attempts, nodes_of, saved_step};

/// Makes a process lose its simulated GPU.
const LOSE_GPU: Signal = Signal::USR2;

/// The archive of the trainer's image with simulated GPUs.
pub(crate) fn image() -> Result<PathBuf> {
    let [_, trainer] = operator::images()?;
    let mut files = vec![(trainer, "trainer.tar".to_owned())];
    for library in ["libtorch_cuda.so", "libsimulated_driver.so"] {
        files.push((simulated_gpu::libraries().join(library), library.to_owned()));
    }
    let dockerfile = root().join("tests/images/simulated-gpu/Dockerfile");
    operator::build(image::SIMULATED_GPUS, &dockerfile, &files)
}

/// Two nodes of two GPUs each.
pub(crate) fn gang_trains_on_through_lost_ranks_and_gpus_and_too_little_memory(
    context: &Context<'_>,
) -> Result<()> {
    let namespace = context.namespace("gpus")?;
    let spec = json!({
        "image": image::SIMULATED_GPUS,
        "model": {"hiddenSize": 128, "depth": 4},
        "training": {"epochs": 20},
        "parallelism": {"strategy": "Auto"},
        "workers": {
            "nodes": 2, "gpusPerNode": 2, "device": "cuda",
        },
    });
    namespace.create("digits", spec)?;

    // The nodes' labels promise 15 GiB per GPU, but each has 19.5 MB. Ranks need 22.8 MB without
    // sharding, and 16.4 MB with a sharded optimizer state.
    let status = namespace.wait_attempt("digits", 2)?;
    check_attempts(&status, 2, 1)?;
    let failure = status.last_failure.as_ref().context("no lastFailure")?;
    ensure!(
        failure.class == "OutOfMemory" && failure.message.contains("GPU"),
        "{failure:?}"
    );
    let failed = status.out_of_memory.as_ref().context("no outOfMemory")?;
    let placement = status.placement.as_ref().context("no placement")?;
    let strategy = placement.strategy.as_ref().context("no placement.strategy")?;
    ensure!(
        failed.zero_stage == 0 && strategy.zero_stage > 0,
        "after {failed:?} follows {strategy:?}"
    );

    namespace.wait_checkpoint("digits")?;
    namespace.signal_rank("digits", 1, Signal::KILL)?;
    let resumed = saved_step(&namespace.wait_attempt("digits", 3)?)?;
    let status = namespace.wait_checkpoint_after("digits", resumed)?;
    let failure = status.last_failure.as_ref().context("no lastFailure")?;
    ensure!(
        failure.class == "Killed" && matches!(failure.rank, Some(2 | 3)),
        "not the killed rank is blamed: {failure:?}"
    );

    let broken = nodes_of(&status)?[0].clone();
    namespace.signal_rank("digits", 0, LOSE_GPU)?;
    namespace.wait("digits", "is on its fourth attempt", |status| status.attempt == 4)?;
    let status = namespace.wait_phase("digits", Phase::Succeeded)?;
    check_attempts(&status, 4, 3)?;
    let failure = status.last_failure.as_ref().context("no lastFailure")?;
    ensure!(
        failure.class == "DeviceFault"
            && failure.node.as_ref() == Some(&broken)
            && matches!(failure.rank, Some(0 | 1)),
        "{broken} has a broken GPU, but the failure is {failure:?}"
    );
    let avoided = status
        .failed_nodes
        .iter()
        .find(|failed| failed.avoided_until.is_some());
    ensure!(
        avoided.is_some_and(|avoided| avoided.node == broken) && !nodes_of(&status)?.contains(&broken),
        "{broken} has a broken GPU, but is not avoided: {status:?}"
    );
    let progress = status.progress.as_ref().context("no progress")?;
    ensure!(
        progress.validation_accuracy > Some(0.8) && progress.total_steps == 20 * (1442 / 64),
        "{progress:?}"
    );
    namespace.check_steps("digits")?;
    Ok(())
}
