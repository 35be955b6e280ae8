//! Sharded training state gives one rank's model and checkpoints.

use serde_json::Value;

use crate::common::{FILES, Job, assert_close, assert_same_files};
use crate::device::{Device, on_each_device};
use crate::optimization::share_of_movement;

on_each_device!(
    every_stage_trains_what_one_rank_trains,
    an_offloaded_optimizer_trains_what_one_on_the_device_does,
    masters_in_host_memory_train_to_the_same_bits,
    nodes_that_each_have_all_training_state_train_what_one_rank_trains,
    divided_weights_are_there_when_activations_are_computed_again,
    masters_in_shards_train_as_whole_ones_do,
    any_stage_and_number_of_ranks_continues_from_any_other,
    a_stopped_run_with_divided_weights_continues_to_the_same_bits,
);

const STAGES: [&str; 4] = [
    "{zeroStage: 3}",
    "{zeroStage: 2}",
    "{zeroStage: 1}",
    "{zeroStage: 3, reshardAfterForward: false}",
];

/// Ten steps of 24 images, with all options that need all gradients or whole tensors.
fn trained(optimizer: &'static str, ranks: u32, parallelism: &'static str, training: &'static str) -> Job {
    let mut job = Job::new(240);
    job.data_fields = "format: cifar10, augmentation: {mixup: 0.8, cutmix: 1.0}".into();
    (job.accumulation, job.epochs) = (6 / ranks, 1);
    // With a warm-up of a whole epoch the rate is still small enough.
    job.learning_rate = 1e-2;
    (job.optimizer, job.training, job.parallelism) = (optimizer, training, parallelism);
    // The reference.
    if ranks == 1 {
        job.device = Device::Cpu;
    }
    job.spread(ranks);
    job.run_well();
    job
}

/// Bytes moved by an operation in a step, from the last log line: the first step gathers no weights
/// at stages 1 and 2, and may have a separate line.
fn bytes(job: &Job, operation: &str) -> u64 {
    let line = job.log("train").pop().expect("a line");
    line["sync"][operation]["bytes"].as_u64().unwrap_or(0)
}

const EVERYTHING: &str = "clipGradNorm: 0.5; layerDecay: 0.8; ema: {decay: 0.9}";

fn every_stage_trains_what_one_rank_trains() {
    // Large enough that rounding of a gradient near zero does not decide the sign of an update.
    for (optimizer, stages) in [
        ("name: adamw, epsilon: 1e-4", &STAGES[..]),
        ("name: sgd, momentum: 0.9", &STAGES[..2]),
        // Needs norms of whole parameters.
        ("name: lamb, epsilon: 1e-4", &STAGES[..3]),
    ] {
        let alone = trained(optimizer, 1, "{}", EVERYTHING);
        for parallelism in Device::current().cases(stages, 1, stages.len()) {
            let divided = trained(optimizer, 3, parallelism, EVERYTHING);
            assert_close(&divided, &alone, &format!("{optimizer}, {parallelism}"));
            assert!(bytes(&divided, "reduce_scatter") > 0 && bytes(&divided, "all_gather") > 0);
            assert_eq!(bytes(&divided, "all_reduce"), 0);
            assert_eq!(
                accuracies(&divided),
                accuracies(&alone),
                "{optimizer}, {parallelism}"
            );
        }
    }
}

fn an_offloaded_optimizer_trains_what_one_on_the_device_does() {
    for (optimizer, cases) in [
        (
            "name: adamw, epsilon: 1e-4",
            &[
                "{offload: {optimizer: CPU, parameters: CPU}, zeroStage: 3}",
                "{offload: {optimizer: CPU}}",
                "{offload: {optimizer: CPU}, zeroStage: 1}",
                "{offload: {optimizer: CPU}, zeroStage: 2}",
                "{offload: {optimizer: CPU}, zeroStage: 3}",
                "{offload: {optimizer: CPU}, zeroStage: 3, reshardAfterForward: false}",
            ][..],
        ),
        (
            "name: sgd, momentum: 0.9",
            &["{offload: {optimizer: CPU}, zeroStage: 2}"],
        ),
        (
            "name: lamb, epsilon: 1e-4",
            &["{offload: {optimizer: CPU}, zeroStage: 3}"],
        ),
    ] {
        let alone = trained(optimizer, 1, "{}", EVERYTHING);
        for parallelism in Device::current().cases(cases, 1, cases.len()) {
            let offloaded = trained(optimizer, 3, parallelism, EVERYTHING);
            assert_close(&offloaded, &alone, &format!("{optimizer}, {parallelism}"));
            assert_eq!(
                accuracies(&offloaded),
                accuracies(&alone),
                "{optimizer}, {parallelism}"
            );
        }
    }
}

fn masters_in_host_memory_train_to_the_same_bits() {
    let optimizer = "name: adamw, epsilon: 1e-4";
    let cases = [
        (
            "precision: bf16; masterWeights: true; ema: {decay: 0.9}; clipGradNorm: 0.5",
            "{}",
            "{offload: {optimizer: CPU}}",
        ),
        (
            "precision: fp16; masterWeights: true; ema: {decay: 0.9}",
            "{}",
            "{offload: {optimizer: CPU}}",
        ),
        (
            "precision: fp16; masterWeights: true; ema: {decay: 0.9}",
            "{zeroStage: 1}",
            "{offload: {optimizer: CPU}, zeroStage: 1}",
        ),
        (
            "precision: bf16; masterWeights: true; ema: {decay: 0.9}",
            "{zeroStage: 3}",
            "{offload: {optimizer: CPU}, zeroStage: 3}",
        ),
        (
            "precision: bf16; masterWeights: true; ema: {decay: 0.9}",
            "{zeroStage: 3}",
            "{offload: {optimizer: CPU, parameters: CPU}, zeroStage: 3}",
        ),
    ];
    for (training, on_device, offloaded) in Device::current().cases(&cases, 2, cases.len()).iter().copied() {
        let on_device = trained(optimizer, 2, on_device, training);
        let host = trained(optimizer, 2, offloaded, training);
        assert_same_files(&on_device, &host, &FILES, offloaded);
    }
}

/// Of held-out images, by weights and their average: 13, so the first of three ranks has more.
fn accuracies(job: &Job) -> Vec<[Value; 2]> {
    let records = job.log("evaluation");
    assert!(!records.is_empty());
    let of = |record: &Value| ["accuracy", "emaAccuracy"].map(|name| record[name].clone());
    records.iter().map(of).collect()
}

fn nodes_that_each_have_all_training_state_train_what_one_rank_trains() {
    for (optimizer, training, cases) in [
        (
            "name: adamw, epsilon: 1e-4",
            EVERYTHING,
            &[
                (2, 6, "{zeroStage: 3, shardWithinNode: true, sequence: 2}"),
                (2, 3, "{zeroStage: 1, shardWithinNode: true}"),
                (2, 3, "{zeroStage: 2, shardWithinNode: true}"),
                (2, 3, "{zeroStage: 3, shardWithinNode: true}"),
            ][..],
        ),
        (
            "name: lamb, epsilon: 1e-4",
            EVERYTHING,
            &[
                (
                    2,
                    3,
                    "{zeroStage: 2, shardWithinNode: true, offload: {optimizer: CPU}}",
                ),
                (4, 3, "{zeroStage: 3, shardWithinNode: true, tensor: 2}"),
            ],
        ),
        // Distinguishes a mean from a sum: nothing scales its gradients.
        (
            "name: sgd, momentum: 0.9",
            "ema: {decay: 0.9}",
            &[(2, 3, "{zeroStage: 3, shardWithinNode: true}")],
        ),
    ] {
        let alone = trained(optimizer, 1, "{}", training);
        for (ranks_per_node, accumulation, parallelism) in
            Device::current().cases(cases, 1, cases.len()).iter().copied()
        {
            let mut hybrid = Job::new(240);
            hybrid.data_fields = "format: cifar10, augmentation: {mixup: 0.8, cutmix: 1.0}".into();
            (hybrid.nodes, hybrid.ranks_per_node, hybrid.epochs) = (2, ranks_per_node, 1);
            (hybrid.micro_batch, hybrid.accumulation, hybrid.learning_rate) = (2, accumulation, 1e-2);
            (hybrid.optimizer, hybrid.training, hybrid.parallelism) = (optimizer, training, parallelism);
            hybrid.run_well();
            assert_close(&hybrid, &alone, &format!("{optimizer}, {parallelism}"));
            assert_eq!(
                accuracies(&hybrid),
                accuracies(&alone),
                "{optimizer}, {parallelism}"
            );
            // Between nodes: a shard per rank and step, and activations if ranks compute a model
            // together.
            let (within, between) = (bytes(&hybrid, "reduce_scatter"), bytes(&hybrid, "all_reduce"));
            let passes = if parallelism.contains("zeroStage: 1") {
                1
            } else {
                accumulation
            };
            let shards_sent = within / u64::from(hybrid.ranks_per_node * passes);
            if parallelism.contains("sequence") || parallelism.contains("tensor") {
                assert!(between > 0, "{parallelism}");
            } else {
                assert_eq!(between, shards_sent, "{parallelism}");
            }
        }
    }
}

fn divided_weights_are_there_when_activations_are_computed_again() {
    let optimizer = "name: adamw, epsilon: 1e-4";
    let training = |checkpointing| match checkpointing {
        "block" => "ema: {decay: 0.9}; activationCheckpointing: block",
        _ => "ema: {decay: 0.9}; activationCheckpointing: selective",
    };
    let kept = trained(optimizer, 2, "{zeroStage: 3}", "ema: {decay: 0.9}");
    for checkpointing in ["block", "selective"] {
        let recomputed = trained(optimizer, 2, "{zeroStage: 3}", training(checkpointing));
        assert_same_files(&kept, &recomputed, &FILES, checkpointing);
    }
}

fn masters_in_shards_train_as_whole_ones_do() {
    let optimizer = "name: adamw, epsilon: 1e-4";
    let training = "precision: bf16; masterWeights: true; ema: {decay: 0.9}";
    let whole = trained(optimizer, 2, "{}", training);
    // Half a step's micro-batches are summed in 32 instead of 16 bits, and rounded at other points.
    for parallelism in Device::current().cases(&STAGES, 1, STAGES.len()) {
        let divided = trained(optimizer, 2, parallelism, training);
        let share = share_of_movement(&whole, &divided);
        assert!(
            share < 0.1,
            "{parallelism}: weights differ by {share} of their movement"
        );
    }
}

fn any_stage_and_number_of_ranks_continues_from_any_other() {
    let chain = [
        (2, 1, "{zeroStage: 3}"),
        (1, 1, "{}"),
        (3, 1, "{zeroStage: 1, offload: {optimizer: CPU}}"),
        (3, 2, "{zeroStage: 3, shardWithinNode: true}"),
        (6, 1, "{zeroStage: 2}"),
    ];
    let run = |chain: &[(u32, u32, &'static str)]| {
        let mut job = Job::new(48);
        job.micro_batch = 2;
        job.optimizer = "name: adamw, epsilon: 1e-4";
        job.training = "ema: {decay: 0.9}";
        for (epochs, (nodes, ranks_per_node, parallelism)) in (1..).zip(chain) {
            (job.epochs, job.nodes, job.ranks_per_node) = (epochs, *nodes, *ranks_per_node);
            (job.accumulation, job.parallelism) = (6 / (nodes * ranks_per_node), parallelism);
            job.run_well();
        }
        assert_eq!(job.log("start").len(), chain.len());
        assert_eq!(job.log("train").last().expect("a line")["step"], 4 * chain.len());
        job
    };
    let divided = run(&chain);
    let whole = run(&chain.map(|_| (1, 1, "{}")));
    assert_close(&divided, &whole, "a chain of stages");
}

fn a_stopped_run_with_divided_weights_continues_to_the_same_bits() {
    let cases = [
        "{zeroStage: 3, offload: {optimizer: CPU, parameters: CPU}}",
        "{zeroStage: 1}",
    ];
    for parallelism in Device::current().cases(&cases, 1, 2).iter().copied() {
        let job = || {
            let mut job = Job::new(200);
            job.epochs = Device::current().epochs_to_stop_in();
            job.training = "ema: {decay: 0.9}";
            job.parallelism = parallelism;
            job
        };
        let (straight, stopped) = (job(), job());
        straight.run_well();
        stopped.stop_and_continue();
        assert_same_files(&straight, &stopped, &FILES, parallelism);
    }
}
