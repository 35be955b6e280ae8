//! Images of any number of classes, from their labels to mean average precision.

use std::process::Command;

use serde_json::Value;
use tch::Tensor;

use crate::common::{Job, TRAINER, distance, text};
use crate::device::{Device, on_each_device};

on_each_device!(ranks_learn_and_rate_together_what_one_does);

const CLASSES: i64 = 4;
const SIDE: i64 = 32;

/// Images of four quarters, bright if the image shows the class; noise makes learning slower.
fn images(count: u64, seed: u64) -> [(&'static str, Tensor); 2] {
    // Not from libtorch's generator, which all tests share.
    let mut state = seed;
    let mut random = move |below: u64| {
        // SplitMix64.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % below
    };
    let (mut pixels, mut labels) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let number = random(1 << CLASSES);
        let shows = |class: i64| number >> class & 1;
        labels.extend((0..CLASSES).map(|class| shows(class) as u8));
        for place in 0..SIDE * SIDE {
            let quarter = place / SIDE / (SIDE / 2) * 2 + place % SIDE / (SIDE / 2);
            pixels.push((shows(quarter) * 120 + random(60)) as u8);
        }
    }
    let images = Tensor::from_slice(&pixels).view([-1, SIDE, SIDE]);
    [
        ("images", images),
        ("labels", Tensor::from_slice(&labels).view([-1, CLASSES])),
    ]
}

fn job(train_images: u64) -> Job {
    let mut job = Job::new(0);
    // Uneven over ranks, and over each rank's batches.
    for (split, count) in [("train", train_images), ("val", 27)] {
        Tensor::write_npz(&images(count, count), job.data().join(format!("{split}.npz"))).expect("writes");
    }
    job.data_fields = "format: numpy, augmentation: {mixup: 0.2, horizontalFlip: 0.0}, normalization: {mean: [0.5], std: [0.25]}".into();
    job.model = job
        .model
        .replace("numClasses: 10", "numClasses: 4, channels: 1")
        .replace("average", "token");
    job.training =
        "loss: binaryCrossEntropy; classWeights: {balanced: true}; labelSmoothing: 0.1; ema: {decay: 0.9}";
    job
}

fn last_evaluation(job: &Job) -> Value {
    job.log("evaluation").last().cloned().expect("an evaluation")
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("no number: {value}"))
}

fn ranks_learn_and_rate_together_what_one_does() {
    let train = |nodes: u32, micro_batch: u32, parallelism: &'static str| {
        let mut job = job(80);
        (job.nodes, job.micro_batch, job.parallelism) = (nodes, micro_batch, parallelism);
        // Adam turns rounding differences into whole steps.
        (job.optimizer, job.learning_rate) = ("name: sgd, momentum: 0.9", 0.1);
        if nodes == 1 {
            job.device = Device::Cpu;
        }
        job.run_well();
        (job.weights(), last_evaluation(&job))
    };
    let (expected, alone) = train(1, 8, "{}");
    for parallelism in ["{}", "{sequence: 2, acrossNodes: true}"] {
        let micro_batch = if parallelism == "{}" { 4 } else { 8 };
        let (weights, together) = train(2, micro_batch, parallelism);
        let distance = distance(&weights, &expected);
        assert!(distance < 1e-4, "{parallelism}: weights differ by {distance}");
        assert_eq!(together["images"], 27);
        for field in ["meanAveragePrecision", "emaMeanAveragePrecision", "accuracy"] {
            let difference = (number(&together[field]) - number(&alone[field])).abs();
            assert!(
                difference < 1e-6,
                "{parallelism}: {field} of {together} and {alone}"
            );
        }
    }
}

#[test]
fn a_checkpoint_rates_as_training_said() {
    let mut job = job(800);
    (job.nodes, job.epochs, job.micro_batch, job.learning_rate) = (1, 25, 8, 3e-3);
    job.run_well();
    let (manifest, data, runs) = (job.write_manifest(), job.data(), job.runs());
    let output = Command::new(TRAINER)
        .args([
            "eval",
            "-f",
            text(&manifest),
            "--data",
            text(&data),
            "--checkpoints",
            text(&runs),
            "--json",
        ])
        .output()
        .expect("runs");
    let found: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let last = last_evaluation(&job);
    // Half of the images show each class.
    assert!(number(&last["meanAveragePrecision"]) > 0.9, "{last}");
    assert_eq!(found["correct"], last["correct"]);
    let difference = number(&found["meanAveragePrecision"]) - number(&last["meanAveragePrecision"]);
    assert!(difference.abs() < 1e-9, "{found} and {last}");
}

#[test]
fn one_class_an_image_is_asked_for_unless_the_loss_takes_several() {
    let mut job = job(80);
    job.training = "seed: 0";
    job.nodes = 1;
    job.ends(3, &["a column for each class, but training.loss crossEntropy allows one class per image: use binaryCrossEntropy for several"]);
}
