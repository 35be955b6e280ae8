//! Training of the last blocks, or of the classifier alone: the rest of the network stays as it was.

use crate::common::{Job, weights_of};
use crate::device::{Device, on_each_device};
use crate::model_parallel::{ADAMW, EVERYTHING, assert_same, trained};

on_each_device!(
    a_part_of_the_network_is_trained_alike_by_any_ranks,
    what_is_frozen_stays_bit_by_bit_and_has_no_state,
    a_frozen_part_in_half_precision_continues_to_the_same_bits,
);

/// Of three blocks, the last; and the classifier alone.
const PARTS: [&str; 2] = [
    "pooling: token, trainLastBlocks: 1",
    "pooling: average, registerTokens: 3, trainLastBlocks: 0",
];

fn a_part_of_the_network_is_trained_alike_by_any_ranks() {
    // Ranks, those that compute a model together, and parallelism.
    let cases = [
        (4, 4, "{sequence: 2, tensor: 2, acrossNodes: true, zeroStage: 3}"),
        (2, 1, "{zeroStage: 3}"),
        (2, 1, "{zeroStage: 1}"),
        (2, 1, "{offload: {optimizer: CPU}}"),
        (2, 1, "{zeroStage: 3, reshardAfterForward: false}"),
    ];
    for model in PARTS {
        let alone = trained(model, (1, 1), ADAMW, EVERYTHING, "{}");
        for (ranks, together, parallelism) in Device::current().cases(&cases, 3, 2).iter().copied() {
            let found = trained(model, (ranks, together), ADAMW, EVERYTHING, parallelism);
            assert_same(&found, &alone, &format!("{model}, {parallelism}"));
        }
        let training =
            "clipGradNorm: 0.5; layerDecay: 0.8; ema: {decay: 0.9}; activationCheckpointing: block";
        let recomputed = trained(model, (1, 1), ADAMW, training, "{}");
        assert_same(&recomputed, &alone, &format!("{model}, recomputed"));
    }
}

fn what_is_frozen_stays_bit_by_bit_and_has_no_state() {
    let [block, probe] = PARTS.map(|part| {
        let model = format!("pooling: token{}", &part[part.rfind(',').expect("fields")..]);
        trained(&model, (2, 1), ADAMW, EVERYTHING, "{zeroStage: 1}")
    });
    let is_of_block = |name: &str| name.starts_with("blocks.2.") || name.starts_with("norm.");
    let is_of_head = |name: &str| name.starts_with("head.");
    for ((name, of_block), (_, of_probe)) in block.weights().into_iter().zip(probe.weights()) {
        let is_trained = is_of_block(&name) || is_of_head(&name);
        assert_eq!(of_block != of_probe, is_trained, "{name}");
    }
    let state = |job: &Job| weights_of(&job.newest().join("optimizer.safetensors"));
    let of = |name: &str| name.split_once('.').expect("a kind").1.to_owned();
    assert!(
        state(&block)
            .iter()
            .all(|(name, _)| is_of_block(&of(name)) || is_of_head(&of(name)))
    );
    // Two moments of two tensors.
    assert_eq!(state(&probe).len(), 4);
    // The average is of the whole network, so that it can be exported.
    let average = weights_of(&probe.newest().join("ema.safetensors"));
    assert_eq!(average.len(), probe.weights().len());
}

fn a_frozen_part_in_half_precision_continues_to_the_same_bits() {
    let job = || {
        let mut job = Job::new(240);
        job.model = "{imageSize: 32, patchSize: 16, hiddenSize: 48, depth: 3, heads: 12, numClasses: 10, trainLastBlocks: 1}".into();
        job.training = "precision: bf16; masterWeights: true; seed: 3";
        job.parallelism = "{tensor: 2, acrossNodes: true}";
        job.epochs = Device::current().epochs_to_stop_in();
        job.spread(2);
        job
    };
    let (whole, parts) = (job(), job());
    whole.run_well();
    parts.stop_and_continue();
    assert_eq!(whole.weights(), parts.weights());
}
