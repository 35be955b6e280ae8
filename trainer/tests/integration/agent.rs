//! The agent as it runs in a pod: environment in, HTTP and a termination record out.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::common::{TRAINER, await_condition};
use crate::device::{Device, gpus, on_each_device};
use crate::machine::{HangingStorage, trainer_on_machine_with};
use crate::rank::Rank;
use contract::{
    Activity, FailureClass, Heartbeat, Heartbeats, ProcessState, Progress, TerminationRecord, environment,
};
use nix::sys::ptrace;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;
use serde_json::json;
use torch_ext::Rendezvous;

on_each_device!(
    a_pod_shows_metrics_and_progress_and_saves_when_it_is_stopped,
    ranks_that_wait_for_one_that_is_gone_are_given_up_when_they_are_told_to_stop,
    a_rank_that_hears_of_a_lost_peer_and_cannot_end_is_given_up,
);

/// Two ranks on noise, for this many epochs of eight steps.
pub(crate) fn run_config(folder: &Path, epochs: u32) -> serde_json::Value {
    let manifest = "apiVersion: vit-operator.dev/v1alpha1
kind: ViTTrainingJob
metadata: {name: noise, namespace: vision}
spec:
  image: unused
  model: {imageSize: 8, patchSize: 4, hiddenSize: 8, depth: 1, heads: 2, mlpSize: 16, numClasses: 3, channels: 1}
  data: {format: synthetic, syntheticImages: 64}
  training:
    epochs: 1
    microBatchSize: 4
    labelSmoothing: 0
    optimizer: {learningRate: 1e-3, weightDecay: 0}
    schedule: {name: constant}
  parallelism: {bucketMegabytes: 1}
  workers: {nodes: 1, gpusPerNode: 2, device: cpu}
  checkpoint: {keep: 1, volume: {hostPath: {path: /unused}}}
";
    let job = serde_saphyr::from_str(manifest).expect("a manifest");
    let config = crds::validate(&job).expect("a sound manifest").run_config;
    let mut config = serde_json::to_value(config).expect("serializes");
    // More than a manifest may have.
    config["training"]["epochs"] = json!(epochs);
    config["checkpoint"]["path"] = json!(folder.join("checkpoints"));
    config["device"] = json!(Device::current().in_manifest());
    config
}

pub(crate) fn free_port() -> u16 {
    Rendezvous::reserve_port(Ipv4Addr::LOCALHOST.into()).expect("a port")
}

struct Agent {
    child: Child,
    coordinator_port: u16,
    http_port: u16,
    termination_log: std::path::PathBuf,
}

impl Agent {
    fn start(folder: &Path, config: &serde_json::Value) -> Self {
        Self::start_through(Command::new(TRAINER), folder, config)
    }

    /// Starts it by a command to which its arguments are added.
    fn start_through(mut command: Command, folder: &Path, config: &serde_json::Value) -> Self {
        let file = folder.join("run.json");
        fs_err::write(&file, config.to_string()).expect("writes");
        let (coordinator_port, http_port) = (free_port(), free_port());
        let termination_log = folder.join("termination-log");
        Device::current().prepare(&mut command, &gpus());
        let child = command
            .arg("agent")
            .env(environment::RUN_CONFIG, &file)
            .env(environment::NODE_RANK, "0")
            .env(environment::ATTEMPT, "4")
            .env(environment::COORDINATOR_HOST, "localhost")
            .env(environment::COORDINATOR_PORT, coordinator_port.to_string())
            .env(environment::POD_ADDRESS, "127.0.0.1")
            .env(environment::AGENT_PORT, http_port.to_string())
            .env(environment::TERMINATION_LOG, &termination_log)
            .stdout(Stdio::null())
            .spawn()
            .expect("starts");
        Self {
            child,
            coordinator_port,
            http_port,
            termination_log,
        }
    }

    /// Body of a response with status 200.
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

    fn heartbeats(&self) -> Option<Heartbeats> {
        serde_json::from_str(&self.get("/heartbeats")?).ok()
    }

    /// Whether the agent answers and `holds` is true of all its ranks.
    fn all_ranks(&self, holds: impl Fn(&Heartbeat) -> bool) -> bool {
        self.heartbeats()
            .is_some_and(|heartbeats| heartbeats.ranks.iter().all(holds))
    }

    fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("a child").is_some()
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).expect("signals");
    }

    fn finish(mut self) -> (Option<i32>, TerminationRecord) {
        let code = self.child.wait().expect("ends").code();
        let record = fs_err::read(&self.termination_log).expect("a termination record");
        (code, serde_json::from_slice(&record).expect("a record"))
    }
}

fn a_pod_shows_metrics_and_progress_and_saves_when_it_is_stopped() {
    let folder = tempfile::tempdir().expect("a folder");
    let agent = Agent::start(folder.path(), &run_config(folder.path(), 100_000));
    let progress = || -> Option<Progress> { serde_json::from_str(&agent.get("/progress")?).ok() };
    await_condition("progress", || {
        progress().is_some_and(|progress| progress.loss.is_some())
    });
    let seen = progress().expect("progress");
    assert_eq!((seen.attempt, seen.total_epochs), (4, 100_000));
    assert_eq!(seen.total_steps, 8 * 100_000);
    assert!(seen.images_per_second.is_some_and(|rate| rate > 0.0), "{seen:?}");
    assert!(
        seen.sync_share.is_some_and(|share| (0.0..=1.0).contains(&share)),
        "{seen:?}"
    );
    assert_eq!(agent.get("/healthz").as_deref(), Some("ok\n"));

    let metrics = agent.get("/metrics").expect("metrics");
    for rank in [0, 1] {
        let labels = |operation| format!(r#"job_name="noise",namespace="vision",{operation}rank="{rank}""#);
        for (name, operation) in [
            ("vit_images_total", ""),
            ("vit_sync_bytes_total", r#"operation="all_reduce","#),
            ("vit_loss", ""),
            ("vit_step", ""),
        ] {
            let prefix = format!("{name}{{{}}} ", labels(operation));
            let line = metrics.lines().find_map(|line| line.strip_prefix(&prefix));
            let value: f64 = line
                .unwrap_or_else(|| panic!("no {prefix}in\n{metrics}"))
                .parse()
                .expect("a number");
            assert!(value > 0.0, "{name} of rank {rank}");
        }
    }

    agent.signal(Signal::SIGTERM);
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
fn a_checkpoint_is_written_once_it_is_asked_for() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut config = run_config(folder.path(), 1);
    // Nothing else is due for an hour.
    config["data"]["syntheticImages"] = json!(8_000_000);
    let agent = Agent::start(folder.path(), &config);
    let asked = |path: &str| -> Option<Progress> { serde_json::from_str(&agent.get(path)?).ok() };
    let saved = |path: &str| asked(path)?.last_checkpoint.map(|checkpoint| checkpoint.step);
    await_condition("progress", || {
        asked("/progress?saveAfter=0").is_some_and(|progress| progress.step > 0)
    });
    await_condition("a checkpoint", || saved("/progress?saveAfter=0").is_some());
    let first = saved("/progress").expect("a checkpoint");
    // As the operator asks until its status shows the checkpoint.
    for _ in 0..10 {
        assert_eq!(saved("/progress?saveAfter=0"), Some(first), "one is enough");
        std::thread::sleep(Duration::from_millis(50));
    }
    let after = format!("/progress?saveAfter={first}");
    await_condition("another checkpoint", || {
        saved(&after).is_some_and(|step| step > first)
    });
    agent.signal(Signal::SIGTERM);
    assert_eq!(agent.finish().0, Some(143));
}

#[test]
fn never_resuming_continues_the_same_job_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut config = run_config(folder.path(), 1);
    config["checkpoint"]["resume"] = json!("Never");
    config["job"]["uid"] = json!("6f0c2b9e");
    let (code, _) = Agent::start(folder.path(), &config).finish();
    assert_eq!(code, Some(0));
    // A later attempt of the same job finds all epochs done.
    let (code, record) = Agent::start(folder.path(), &config).finish();
    assert_eq!((code, record.failure), (Some(0), None));

    let mut other = config.clone();
    other["job"]["uid"] = json!("another");
    let mut elsewhere = config;
    elsewhere["job"]["namespace"] = json!("production");
    elsewhere["checkpoint"]["resume"] = json!("Auto");
    for (config, named) in [
        (other, "checkpoint.resume is Never, but"),
        (elsewhere, "this is a job of namespace production"),
    ] {
        let (code, record) = Agent::start(folder.path(), &config).finish();
        assert_eq!(code, Some(2), "the attempt's number does not matter");
        let message = record.failure.expect("a failure").message;
        assert!(
            message.contains(named) && message.contains("job vision/noise (uid 6f0c2b9e)"),
            "{message}"
        );
    }
}

#[test]
fn a_run_that_is_measured_tells_at_its_end_what_its_steps_took() {
    let measured = |warmup: u64| {
        let folder = tempfile::tempdir().expect("a folder");
        let mut config = run_config(folder.path(), 2);
        config["measure"] = json!({"warmupSteps": warmup});
        let (code, record) = Agent::start(folder.path(), &config).finish();
        assert_eq!(code, Some(0));
        record
    };
    let record = measured(0);
    let (found, progress) = (
        record.measurement.expect("a measurement"),
        record.progress.expect("progress"),
    );
    assert_eq!((found.epochs.len(), found.steps), (2, progress.total_steps));
    assert!(found.step_seconds > 0.0 && found.machine.is_some_and(|machine| machine.processors > 0));
    let spent = progress.spent.expect("what time went into");
    assert!(
        spent.step_seconds > 0.0 && spent.checkpoint_seconds > 0.0,
        "{spent:?}"
    );
    let record = measured(100_000);
    let why = record.unmeasured.expect("a reason");
    assert!(
        record.measurement.is_none() && why.contains("lower measure.warmupSteps"),
        "{why}"
    );
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
fn a_gpu_that_cannot_be_used_is_a_fault_of_the_node_or_of_the_image() {
    let failure = |device: &str, files: &[&str]| {
        let folder = tempfile::tempdir().expect("a folder");
        let mut config = run_config(folder.path(), 1);
        config["device"] = json!(device);
        let command = trainer_on_machine_with(files);
        let (code, record) = Agent::start_through(command, folder.path(), &config).finish();
        let failure = record.failure.expect("a failure");
        assert_eq!(code, Some(failure.exit_code.into()));
        (failure.class, failure.message)
    };
    assert_eq!(
        failure("cuda", &[]),
        (
            FailureClass::DeviceFault,
            "workers.device is cuda, but no GPU is visible: neither /dev/nvidiactl nor /dev/nvidia0 exists"
                .into()
        )
    );
    // The tests' libtorch is a CPU build.
    for device in ["auto", "cuda"] {
        let (class, message) = failure(device, &["nvidiactl", "nvidia0", "nvidia1"]);
        assert_eq!(class, FailureClass::BadConfig, "{message}");
        for part in [
            "libtorch_cuda.so is missing",
            "the image whose tag ends in -cuda13",
        ] {
            assert!(message.contains(part), "no {part} in: {message}");
        }
    }
}

#[test]
fn an_agent_tells_of_a_rank_that_is_stopped_and_of_those_that_wait_for_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut agent = Agent::start(folder.path(), &run_config(folder.path(), 100_000));
    await_condition("steps", || agent.all_ranks(trains));
    let heartbeats = agent.heartbeats().expect("an answer");
    assert_eq!((heartbeats.attempt, heartbeats.ranks.len()), (4, 2));
    assert!(agent.all_ranks(|rank| rank.median_step_seconds > Some(0.0)));

    let stopped = rank_process(&agent.child, 1);
    kill(stopped, Signal::SIGSTOP).expect("signals");
    await_condition("the ranks stand still", || {
        agent.all_ranks(|rank| rank.idle_seconds > 1.0)
    });
    let seen = agent.heartbeats().expect("an answer").ranks;
    assert_eq!(
        (seen[0].process, seen[1].process),
        (ProcessState::Running, ProcessState::Stopped)
    );
    assert!(seen[0].step >= seen[1].step, "{seen:?}");
    let progress: Progress =
        serde_json::from_str(&agent.get("/progress").expect("an answer")).expect("a record");
    let heartbeat = progress.heartbeat.expect("rank 0's");
    assert_eq!((heartbeat.rank, heartbeat.step), (0, seen[0].step));
    assert!(heartbeat.idle_seconds > 1.0);

    kill(stopped, Signal::SIGCONT).expect("signals");
    await_condition("the ranks go on", || {
        agent.all_ranks(|rank| rank.step > seen[0].step)
    });
    agent.child.kill().expect("kills");
    agent.child.wait().expect("ends");
}

fn ranks_that_wait_for_one_that_is_gone_are_given_up_when_they_are_told_to_stop() {
    given_up_after(|_| {});
}

/// Training does not yet know that a checkpoint begun before the last step is written.
#[test]
fn a_rank_that_has_written_its_checkpoint_meanwhile_is_given_up_too() {
    given_up_after(|config| config["checkpoint"]["everySteps"] = json!(1));
}

#[test]
fn a_stop_while_storage_hangs_loses_no_rank_and_saves_the_newest_state() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut agent = Agent::start(folder.path(), &run_config(folder.path(), 100_000));
    await_condition("steps", || agent.all_ranks(trains));
    let storage = HangingStorage::begin(&folder.path().join("checkpoints"));
    // Rank 0 cannot start an epoch's checkpoint before the previous one is written.
    await_condition("ranks that wait", || {
        agent.all_ranks(|rank| rank.idle_seconds > 1.0)
    });
    let step = agent.heartbeats().expect("an answer").ranks[0]
        .step
        .expect("a step");
    agent.signal(Signal::SIGTERM);
    // Longer than a rank may take for a step after a request to stop.
    await_condition("an agent that is patient", || {
        agent.all_ranks(|rank| rank.idle_seconds > 11.0) || agent.has_ended()
    });
    storage.end();
    let (code, record) = agent.finish();
    assert_eq!((code, record.failure), (Some(143), None));
    let saved = record
        .progress
        .and_then(|progress| progress.last_checkpoint)
        .expect("a checkpoint");
    assert!(saved.step >= step, "step {} is saved of {step}", saved.step);
}

fn given_up_after(change: impl FnOnce(&mut serde_json::Value)) {
    let folder = tempfile::tempdir().expect("a folder");
    let mut config = run_config(folder.path(), 100_000);
    // At the end of an epoch, ranks wait for storage and for each other without a limit.
    config["data"]["syntheticImages"] = json!(200_000);
    change(&mut config);
    let agent = Agent::start(folder.path(), &config);
    await_condition("steps", || agent.all_ranks(trains));
    // Its connections stay open but silent, as after a power loss of a node.
    kill(rank_process(&agent.child, 1), Signal::SIGSTOP).expect("signals");
    agent.signal(Signal::SIGTERM);
    let (code, record) = agent.finish();
    assert_eq!(code, Some(75), "its ranks would wait for ever");
    let failure = record.failure.expect("a failure");
    assert_eq!(failure.class, FailureClass::PeerLost);
    assert!(
        failure.message.contains("did not stop when asked to"),
        "{}",
        failure.message
    );
    // Before it was killed, the running rank recorded its collectives; the stopped one could not.
    let records = folder.path().join("checkpoints/flight-recorder");
    let text = fs_err::read_to_string(records.join("attempt-4-rank-0.json")).expect("a record");
    let record: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((&record["rank"], &record["attempt"]), (&json!(0), &json!(4)));
    assert_eq!(record["toldToStop"], json!(true));
    assert!(record["idleSeconds"].as_f64() >= Some(5.0) && record["step"].as_u64() >= Some(3));
    // It hangs in a collective, or in the messages by which ranks report its end.
    let [begun, ended] = ["begun", "ended"].map(|count| record["messages"][count].as_u64());
    assert!(Some(0) < ended && ended <= begun, "{text}");
    let (library, has_ended) = match Device::current() {
        Device::Cpu => {
            assert_eq!(record["nccl"], json!(null));
            ("gloo", ("retired", json!(true)))
        }
        Device::SimulatedGpus => ("nccl", ("state", json!("completed"))),
    };
    let entries = record[library]["entries"].as_array().expect("entries");
    let unfinished = entries
        .iter()
        .filter(|entry| entry[has_ended.0] != has_ended.1)
        .count();
    assert!(unfinished < entries.len(), "{text}");
    assert!(unfinished > 0 || ended < begun, "{text}");
    assert!(!records.join("attempt-4-rank-1.json").exists());
}

fn a_rank_that_hears_of_a_lost_peer_and_cannot_end_is_given_up() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut config = run_config(folder.path(), 100_000);
    (config["nodes"], config["ranksPerNode"]) = (json!(2), json!(1));
    let agent = Agent::start(folder.path(), &config);
    // Nobody reads its reports: they fit into the socket.
    let mut peer = Rank::start(folder.path(), 4, 1, 2, agent.coordinator_port);
    await_condition("steps", || agent.all_ranks(trains));
    // Only its main thread stops, like one that waits for a GPU.
    let stuck = rank_process(&agent.child, 0);
    ptrace::attach(stuck).expect("attaches");
    assert_eq!(
        waitpid(stuck, None),
        Ok(WaitStatus::Stopped(stuck, Signal::SIGSTOP))
    );
    peer.child.kill().expect("kills");
    peer.child.wait().expect("ends");
    // A tracer learns of the end before the parent.
    let end = waitpid(stuck, None);
    assert!(
        matches!(end, Ok(WaitStatus::Signaled(_, Signal::SIGKILL, _))),
        "{end:?}"
    );
    let (code, record) = agent.finish();
    let failure = record.failure.expect("a failure");
    assert_eq!((code, failure.class), (Some(75), FailureClass::PeerLost));
    assert_eq!(
        failure.message,
        "rank 1 is lost, and rank 0 was stuck waiting for it"
    );
}

fn trains(rank: &Heartbeat) -> bool {
    rank.activity == Activity::Training && rank.step >= Some(3)
}

/// The process of one of this agent's ranks.
fn rank_process(agent: &Child, rank: u32) -> Pid {
    let pid = agent.id();
    let children = fs_err::read_dir(format!("/proc/{pid}/task"))
        .expect("threads")
        .filter_map(|thread| fs_err::read_to_string(thread.ok()?.path().join("children")).ok())
        .collect::<String>();
    let of_rank = |pid: &i32| {
        let variable = format!("RANK={rank}");
        fs_err::read_to_string(format!("/proc/{pid}/environ"))
            .is_ok_and(|environment| environment.split('\0').any(|entry| entry == variable))
    };
    let found = children
        .split_whitespace()
        .filter_map(|pid| pid.parse().ok())
        .find(of_rank);
    Pid::from_raw(found.expect("the rank's process"))
}
