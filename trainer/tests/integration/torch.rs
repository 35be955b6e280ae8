//! The same as PyTorch on ranks that shard a model: `tests/peers/divided_training.py` made weights.

use std::path::{Path, PathBuf};

use crate::common::{Job, distance, norm_of_difference, weights_of};
use crate::device::on_each_device;

on_each_device!(
    zero_trains_what_fsdp2_trains,
    divided_heads_train_what_dtensor_trains,
);

const STAGES: [&str; 3] = ["{zeroStage: 1}", "{zeroStage: 2}", "{zeroStage: 3}"];

fn golden(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/peers/goldens")
        .join(file)
}

/// The weights after ten steps from the golden's weights on its twelve images.
fn trained(
    ranks: u32,
    micro_batch: u32,
    training: &'static str,
    parallelism: &'static str,
) -> Vec<(String, Vec<f32>)> {
    let mut job = Job::new(5);
    for array in ["train_images.npy", "train_labels.npy"] {
        fs_err::copy(golden("divided").join(array), job.data().join(array)).expect("copies");
    }
    job.data_fields = "format: numpy, normalization: {mean: [0.0], std: [1.0]}".into();
    job.model =
        "{imageSize: 16, patchSize: 4, hiddenSize: 24, depth: 2, heads: 3, mlpSize: 48, numClasses: 5}"
            .into();
    let weights = golden("class_token/model.safetensors");
    job.arguments = vec!["--pretrained".into(), weights.display().to_string()];
    (job.nodes, job.micro_batch, job.epochs, job.learning_rate) = (ranks, micro_batch, 10, 1e-2);
    job.schedule = "name: constant";
    (job.optimizer, job.training, job.parallelism) = ("name: adamw, epsilon: 1e-4", training, parallelism);
    job.run_well();
    job.weights()
}

fn zero_trains_what_fsdp2_trains() {
    let expected = weights_of(&golden("divided/fsdp2.safetensors"));
    for parallelism in STAGES {
        let found = trained(2, 6, "clipGradNorm: 0.5", parallelism);
        let distance = distance(&found, &expected);
        assert!(distance < 1e-5, "{parallelism}: {distance}");
    }
}

/// Half weights end as close to 32-bit training as those of FSDP2 with `MixedPrecisionPolicy`.
#[test]
fn half_weights_of_zero_lose_no_more_than_those_of_fsdp2() {
    let exact = weights_of(&golden("divided/fsdp2.safetensors"));
    let fsdp2 = norm_of_difference(&weights_of(&golden("divided/fsdp2_bf16.safetensors")), &exact);
    for parallelism in STAGES {
        let training = "clipGradNorm: 0.5; precision: bf16; masterWeights: true";
        let own = norm_of_difference(&trained(2, 6, training, parallelism), &exact);
        assert!(own < fsdp2, "{parallelism}: {own}, FSDP2 {fsdp2}");
    }
}

fn divided_heads_train_what_dtensor_trains() {
    let parallelism = "{tensor: 3, acrossNodes: true}";
    let found = trained(3, 12, "seed: 0", parallelism);
    let distance = distance(&found, &weights_of(&golden("divided/tensor.safetensors")));
    assert!(distance < 1e-5, "{distance}");
}
