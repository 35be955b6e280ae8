//! A model computed by several ranks, by tokens or heads, equals one rank's, with other sharding.

use serde_json::Value;

use crate::common::{FILES, Job, assert_close, assert_same_files};
use crate::device::{Device, on_each_device};

on_each_device!(
    ranks_that_divide_tokens_train_what_one_rank_trains,
    ranks_that_divide_heads_train_what_one_rank_trains,
    tokens_heads_data_and_training_state_are_divided_at_once,
    any_division_of_the_model_continues_from_any_other,
    a_stopped_run_of_a_divided_model_continues_to_the_same_bits,
    activations_are_exchanged_again_when_they_are_computed_again,
    divided_models_train_in_half_precision,
    models_of_every_family_are_divided,
);

/// Pooling and tokens: five, with a class token; seven, of which three are registers; and eight.
const MODELS: [&str; 3] = [
    "pooling: token",
    "pooling: average, registerTokens: 3",
    "pooling: token, registerTokens: 3, dropPath: 0.4",
];

/// Ten steps of 24 images on this many ranks, of which `together` have the same images.
pub(crate) fn trained(
    model: &str,
    (ranks, together): (u32, u32),
    optimizer: &'static str,
    training: &'static str,
    parallelism: &'static str,
) -> Job {
    let mut job = Job::new(240);
    job.model = format!(
        "{{imageSize: 32, patchSize: 16, hiddenSize: 48, depth: 3, heads: 12, numClasses: 10, {model}}}"
    );
    job.data_fields = "format: cifar10, augmentation: {mixup: 0.8, cutmix: 1.0}".into();
    (job.accumulation, job.epochs) = (6 * together / ranks, 1);
    // With a warm-up of a whole epoch the rate is still small enough.
    job.learning_rate = 1e-2;
    (job.optimizer, job.training, job.parallelism) = (optimizer, training, parallelism);
    // The reference.
    if ranks == 1 {
        job.device = Device::Cpu;
    }
    job.spread(ranks);
    job.run_well();
    assert_eq!(job.log("start")[0]["globalBatchSize"], 24);
    job
}

/// The same model, with the same accuracy on the way.
pub(crate) fn assert_same(found: &Job, expected: &Job, story: &str) {
    assert_close(found, expected, story);
    for kind in ["train", "evaluation"] {
        let of = |job: &Job| -> Vec<[Value; 2]> {
            let fields = |record: &Value| ["accuracy", "emaAccuracy"].map(|name| record[name].clone());
            job.log(kind).last().map(fields).into_iter().collect()
        };
        assert_eq!(of(found), of(expected), "{story}: accuracy of {kind}");
    }
}

pub(crate) const EVERYTHING: &str = "clipGradNorm: 0.5; layerDecay: 0.8; ema: {decay: 0.9}";
/// Large enough that rounding of a gradient near zero does not decide the sign of an update.
pub(crate) const ADAMW: &str = "name: adamw, epsilon: 1e-4";
/// Needs norms of whole parameters.
const LAMB: &str = "name: lamb, epsilon: 1e-4";

fn ranks_that_divide_tokens_train_what_one_rank_trains() {
    // The first model is in another test that also shards tokens.
    let models = [MODELS[2], MODELS[1], MODELS[0]];
    for model in Device::current().cases(&models, 1, 2) {
        let alone = trained(model, (1, 1), ADAMW, EVERYTHING, "{}");
        for (sequence, parallelism) in [
            (2, "{sequence: 2, acrossNodes: true}"),
            // The last rank has no token if there are five.
            (4, "{sequence: 4, acrossNodes: true}"),
        ] {
            let divided = trained(model, (sequence, sequence), ADAMW, EVERYTHING, parallelism);
            assert_same(&divided, &alone, &format!("{model}, {parallelism}"));
            let sync = &divided.log("train")[0]["sync"];
            assert!(sync["all_to_all"]["bytes"].as_u64() > Some(0), "{sync}");
        }
    }
}

fn ranks_that_divide_heads_train_what_one_rank_trains() {
    let cases = [
        (3, 3, "{tensor: 3, acrossNodes: true}"),
        (4, 2, "{tensor: 2, acrossNodes: true}"),
        (4, 2, "{tensor: 2, acrossNodes: true, offload: {optimizer: CPU}}"),
        (4, 2, "{tensor: 2, acrossNodes: true, zeroStage: 1}"),
        (4, 2, "{tensor: 2, acrossNodes: true, zeroStage: 3}"),
    ];
    let models = [
        (MODELS[0], ADAMW, &cases[..]),
        (MODELS[1], LAMB, &cases[1..4]),
        (MODELS[2], "name: sgd, momentum: 0.9", &cases[1..2]),
    ];
    // The last optimizer needs nothing from other ranks about whole weights.
    for (model, optimizer, cases) in Device::current().cases(&models, 2, 2).iter().copied() {
        let alone = trained(model, (1, 1), optimizer, EVERYTHING, "{}");
        for (ranks, together, parallelism) in Device::current().cases(cases, 1, cases.len()).iter().copied() {
            let divided = trained(model, (ranks, together), optimizer, EVERYTHING, parallelism);
            assert_same(&divided, &alone, &format!("{model}, {optimizer}, {parallelism}"));
            let sync = &divided.log("train")[0]["sync"];
            assert!(sync["all_reduce"]["bytes"].as_u64() > Some(0), "{sync}");
        }
    }
}

/// Families whose parts are divided otherwise: pooling by attention; rotated queries and keys, gates, biases of queries
/// and values, a class token that is not read; a second token that is, on the second of six ranks.
fn models_of_every_family_are_divided() {
    let at_once = (4, 4, "{sequence: 2, tensor: 2, acrossNodes: true, zeroStage: 3}");
    let cases = [
        ("name: vit_base_patch16_siglip_224", at_once),
        (
            "name: vit_small_plus_patch16_dinov3_qkvb, layerScale: 0.5",
            at_once,
        ),
        (
            "name: deit_base_distilled_patch16_224",
            (6, 6, "{sequence: 6, acrossNodes: true}"),
        ),
    ];
    for (model, (ranks, together, parallelism)) in Device::current().cases(&cases, 3, 1).iter().copied() {
        let alone = trained(model, (1, 1), ADAMW, EVERYTHING, "{}");
        let divided = trained(model, (ranks, together), ADAMW, EVERYTHING, parallelism);
        assert_same(&divided, &alone, &format!("{model}, {parallelism}"));
    }
}

fn tokens_heads_data_and_training_state_are_divided_at_once() {
    let cases = [
        (4, 4, "{sequence: 2, tensor: 2, acrossNodes: true, zeroStage: 1}"),
        (4, 2, "{sequence: 2, acrossNodes: true}"),
        (4, 2, "{sequence: 2, acrossNodes: true, zeroStage: 2}"),
        (2, 2, "{sequence: 2, acrossNodes: true, zeroStage: 3}"),
        (6, 6, "{sequence: 3, tensor: 2, acrossNodes: true, zeroStage: 3}"),
    ];
    let models = [
        (MODELS[0], ADAMW, &cases[..]),
        (MODELS[1], "name: sgd, momentum: 0.9", &cases[..1]),
        (MODELS[2], LAMB, &cases[..1]),
    ];
    // The results of models and optimizers do not depend on the device.
    let models = Device::current().cases(&models, 1, 1);
    for (model, optimizer, cases) in models.iter().copied() {
        let alone = trained(model, (1, 1), optimizer, EVERYTHING, "{}");
        for (ranks, together, parallelism) in Device::current().cases(cases, 1, cases.len()).iter().copied() {
            let divided = trained(model, (ranks, together), optimizer, EVERYTHING, parallelism);
            assert_same(&divided, &alone, &format!("{model}, {optimizer}, {parallelism}"));
        }
    }
}

fn any_division_of_the_model_continues_from_any_other() {
    let chain = [
        (2, 2, "{tensor: 2, acrossNodes: true}"),
        (2, 2, "{sequence: 2, acrossNodes: true, zeroStage: 3}"),
        (4, 2, "{tensor: 2, acrossNodes: true, zeroStage: 2}"),
        (1, 1, "{}"),
    ];
    let run = |chain: &[(u32, u32, &'static str)]| {
        let mut job = Job::new(48);
        job.model = format!(
            "{{imageSize: 32, patchSize: 16, hiddenSize: 24, depth: 2, heads: 12, numClasses: 10, {}}}",
            MODELS[0]
        );
        job.micro_batch = 2;
        job.optimizer = ADAMW;
        job.training = "ema: {decay: 0.9}";
        for (epochs, (ranks, together, parallelism)) in (1..).zip(chain) {
            (job.epochs, job.nodes, job.accumulation, job.parallelism) =
                (epochs, *ranks, 6 * together / ranks, parallelism);
            job.run_well();
        }
        assert_eq!(job.log("train").last().expect("a line")["step"], 4 * chain.len());
        job
    };
    let divided = run(&chain);
    let whole = run(&chain.map(|_| (1, 1, "{}")));
    assert_same(&divided, &whole, "a chain of divisions");
}

fn a_stopped_run_of_a_divided_model_continues_to_the_same_bits() {
    let job = || {
        let mut job = Job::new(200);
        job.spread(4);
        job.epochs = Device::current().epochs_to_stop_in();
        job.training = "ema: {decay: 0.9}";
        job.parallelism = "{tensor: 2, acrossNodes: true, zeroStage: 1}";
        job
    };
    let (straight, stopped) = (job(), job());
    straight.run_well();
    stopped.stop_and_continue();
    assert_same_files(&straight, &stopped, &FILES, "tensor 2, stage 1");
}

fn activations_are_exchanged_again_when_they_are_computed_again() {
    let training = |checkpointing| match checkpointing {
        "block" => "ema: {decay: 0.9}; activationCheckpointing: block",
        _ => "ema: {decay: 0.9}; activationCheckpointing: selective",
    };
    let cases = [
        (2, "{sequence: 2, acrossNodes: true}", &["block", "selective"][..]),
        (
            4,
            "{tensor: 2, sequence: 2, acrossNodes: true, zeroStage: 3}",
            &["block"],
        ),
        (2, "{sequence: 2, acrossNodes: true, zeroStage: 3}", &["block"]),
    ];
    // The second one covers the exchanges of the third.
    let cases = Device::current().cases(&cases, 1, 2);
    for (ranks, parallelism, checkpointings) in cases.iter().copied() {
        let kept = trained(MODELS[2], (ranks, ranks), ADAMW, "ema: {decay: 0.9}", parallelism);
        for checkpointing in checkpointings {
            let training = training(checkpointing);
            let recomputed = trained(MODELS[2], (ranks, ranks), ADAMW, training, parallelism);
            assert_same_files(&kept, &recomputed, &FILES, parallelism);
        }
    }
}

fn divided_models_train_in_half_precision() {
    let cases = [
        "precision: bf16; masterWeights: true; ema: {decay: 0.9}",
        "precision: bf16; ema: {decay: 0.9}",
    ];
    for training in Device::current().cases(&cases, 1, 2).iter().copied() {
        let alone = trained(MODELS[1], (1, 1), ADAMW, training, "{}");
        for parallelism in [
            "{sequence: 2, acrossNodes: true}",
            "{tensor: 2, acrossNodes: true}",
        ] {
            let divided = trained(MODELS[1], (2, 2), ADAMW, training, parallelism);
            let share = crate::optimization::share_of_movement(&alone, &divided);
            assert!(
                share < 0.1,
                "{training}, {parallelism}: weights differ by {share} of their movement"
            );
        }
    }
}

#[test]
fn ranks_that_cannot_divide_a_model_are_refused_with_the_numbers() {
    let mut job = Job::new(48);
    job.nodes = 3;
    job.parallelism = "{sequence: 2, acrossNodes: true}";
    job.ends(
        2,
        &["workers.nodes x workers.gpusPerNode is 3: must be a multiple of parallelism.sequence x parallelism.tensor (2)"],
    );
    job.parallelism = "{sequence: 2}";
    job.ends(
        2,
        &["workers.gpusPerNode is 1: must be a multiple of parallelism.sequence x parallelism.tensor (2)"],
    );
    job.parallelism = "{sequence: 3, acrossNodes: true}";
    job.ends(
        2,
        &["model.heads is 2: must be a multiple of parallelism.sequence x parallelism.tensor (3)"],
    );
}
