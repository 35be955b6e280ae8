//! Training results do not depend on the number of ranks or on a stop.

use crate::common::{HELD_OUT, Job, assert_same_files, bytes, distance};
use crate::device::{Device, on_each_device};
use nix::sys::signal::Signal;

on_each_device!(
    ranks_and_accumulation_only_divide_the_work,
    a_run_that_was_stopped_continues_bit_by_bit,
    a_run_continues_with_another_number_of_ranks,
    a_stop_ends_an_evaluation_which_the_next_attempt_begins_anew,
);

fn ranks_and_accumulation_only_divide_the_work() {
    let train = |nodes, ranks_per_node, micro_batch, accumulation| {
        let mut job = Job::new(50);
        // Skips by a mask in the second block, and computes only some images in the third.
        job.model = job.model.replace("depth: 2", "depth: 3, dropPath: 0.2");
        (job.nodes, job.ranks_per_node) = (nodes, ranks_per_node);
        (job.micro_batch, job.accumulation) = (micro_batch, accumulation);
        if nodes * ranks_per_node == 1 {
            job.device = Device::Cpu;
        }
        job.run_well();
        job
    };
    let one = train(1, 1, 8, 1);
    let nodes = train(2, 1, 4, 1);
    let ranks = train(1, 2, 2, 2);

    for (what, other) in [("2 nodes", &nodes), ("2 ranks with accumulation", &ranks)] {
        let distance = distance(&one.weights(), &other.weights());
        assert!(distance < 1e-4, "{what}: weights differ by {distance}");
        // Uneven shares, but every held-out image exactly once.
        for evaluation in other.log("evaluation") {
            assert_eq!(evaluation["images"], HELD_OUT, "{what}: {evaluation}");
        }
        assert_eq!(
            other.log("evaluation").len(),
            2,
            "{what}: one evaluation an epoch"
        );
        let correct = |job: &Job| {
            job.log("evaluation")
                .last()
                .map(|record| record["correct"].clone())
        };
        assert_eq!(correct(other), correct(&one), "{what}");
    }
    // 50 images are 6 steps of 8 per epoch; the last 2 images are dropped.
    assert_eq!(one.log("train").last().expect("a line")["step"], 12);
}

fn a_run_that_was_stopped_continues_bit_by_bit() {
    let job = || {
        let mut job = Job::new(200);
        job.epochs = 12;
        job
    };
    let (whole, parts) = (job(), job());
    whole.run_well();
    parts.stop_and_continue();
    assert_eq!(whole.newest().file_name(), parts.newest().file_name());
    let files = ["model.safetensors", "optimizer.safetensors", "state.json"];
    assert_same_files(&whole, &parts, &files, "a run that was stopped");
}

/// An evaluation may last longer than the grace period of a pod.
fn a_stop_ends_an_evaluation_which_the_next_attempt_begins_anew() {
    let mut job = Job::new(8);
    job.hold_out(4000);
    (job.micro_batch, job.epochs, job.training) = (1, 1, "ema: {decay: 0.9}");
    let mut running = job.start();
    running.await_progress(1);
    running.signal(Signal::SIGTERM);
    running.ends(143, &[]);
    assert!(job.log("evaluation").is_empty(), "it was not waited for");
    let state: serde_json::Value = serde_json::from_slice(&bytes(&job.newest(), "state.json")).expect("JSON");
    let position = &state["position"];
    assert_eq!(
        (&position["epoch"], &position["step"]),
        (&0.into(), &4.into()),
        "{state}"
    );

    job.run_well();
    let evaluations = job.log("evaluation");
    assert_eq!(evaluations.len(), 1);
    assert_eq!(evaluations[0]["images"], 4000);
    assert_eq!(job.log("train").last().expect("a line")["step"], 4);
    let state: serde_json::Value = serde_json::from_slice(&bytes(&job.newest(), "state.json")).expect("JSON");
    assert_eq!(state["position"]["epoch"], 1, "{state}");
}

fn a_run_continues_with_another_number_of_ranks() {
    let mut job = Job::new(200);
    (job.nodes, job.micro_batch, job.epochs) = (2, 5, 15);
    job.stop(Signal::SIGINT);
    job.nodes = 1;
    job.run_well();
    let state: serde_json::Value = serde_json::from_slice(&bytes(&job.newest(), "state.json")).expect("JSON");
    assert_eq!(state["position"]["epoch"], 15);
    // A finished run has nothing left to do, and fewer epochs than done are likely a mistake.
    job.run_well();
    job.epochs = 14;
    job.ends(
        0,
        &["the checkpoint has 15 epochs, and training.epochs is 14: nothing is left to train"],
    );
}

#[test]
fn deepspeeds_breakdown_is_logged_where_it_is_asked_for() {
    let mut job = Job::new(40);
    (job.accumulation, job.breakdown) = (2, true);
    job.ends(0, &["time (ms) | fwd_microstep: ", "time (ms) | fwd: "]);
    let record = job.log("train").pop().expect("a line");
    let time = |name: &str| record["wallClockBreakdown"][name].as_f64().expect("a number");
    let parts = time("bwd_inner_microstep") + time("bwd_allreduce_microstep");
    assert!((time("bwd_microstep") - parts).abs() < 1e-9, "{record}");
    let forward = record["phases"]["forward"].as_f64().expect("a number");
    assert!(
        (2.0 * time("fwd_microstep") - 1000.0 * forward).abs() < 1e-9,
        "{record}"
    );

    job.breakdown = false;
    job.epochs += 1;
    let printed = job.ends(0, &[]);
    assert!(!printed.contains("time (ms)"), "{printed}");
}
