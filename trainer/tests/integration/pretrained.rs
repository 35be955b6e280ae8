//! Training from a file of weights.

use std::path::{Path, PathBuf};

use crate::common::{Job, distance};

/// Weights for 5 classes of images of 16 pixels in patches of 4, created by timm.
fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/peers/goldens/class_token/model.safetensors")
}

/// A job with the golden file's model, except for image size and classes.
fn job() -> Job {
    let mut job = Job::new(40);
    job.model =
        "{imageSize: 32, patchSize: 4, hiddenSize: 24, depth: 2, heads: 3, mlpSize: 48, numClasses: 10}"
            .into();
    job.epochs = 1;
    job
}

#[test]
fn a_run_starts_from_the_files_weights_and_goes_on_without_the_file() {
    let mut job = job();
    job.learning_rate = 1e-9;
    let file = job.data().join("vit.safetensors");
    fs_err::copy(golden(), &file).expect("copies");
    job.arguments = vec!["--pretrained".into(), file.display().to_string()];
    job.ends(
        0,
        &["is for 5 classes: the head for 10 classes starts at random weights"],
    );
    let norm = |weights: &[(String, Vec<f32>)]| {
        let found = weights.iter().find(|(name, _)| name == "blocks.1.norm2.weight");
        vec![found.expect("a norm").clone()]
    };
    // Such a small learning rate leaves them unchanged.
    let of_file = norm(&crate::common::weights_of(&golden()));
    assert!(distance(&norm(&job.weights()), &of_file) < 1e-5);

    // Ranks that shard them start with the same weights and the same random head.
    for (ranks, parallelism) in [(2, "{zeroStage: 3}"), (3, "{tensor: 3, acrossNodes: true}")] {
        let mut divided = self::job();
        (divided.nodes, divided.parallelism, divided.learning_rate) = (ranks, parallelism, 1e-9);
        divided.arguments.clone_from(&job.arguments);
        divided.run_well();
        let far = distance(&divided.weights(), &job.weights());
        assert!(far < 1e-5, "{parallelism}: {far}");
    }

    fs_err::remove_file(&file).expect("removes");
    job.epochs = 2;
    job.ends(0, &[]);
}

#[test]
fn weights_of_another_model_end_the_run_with_the_tensor_and_both_shapes() {
    let mut job = job();
    job.model = job.model.replace("mlpSize: 48", "mlpSize: 96");
    job.arguments = vec!["--pretrained".into(), golden().display().to_string()];
    job.ends(
        2,
        &["blocks.0.mlp.fc1.weight has shape [48, 24] in the file and [96, 24] in the model"],
    );
}
