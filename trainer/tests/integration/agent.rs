//! The agent as a pod runs it: environment in, HTTP and a termination record out.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::common::{TRAINER, await_condition};
use contract::{FailureClass, Progress, TerminationRecord, environment};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

fn run_config(folder: &Path, epochs: u32) -> serde_json::Value {
    json!({
        "job": {"namespace": "vision", "name": "noise"},
        "model": {
            "imageSize": 8, "patchSize": 4, "hiddenSize": 8, "depth": 1, "heads": 2, "mlpSize": 16,
            "numClasses": 3, "channels": 1, "pooling": "token"
        },
        "data": {"format": "synthetic", "syntheticImages": 64},
        "training": {
            "epochs": epochs, "microBatchSize": 4, "gradientAccumulationSteps": 1, "seed": 0,
            "optimizer": {"learningRate": 1e-3, "weightDecay": 0.0, "betas": [0.9, 0.999], "epsilon": 1e-8},
            "schedule": {"name": "constant", "warmupEpochs": 0.0}, "labelSmoothing": 0.0
        },
        "parallelism": {"bucketMegabytes": 1},
        "nodes": 1, "ranksPerNode": 2, "device": "cpu",
        "checkpoint": {"path": folder.join("checkpoints"), "keep": 1, "resume": "auto"}
    })
}

fn free_port() -> u16 {
    let socket = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    socket.local_addr().expect("an address").port()
}

struct Agent {
    child: Child,
    http_port: u16,
    termination_log: std::path::PathBuf,
}

impl Agent {
    fn start(folder: &Path, config: &serde_json::Value) -> Self {
        let file = folder.join("run.json");
        fs_err::write(&file, config.to_string()).expect("writes");
        let http_port = free_port();
        let termination_log = folder.join("termination-log");
        let child = Command::new(TRAINER)
            .arg("agent")
            .env(environment::RUN_CONFIG, &file)
            .env(environment::NODE_RANK, "0")
            .env(environment::ATTEMPT, "4")
            .env(environment::COORDINATOR_HOST, "localhost")
            .env(environment::COORDINATOR_PORT, free_port().to_string())
            .env(environment::POD_ADDRESS, "127.0.0.1")
            .env(environment::AGENT_PORT, http_port.to_string())
            .env(environment::TERMINATION_LOG, &termination_log)
            .stdout(Stdio::null())
            .spawn()
            .expect("starts");
        Self {
            child,
            http_port,
            termination_log,
        }
    }

    /// Body of an answer with status 200.
    fn get(&self, path: &str) -> Option<String> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.http_port)).ok()?;
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: agent\r\nConnection: close\r\n\r\n"
        )
        .ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        head.starts_with("HTTP/1.1 200").then(|| body.to_owned())
    }

    fn finish(mut self) -> (Option<i32>, TerminationRecord) {
        let code = self.child.wait().expect("ends").code();
        let record = fs_err::read(&self.termination_log).expect("a termination record");
        (code, serde_json::from_slice(&record).expect("a record"))
    }
}

#[test]
fn a_pod_shows_metrics_and_progress_and_saves_when_it_is_stopped() {
    let folder = tempfile::tempdir().expect("a folder");
    let agent = Agent::start(folder.path(), &run_config(folder.path(), 1_000_000));
    let progress = || -> Option<Progress> { serde_json::from_str(&agent.get("/progress")?).ok() };
    await_condition("progress", || {
        progress().is_some_and(|progress| progress.loss.is_some())
    });
    let seen = progress().expect("progress");
    assert_eq!((seen.attempt, seen.total_epochs), (4, 1_000_000));
    assert_eq!(seen.total_steps, 8 * 1_000_000);
    assert!(seen.images_per_second.is_some_and(|rate| rate > 0.0), "{seen:?}");
    assert!(
        seen.sync_share.is_some_and(|share| (0.0..=1.0).contains(&share)),
        "{seen:?}"
    );
    assert_eq!(agent.get("/healthz").as_deref(), Some("ok\n"));

    let metrics = agent.get("/metrics").expect("metrics");
    for rank in [0, 1] {
        let labels = format!(r#"job_name="noise",namespace="vision",rank="{rank}""#);
        for name in ["vit_images_total", "vit_sync_bytes_total", "vit_loss", "vit_step"] {
            let prefix = format!("{name}{{{labels}}} ");
            let line = metrics.lines().find_map(|line| line.strip_prefix(&prefix));
            let value: f64 = line
                .unwrap_or_else(|| panic!("no {prefix}in\n{metrics}"))
                .parse()
                .expect("a number");
            assert!(value > 0.0, "{name} of rank {rank}");
        }
    }

    kill(
        Pid::from_raw(i32::try_from(agent.child.id()).expect("an id")),
        Signal::SIGTERM,
    )
    .expect("signals");
    let (code, record) = agent.finish();
    assert_eq!(code, Some(143));
    assert_eq!(record.failure, None);
    let saved = record
        .progress
        .and_then(|progress| progress.last_checkpoint)
        .expect("a checkpoint");
    assert!(Path::new(&saved.path).join("state.json").is_file());
}

#[test]
fn the_termination_record_names_the_failure() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut config = run_config(folder.path(), 1);
    config["model"]["heads"] = json!(3);
    let (code, record) = Agent::start(folder.path(), &config).finish();
    assert_eq!(code, Some(2));
    let failure = record.failure.expect("a failure");
    assert_eq!(
        (failure.class, failure.rank, failure.exit_code),
        (FailureClass::BadConfig, None, 2)
    );
    assert_eq!(
        failure.message,
        "model.hiddenSize is 8: must be a multiple of model.heads (3)"
    );
}

#[test]
fn a_gpu_that_was_demanded_and_is_not_there_is_a_device_fault() {
    if ["/dev/nvidiactl", "/dev/nvidia0"]
        .iter()
        .any(|file| Path::new(file).exists())
    {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let mut config = run_config(folder.path(), 1);
    config["device"] = json!("cuda");
    let (code, record) = Agent::start(folder.path(), &config).finish();
    assert_eq!(code, Some(76));
    let failure = record.failure.expect("a failure");
    assert_eq!(failure.class, FailureClass::DeviceFault);
    assert_eq!(
        failure.message,
        "workers.device is cuda, but no GPU is visible: neither /dev/nvidiactl nor /dev/nvidia0 exists"
    );
}

#[test]
fn every_command_explains_itself_with_an_example() {
    for command in ["run", "agent", "rank"] {
        let output = Command::new(TRAINER)
            .args([command, "--help"])
            .output()
            .expect("runs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success() && text.contains("Example: "),
            "{command}: {text}"
        );
    }
}
