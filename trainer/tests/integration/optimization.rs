//! Optimizers and number formats over several ranks, and across a stop.

use crate::common::{Job, assert_same_files, bytes, distance, norm_of_difference, weights_of};
use crate::device::{Device, on_each_device};

on_each_device!(
    every_optimizer_and_precision_computes_the_same_on_any_number_of_ranks,
    a_stopped_run_continues_bit_by_bit_with_every_kind_of_state,
    accumulation_reduces_gradients_once_a_step_and_half_weights_halve_them,
    gradients_in_bf16_are_half_the_bytes_and_train_as_well,
    compressing_gradients_of_half_weights_sends_all_of_them_in_half,
    recomputing_activations_changes_no_bit_of_what_two_ranks_learn,
    overflows_of_fp16_skip_steps_until_the_scale_fits,
);

/// An optimizer, additional lines of `training`, and how far weights may differ if batches are
/// split differently, as a share of their movement. In half precision, other batches round
/// differently, and AdamW takes steps of the learning rate even if a gradient is only rounding.
const CASES: [(&str, &str, f64); 7] = [
    ("name: sgd, nesterov: true", "clipGradNorm: 1.0", 1e-3),
    ("name: lamb", "layerDecay: 0.8", 1e-3),
    ("name: adamw", "precision: bf16", 0.1),
    ("name: sgd", "precision: bf16; masterWeights: true", 0.1),
    ("name: adamw", FP16, 0.1),
    ("name: lamb", FP16_WEIGHTS, 0.1),
    (
        "name: adamw",
        "ema: {decay: 0.9}; learningRateScaling: {rule: sqrt, referenceBatchSize: 2}",
        1e-3,
    ),
];

/// With a loss scale that skips no step: other splits of a batch would skip others.
const FP16: &str = "precision: fp16; lossScale: {initialScalePower: 8}";
const FP16_WEIGHTS: &str = "precision: fp16; masterWeights: true; lossScale: {initialScalePower: 8}";

/// How far two jobs' weights differ, as a share of the first job's movement from the start.
pub(crate) fn share_of_movement(one: &Job, other: &Job) -> f64 {
    let mut untrained = Job::new(50);
    untrained.model.clone_from(&one.model);
    (untrained.nodes, untrained.epochs, untrained.learning_rate) = (1, 1, 1e-9);
    untrained.run_well();
    let movement = norm_of_difference(&one.weights(), &untrained.weights());
    assert!(movement > 1e-3, "training moves weights by {movement} only");
    norm_of_difference(&one.weights(), &other.weights()) / movement
}

fn every_optimizer_and_precision_computes_the_same_on_any_number_of_ranks() {
    for (optimizer, training, tolerance) in Device::current().cases(&CASES, 4, 7).iter().copied() {
        let run = |nodes, micro_batch, accumulation| {
            let mut job = Job::new(50);
            (job.nodes, job.micro_batch, job.accumulation) = (nodes, micro_batch, accumulation);
            (job.optimizer, job.training) = (optimizer, training);
            if nodes == 1 {
                job.device = Device::Cpu;
            }
            job.run_well();
            job
        };
        let one = run(1, 8, 1);
        let other = run(2, 2, 2);
        let share = share_of_movement(&one, &other);
        assert!(
            share < tolerance,
            "{optimizer}, {training}: weights differ by {share} of their movement"
        );
    }
}

fn a_stopped_run_continues_bit_by_bit_with_every_kind_of_state() {
    let cases = [
        (
            "name: lamb",
            "precision: bf16; masterWeights: true; ema: {decay: 0.99, warmup: true}",
        ),
        (
            "name: adamw",
            "precision: fp16; masterWeights: true; layerDecay: 0.8",
        ),
        ("name: sgd", "precision: fp16; ema: {decay: 0.99}"),
    ];
    for (optimizer, training) in Device::current().cases(&cases, 1, 3).iter().copied() {
        let job = || {
            let mut job = Job::new(200);
            job.epochs = Device::current().epochs_to_stop_in();
            (job.optimizer, job.training) = (optimizer, training);
            job
        };
        let (whole, parts) = (job(), job());
        whole.run_well();
        parts.stop_and_continue();
        let mut files = vec!["model.safetensors", "optimizer.safetensors", "state.json"];
        if training.contains("ema") {
            files.push("ema.safetensors");
            assert!(whole.log("evaluation")[0]["emaAccuracy"].is_number());
        }
        assert_same_files(&whole, &parts, &files, &format!("{optimizer}, {training}"));
    }
}

#[test]
fn an_average_may_begin_and_end_at_any_checkpoint() {
    let mut job = Job::new(50);
    job.epochs = 1;
    job.run_well();
    let before = job.weights();

    // Such a slow average stays at its start.
    (job.epochs, job.training) = (2, "ema: {decay: 0.9999999}");
    job.ends(
        0,
        &["the checkpoint has no averaged weights: the average starts from the weights"],
    );
    let average = weights_of(&job.newest().join("ema.safetensors"));
    let (moved, stayed) = (distance(&job.weights(), &before), distance(&average, &before));
    assert!(
        stayed < 1e-5 && moved > 1e-4,
        "the average moved by {stayed}, the weights by {moved}"
    );
    let last = job.log("evaluation").pop().expect("an evaluation");
    assert!(last["emaAccuracy"].is_number(), "{last}");

    (job.epochs, job.training) = (3, "seed: 0");
    job.ends(
        0,
        &["training.ema is not set: the averaged weights of the checkpoint are ignored"],
    );
    assert!(!job.newest().join("ema.safetensors").exists());
}

fn accumulation_reduces_gradients_once_a_step_and_half_weights_halve_them() {
    let reduced = |accumulation, training| {
        let mut job = Job::new(50);
        (job.accumulation, job.micro_batch, job.training) = (accumulation, 4 / accumulation, training);
        job.epochs = 1;
        job.run_well();
        let lines = job.log("train");
        lines[0]["sync"]["bytes"].as_u64().expect("a number")
    };
    let once = reduced(1, "seed: 0");
    assert!(once > 0);
    assert_eq!(
        reduced(4, "seed: 0"),
        once,
        "bytes a step, however many micro-batches it has"
    );
    let half = reduced(4, "precision: bf16; masterWeights: true");
    // Norms stay in 32 bits on the CPU: five, each of two vectors of 16.
    let full = match Device::current() {
        Device::Cpu => 5 * 2 * 16 * 4,
        Device::SimulatedGpus => 0,
    };
    assert_eq!(half, (once - full) / 2 + full);
}

fn gradients_in_bf16_are_half_the_bytes_and_train_as_well() {
    let trained = |parallelism| {
        let mut job = Job::new(50);
        job.parallelism = parallelism;
        job.run_well();
        // Of all steps together: the number of steps per line depends on their speed.
        let (mut steps, mut loss, mut bytes) = (0.0, 0.0, 0);
        for line in job.log("train") {
            let number = |field: &str| line[field].as_f64().expect("a number");
            steps += number("steps");
            loss += number("steps") * number("loss");
            bytes = line["sync"]["bytes"].as_u64().expect("a number");
        }
        (bytes, loss / steps)
    };
    let (bytes, loss) = trained("{}");
    let (half, close) = trained("{compressGradients: bf16}");
    assert_eq!(2 * half, bytes);
    assert!((close - loss).abs() < 1e-2, "{close} and {loss}");
}

fn compressing_gradients_of_half_weights_sends_all_of_them_in_half() {
    let trained = |training, parallelism| {
        let mut job = Job::new(50);
        (job.training, job.parallelism) = (training, parallelism);
        job.run_well();
        let bytes = job.log("train")[0]["sync"]["bytes"].as_u64().expect("a number");
        (bytes, job)
    };
    let (full, _) = trained("seed: 0", "{}");
    for precision in [
        "precision: bf16; masterWeights: true",
        "precision: fp16; masterWeights: true",
    ] {
        let (half, exact) = trained(precision, "{}");
        let (compressed, close) = trained(precision, "{compressGradients: bf16}");
        // On a GPU, norms are in half precision, too.
        let norms_are_full = Device::current() == Device::Cpu;
        assert!(
            (compressed < half) == norms_are_full && 2 * compressed == full,
            "{precision}: {compressed} of {half} and {full} bytes, the norms' among them"
        );
        let share = share_of_movement(&exact, &close);
        assert!(
            share < 0.1,
            "{precision}: weights differ by {share} of their movement"
        );
    }
}

fn recomputing_activations_changes_no_bit_of_what_two_ranks_learn() {
    let trained = |training| {
        let mut job = Job::new(50);
        job.model = job.model.replace('{', "{dropPath: 0.2, ");
        (job.accumulation, job.micro_batch, job.training) = (2, 2, training);
        job.run_well();
        job
    };
    let cases = [
        [
            "precision: bf16",
            "precision: bf16; activationCheckpointing: block",
            "precision: bf16; activationCheckpointing: selective",
        ],
        [
            "precision: fp16; masterWeights: true",
            "precision: fp16; masterWeights: true; activationCheckpointing: block",
            "precision: fp16; masterWeights: true; activationCheckpointing: selective",
        ],
    ];
    for [keep_all, per_block, selective] in Device::current().cases(&cases, 1, 2).iter().copied() {
        let kept = trained(keep_all);
        for training in [per_block, selective] {
            let recomputed = trained(training);
            let files = ["model.safetensors", "optimizer.safetensors", "state.json"];
            assert_same_files(&kept, &recomputed, &files, training);
        }
    }
}

fn overflows_of_fp16_skip_steps_until_the_scale_fits() {
    let mut job = Job::new(200);
    job.training = "precision: fp16; lossScale: {initialScalePower: 32, hysteresis: 1}";
    job.run_well();
    let lines = job.log("train");
    let last = lines.last().expect("a line");
    let skipped = last["skippedSteps"].as_u64().expect("a number");
    assert!((5..30).contains(&skipped), "{last}");
    let scale = last["lossScale"].as_f64().expect("a number");
    assert!((scale - 2_f64.powi(32 - skipped as i32)).abs() < 0.5, "{last}");
    let state: serde_json::Value = serde_json::from_slice(&bytes(&job.newest(), "state.json")).expect("JSON");
    let (step, updates) = (&state["position"]["step"], &state["position"]["updates"]);
    assert_eq!(
        step.as_u64(),
        updates.as_u64().map(|updates| updates + skipped),
        "{state}"
    );
}

#[test]
fn parameters_that_do_not_go_together_are_refused_by_name() {
    let mut job = Job::new(50);
    job.optimizer = "name: sgd, betas: [0.9, 0.99]";
    job.training = "masterWeights: true; lossScale: {hysteresis: 3}";
    let fields = [
        "spec.training.optimizer.betas",
        "spec.training.masterWeights",
        "spec.training.lossScale",
    ];
    job.ends(2, &fields);
}
