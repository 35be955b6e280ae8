//! The same as PyTorch trains on ranks that divide a model: `tests/peers/divided_training.py` has made the weights.

use std::path::{Path, PathBuf};

use crate::common::{Job, distance, weights_of};

fn golden(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/peers/goldens")
        .join(file)
}

/// Ten steps of the golden's twelve images from its weights. Gives the largest difference to `file`.
fn distance_to(
    file: &str,
    ranks: u32,
    micro_batch: u32,
    training: &'static str,
    parallelism: &'static str,
) -> f32 {
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
    distance(&job.weights(), &weights_of(&golden(file)))
}

#[test]
fn zero_trains_what_fsdp2_trains() {
    for parallelism in ["{zeroStage: 1}", "{zeroStage: 2}", "{zeroStage: 3}"] {
        let distance = distance_to(
            "divided/fsdp2.safetensors",
            2,
            6,
            "clipGradNorm: 0.5",
            parallelism,
        );
        assert!(distance < 1e-5, "{parallelism}: {distance}");
    }
}

#[test]
fn divided_heads_train_what_dtensor_trains() {
    let parallelism = "{tensor: 3, acrossNodes: true}";
    let distance = distance_to("divided/tensor.safetensors", 3, 12, "seed: 0", parallelism);
    assert!(distance < 1e-5, "{distance}");
}
