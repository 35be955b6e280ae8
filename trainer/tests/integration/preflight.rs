//! Tests of a run's needs in advance.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::{Job, TRAINER, text};
use crate::machine::trainer_on_machine_with;
use serde_json::Value;

fn preflight(arguments: &[&str]) -> (Option<i32>, Value) {
    preflight_through(Command::new(TRAINER), arguments)
}

fn preflight_through(mut command: Command, arguments: &[&str]) -> (Option<i32>, Value) {
    let output = command
        .args(["preflight", "--json"])
        .args(arguments)
        .output()
        .expect("runs");
    let text = String::from_utf8(output.stdout).expect("text");
    let report = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    (output.status.code(), report)
}

fn outcomes(report: &Value) -> Vec<(String, String)> {
    let checks = report["checks"].as_array().expect("checks");
    let text = |check: &Value, name: &str| check[name].as_str().expect("a text").to_owned();
    checks
        .iter()
        .map(|check| (text(check, "check"), text(check, "outcome")))
        .collect()
}

fn detail<'a>(report: &'a Value, name: &str) -> &'a str {
    let checks = report["checks"].as_array().expect("checks");
    let check = checks.iter().find(|check| check["check"] == name);
    check.expect("the check")["detail"].as_str().expect("a text")
}

#[test]
fn a_job_that_can_be_run_is_ready_and_leaves_nothing_behind() {
    let job = Job::new(50);
    let manifest = job.write_manifest();
    let checkpoints = job.checkpoints();
    let (code, report) = preflight(&[
        "-f",
        text(&manifest),
        "--data",
        text(&job.data()),
        "--checkpoints",
        text(checkpoints.parent().expect("a parent")),
    ]);
    assert_eq!((code, &report["ok"]), (Some(0), &true.into()), "{report}");
    assert!(
        outcomes(&report).iter().all(|(_, outcome)| outcome == "ok"),
        "{report}"
    );
    assert_eq!(detail(&report, "data"), "50 training and 13 held-out images");
    assert!(
        detail(&report, "collective").starts_with("2 ranks averaged "),
        "{report}"
    );
    assert!(!checkpoints.exists());
}

#[test]
fn the_first_failed_check_gives_the_exit_code() {
    let job = Job::new(50);
    let manifest = job.write_manifest();
    let (code, report) = preflight(&[
        "-f",
        text(&manifest),
        "--data",
        "/nowhere",
        "--checkpoints",
        text(&job.data()),
    ]);
    assert_eq!(code, Some(3), "{report}");
    assert!(detail(&report, "data").contains("/nowhere"), "{report}");
    assert_eq!(
        outcomes(&report).last().map(|(_, outcome)| outcome.as_str()),
        Some("ok"),
        "the other checks are done all the same: {report}"
    );

    let file = tempfile::NamedTempFile::new().expect("a file");
    let below = file.path().join("runs");
    let (code, report) = preflight(&["--device", "cpu", "--checkpoints", text(&below)]);
    assert_eq!(code, Some(79), "{report}");
    let not_reached: Vec<_> = outcomes(&report)
        .into_iter()
        .filter(|(_, outcome)| outcome == "notReached")
        .map(|(check, _)| check)
        .collect();
    assert_eq!(not_reached, ["collective", "memory", "checkpoint"]);

    let (code, report) = preflight(&["-f", "/nowhere/job.yaml"]);
    assert_eq!(code, Some(2), "{report}");
    assert!(
        detail(&report, "configuration").contains("/nowhere/job.yaml"),
        "{report}"
    );
}

#[test]
fn a_gpu_that_is_asked_for_and_not_there_is_told_before_a_run() {
    let folder = tempfile::tempdir().expect("a folder");
    let arguments = ["--device", "cuda", "--checkpoints", text(folder.path())];
    let (code, report) = preflight_through(trainer_on_machine_with(&[]), &arguments);
    assert_eq!(code, Some(76), "{report}");
    assert!(
        detail(&report, "device").contains("no GPU is visible"),
        "{report}"
    );
}

#[test]
fn a_manifest_may_come_from_standard_input() {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/digits.yaml");
    let planned = |file: &Path, input: Stdio| {
        let mut command = Command::new(TRAINER);
        let output = command.args(["plan", "-f"]).arg(file).stdin(input).output();
        output.expect("runs")
    };
    let named = planned(&manifest, Stdio::null());
    let read = planned(
        Path::new("-"),
        fs_err::File::open(&manifest).expect("opens").into_file().into(),
    );
    assert!(named.status.success() && !named.stdout.is_empty(), "{named:?}");
    assert_eq!(read.stdout, named.stdout);
    let none = planned(Path::new("-"), Stdio::null());
    let told = String::from_utf8_lossy(&none.stderr);
    assert!(
        none.status.code() == Some(2) && told.contains("- is not a valid ViTTrainingJob"),
        "{told}"
    );
}
