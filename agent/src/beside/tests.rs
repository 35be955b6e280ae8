use std::io::Write as _;

use super::*;

const START: &str = r#"{"kind":"start","totalSteps":8,"worldSize":2,"globalBatchSize":32,"trainImages":128}"#;

fn train(step: u64, steps: u64) -> String {
    format!(
        r#"{{"kind":"train","epoch":0,"step":{step},"steps":{steps},"loss":1.5,"accuracy":0.25,"stepSeconds":0.5}}"#
    )
}

/// A run on two nodes that measures itself.
fn config() -> RunConfig {
    let manifest = "
apiVersion: vit-operator.dev/v1alpha1
kind: ViTTrainingJob
metadata: {name: ddp, namespace: research}
spec:
  image: unused
  external: {command: [torchrun, ddp.py]}
  model: {imageSize: 24, patchSize: 8, hiddenSize: 16, depth: 1, heads: 2, numClasses: 10}
  data: {format: synthetic, syntheticImages: 128}
  training: {epochs: 2, microBatchSize: 16}
  workers: {nodes: 2}
  checkpoint: {}
  measure: {warmupSteps: 2}
";
    let job = serde_saphyr::from_str(manifest).expect("a manifest");
    crds::validate(&job).expect("a sound manifest").run_config
}

fn watched(node_rank: u32, log: &Path) -> WatchedLog {
    let arguments = Arguments {
        run_config: PathBuf::new(),
        log: log.into(),
        node_rank,
        attempt: 3,
        coordinator_host: "localhost".into(),
        coordinator_port: 0,
        node: Some("gpu-1".into()),
        port: 0,
        termination_log: PathBuf::new(),
    };
    WatchedLog::new(&config(), &arguments).expect("metrics")
}

/// A growing log.
struct Log {
    folder: tempfile::TempDir,
    tail: Tail,
}

impl Log {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let tail = Tail::new(folder.path().join("log.jsonl"));
        Self { folder, tail }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("log.jsonl")
    }

    fn add(&self, text: &str) {
        let mut file = fs_err::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.path())
            .expect("opens");
        file.write_all(text.as_bytes()).expect("writes");
    }
}

#[test]
fn progress_and_metrics_are_what_the_log_says() {
    let mut log = Log::new();
    let watched = watched(0, &log.path());
    watched.follow(&mut log.tail);
    assert_eq!(watched.progress(), None, "no log yet");
    let waiting = watched.heartbeats();
    assert_eq!(
        (waiting.attempt, waiting.ranks[0].activity),
        (3, Activity::Starting)
    );

    log.add(&format!(
        "{START}\n{}\nno JSON\n{}",
        train(2, 2),
        &train(6, 4)[..40]
    ));
    watched.follow(&mut log.tail);
    let progress = watched.progress().expect("rank 0 trains");
    assert_eq!((progress.attempt, progress.step, progress.total_steps), (3, 2, 8));
    assert_eq!(
        (progress.loss, progress.train_accuracy, progress.images_per_second),
        (Some(1.5), Some(0.25), Some(64.0))
    );
    assert_eq!((progress.sync_share, progress.eta_seconds), (None, Some(3)));
    let heartbeat = progress.heartbeat.expect("of rank 0");
    assert_eq!(
        (heartbeat.activity, heartbeat.step, heartbeat.median_step_seconds),
        (Activity::Training, Some(2), Some(0.5))
    );

    // The rest of the line.
    log.add(&format!("{}\n", &train(6, 4)[40..]));
    log.add(concat!(r#"{"kind":"activity","activity":"checkpointing"}"#, "\n"));
    watched.follow(&mut log.tail);
    assert_eq!(watched.heartbeats().ranks[0].activity, Activity::Checkpointing);
    log.add(concat!(
        r#"{"kind":"checkpoint","step":6,"path":"/checkpoints/ddp/6"}"#,
        "\n",
        r#"{"kind":"evaluation","epoch":1,"accuracy":0.75}"#,
        "\n"
    ));
    watched.follow(&mut log.tail);
    let progress = watched.progress().expect("rank 0 trains");
    assert_eq!((progress.step, progress.epoch), (6, 1));
    assert_eq!(progress.validation_accuracy, Some(0.75));
    assert_eq!(progress.last_checkpoint.expect("a checkpoint").step, 6);
    let spent = progress.spent.expect("it is reported");
    assert_eq!((spent.first_step, spent.step_seconds), (0, 3.0));
    assert!(
        spent.checkpoint_seconds > 0.0 && spent.evaluation_seconds.to_bits() == 0,
        "{spent:?}"
    );

    let metrics = String::from_utf8(watched.metrics().expect("renders")).expect("text");
    for line in [
        r#"vit_images_total{job_name="ddp",namespace="research",rank="0"} 192"#,
        r#"vit_step{job_name="ddp",namespace="research",rank="0"} 6"#,
        r#"vit_accuracy_ratio{job_name="ddp",namespace="research",rank="0",split="validation"} 0.75"#,
        r#"vit_rank_info{job_name="ddp",namespace="research",node="gpu-1",rank="0"} 1"#,
    ] {
        assert!(
            metrics.lines().any(|found| found == line),
            "{line} is not in:\n{metrics}"
        );
    }
    assert!(!metrics.contains("vit_step_seconds"), "the log has no phases");
}

#[test]
fn a_log_that_is_written_anew_is_read_from_its_beginning() {
    let mut log = Log::new();
    let watched = watched(0, &log.path());
    log.add(&format!("{START}\n{}\n{}\n", train(4, 4), train(6, 2)));
    watched.follow(&mut log.tail);
    fs_err::write(log.path(), format!("{START}\n")).expect("writes");
    watched.follow(&mut log.tail);
    let progress = watched.progress().expect("it trains again");
    assert_eq!((progress.step, progress.loss), (0, None));
}

#[test]
fn the_last_words_are_progress_and_what_was_measured_or_why_not() {
    let mut log = Log::new();
    let first = watched(0, &log.path());
    log.add(&format!("{START}\n{}\n{}\n", train(2, 2), train(4, 2)));
    first.follow(&mut log.tail);
    let record = first.record(&log.path());
    assert_eq!(record.progress.expect("progress").step, 4);
    assert_eq!(record.unmeasured.as_deref(), Some("the log ends at step 4 of 8"));

    // Without an end of the line.
    log.add(&train(8, 4));
    first.follow(&mut log.tail);
    first.end(Tail {
        path: log.path(),
        at: log.tail.at,
        rest: std::mem::take(&mut log.tail.rest),
    });
    assert_eq!(first.progress().expect("progress").step, 8);
    let measured = first.record(&log.path()).measurement.expect("it is over");
    assert_eq!((measured.steps, measured.images_per_second), (6, 64.0));
    assert_eq!(measured.machine, None, "only a share of it can be seen");

    // Other pods do not report the run.
    let other = watched(1, &log.path());
    assert!(!other.follow(&mut Tail::new(log.path())));
    assert_eq!(other.progress(), None);
    let record = other.record(&log.path());
    assert_eq!((record.measurement, record.unmeasured), (None, None));
    assert!(other.heartbeats().ranks.is_empty());
}

#[test]
fn what_a_log_should_not_be_harms_nothing() {
    let mut log = Log::new();
    let watched = watched(0, &log.path());
    // Opening it would wait for a writer.
    let made = std::process::Command::new("mkfifo").arg(log.path()).status();
    assert!(made.expect("mkfifo").success());
    assert!(!watched.follow(&mut log.tail));
    let unmeasured = watched.record(&log.path()).unmeasured.expect("a reason");
    assert!(unmeasured.ends_with("log.jsonl is not a file"), "{unmeasured}");
    fs_err::remove_file(log.path()).expect("removes");

    // An endless line, a long path, and too many steps.
    log.add(&"x".repeat(3 << 20));
    while watched.follow(&mut log.tail) {}
    assert!(log.tail.rest.len() < 2 << 20, "{}", log.tail.rest.len());
    log.add(&format!("\n{START}\n"));
    let endless =
        train(8, u64::MAX).replace("\"stepSeconds\"", "\"phases\":{\"forward\":0.5},\"stepSeconds\"");
    log.add(&format!("{endless}\n"));
    let path = "p".repeat(5000);
    log.add(&format!(
        "{{\"kind\":\"checkpoint\",\"step\":8,\"path\":\"{path}\"}}\n"
    ));
    // NaN as Python writes it.
    log.add(&format!(
        "{}\n",
        train(8, 1).replace("\"loss\":1.5", "\"loss\":NaN")
    ));
    while watched.follow(&mut log.tail) {}
    let record = watched.record(&log.path());
    let progress = record.progress.as_ref().expect("it trains");
    assert_eq!((progress.step, progress.loss), (8, None));
    let bytes = serde_json::to_string(&record).expect("serializes").len();
    assert!(bytes < 4096, "{bytes} bytes");
}
