//! `vit-trainer bench`.

use std::process::{Command, Output};

use serde_json::{Map, Value};

use crate::common::TRAINER;

/// A model whose steps take milliseconds.
const SMALL: [&str; 12] = [
    "--set",
    "model={imageSize: 16, patchSize: 8, hiddenSize: 16, depth: 1, heads: 2, numClasses: 5}",
    "--set",
    "workers.device=cpu",
    "--batch-size",
    "2",
    "--warmup-steps",
    "2",
    "--steps",
    "10",
    "--nodes",
    "2",
];

fn bench(more: &[&str]) -> Output {
    Command::new(TRAINER)
        .arg("bench")
        .args(SMALL)
        .args(more)
        .output()
        .expect("starts")
}

#[test]
fn two_ranks_measure_their_steps() {
    // More steps than an epoch has, through a launcher, in JSON.
    let output = bench(&["--pairs", "2", "--launcher", "env NODE={node}", "--json", "-"]);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    let result: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("no number in {result}"));
    assert_eq!(
        (result["world_size"].as_u64(), result["batch"].as_u64()),
        (Some(2), Some(2))
    );
    assert_eq!(result["device"], "cpu");
    let ranks = result["ranks"].as_array().expect("ranks");
    let sum: f64 = ranks.iter().map(|rank| number(&rank["images_per_second"])).sum();
    assert!(ranks.len() == 2 && (number(&result["images_per_second"]) / sum - 1.0).abs() < 1e-9);
    for rank in ranks {
        // The phases are the step, but for the report at its end.
        let phases: f64 = rank["phases"]
            .as_object()
            .expect("phases")
            .values()
            .map(number)
            .sum();
        let step = number(&rank["step_ms"]["mean"]) / 1e3;
        assert!(phases > 0.0 && phases <= step, "{phases} of {step}");
        assert!(number(&rank["sync"]["bytes"]) > 0.0);
        assert!((0.0..1.0).contains(&number(&rank["exposed_sync_share_in_place"])));
        assert!(number(&rank["exposed_sync_share"]) < 1.0);
        assert!(number(&rank["seconds_to_first_step"]) > 0.0);
        assert!(number(&rank["peak_rss_bytes"]) > 1e6);
    }
}

#[test]
fn the_table_has_a_line_a_rank_and_wrong_addresses_are_refused() {
    let output = bench(&[]);
    let table = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(
        table.contains("images/s") && table.contains("not measured"),
        "{table}"
    );
    assert!(table.lines().any(|line| line.starts_with("1   ")), "{table}");

    let output = bench(&["--addresses", "127.0.0.1"]);
    assert_eq!(output.status.code(), Some(2));
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(
        told.contains("--addresses has 1 addresses, but there are 2 nodes"),
        "{told}"
    );
}

/// Every way to change the weights, with all that may be in a step.
#[test]
fn no_step_makes_the_host_wait() {
    let augmentation = "data.augmentation={mixup: 0.8, cutmix: 1.0, randomErasing: 0.25, horizontalFlip: 0.5, \
                        randomResizedCrop: {minScale: 0.08}, randAugment: rand-m9-mstd0.5-inc1}";
    for settings in [
        &["training.precision=fp32"][..],
        &[
            "training.precision=bf16",
            "training.masterWeights=true",
            "training.clipGradNorm=1",
        ],
        &[
            "training.precision=fp16",
            "training.gradientAccumulationSteps=2",
            "training.ema={decay: 0.9}",
        ],
        &[
            "training.optimizer={name: lamb, learningRate: 0.001}",
            "model.dropPath=0.1",
        ],
        &[
            "training.optimizer={name: sgd, learningRate: 0.001}",
            "training.activationCheckpointing=block",
        ],
        &[augmentation],
    ] {
        let set = settings.iter().flat_map(|setting| ["--set", setting]);
        let output = bench(&set.chain(["--json", "-"]).collect::<Vec<_>>());
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{settings:?}: {told}");
        let result: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        for rank in result["ranks"].as_array().expect("ranks") {
            assert_eq!(rank["host_stops"], Value::Object(Map::new()), "{settings:?}");
        }
    }
}
