//! Weights evaluated on a job's held-out images.

use std::path::{Path, PathBuf};
use std::process::Command;

use safetensors::SafeTensors;
use serde_json::Value;

use crate::common::{HELD_OUT, Job, TRAINER, text};

/// Exit code, standard output and standard error.
fn eval(job: &Job, arguments: &[&str]) -> (Option<i32>, String, String) {
    let manifest = job.write_manifest();
    let data = job.data();
    let output = Command::new(TRAINER)
        .args(["eval", "-f", text(&manifest), "--data", text(&data)])
        .args(arguments)
        .output()
        .expect("runs");
    let [printed, errors] =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).expect("text"));
    (output.status.code(), printed, errors)
}

fn evaluated(job: &Job, arguments: &[&str]) -> Value {
    let (code, printed, errors) = eval(job, &[arguments, &["--json"]].concat());
    assert_eq!(code, Some(0), "{printed}{errors}");
    serde_json::from_str(&printed).expect("JSON")
}

fn refused(job: &Job, arguments: &[&str], code: i32, expected: &str) {
    let (found, printed, errors) = eval(job, arguments);
    assert_eq!(found, Some(code), "{printed}{errors}");
    assert!(
        errors.contains(expected) && printed.is_empty(),
        "{printed}{errors}"
    );
}

fn golden(case: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../tests/peers/goldens/{case}/model.safetensors"))
}

#[test]
fn a_checkpoint_is_as_accurate_as_training_said_in_every_precision() {
    for training in [
        "ema: {decay: 0.5}",
        "precision: bf16; masterWeights: true; ema: {decay: 0.5}",
        "precision: bf16",
    ] {
        let mut job = Job::new(100);
        job.training = training;
        job.run_well();
        let log = job.log("evaluation");
        let runs = job.runs();
        let newest = evaluated(&job, &["--checkpoints", text(&runs)]);
        let last = log.last().expect("an evaluation");
        assert_eq!(newest["top1"], last["accuracy"], "{training}");
        assert_eq!(newest["correct"], last["correct"], "{training}");
        assert_eq!(
            (&newest["images"], &newest["step"]),
            (&HELD_OUT.into(), &last["step"])
        );
        assert_eq!(newest["weights"], "trained");
        assert!(newest["top5"].as_f64() >= newest["top1"].as_f64());
        assert!(newest["loss"].as_f64().is_some_and(|loss| loss > 0.0));

        // For any batch size.
        let first = job
            .checkpoints()
            .join(format!("step-{:08}", log[0]["step"].as_u64().expect("a step")));
        let earlier = evaluated(&job, &["--checkpoint", text(&first), "--batch-size", "13"]);
        assert_eq!(earlier["top1"], log[0]["accuracy"], "{training}");
        if training.contains("ema") {
            let average = evaluated(&job, &["--checkpoint", text(&job.checkpoints()), "--ema"]);
            assert_eq!(average["top1"], last["emaAccuracy"], "{training}");
            assert_eq!(average["weights"], "ema");
            assert_ne!(average["loss"], newest["loss"], "{training}");
        }
    }
}

#[test]
fn lines_say_which_weights_and_how_good() {
    let mut job = Job::new(50);
    job.training = "ema: {decay: 0.5}";
    job.epochs = 1;
    job.run_well();
    let checkpoints = job.checkpoints();
    let (code, printed, errors) = eval(&job, &["--checkpoint", text(&checkpoints)]);
    assert_eq!(code, Some(0), "{errors}");
    let lines: Vec<&str> = printed.lines().collect();
    assert_eq!(lines[0], "test");
    let expected =
        "  weights   trained weights (--ema uses their average) of step 6, 1 of 1 epochs done, in ";
    assert!(lines[1].starts_with(expected), "{printed}");
    for (line, start) in lines[2..].iter().zip([
        "  top-1 ",
        "  top-5 ",
        "  loss ",
        "  images    13 held out",
        "  speed ",
    ]) {
        assert!(line.starts_with(start), "{line}");
    }
    assert_eq!(lines.len(), 7, "{printed}");
    assert_eq!(errors, "", "nothing to warn of");
}

#[test]
fn files_of_either_library_are_evaluated_and_logits_kept() {
    let mut job = Job::new(50);
    job.model =
        "{imageSize: 16, patchSize: 4, hiddenSize: 24, depth: 2, heads: 3, mlpSize: 48, numClasses: 10}"
            .into();
    job.epochs = 1;
    job.run_well();
    let kept = |names: &str| {
        let weights = job.data().join(format!("{names}.safetensors"));
        let done = Command::new(TRAINER)
            .args([
                "export",
                text(&job.newest()),
                "-o",
                text(&weights),
                "--names",
                names,
            ])
            .output()
            .expect("runs");
        assert!(done.status.success(), "{done:?}");
        let logits = job.data().join(format!("{names}.logits"));
        let report = evaluated(&job, &["--checkpoint", text(&weights), "--logits", text(&logits)]);
        assert_eq!(report["weights"], "file");
        (report, fs_err::read(logits).expect("logits"))
    };
    let (report, timm) = kept("timm");
    let (_, torchvision) = kept("torchvision");
    assert!(timm == torchvision, "the same weights, and the same logits");
    let file = SafeTensors::deserialize(&timm).expect("safetensors");
    let [logits, labels] = ["logits", "labels"].map(|name| file.tensor(name).expect("a tensor"));
    assert_eq!(
        (logits.shape(), labels.shape()),
        ([HELD_OUT, 10].as_slice(), [HELD_OUT].as_slice())
    );
    let of_images = logits
        .data()
        .chunks_exact(10 * 4)
        .zip(labels.data().as_chunks::<8>().0);
    let right = of_images.filter(|(row, label)| {
        let row: Vec<f32> = row
            .as_chunks::<4>()
            .0
            .iter()
            .map(|bytes| f32::from_le_bytes(*bytes))
            .collect();
        let of_label = row[i64::from_le_bytes(**label) as usize];
        row.iter().all(|logit| *logit <= of_label)
    });
    assert_eq!(report["correct"], right.count());
    let logits = job.data().join("timm.logits");
    let checkpoint = job.newest();
    let again = ["--checkpoint", text(&checkpoint), "--logits", text(&logits)];
    refused(&job, &again, 2, "timm.logits already exists");
}

#[test]
fn weights_that_are_no_numbers_end_with_a_code_of_their_own() {
    let mut job = Job::new(50);
    job.epochs = 1;
    job.run_well();
    let mut weights = fs_err::read(job.newest().join("model.safetensors")).expect("weights");
    let end = weights.len();
    weights[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
    let file = job.data().join("nan.safetensors");
    fs_err::write(&file, weights).expect("writes");
    let (code, printed, errors) = eval(&job, &["--checkpoint", text(&file), "--json"]);
    assert_eq!(code, Some(78), "{printed}{errors}");
    let report: Value = serde_json::from_str(&printed).expect("JSON");
    assert!(report["loss"].is_null(), "{report}");
    assert!(errors.contains("the loss is not a finite number"), "{errors}");
}

#[test]
fn what_does_not_fit_is_named() {
    let mut job = Job::new(50);
    job.epochs = 1;
    job.run_well();
    let (newest, runs) = (job.newest(), job.runs());
    let newest = ["--checkpoint", text(&newest)];
    let file = golden("class_token");
    let file = ["--checkpoint", text(&file)];
    for (arguments, expected) in [
        (
            &["--checkpoint", "/nowhere"][..],
            "/nowhere does not exist: pass the folder of a checkpoint",
        ),
        (&["--checkpoints", "/nowhere"], "/nowhere/test does not exist"),
        (&[newest[0], newest[1], "--ema"], "its run had no training.ema"),
        (&[file[0], file[1], "--ema"], "is a single file of weights"),
        (
            &file,
            "pos_embed has shape [1, 17, 24] in the file and [1, 4, 16] in the model: see model.imageSize",
        ),
    ] {
        refused(&job, arguments, 2, expected);
    }

    let model = job.model.clone();
    job.model = model.replace("numClasses: 10", "numClasses: 12");
    refused(
        &job,
        &newest,
        2,
        "is of another model: its numClasses is 10 instead of 12; pass the manifest",
    );
    job.model =
        "{imageSize: 16, patchSize: 4, hiddenSize: 24, depth: 2, heads: 3, mlpSize: 48, numClasses: 10}"
            .into();
    refused(
        &job,
        &file,
        2,
        "head.weight has shape [5, 24] in the file and [10, 24] in the model: see model.numClasses",
    );

    job.model = model;
    let fields = std::mem::replace(
        &mut job.data_fields,
        "format: synthetic, syntheticImages: 50".into(),
    );
    refused(
        &job,
        &newest,
        3,
        "has no held-out images to evaluate: synthetic images are all for training",
    );
    job.data_fields = fields;
    let test_batch = job.data().join("test_batch.bin");
    let whole = fs_err::read(&test_batch).expect("data");
    fs_err::write(&test_batch, "").expect("writes");
    refused(&job, &newest, 3, "test_batch.bin is empty");
    fs_err::write(&test_batch, whole).expect("writes");

    let weights = job.newest().join("model.safetensors");
    let mut damaged = fs_err::read(&weights).expect("weights");
    *damaged.last_mut().expect("a byte") ^= 1;
    fs_err::write(&weights, &damaged).expect("writes");
    refused(&job, &["--checkpoints", text(&runs)], 79, "its CRC-32 is");
    fs_err::write(&weights, &damaged[..100]).expect("writes");
    refused(&job, &newest, 79, "it was cut short");
}
