//! `vit-trainer study`.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Instant;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::common::{DEADLINE, TRAINER, await_condition};

const TEMPLATE: &str = "
apiVersion: vit-operator.dev/v1alpha1
kind: ViTScalingStudy
metadata: {name: small}
spec:
  template:
    spec:
      image: unused
      model: {imageSize: 16, patchSize: 8, hiddenSize: 16, depth: 1, heads: 2, numClasses: 5}
      data: {format: synthetic, syntheticImages: 64}
      training: {epochs: 1, microBatchSize: 4}
      workers: {nodes: 1, gpusPerNode: 1, device: cpu}
      checkpoint: {volume: {persistentVolumeClaim: {claimName: unused}}}
";

/// A study in a new folder.
struct Study {
    folder: tempfile::TempDir,
}

impl Study {
    fn new(measure: &str, sweeps: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let text = format!("{TEMPLATE}  measure: {measure}\n  sweeps: {sweeps}\n");
        fs_err::write(folder.path().join("study.yaml"), text).expect("writes");
        Self { folder }
    }

    fn output(&self) -> PathBuf {
        self.folder.path().join("output")
    }

    fn command(&self) -> Command {
        let mut command = Command::new(TRAINER);
        command
            .args(["study", "--file"])
            .arg(self.folder.path().join("study.yaml"));
        command.arg("--output").arg(self.output());
        command
    }

    fn run(&self) -> Output {
        self.command().output().expect("starts")
    }

    /// Logs of all kept repetitions.
    fn logs(&self) -> Vec<PathBuf> {
        self.files("log.jsonl")
    }

    fn files(&self, name: &str) -> Vec<PathBuf> {
        let entries = |folder: &Path| -> Vec<PathBuf> {
            let entries = fs_err::read_dir(folder).into_iter().flatten();
            entries.map(|entry| entry.expect("an entry").path()).collect()
        };
        let runs = entries(&self.output().join("runs"));
        let repetitions = runs.iter().flat_map(|run| entries(run));
        let mut files: Vec<PathBuf> = repetitions
            .map(|place| place.join(name))
            .filter(|file| file.exists())
            .collect();
        files.sort();
        files
    }

    fn report(&self) -> Value {
        let json = fs_err::read(self.output().join("report.json")).expect("a report");
        serde_json::from_slice(&json).expect("JSON")
    }
}

#[test]
fn a_study_is_measured_once_and_reported() {
    let study = Study::new(
        "{epochs: 2, warmupSteps: 2, repetitions: 2}",
        "[{name: strong, mode: Strong, ranks: [1, 2]}, {name: batch, mode: Batch, ranks: [2], microBatchSize: [4, 8]}]",
    );
    let output = study.run();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(
        text.starts_with("small: 4 points, 3 of them distinct, 2 times each\n"),
        "{text}"
    );
    assert_eq!(study.logs().len(), 6, "{text}");
    assert!(study.files("point").is_empty(), "checkpoints are not kept");
    // Runs are shorter than a log line: steps after the warm-up are intended.
    for log in study.logs() {
        let log = fs_err::read_to_string(log).expect("reads");
        assert!(log.contains(r#""step":2,"#), "{log}");
    }
    let report = study.report();
    let points = report["points"].as_array().expect("points");
    let of = |place: usize, field: &str| points[place][field].clone();
    let ranks: Vec<Option<u64>> = (0..4).map(|place| of(place, "ranks").as_u64()).collect();
    assert_eq!(ranks, [Some(1), Some(2), Some(2), Some(2)]);
    for point in points {
        assert_eq!(point["repetitions"], 2, "{point}");
        let seconds = |field: &str| point[field]["median"].as_f64().expect("seconds");
        let step = seconds("stepSeconds");
        // A single rank only computes, except for rounding.
        let most = step * (1.0 + 1e-9);
        let parts = ["computeSeconds", "exposedSeconds", "stragglerSeconds"];
        assert!(
            step > 0.0 && parts.iter().all(|part| seconds(part) <= most),
            "{point}"
        );
        assert_eq!(point["epochs"].as_array().map(Vec::len), Some(2), "{point}");
    }
    assert_eq!(
        of(1, "imagesPerSecond"),
        of(2, "imagesPerSecond"),
        "one run for both sweeps"
    );
    assert_eq!(
        of(0, "exposedSeconds")["median"],
        0.0,
        "one rank waits for nobody"
    );

    // Another manifest for the same folder measures only what is new.
    let times = |files: &[PathBuf]| -> Vec<_> {
        files
            .iter()
            .map(|file| {
                fs_err::metadata(file)
                    .and_then(|file| file.modified())
                    .expect("a time")
            })
            .collect()
    };
    let (kept, before) = (study.logs(), times(&study.logs()));
    let manifest = study.folder.path().join("study.yaml");
    let more = fs_err::read_to_string(&manifest)
        .expect("reads")
        .replace("microBatchSize: [4, 8]", "microBatchSize: [4, 2]");
    fs_err::write(&manifest, more).expect("writes");
    let output = study.run();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}");
    assert_eq!(text.matches("from an earlier run").count(), 4, "{text}");
    assert_eq!(times(&kept), before);
    assert_eq!(study.logs().len(), 8);
    // The report can be recreated from the folder alone.
    fs_err::remove_file(study.output().join("report.html")).expect("removes");
    let again = Command::new(TRAINER)
        .args(["study", "report"])
        .arg(study.output())
        .output()
        .expect("starts");
    assert!(again.status.success() && study.output().join("report.html").exists());
}

#[test]
fn a_run_that_fails_is_told_and_the_others_are_measured() {
    let study = Study::new(
        "{epochs: 1, warmupSteps: 0, repetitions: 1}",
        "[{name: kinds, mode: Variants, variants: [{name: bad, without: [data.syntheticImages], spec: {data: {format: imageFolder, \
         path: /nowhere, volume: {hostPath: {path: /nowhere}}}}}, {name: good}, {name: short, spec: {data: {syntheticImages: 3}}}]}]",
    );
    let output = study.run();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.contains("kinds-r1-b4-bad #1: failed: /nowhere/train does not exist"),
        "{text}"
    );
    let report = study.report();
    let point = |place: usize| report["points"][place].clone();
    assert!(
        point(0)["imagesPerSecond"].is_null()
            && point(0)["failures"][0]
                .as_str()
                .expect("why")
                .contains("/nowhere")
    );
    assert!(point(1)["imagesPerSecond"]["median"].as_f64().expect("a rate") > 0.0);
    assert!(
        point(2)["failures"][0]
            .as_str()
            .expect("why")
            .contains("fewer than one step"),
        "{}",
        point(2)
    );
    // Failed runs are retried, measured ones are not.
    let text = String::from_utf8_lossy(&study.run().stdout).into_owned();
    assert_eq!(
        (
            text.matches("failed:").count(),
            text.matches("from an earlier run").count()
        ),
        (2, 1),
        "{text}"
    );
}

#[test]
fn a_study_that_is_stopped_keeps_whole_runs_only_and_goes_on() {
    // The second run is long.
    let study = Study::new(
        "{epochs: 1, warmupSteps: 0, repetitions: 1}",
        "[{name: kinds, mode: Variants, variants: [{name: short, speeds: [0.5]}, {name: long, spec: {data: {syntheticImages: 1000000}}}]}]",
    );
    let mut child = study.command().stdout(Stdio::null()).spawn().expect("starts");
    let pid = Pid::from_raw(child.id().cast_signed());
    let log = |study: &Study| {
        study
            .files("point/log.jsonl")
            .iter()
            .find(|file| file.to_string_lossy().contains("long"))
            .map(|file| fs_err::read_to_string(file).unwrap_or_default())
    };
    await_condition("the long run trains", || {
        log(&study).is_some_and(|log| log.contains("\"train\""))
    });
    let second = study.run();
    let told = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(
        told.contains("output is in use by another study: give another --output"),
        "{told}"
    );
    kill(pid, Signal::SIGTERM).expect("signals");
    let start = Instant::now();
    let status = child.wait().expect("ends");
    assert!(start.elapsed() < DEADLINE);
    assert_eq!(status.code(), Some(i32::from(contract::ExitCode::Stopped.code())));
    assert_eq!(
        (study.logs().len(), study.files("point").len()),
        (1, 0),
        "{:?}",
        study.logs()
    );
    assert_eq!(study.report()["points"][1]["failures"][0], "not run yet");

    // A killed study leaves its unfinished run, which the next removes.
    let mut child = study.command().stdout(Stdio::null()).spawn().expect("starts");
    await_condition("the long run trains", || {
        log(&study).is_some_and(|log| log.contains("\"train\""))
    });
    child.kill().expect("kills");
    child.wait().expect("ends");
    let manifest = study.folder.path().join("study.yaml");
    let shorter = fs_err::read_to_string(&manifest)
        .expect("reads")
        .replace("1000000", "128");
    fs_err::write(&manifest, shorter).expect("writes");
    let output = study.run();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert_eq!(study.logs().len(), 2);
    assert!(
        study.report()["points"][1]["imagesPerSecond"]["median"]
            .as_f64()
            .expect("a rate")
            > 0.0
    );

    // The emulated device's calibration stays with the study, and is checked before any run.
    let calibration = study.output().join("calibration.json");
    let kept: Value = serde_json::from_slice(&fs_err::read(&calibration).expect("it is kept")).expect("JSON");
    assert_eq!(kept.as_array().map(Vec::len), Some(1), "{kept}");
    fs_err::write(&calibration, "half a fi").expect("writes");
    let output = study.run();
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.code() == Some(2) && told.contains("calibration.json is not a calibration file ("),
        "{told}"
    );
}

#[test]
fn a_manifest_that_makes_no_study_is_refused_before_anything_is_made() {
    let study = Study::new("{repetitions: 1}", "[{name: strong, mode: Strong, ranks: [1]}]");
    let output = study.run();
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(
        output.status.code(),
        Some(i32::from(contract::ExitCode::BadConfig.code())),
        "{told}"
    );
    assert!(
        told.contains("spec.sweeps[strong].ranks is a list of 1"),
        "{told}"
    );
    assert!(!study.output().exists());
    let listed = Study::new(
        "{repetitions: 1}",
        "[{name: strong, mode: Strong, ranks: [1, 2]}]",
    );
    let mut command = listed.command();
    command.args([
        "--dry-run",
        "--images-per-second",
        "0.5",
        "--train-images",
        "1800",
    ]);
    let output = command.output().expect("starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && !listed.output().exists(), "{text}");
    assert!(
        text.contains("strong-r2-b4  2 ranks x 4 images x 1, of strong"),
        "{text}"
    );
    // Two epochs on one and two ranks.
    assert!(
        text.ends_with("\n3.0 hours of training at 0.5 images/s per rank, if ranks scale ideally\n"),
        "{text}"
    );
}

#[test]
fn nodes_of_a_study_may_be_elsewhere() {
    let study = Study::new(
        "{epochs: 1, warmupSteps: 0, repetitions: 1}",
        "[{name: strong, mode: Strong, ranks: [1, 2]}]",
    );
    let launcher = study.folder.path().join("launcher");
    let script = "#!/bin/sh\ntouch \"$(dirname \"$0\")/node-$1\"\nshift\nexec \"$@\"\n";
    fs_err::write(&launcher, script).expect("writes");
    fs_err::set_permissions(&launcher, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("changes");
    let launcher = format!("{} {{node}}", launcher.display());
    let run = |addresses: &str| {
        let mut command = study.command();
        command.args(["--addresses", addresses, "--launcher", &launcher]);
        command.output().expect("starts")
    };
    let output = run("127.0.0.1");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(
        told.contains("--addresses is a list of 1: 2 nodes need an address each"),
        "{told}"
    );
    let output = run("127.0.0.1,127.0.0.2");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}");
    for node in ["node-0", "node-1"] {
        assert!(
            study.folder.path().join(node).exists(),
            "{node} was not started by it"
        );
    }

    let other = Study::new(
        "{epochs: 1}",
        "[{name: kinds, mode: Variants, variants: [{name: own}, {name: other, spec: {external: {command: [sh]}}}]}]",
    );
    let output = other
        .command()
        .args(["--launcher", "ip netns exec node{node}"])
        .output()
        .expect("starts");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(
        told.contains("--addresses and --launcher are for vit-trainer only"),
        "{told}"
    );
}

/// A trainer of a few lines: every rank checks its environment, rank 0 writes a log of ten steps.
const EXTERNAL: &str = r#"
test "$RANK" -lt "$WORLD_SIZE" && test "$LOCAL_RANK" = 0 && test "$GROUP_RANK" = "$RANK" && test "$MASTER_PORT" -gt 0
test "$PET_NNODES" = 2 && test "$PET_NODE_RANK" = "$RANK" && test "$PET_NPROC_PER_NODE" = 1
grep -q microBatchSize "$VIT_RUN_CONFIG" && test "$OMP_NUM_THREADS" = 3
echo "rank $RANK of $WORLD_SIZE"
if test "$RANK" = 0; then
  echo "{\"kind\":\"start\",\"totalSteps\":10,\"worldSize\":$WORLD_SIZE,\"globalBatchSize\":8,\"trainImages\":80}" > "$VIT_LOG"
  echo "{\"kind\":\"train\",\"epoch\":0,\"step\":10,\"steps\":10,\"loss\":1.5,\"accuracy\":0.25,\"stepSeconds\":0.5}" >> "$VIT_LOG"
fi
setsid sleep 1000 &
"#;

#[test]
fn another_trainer_is_measured_by_the_log_that_it_writes() {
    let variant = |name: &str, script: &str| {
        let command = serde_json::to_string(&["sh", "-ec", script]).expect("strings");
        format!("{{name: {name}, spec: {{external: {{command: {command}}}}}}}")
    };
    let marker = format!("9{:07}", std::process::id());
    let variants = [
        "{name: own}".into(),
        variant("good", &EXTERNAL.replace("1000", &marker)),
        variant(
            "breaks",
            "if test $RANK = 1; then echo no GPU here; exit 3; fi; sleep 1000",
        ),
        variant("silent", "true"),
        variant(
            "is lucky",
            &format!(
                "if test $RANK = 0 && mkdir $(dirname $(dirname $(dirname \"$VIT_RUN_CONFIG\")))/tried; then exit 4; fi; {EXTERNAL}"
            ),
        ),
        variant(
            "alone",
            &EXTERNAL.replace(r#"worldSize\":$WORLD_SIZE"#, r#"worldSize\":1"#),
        ),
    ];
    let study = Study::new(
        "{epochs: 1, warmupSteps: 0, repetitions: 1, timeoutSeconds: 100}",
        &format!(
            "[{{name: kinds, mode: Variants, ranks: [2], variants: [{}]}}]",
            variants.join(", ")
        ),
    );
    // A child started earlier by the shell that becomes the study.
    let output = Command::new("sh")
        .args([
            "-c",
            &format!("sleep 8{marker} > /dev/null 2>&1 & exec \"$@\""),
            "sh",
            TRAINER,
        ])
        .args(study.command().get_args())
        // The user's settings are kept.
        .env("OMP_NUM_THREADS", "3")
        .output()
        .expect("starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(
        output.status.code(),
        Some(1),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let kept = Command::new("pkill")
        .args(["-f", &format!("sleep 8{marker}")])
        .status()
        .expect("starts");
    assert!(
        kept.success(),
        "a process that was none of the study's was killed"
    );
    let report = study.report();
    let point = |place: usize| report["points"][place].clone();
    assert!(
        point(0)["imagesPerSecond"]["median"].as_f64().expect("a rate") > 0.0,
        "{text}"
    );
    let good = point(1);
    for (field, expected) in [
        ("imagesPerSecond", 16.0),
        ("unattributedSeconds", 0.5),
        ("computeSeconds", 0.0),
        ("epochSeconds", 5.0),
    ] {
        assert_eq!(good[field]["median"], expected, "{good}");
    }
    assert!(
        text.contains("kinds-r2-b4-is-lucky #1: failed, retrying: sh ended with exit status: 4 on node 0"),
        "{text}"
    );
    assert_eq!(point(4)["imagesPerSecond"]["median"], 16.0, "{text}");
    for (place, expected) in [
        (2, "sh ended with exit status: 3 on node 1: no GPU here"),
        (
            3,
            "it has written no log: rank 0 of another trainer must write it to $VIT_LOG",
        ),
        (
            5,
            "the command does not follow VIT_RUN_CONFIG: it trained on 1 ranks with 8 images a step instead of 2 ranks with 8 \
             images a step",
        ),
    ] {
        assert_eq!(point(place)["failures"][0], expected);
    }
    let hanging = [variant("hangs", "sleep 1000"), variant("is slow", "sleep 1001")];
    let study = Study::new(
        "{epochs: 1, warmupSteps: 0, repetitions: 1, timeoutSeconds: 1}",
        &format!(
            "[{{name: kinds, mode: Variants, variants: [{}]}}]",
            hanging.join(", ")
        ),
    );
    study.run();
    assert_eq!(
        study.report()["points"][0]["failures"][0],
        "it took more than measure.timeoutSeconds (1)"
    );
    assert_nothing_runs(&format!("sleep {marker}"));
}

fn assert_nothing_runs(command: &str) {
    let left = Command::new("pgrep").args(["-f", command]).output();
    let left = left.expect("starts").stdout;
    assert!(left.is_empty(), "{}", String::from_utf8_lossy(&left));
}

/// In place of the first run's agent: it ignores signals, like ranks blocked on lost storage.
#[test]
fn a_run_that_does_not_stop_in_time_is_killed() {
    let study = Study::new(
        "{epochs: 1, warmupSteps: 0, repetitions: 1, timeoutSeconds: 1}",
        "[{name: batch, mode: Batch, microBatchSize: [8, 16]}]",
    );
    let deaf = study.folder.path().join("deaf");
    let script = "#!/bin/sh\nif mkdir \"$0.tried\"; then trap '' TERM; tail -f \"$0\"; tail -f \"$0\"; else exit 1; fi\n";
    fs_err::write(&deaf, script).expect("writes");
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs_err::set_permissions(&deaf, executable).expect("a script");
    let output = study.command().arg("--launcher").arg(&deaf).output();
    assert_eq!(output.expect("starts").status.code(), Some(1));
    let report = study.report();
    let failure = |point: usize| report["points"][point]["failures"][0].clone();
    assert_eq!(
        (failure(0), failure(1)),
        (
            "it took more than measure.timeoutSeconds (1)".into(),
            "exit code 1".into()
        )
    );
    assert_nothing_runs(&deaf.display().to_string());
}

/// In place of a contender: checks its environment silently, for all ranks of a node.
const CHECK: &str = "
import json, os, sys
sys.path.insert(0, sys.argv[1])
import settings
config = json.load(open(os.environ['VIT_RUN_CONFIG']))
ranks = config['ranksPerNode']
assert os.environ['PET_NPROC_PER_NODE'] == str(ranks) and ('RANK' in os.environ) == (ranks == 1), os.environ
settings.check(config, sys.argv[2])
";

/// Failures of an example's external variants with [`CHECK`] as their command, and of the first one
/// with `changed` settings of its training.
fn failures_of_contenders(example: &str, changed: &Value) -> Vec<String> {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let example = fs_err::read_to_string(top.join(example)).expect("an example");
    let mut study: Value = serde_saphyr::from_str(&example).expect("a manifest");
    let sweeps = study["spec"]["sweeps"].as_array_mut().expect("sweeps");
    for sweep in &mut *sweeps {
        sweep["ranks"].as_array_mut().expect("ranks").truncate(2);
        let Some(variants) = sweep["variants"].as_array_mut() else {
            continue;
        };
        variants.retain(|variant| variant["spec"]["external"].is_object());
        if let Some(first) = variants.first().cloned() {
            variants.push(first);
            let last = variants.last_mut().expect("one was pushed");
            last["name"] = "changed".into();
            last["spec"]["training"] = changed.clone();
        }
        for variant in variants {
            let command = &mut variant["spec"]["external"]["command"];
            let name = command[2].clone();
            *command = serde_json::json!(["python3", "-c", CHECK, top.join("contenders"), name]);
        }
    }
    sweeps.retain(|sweep| {
        sweep["variants"]
            .as_array()
            .is_some_and(|variants| !variants.is_empty())
    });
    study["spec"]["measure"] = serde_json::json!({"epochs": 1, "repetitions": 1, "retries": 0});
    let run = Study::new("{}", "[]");
    fs_err::write(run.folder.path().join("study.yaml"), study.to_string()).expect("writes");
    run.run();
    let report = run.report();
    let points = report["points"].as_array().expect("points").iter();
    let failure = |point: &Value| {
        point["failures"][0]
            .as_str()
            .expect("none has trained")
            .to_owned()
    };
    points.map(failure).collect()
}

#[test]
fn contenders_follow_all_that_the_examples_say_and_refuse_what_they_would_not_do() {
    for (example, changed, refusal) in [
        (
            "examples/studies/contenders.yaml",
            serde_json::json!({"clipGradNorm": 1.0}),
            "training.clipGradNorm is 1.0: must be omitted",
        ),
        (
            "examples/studies/arxiv-2602-21081.yaml",
            serde_json::json!({"precision": "fp16", "masterWeights": true}),
            "training.lossScale.hysteresis is 2: must be 1",
        ),
    ] {
        let failures = failures_of_contenders(example, &changed);
        let (refused, followed): (Vec<_>, Vec<_>) = failures
            .iter()
            .partition(|failure| failure.contains("Unsupported"));
        assert!(followed.len() > 3 && !refused.is_empty(), "{failures:?}");
        for failure in followed {
            assert!(failure.starts_with("it has written no log"), "{failure}");
        }
        for failure in refused {
            assert!(failure.ends_with(refusal), "{failure}");
        }
    }
}

#[test]
fn what_was_measured_stays_and_is_not_taken_for_something_else() {
    let study = Study::new(
        "{epochs: 2, warmupSteps: 0, repetitions: 1}",
        "[{name: batch, mode: Batch, microBatchSize: [4, 8]}]",
    );
    assert!(study.run().status.success());
    let logs = |study: &Study| -> Vec<String> {
        study
            .logs()
            .iter()
            .map(|log| fs_err::read_to_string(log).expect("reads"))
            .collect()
    };
    let before = logs(&study);
    let manifest = study.folder.path().join("study.yaml");
    let rewrite = |from: &str, to: &str| {
        let text = fs_err::read_to_string(&manifest)
            .expect("reads")
            .replace(from, to);
        fs_err::write(&manifest, text).expect("writes");
    };
    // A warm-up that leaves nothing is no reason to train again, or to lose results.
    rewrite("warmupSteps: 0", "warmupSteps: 1000");
    let output = study.run();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(
        (output.status.code(), text.matches("from an earlier run").count()),
        (Some(1), 2),
        "{text}"
    );
    assert!(
        text.contains("no line of the log begins after a warm-up of 1000"),
        "{text}"
    );
    rewrite("warmupSteps: 1000", "warmupSteps: 0");
    assert!(study.run().status.success());
    assert_eq!(logs(&study), before);

    // Other data need other runs.
    let data = study.folder.path().join("data");
    fs_err::create_dir(&data).expect("a folder");
    let output = study.command().arg("--data").arg(&data).output().expect("starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success() && !text.contains("from an earlier run"),
        "{text}"
    );
    assert_ne!(logs(&study), before);

    // Unreadable paths are refused before results are lost.
    let of_data = logs(&study);
    for option in ["--pretrained", "--data"] {
        let output = study.command().args([option, "/gone"]).output().expect("starts");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            output.status.code() == Some(2) && text.contains(&format!("{option} /gone cannot be read")),
            "{text}"
        );
    }
    assert_eq!(logs(&study), of_data);

    // Other initial weights need other runs too, which fail here.
    let weights = study.folder.path().join("weights.safetensors");
    fs_err::write(&weights, "none").expect("writes");
    let output = study.command().arg("--pretrained").arg(&weights).output();
    let output = output.expect("starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.code() == Some(1) && !text.contains("from an earlier run"),
        "{text}"
    );

    // A study in its own folder stays as the user wrote it.
    let written = fs_err::read_to_string(&manifest).expect("reads") + "# mine\n";
    fs_err::write(&manifest, &written).expect("writes");
    let mut here = Command::new(TRAINER);
    here.args(["study", "-f", "study.yaml", "--output", "."])
        .current_dir(study.folder.path());
    assert!(here.output().expect("starts").status.success());
    assert_eq!(fs_err::read_to_string(&manifest).expect("reads"), written);
}
