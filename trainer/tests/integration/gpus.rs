//! Behavior that only ranks with their own GPUs show. The GPUs are simulated.

use nix::sys::signal::Signal;
use serde_json::Value;
use simulated_gpu::Fault;

use crate::common::{Job, await_condition};
use crate::device::Device;

/// Two nodes with two GPUs each.
fn job(parallelism: &'static str) -> Job {
    let mut job = Job::new(240);
    job.device = Device::SimulatedGpus;
    (job.nodes, job.ranks_per_node, job.parallelism) = (2, 2, parallelism);
    job
}

/// Reports of each rank's process.
fn reports(job: &Job) -> Vec<Value> {
    let folder = job.gpus.report.as_ref().expect("a folder");
    let entries = fs_err::read_dir(folder).expect("reports");
    let mut reports: Vec<Value> = entries
        .map(|entry| {
            let text = fs_err::read_to_string(entry.expect("an entry").path()).expect("a report");
            serde_json::from_str(&text).expect("JSON")
        })
        .collect();
    reports.sort_by_key(|report| report["rank"].as_u64());
    reports
}

#[test]
fn a_rank_uses_its_own_gpu_alone_and_no_more_communicators_than_its_strategy_needs() {
    for (parallelism, communicators) in [
        ("{}", 1),
        ("{zeroStage: 3}", 1),
        ("{zeroStage: 3, shardWithinNode: true}", 3),
        ("{sequence: 2}", 2),
        ("{tensor: 2, zeroStage: 1}", 3),
    ] {
        let mut job = job(parallelism);
        let folder = tempfile::tempdir().expect("a folder");
        job.gpus.report = Some(folder.path().into());
        job.run_well();
        let reports = reports(&job);
        assert_eq!(reports.len(), 4, "{reports:?}");
        for report in reports {
            let devices = report["devices"].as_object().expect("a map");
            assert_eq!(devices.len(), 1, "{parallelism}: {report}");
            assert_eq!(report["communicators"], communicators, "{parallelism}: {report}");
        }
    }
}

#[test]
fn a_checkpoint_pins_no_more_of_the_host_than_two_buffers() {
    let mut job = job("{}");
    // 20 million weights; a checkpoint has three times 79 MB.
    job.model = "{imageSize: 32, patchSize: 16, hiddenSize: 512, depth: 6, heads: 2, numClasses: 10}".into();
    (job.nodes, job.ranks_per_node, job.epochs) = (1, 1, 1);
    (job.micro_batch, job.accumulation) = (120, 1);
    let folder = tempfile::tempdir().expect("a folder");
    job.gpus.report = Some(folder.path().into());
    job.run_well();
    let [report] = &reports(&job)[..] else {
        panic!("one rank")
    };
    let pinned = report["pinnedPeakBytes"].as_u64().expect("a number");
    // Two of 32 MiB, and the blocks of image batches.
    assert!((64 << 20..72 << 20).contains(&pinned), "{report}");
}

#[test]
fn kernels_that_cannot_be_compiled_are_told_and_the_run_goes_on() {
    let mut job = job("{}");
    (job.nodes, job.ranks_per_node, job.epochs) = (1, 1, 1);
    job.gpus.kernel_failure = Some("NVRTC's error 5: invalid option".into());
    job.ends(
        0,
        &["LayerNorm runs on libtorch's kernels, which are slower: NVRTC's error 5: invalid option"],
    );
}

#[test]
fn a_gpu_without_room_for_the_job_ends_it_with_the_numbers() {
    let mut job = job("{}");
    job.gpus.memory = Some(300_000);
    job.ends(77, &["CUDA out of memory. Tried to allocate"]);
}

#[test]
fn a_communicator_that_finds_no_room_is_out_of_memory_too() {
    let mut job = job("{}");
    (job.gpus.memory, job.gpus.communicator_memory) = (Some(100_000_000), 200_000_000);
    job.ends(77, &["Cuda failure 2 'out of memory'"]);
}

#[test]
fn a_gpu_that_is_lost_is_blamed_on_its_rank() {
    for parallelism in ["{}", "{zeroStage: 3}"] {
        let mut job = job(parallelism);
        job.gpus.fault = Some(Fault::Lost {
            rank: 2,
            operator: 2000,
        });
        let printed = job.ends(76, &["uncorrectable ECC error encountered"]);
        assert!(printed.contains("rank 2 failed (DeviceFault)"), "{printed}");
    }
}

#[test]
fn a_gpu_that_hangs_holds_up_no_stop() {
    let mut job = job("{}");
    job.epochs = 1000;
    job.gpus.fault = Some(Fault::Hangs {
        rank: 1,
        operator: 20_000,
    });
    let folder = tempfile::tempdir().expect("a folder");
    job.gpus.report = Some(folder.path().into());
    let running = job.start();
    await_condition("a device that hangs", || folder.path().join("hangs").exists());
    running.signal(Signal::SIGTERM);
    running.ends(75, &["did not stop when asked to"]);
}
