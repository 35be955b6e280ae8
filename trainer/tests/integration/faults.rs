//! Faults around training, and what they leave.

use std::collections::BTreeSet;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::agent::{free_port, run_config};
use crate::common::{
    Job, Running, all_gone, assert_same_files, await_condition, descendants, process_of_rank, write_arrays,
};
use crate::device::{Device, are_all_cases_wanted, on_each_device};
use crate::machine::trainer_on_machine_with;
use crate::rank::Rank;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

on_each_device!(
    a_killed_rank_ends_the_attempt_and_the_next_one_continues,
    ranks_with_divided_weights_may_be_killed_at_any_moment,
    ranks_that_each_write_a_share_may_be_killed_at_any_moment,
    ranks_that_compute_a_model_together_may_be_killed_at_any_moment,
    a_loss_that_is_not_a_number_ends_all_ranks_and_says_where,
    all_ranks_skip_the_same_steps_where_gradients_of_some_overflow,
    all_ranks_skip_the_same_steps_where_each_sees_a_shard_of_the_gradients,
    the_rank_that_was_lost_is_named_by_all_others,
);

fn a_killed_rank_ends_the_attempt_and_the_next_one_continues() {
    let mut job = Job::new(200);
    job.epochs = 60;
    let mut starts = BTreeSet::new();
    for (rank, lines) in [(1, 1), (0, 2), (1, 3)] {
        let mut running = job.start();
        running.await_progress(lines);
        if lines == 3 {
            await_condition("a checkpoint", || running.has_logged("checkpoint"));
        }
        kill_rank(running, rank, Duration::ZERO);
        starts.extend(job.log("start").last().and_then(|record| record["step"].as_u64()));
    }
    job.run_well();
    starts.extend(job.log("start").last().and_then(|record| record["step"].as_u64()));
    assert!(
        starts.len() > 1,
        "later attempts continue from checkpoints: {starts:?}"
    );
    assert_eq!(job.log("train").last().expect("a line")["step"], 60 * 25);
}

/// Kills a rank after a delay, and checks that all others end and name it.
#[track_caller]
fn kill_rank(running: Running, rank: u32, delay: Duration) {
    let all = descendants(running.pid());
    std::thread::sleep(delay);
    kill(
        Pid::from_raw(process_of_rank(running.pid(), rank)),
        Signal::SIGKILL,
    )
    .expect("kills");
    running.ends(137, &[&format!("rank {rank} was ended by signal 9 (SIGKILL)")]);
    assert!(all_gone(&all), "no agent and no rank is left");
}

/// Ranks collect a checkpoint together, at each step.
fn ranks_with_divided_weights_may_be_killed_at_any_moment() {
    killed_at_any_moment(2, "{zeroStage: 3}", "FirstRank", (6, 8));
}

/// Each step is a checkpoint with a share per rank: some are killed while they or others write.
fn ranks_that_each_write_a_share_may_be_killed_at_any_moment() {
    killed_at_any_moment(3, "{zeroStage: 3}", "EveryRank", (4, 6));
}

/// Most of a step is collectives within blocks.
fn ranks_that_compute_a_model_together_may_be_killed_at_any_moment() {
    let cases = [
        (4, "{sequence: 2, zeroStage: 1, acrossNodes: true}"),
        (2, "{tensor: 2, acrossNodes: true}"),
    ];
    // The first one has collectives of two groups at once.
    for (ranks, parallelism) in Device::current().cases(&cases, 1, 1).iter().copied() {
        killed_at_any_moment(ranks, parallelism, "FirstRank", (3, 4));
    }
}

fn killed_at_any_moment(
    ranks: u32,
    parallelism: &'static str,
    writers: &'static str,
    (epochs_per_kill, kills): (u32, u32),
) {
    // Files after a kill do not depend on the device, so each has moments of its own.
    let kills = match Device::current() {
        Device::Cpu if are_all_cases_wanted() => 0..kills,
        Device::Cpu => 2..4,
        Device::SimulatedGpus => 0..2,
    };
    let epochs = epochs_per_kill * kills.len() as u32;
    let job = || {
        let mut job = Job::new(100);
        (job.parallelism, job.writers) = (parallelism, writers);
        job.spread(ranks);
        (job.epochs, job.every_steps) = (epochs, Some(1));
        job
    };
    let (mut straight, killed) = (job(), job());
    // Checkpoints do not change training, and take most of the time.
    straight.every_steps = None;
    straight.run_well();
    for kill_number in kills {
        let mut running = killed.start();
        running.await_progress(1);
        // A different moment of a step each time, without waiting.
        let delay = Duration::from_micros(u64::from(kill_number) * 3_100);
        kill_rank(running, kill_number % ranks, delay);
    }
    killed.run_well();
    let start = killed
        .log("start")
        .last()
        .and_then(|record| record["step"].as_u64());
    assert!(start > Some(0), "it continued from a checkpoint");
    let entries = fs_err::read_dir(straight.newest()).expect("a folder");
    let files: Vec<String> = entries
        .map(|entry| {
            entry
                .expect("an entry")
                .file_name()
                .into_string()
                .expect("a name")
        })
        .collect();
    let has_index = files.iter().any(|file| file == "model.safetensors.index.json");
    assert_eq!(has_index, writers == "EveryRank", "{files:?}");
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    assert_same_files(&straight, &killed, &files, parallelism);
}

#[test]
fn nothing_outlives_an_agent_or_a_run_that_was_killed() {
    for victim_is_run in [true, false] {
        let mut job = Job::new(400);
        job.epochs = 1000;
        let mut running = job.start();
        running.await_progress(1);
        let all = descendants(running.pid());
        assert_eq!(all.len(), 4, "two agents with a rank each");
        let victim = if victim_is_run { running.pid() } else { all[0] };
        kill(Pid::from_raw(victim), Signal::SIGKILL).expect("kills");
        await_condition("the end of agents and ranks", || all_gone(&all));
        if !victim_is_run {
            running.ends(137, &[]);
        }
    }
}

#[test]
fn bad_data_is_named_and_is_no_config_error() {
    let job = Job::new(50);
    let file = job.data().join("data_batch_2.bin");
    let whole = fs_err::read(&file).expect("reads");
    fs_err::write(&file, &whole[..3073 * 4 + 99]).expect("writes");
    job.ends(
        3,
        &["data_batch_2.bin is truncated: the record at byte 12292 has 99 of 3073 bytes"],
    );

    fs_err::remove_file(&file).expect("removes");
    job.ends(3, &["data_batch_2.bin does not exist"]);

    let mut small = Job::new(50);
    small.micro_batch = 30;
    small.ends(3, &["has 50 training images, fewer than one step of 60"]);
}

#[test]
fn bad_configuration_is_named_before_anything_starts() {
    let mut job = Job::new(50);
    job.micro_batch = 0;
    job.ends(2, &["spec.training.microBatchSize is 0: must be at least 1"]);
    assert!(!job.checkpoints().exists());
}

#[test]
fn nodes_that_would_use_the_same_gpu_are_refused() {
    let mut job = Job::new(50);
    job.arguments = ["--device", "auto"].map(String::from).into();
    let machine = trainer_on_machine_with(&["nvidiactl", "nvidia0"]);
    let message = "workers.nodes x workers.gpusPerNode is 2 x 1, but this machine has 1 GPUs";
    job.start_through(machine).ends(76, &[message]);
}

fn a_loss_that_is_not_a_number_ends_all_ranks_and_says_where() {
    // Finite in the file, but not after normalization.
    let bright = f32::MAX;
    let run = |images: &[f32], training| {
        let mut job = Job::new(5);
        write_arrays(&job.data(), images, 32);
        job.data_fields = "format: numpy".into();
        job.model = job.model.replace('{', "{channels: 1, ");
        job.training = training;
        job.ends(78, &["training diverged at step "])
    };
    let printed = run(&vec![bright; 48 * 32 * 32], "seed: 0");
    let both = "diverged at step 1 (epoch 0): the loss of ranks 0 and 1 is not a finite number";
    assert!(printed.contains(both), "{printed}");

    let mut images: Vec<f32> = (0..48 * 32 * 32).map(|pixel| (pixel % 7) as f32 / 7.0).collect();
    images[..32 * 32].fill(bright);
    // No loss scale helps if the loss is not finite.
    for training in [
        "seed: 0",
        "precision: bf16; masterWeights: true",
        "precision: fp16",
    ] {
        let printed = run(&images, training);
        let named =
            [0, 1].map(|rank| printed.contains(&format!("(epoch 0): the loss of rank {rank} is not")));
        assert!(
            named[0] != named[1],
            "one image is on one rank: {training}: {printed}"
        );
    }
}

fn all_ranks_skip_the_same_steps_where_gradients_of_some_overflow() {
    check_that_ranks_skip_together(0);
}

fn all_ranks_skip_the_same_steps_where_each_sees_a_shard_of_the_gradients() {
    check_that_ranks_skip_together(3);
}

fn check_that_ranks_skip_together(zero_stage: u8) {
    let place = tempfile::tempdir().expect("a folder");
    let folder = place.path();
    let mut config = run_config(folder, 1);
    config["data"]["syntheticImages"] = json!(1600);
    config["training"]["precision"] = json!("fp16");
    config["parallelism"]["zeroStage"] = json!(zero_stage);
    // Every few steps the scale returns to where overflow depends on a rank's own images.
    config["training"]["lossScale"] =
        json!({"initialScalePower": 20, "lossScaleWindow": 2, "hysteresis": 1, "minLossScale": 1});
    fs_err::write(folder.join("run.json"), config.to_string()).expect("writes");

    let port = free_port();
    let ranks = [0, 1].map(|rank| Rank::start(folder, 1, rank, 2, port));
    // Reports are read as they arrive: a rank blocks if nobody reads them.
    let readers = ranks.map(|mut rank| {
        std::thread::spawn(move || {
            let mut steps = Vec::new();
            while let Some(report) = rank.report() {
                assert_ne!(report["kind"], "failed", "{report}");
                if report["kind"] == "step" {
                    let told = ["step", "loss", "lossScale", "skippedSteps"];
                    steps.push(told.map(|name| report[name].clone()));
                }
            }
            assert_eq!(rank.child.wait().expect("ends").code(), Some(0));
            steps
        })
    });
    let [first, second] = readers.map(|reader| reader.join().expect("a rank that ends well"));
    assert_eq!(first.len(), 200);
    assert_eq!(first, second);
    let skipped = first.last().and_then(|step| step[3].as_u64()).expect("a number");
    assert!(
        (20..180).contains(&skipped),
        "{skipped} of 200 steps were skipped"
    );
}

#[test]
fn never_resuming_refuses_a_folder_with_a_checkpoint() {
    let mut job = Job::new(50);
    job.resume = "Never";
    job.run_well();
    job.ends(2, &["checkpoint.resume is Never, but"]);
}

#[test]
fn storage_that_cannot_be_written_is_named_and_ends_the_run() {
    let job = Job::new(50);
    fs_err::create_dir_all(job.checkpoints()).expect("a folder");
    // A file in place of the first checkpoint's folder fails for root too, unlike a permission.
    fs_err::write(job.checkpoints().join("step-00000006"), "").expect("writes");
    job.ends(79, &["step-00000006"]);
}

fn the_rank_that_was_lost_is_named_by_all_others() {
    // Rank 0, which notifies the others, and another one.
    for (victim, zero_stage) in [(1, 0), (0, 0), (1, 1), (1, 3), (0, 3)] {
        let place = tempfile::tempdir().expect("a folder");
        let folder = place.path();
        let mut config = run_config(folder, 100_000);
        config["ranksPerNode"] = json!(4);
        config["parallelism"]["zeroStage"] = json!(zero_stage);
        fs_err::write(folder.join("run.json"), config.to_string()).expect("writes");
        let port = free_port();
        let (trains, all_train) = mpsc::channel();
        let ranks = [0, 1, 2, 3].map(|rank| Rank::start(folder, 1, rank, 4, port));
        let pid = Pid::from_raw(ranks[victim].child.id().cast_signed());
        let readers: Vec<_> = ranks
            .into_iter()
            .map(|mut rank| {
                let trains = trains.clone();
                std::thread::spawn(move || {
                    let (mut failure, mut told) = (None, None);
                    while let Some(report) = rank.report() {
                        match report["kind"].as_str() {
                            // Many steps; the test no longer listens.
                            Some("step") => drop(trains.send(())),
                            Some("lostPeer") => told = report["peer"].as_u64(),
                            Some("failed") => failure = Some(report),
                            _ => {}
                        }
                    }
                    (rank.child.wait().expect("ends").code(), told, failure)
                })
            })
            .collect();
        for _ in 0..40 {
            all_train.recv_timeout(Duration::from_secs(60)).expect("steps");
        }
        let killed = Instant::now();
        kill(pid, Signal::SIGKILL).expect("kills");
        for (rank, reader) in readers.into_iter().enumerate() {
            let (code, told, failure) = reader.join().expect("a reader that ends");
            if rank == victim {
                assert_eq!(code, None, "it was killed");
                continue;
            }
            assert_eq!((code, told), (Some(75), Some(victim as u64)));
            let failure = failure.expect("a failure");
            let message = failure["message"].as_str().expect("a message");
            let named =
                format!("rank {victim} is lost: its process has ended, or its machine does not answer; ");
            assert!(message.starts_with(&named), "{message}");
            assert_eq!(failure["class"], "PeerLost");
        }
        assert!(
            killed.elapsed() < Duration::from_secs(10),
            "{:?}",
            killed.elapsed()
        );
    }
}
