//! `vit-trainer bench`.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use image::{Rgb, RgbImage};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Map, Value, json};

use crate::common::{DEADLINE, TRAINER, await_condition, descendants, jpeg};
use crate::device::on_each_device;

on_each_device!(two_ranks_measure_their_steps, no_step_makes_the_host_wait,);

/// A model whose steps take milliseconds.
const SMALL: [&str; 10] = [
    "--set",
    "model={imageSize: 16, patchSize: 8, hiddenSize: 16, depth: 1, heads: 2, numClasses: 5}",
    "--set",
    "workers.device=cpu",
    "--batch-size",
    "2",
    "--warmup-steps",
    "2",
    "--nodes",
    "2",
];

fn bench(more: &[&str]) -> Output {
    Command::new(TRAINER)
        .arg("bench")
        .args(SMALL)
        .args(["--steps", "10"])
        .args(more)
        .output()
        .expect("starts")
}

#[test]
fn runs_with_one_calibration_emulate_the_same_devices() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("calibration.json");
    let path = file.to_str().expect("UTF-8");
    let run = |path: &str| bench(&["--speeds", "0.5,1", "--calibration", path, "--json", "-"]);
    let output = run(path);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    let mut measured: Value =
        serde_json::from_slice(&fs_err::read(&file).expect("it is made")).expect("JSON");
    assert_eq!(measured.as_array().map(Vec::len), Some(1), "{measured}");
    assert_eq!(measured[0]["job"]["model"]["hiddenSize"], 16, "{measured}");
    let seconds = |field: &str| measured[0]["forward"][field].as_f64().expect("seconds");
    assert!(seconds("imageSeconds") > 0.0, "{measured}");

    // The next run uses the file: passes of 50 ms, so 150 ms more for both passes at half speed.
    measured[0]["forward"] = json!({"fixedSeconds": 0.05, "imageSeconds": 0.0});
    fs_err::write(&file, measured.to_string()).expect("writes");
    let output = run(path);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let result: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let step = result["ranks"][1]["step_ms"]["mean"].as_f64().expect("a time");
    assert!(step > 100.0, "rank 1 waits for rank 0: {step} ms");
    let kept: Value = serde_json::from_slice(&fs_err::read(&file).expect("it stays")).expect("JSON");
    assert_eq!(kept, measured);

    fs_err::write(&file, "half a fi").expect("writes");
    for (path, said) in [
        (path, "is not a calibration file ("),
        ("/nowhere/calibration.json", "its folder does not exist"),
    ] {
        let output = run(path);
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && told.contains(said), "{told}");
    }
}

fn two_ranks_measure_their_steps() {
    // More steps than an epoch has, through a launcher, as JSON.
    let output = bench(&[
        "--pairs",
        "2",
        "--launcher",
        "env NODE={node}",
        "--json",
        "-",
        "--set",
        "training.tf32=true",
        "--set",
        "training.attentionBackend=cudnn",
    ]);
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
        // The phases make up the step, except for its final report.
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
        let asked_for = json!({"tf32": true, "attention": ["cudnn", "flash", "memoryEfficient", "math"]});
        assert_eq!(rank["arithmetic"], asked_for);
    }
}

/// Whether a process has a thread of this name.
fn has_thread(process: i32, name: &str) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{process}/task"))
        .into_iter()
        .flatten();
    threads
        .filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("comm")).ok())
        .any(|found| found.trim() == name)
}

#[test]
fn told_to_stop_it_ends_with_all_its_processes_and_measures_nothing() {
    let mut bench = Command::new(TRAINER)
        .arg("bench")
        .args(SMALL)
        // Enough for hours.
        .args(["--steps", "100000000"])
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts");
    let pid = i32::try_from(bench.id()).expect("a process id");
    await_condition("the start of the ranks", || {
        let ranks = descendants(pid).into_iter();
        // This thread starts right before the first step.
        ranks.filter(|process| has_thread(*process, "watchdog")).count() == 2
    });
    let processes = descendants(pid);
    kill(Pid::from_raw(pid), Signal::SIGTERM).expect("signals");
    let start = Instant::now();
    while bench.try_wait().expect("a child").is_none() && start.elapsed() < DEADLINE {
        std::thread::sleep(Duration::from_millis(20));
    }
    let left = processes.iter().map(|process| Pid::from_raw(*process));
    let left: Vec<Pid> = left
        .filter(|process| kill(*process, Signal::SIGKILL).is_ok())
        .collect();
    let _ = bench.kill();
    let output = bench.wait_with_output().expect("ends");
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), left), (Some(143), vec![]), "{told}");
    assert!(told.contains("stopped: nothing was measured"), "{told}");
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

    let output = bench(&["--bucket-megabytes", "0.05,8"]);
    let table = String::from_utf8_lossy(&output.stdout);
    assert!(
        table.contains("bucket MB") && table.contains("\n0.05  "),
        "{table}"
    );
    let output = bench(&["--bucket-megabytes", "1", "--set", "workers.nodes=1"]);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.code() == Some(2)
            && told.contains("needs 2 or more ranks with gradients for the same weights"),
        "{told}"
    );

    let output = bench(&["--addresses", "127.0.0.1"]);
    assert_eq!(output.status.code(), Some(2));
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(
        told.contains("--addresses is a list of 1: 2 nodes need an address each"),
        "{told}"
    );
}

/// Two network namespaces, numbered 0 and 1, joined by a link until dropped. Needs root.
struct Link {
    prefix: String,
}

impl Link {
    const ADDRESSES: &str = "10.79.0.1,10.79.0.2";

    /// A link of this bandwidth in each direction.
    fn new(megabits_per_second: u32) -> Self {
        let link = Self {
            prefix: format!("vit-bench-{}-", std::process::id()),
        };
        let (first, second) = (link.node(0), link.node(1));
        run("ip", &["netns", "add", &first]);
        run("ip", &["netns", "add", &second]);
        let device = "eth0";
        let pair = ["type", "veth", "peer", "name", device, "netns", &second];
        run(
            "ip",
            &[&["-n", &first, "link", "add", device][..], &pair].concat(),
        );
        let rate = format!("{megabits_per_second}mbit");
        for (node, address) in [&first, &second].into_iter().zip(Self::ADDRESSES.split(',')) {
            run("ip", &["-n", node, "link", "set", "lo", "up"]);
            run(
                "ip",
                &[
                    "-n",
                    node,
                    "address",
                    "add",
                    &format!("{address}/24"),
                    "dev",
                    device,
                ],
            );
            run("ip", &["-n", node, "link", "set", device, "up"]);
            let limit = ["tbf", "rate", &rate, "burst", "70000", "latency", "200ms"];
            run(
                "tc",
                &[&["-n", node, "qdisc", "add", "dev", device, "root"][..], &limit].concat(),
            );
        }
        link
    }

    fn node(&self, number: u32) -> String {
        format!("{}{number}", self.prefix)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        for number in 0..2 {
            let _ = Command::new("ip")
                .args(["netns", "delete", &self.node(number)])
                .status();
        }
    }
}

fn run(program: &str, arguments: &[&str]) {
    let status = Command::new(program).args(arguments).status().expect("starts");
    assert!(status.success(), "{program} {arguments:?}");
}

#[test]
fn buckets_tell_what_a_link_carries() {
    // So slow that a busy machine hardly changes it.
    let link = Link::new(50);
    let launcher = format!("ip netns exec {}{{node}}", link.prefix);
    let output = bench(&[
        "--addresses",
        Link::ADDRESSES,
        "--launcher",
        &launcher,
        "--bucket-megabytes",
        "0.1,2",
        "--link-gigabits",
        "0.05",
        "--json",
        "-",
    ]);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    let result: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let buckets = &result["buckets"];
    assert_eq!(
        (&buckets["ranks"], &buckets["sizes"][1]["megabytes"]),
        (&json!(2), &json!(2.0)),
        "{buckets}"
    );
    let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("no number in {buckets}"));
    let rate = number(&buckets["sizes"][1]["bus_gigabits_per_second"]);
    // Never above the link's bandwidth; headers and waiting use some of it.
    assert!((0.03..=0.0503).contains(&rate), "{buckets}");
    let share = number(&buckets["sizes"][1]["share_of_link"]);
    assert!((share - rate / 0.05).abs() < 1e-9, "{buckets}");
}

/// Every optimizer, with every option of a step.
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
            let default = json!({"tf32": false, "attention": ["flash", "memoryEfficient", "math"]});
            assert_eq!(rank["arithmetic"], default, "{settings:?}");
        }
    }
}

/// Two classes of JPEG files of 150 x 120 pixels.
fn image_folder(folder: &Path) {
    for class in 0..2_u8 {
        let folder = folder.join(format!("train/class-{class}"));
        fs_err::create_dir_all(&folder).expect("a folder");
        for number in 0..6_u8 {
            let picture = RgbImage::from_fn(150, 120, |x, y| Rgb([class * 90, (x as u8) ^ number, y as u8]));
            fs_err::write(folder.join(format!("{number}.jpg")), jpeg(&picture)).expect("writes");
        }
    }
}

#[test]
fn the_input_pipeline_is_measured_alone_and_by_stage() {
    let folder = tempfile::tempdir().expect("a folder");
    image_folder(folder.path());
    let manifest = folder.path().join("job.yaml");
    let text = "apiVersion: vit-operator.dev/v1alpha1
kind: ViTTrainingJob
metadata: {name: test, namespace: local}
spec:
  image: unused
  model: {}
  data:
    format: imageFolder
    decodeThreads: 1
    volume: {persistentVolumeClaim: {claimName: unused}}
    augmentation: {randomResizedCrop: {}, randAugment: rand-m9-mstd0.5-inc1, mixup: 0.8, randomErasing: 0.25}
  training: {epochs: 1, microBatchSize: 2, schedule: {name: constant}}
  workers: {nodes: 1, gpusPerNode: 1}
  checkpoint: {volume: {persistentVolumeClaim: {claimName: unused}}}
";
    fs_err::write(&manifest, text).expect("writes");
    let paths = [manifest.as_path(), folder.path()].map(|path| path.to_str().expect("a name"));
    let measure = |more: &[&str]| {
        let arguments = [&["-f", paths[0], "--data", paths[1]], more].concat();
        let output = bench(&arguments);
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{told}");
        String::from_utf8(output.stdout).expect("text")
    };
    let result: Value = serde_json::from_str(&measure(&["--json", "-"])).expect("JSON");
    let input = &result["input"];
    let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("no number in {result}"));
    assert_eq!(input["threads"], 1);
    let stages = &input["images_per_second_per_core"];
    let names = ["read", "decode", "geometry", "color", "assemble", "finish"];
    let seconds: f64 = names.iter().map(|stage| 1.0 / number(&stages[stage])).sum();
    let all = number(&stages["all"]);
    assert!((seconds * all - 1.0).abs() < 1e-6, "{input}");
    // A thread does one thing at a time; `finish` is in another thread.
    for rank in result["ranks"].as_array().expect("ranks") {
        let input = &rank["input"];
        let stages = input["seconds_per_image"].as_object().expect("stages");
        let seconds: f64 = stages.values().map(number).sum::<f64>() - number(&stages["finish"]);
        let rate = number(&input["images_per_second"]);
        assert!(rate > 0.0 && rate * seconds < 1.0, "{rank}");
    }
    let alone = number(&input["images_per_second"]);
    let needed = number(&input["needed_images_per_second"]);
    // The clocks of ranks start at different times.
    assert!(needed > 0.9 * number(&result["images_per_second"]), "{result}");
    let limit = if alone < needed { "input" } else { "step" };
    assert_eq!(input["limit"], limit);

    let table = measure(&[]);
    assert!(
        table.contains("input alone, images/s") && table.contains("the limit is the "),
        "{table}"
    );
}

#[test]
fn a_trace_holds_one_step_of_rank_0() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("trace.json");
    let output = bench(&["--trace", file.to_str().expect("a name"), "--forbid-host-stops"]);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    let trace: Value = serde_json::from_slice(&fs_err::read(&file).expect("a file")).expect("JSON");
    let events = trace["traceEvents"].as_array().expect("events");
    let count = |name: &str| {
        let is_it = |event: &&Value| event["name"] == name && event["ph"] == "X";
        events.iter().filter(is_it).count()
    };
    // The model has one block, and the optimizer two groups: weights with decay and without.
    for (operator, times) in [
        ("aten::scaled_dot_product_attention", 1),
        (
            "autograd::engine::evaluate_function: ScaledDotProductFlashAttentionForCpuBackward0",
            1,
        ),
        ("aten::_fused_adamw_", 2),
    ] {
        assert_eq!(count(operator), times, "{operator}");
    }
}

#[test]
fn what_cannot_be_written_is_refused_before_anything_is_measured() {
    for option in ["--trace", "--json"] {
        let output = bench(&[option, "/nowhere/bench.json"]);
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{told}");
        assert!(told.contains("/nowhere/bench.json"), "{told}");
        assert!(output.stdout.is_empty(), "{option}: nothing was measured");
    }
}
