//! Checkpoint weights for timm and torchvision.

use std::path::{Path, PathBuf};
use std::process::Command;

use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

use crate::common::{Job, TRAINER, text, weights_of};

/// A model that torchvision also has.
const CLASS_TOKEN: &str =
    "{imageSize: 32, patchSize: 16, hiddenSize: 16, depth: 2, heads: 2, numClasses: 10}";

fn job() -> Job {
    let mut job = Job::new(50);
    job.epochs = 1;
    job.model = CLASS_TOKEN.into();
    job
}

/// Exit code and output.
fn export(arguments: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(TRAINER)
        .arg("export")
        .args(arguments)
        .output()
        .expect("runs");
    let printed = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(printed).expect("text"))
}

/// The file for a job's exported weights.
fn output(job: &Job, name: &str) -> PathBuf {
    job.data().join(name)
}

fn names(path: &Path) -> Vec<String> {
    weights_of(path).into_iter().map(|(name, _)| name).collect()
}

#[test]
fn masters_of_half_weights_and_their_average_are_exported_for_either_library() {
    let mut job = job();
    job.training = "precision: bf16; masterWeights: true; ema: {decay: 0.9}";
    job.run_well();
    let checkpoint = job.newest();
    for (names, ema, file) in [
        ("timm", false, "model.safetensors"),
        ("torchvision", false, "model.safetensors"),
        ("timm", true, "ema.safetensors"),
    ] {
        let to = output(&job, "vit.safetensors");
        let jobs = job.checkpoints();
        let mut arguments = vec![text(&jobs), "-o", text(&to), "--names", names, "--force"];
        arguments.extend(ema.then_some("--ema"));
        let (code, printed) = export(&arguments);
        assert_eq!(code, Some(0), "{printed}");
        let mut exported: Vec<Vec<f32>> = weights_of(&to).into_iter().map(|(_, values)| values).collect();
        let mut kept: Vec<Vec<f32>> = weights_of(&checkpoint.join(file))
            .into_iter()
            .map(|(_, values)| values)
            .collect();
        // Names differ, and so does their order.
        exported.sort_by(|left, right| left.partial_cmp(right).expect("numbers"));
        kept.sort_by(|left, right| left.partial_cmp(right).expect("numbers"));
        assert_eq!(exported, kept, "{names} {file}");
        let beyond_half = exported
            .iter()
            .flatten()
            .filter(|value| value.to_bits() & 0xffff != 0);
        assert!(beyond_half.count() > 1000, "{names} {file}: more than bf16 holds");
    }
    assert_ne!(
        weights_of(&checkpoint.join("model.safetensors")),
        weights_of(&checkpoint.join("ema.safetensors"))
    );
}

#[test]
fn the_file_says_what_it_is() {
    let job = job();
    job.run_well();
    let to = output(&job, "vit.safetensors");
    let (code, printed) = export(&[
        text(&job.newest()),
        "--output",
        text(&to),
        "--names",
        "torchvision",
        "--dtype",
        "bf16",
        "--json",
    ]);
    assert_eq!(code, Some(0), "{printed}");
    let told: Value = serde_json::from_str(&printed).expect("JSON");
    let content = fs_err::read(&to).expect("a file");
    assert_eq!(told["bytes"], content.len());
    assert_eq!(
        (&told["names"], &told["step"]),
        (&"torchvision".into(), &6.into())
    );
    let (_, header) = SafeTensors::read_metadata(&content).expect("a header");
    let metadata = header.metadata().as_ref().expect("metadata");
    for (name, expected) in [
        ("format", "pt"),
        ("job", "test"),
        ("step", "6"),
        ("weights", "trained"),
        ("library", "torchvision"),
        ("model", "VisionTransformer"),
        ("image_size", "32"),
        ("num_classes", "10"),
        ("pooling", "token"),
    ] {
        assert_eq!(metadata[name], expected, "{name}");
    }
    let arguments: Value = serde_json::from_str(&metadata["arguments"]).expect("JSON");
    assert_eq!(arguments["mlp_dim"], 64);
    assert_eq!(arguments, told["arguments"]);
    let accuracy: f64 = metadata["validation_accuracy"].parse().expect("a number");
    assert_eq!(job.log("evaluation")[0]["accuracy"].as_f64(), Some(accuracy));
    let file = SafeTensors::deserialize(&content).expect("safetensors");
    assert!(file.iter().all(|(_, view)| view.dtype() == Dtype::BF16));
    assert!(file.tensor("encoder.layers.encoder_layer_1.mlp.3.bias").is_ok());

    let mut continued = Job::new(50);
    continued.epochs = 1;
    continued.model = CLASS_TOKEN.into();
    continued.arguments = vec!["--pretrained".into(), text(&to).into()];
    continued.run_well();
}

#[test]
fn what_cannot_be_exported_is_named_and_nothing_is_written() {
    let mut job = Job::new(50);
    job.epochs = 1;
    job.run_well();
    let checkpoint = job.newest();
    let to = output(&job, "vit.safetensors");
    let refused = |arguments: &[&str], code: i32, expected: &str| {
        let (found, printed) = export(&[arguments, &["-o", text(&to)]].concat());
        assert_eq!(found, Some(code), "{printed}");
        assert!(printed.contains(expected), "{printed}");
    };
    let average = "torchvision's VisionTransformer has no average pooling (model.pooling); use --names timm";
    refused(&[text(&checkpoint), "--names", "torchvision"], 2, average);
    refused(&[text(&checkpoint), "--ema"], 2, "its run had no training.ema");
    refused(&["/nowhere"], 2, "/nowhere does not exist");
    refused(&[text(&job.data())], 2, "holds no checkpoint");
    assert!(!to.exists());

    fs_err::write(&to, "mine").expect("writes");
    refused(&[text(&checkpoint)], 2, "already exists: choose another name");
    assert_eq!(fs_err::read(&to).expect("a file"), b"mine");
    let (code, printed) = export(&[text(&checkpoint), "-o", text(&to), "--force"]);
    assert_eq!(code, Some(0), "{printed}");
    assert_eq!(names(&to), names(&checkpoint.join("model.safetensors")));

    fs_err::write(checkpoint.join("model.safetensors"), "short").expect("writes");
    refused(&[text(&checkpoint), "--force"], 79, "it has 5 bytes instead of");
    let left = fs_err::read_dir(job.data()).expect("lists").count();
    assert_eq!(left, 7, "six files of data, and one exported");
}
