//! Checkpoints on storage: written during training, killed at any moment, on a full disk.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::agent::run_config;
use crate::common::{
    FILES, Job, TRAINER, all_gone, assert_same_files, await_condition, bytes, children, process_of_rank,
    weights_of,
};
use crate::device::{Device, on_each_device};
use crate::rank::Rank;

on_each_device!(what_every_rank_writes_its_share_of_is_what_the_first_rank_writes_alone,);

/// Kills of one job. Each start takes a quarter of a second.
const KILLS: u64 = 54;
/// One in this many kills is during the start: the process may be reading or cleaning up.
const EARLY_EVERY: u64 = 6;
/// Maximum number of reported checkpoints before a kill.
const MOST_CHECKPOINTS: u64 = 3;
/// Maximum microseconds between the last of them and a kill: some steps and another write.
const MOST_MICROSECONDS: u64 = 40_000;
/// Maximum microseconds between the start and an early kill.
const MOST_STARTUP: u64 = 400_000;

/// A process's peak memory so far, in bytes.
fn most_memory(pid: i32) -> Option<u64> {
    let status = fs_err::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kibibytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kibibytes << 10)
}

/// Runs a job of one rank, and returns its peak memory.
fn memory_of_run(job: &Job) -> u64 {
    // Freed memory is released at once, because gaps in kept memory would count.
    let mut command = Command::new(TRAINER);
    command.env("MALLOC_CONF", "dirty_decay_ms:0,muzzy_decay_ms:0");
    let running = job.start_through(command);
    let rank = Cell::new(None);
    await_condition("the start", || {
        let ranks = children(running.pid()).into_iter().flat_map(children);
        rank.set(ranks.into_iter().next());
        rank.get().is_some()
    });
    let rank = rank.get().expect("runs");
    let mut most = 0;
    await_condition("the run", || {
        most = most.max(most_memory(rank).unwrap_or(0));
        all_gone(&[rank])
    });
    running.ends(0, &[]);
    most
}

#[test]
fn to_continue_takes_no_more_memory_than_to_train() {
    let mut job = Job::new(8);
    (job.nodes, job.epochs) = (1, 1);
    // Weights of 76 MB, and an optimizer of twice that.
    job.model = "{imageSize: 32, patchSize: 16, hiddenSize: 512, depth: 6, heads: 2, numClasses: 10}".into();
    let first = memory_of_run(&job);
    job.epochs = 2;
    let continued = memory_of_run(&job);
    assert!(
        continued < first + (32 << 20),
        "{continued} bytes after a checkpoint, {first} before"
    );
}

/// A rank's reports until it was killed.
#[derive(Default)]
struct RankHistory {
    /// The step after which it started.
    start: Option<u64>,
    steps: Vec<u64>,
    checkpoints: u64,
    /// The newest checkpoint that it reported complete.
    durable: u64,
}

impl RankHistory {
    fn take(&mut self, report: &Value) {
        let step = || report["step"].as_u64().expect("a step");
        match report["kind"].as_str() {
            Some("progress") => {
                self.start.get_or_insert_with(step);
                let durable = report["lastCheckpoint"]["step"].as_u64().unwrap_or(0);
                self.durable = self.durable.max(durable);
            }
            Some("step") => self.steps.push(step()),
            Some("checkpoint") => self.checkpoints += 1,
            Some("activity" | "writing") => {}
            _ => panic!("the rank failed: {report}"),
        }
    }
}

/// Pseudorandom numbers, the same in every run of the test.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

fn names(folder: &Path) -> BTreeSet<String> {
    let Ok(entries) = fs_err::read_dir(folder) else {
        return BTreeSet::new();
    };
    entries
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("text"))
        .collect()
}

/// Step of the newest complete checkpoint, from its folder's name.
fn newest_complete(names: &BTreeSet<String>) -> u64 {
    names
        .iter()
        .filter_map(|name| {
            let name = name.strip_prefix(".complete-").unwrap_or(name);
            name.strip_prefix("step-")?.parse().ok()
        })
        .max()
        .unwrap_or(0)
}

#[test]
fn a_kill_at_any_moment_leaves_a_checkpoint_that_training_continues_from() {
    let place = tempfile::tempdir().expect("a folder");
    let folder = place.path();
    let mut config = run_config(folder, 100_000);
    config["ranksPerNode"] = json!(1);
    config["checkpoint"]["everySteps"] = json!(1);
    config["checkpoint"]["keep"] = json!(2);
    fs_err::write(folder.join("run.json"), config.to_string()).expect("writes");
    let checkpoints = folder.join("checkpoints");

    let mut dice = Dice(7);
    let (mut durable, mut amid_writes) = (0, 0);
    for attempt in 1..=KILLS {
        let complete = newest_complete(&names(&checkpoints));
        assert!(
            complete >= durable,
            "attempt {attempt}: step {durable} was told to be on storage, the newest there is {complete}"
        );
        let mut rank = Rank::start_alone(folder, attempt);
        let mut told = RankHistory::default();
        let wait = if attempt % EARLY_EVERY == 0 {
            dice.below(MOST_STARTUP)
        } else {
            let seen = 1 + dice.below(MOST_CHECKPOINTS);
            while told.checkpoints < seen {
                let report = rank.report().expect("it trains until it is killed");
                told.take(&report);
            }
            dice.below(MOST_MICROSECONDS)
        };
        // Not a wait: the test needs a random moment.
        std::thread::sleep(Duration::from_micros(wait));
        rank.child.kill().expect("kills");
        rank.child.wait().expect("ends");
        while let Some(report) = rank.report() {
            told.take(&report);
        }

        let errors = fs_err::read_to_string(&rank.errors).expect("reads");
        assert!(
            !errors.contains("skipping the checkpoint"),
            "attempt {attempt}: {errors}"
        );
        if let Some(start) = told.start {
            assert_eq!(
                start, complete,
                "attempt {attempt} starts at the newest checkpoint"
            );
            let expected: Vec<u64> = (start + 1..).take(told.steps.len()).collect();
            assert_eq!(told.steps, expected, "attempt {attempt}");
        }
        durable = durable.max(told.durable);
        amid_writes += u32::from(names(&checkpoints).iter().any(|name| name.starts_with('.')));
    }
    assert!(
        amid_writes >= 10,
        "{amid_writes} of {KILLS} kills came amid a write: the test shows nothing"
    );
    let late = KILLS - KILLS / EARLY_EVERY;
    assert!(
        durable >= late,
        "after {late} attempts that saved, step {durable} is the newest"
    );
}

#[test]
fn a_run_killed_within_an_epoch_continues_bit_by_bit() {
    let mut whole = Job::new(400);
    (whole.epochs, whole.every_steps) = (12, Some(7));
    whole.run_well();

    let mut parts = Job::new(400);
    (parts.epochs, parts.every_steps) = (12, Some(7));
    let running = parts.start();
    await_condition("a checkpoint", || {
        names(&parts.checkpoints())
            .iter()
            .any(|name| name.starts_with("step-"))
    });
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(process_of_rank(running.pid(), 0)),
        Signal::SIGKILL,
    )
    .expect("kills");
    running.ends(137, &[]);
    parts.run_well();

    let start = parts.log("start")[1]["step"].as_u64().expect("a step");
    assert!(start > 0, "the second part continued");
    let files = [
        "model.safetensors",
        "optimizer.safetensors",
        "state.json",
        "checksums.json",
    ];
    let story = format!("a start from step {start}");
    assert_same_files(&whole, &parts, &files, &story);
    let saved: BTreeSet<u64> = whole
        .log("checkpoint")
        .iter()
        .filter_map(|record| record["step"].as_u64())
        .collect();
    assert!(
        saved.iter().any(|step| step % 50 != 0),
        "within epochs of 50 steps too: {saved:?}"
    );
    for record in whole.log("checkpoint") {
        for field in ["snapshotSeconds", "writeSeconds", "bytes"] {
            assert!(record[field].as_f64() > Some(0.0), "{field} in {record}");
        }
    }
}

#[test]
fn checkpoints_come_after_so_many_seconds_within_an_epoch() {
    let place = tempfile::tempdir().expect("a folder");
    let folder = place.path();
    let mut config = run_config(folder, 1);
    config["ranksPerNode"] = json!(1);
    // An epoch lasts minutes: no checkpoint is due at its end.
    config["data"]["syntheticImages"] = json!(1_000_000);
    config["checkpoint"]["everySeconds"] = json!(1);
    config["checkpoint"]["keep"] = json!(10);
    fs_err::write(folder.join("run.json"), config.to_string()).expect("writes");

    let mut rank = Rank::start_alone(folder, 1);
    let mut told = RankHistory::default();
    while told.checkpoints < 2 {
        told.take(&rank.report().expect("it trains until it is killed"));
    }
    rank.child.kill().expect("kills");
    rank.child.wait().expect("ends");
    assert!(
        told.durable > 0 && told.steps.contains(&told.durable),
        "{}",
        told.durable
    );
    let newest = folder.join(format!("checkpoints/step-{:08}", told.durable));
    let state: Value = serde_json::from_slice(&bytes(&newest, "state.json")).expect("JSON");
    assert_eq!(state["position"]["epoch"], 0, "{state}");
    assert_eq!(state["position"]["step"], told.durable, "{state}");
}

fn what_every_rank_writes_its_share_of_is_what_the_first_rank_writes_alone() {
    let cases = [
        (3, 1, "{zeroStage: 3}"),
        (2, 2, "{zeroStage: 2, tensor: 2}"),
        (2, 2, "{zeroStage: 3, shardWithinNode: true}"),
        (2, 1, "{}"),
    ];
    // The division of writing does not depend on the device.
    let cases = Device::current().cases(&cases, 1, 1);
    for (nodes, ranks_per_node, parallelism) in cases.iter().copied() {
        check_shares(nodes, ranks_per_node, parallelism);
    }
}

fn check_shares(nodes: u32, ranks_per_node: u32, parallelism: &'static str) {
    let job = |writers| {
        let mut job = Job::new(48);
        (job.nodes, job.ranks_per_node) = (nodes, ranks_per_node);
        (job.epochs, job.writers, job.parallelism) = (1, writers, parallelism);
        job.training = "ema: {decay: 0.9}";
        job.run_well();
        job
    };
    let [mut shared, mut alone] = ["EveryRank", "FirstRank"].map(job);
    for file in FILES {
        let folder = shared.newest();
        let index: Value =
            serde_json::from_slice(&bytes(&folder, &format!("{file}.index.json"))).expect("an index");
        let map = index["weight_map"].as_object().expect("a map");
        let files: BTreeSet<&str> = map.values().filter_map(Value::as_str).collect();
        let ranks = (nodes * ranks_per_node) as usize;
        assert_eq!(files.len(), ranks, "{file}: every rank writes some: {files:?}");
        let found = files.into_iter().flat_map(|file| weights_of(&folder.join(file)));
        let found: BTreeMap<String, Vec<f32>> = found.collect();
        let expected = weights_of(&alone.newest().join(file)).into_iter().collect();
        assert!(found == expected, "{parallelism}: {file} differs");
    }
    let exported = |job: &Job| {
        let to = job.data().join("exported.safetensors");
        let output = Command::new(TRAINER)
            .arg("export")
            .args([job.checkpoints().as_path(), Path::new("-o"), &to])
            .output()
            .expect("runs");
        assert!(output.status.success(), "{output:?}");
        weights_of(&to)
    };
    assert!(exported(&shared) == exported(&alone), "exported weights differ");

    // Each continues from the other's checkpoint.
    (shared.writers, shared.epochs) = ("FirstRank", 2);
    (alone.writers, alone.epochs) = ("EveryRank", 2);
    for job in [&mut shared, &mut alone] {
        job.run_well();
        assert!(job.log("start")[1]["step"].as_u64() > Some(0), "it continued");
        (job.writers, job.epochs) = ("FirstRank", 3);
        job.run_well();
    }
    assert_same_files(&shared, &alone, &FILES, "written by all and by one");
}

/// The trainer with `runs` on a separate file system of this many bytes, which keeps its earlier
/// contents and is listed at the end.
fn on_small_disk(runs: &Path, bytes: u64, then_bytes: u64) -> Command {
    let mut command = Command::new("unshare");
    let script = format!(
        "set -u; disk={}; mount -t tmpfs -o size={bytes} tmpfs $disk
         \"$0\" \"$@\"; code=$?
         echo \"code $code\"; ls -A $disk/test
         mount -o remount,size={then_bytes} $disk
         \"$0\" \"$@\"",
        runs.display()
    );
    command
        .args([
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-c",
            &script,
            TRAINER,
        ])
        .stdin(Stdio::null());
    command
}

#[test]
fn a_full_disk_is_named_and_the_checkpoint_before_is_continued_from() {
    let mut job = Job::new(50);
    job.epochs = 3;
    job.run_well();
    let checkpoint = &job.log("checkpoint")[0];
    let (step, size) = (
        checkpoint["step"].as_u64().expect("a step"),
        checkpoint["bytes"].as_u64().expect("a size"),
    );

    // Needs root, as other tests do, to mount a file system that only this test sees.
    let command = on_small_disk(&job.runs(), size * 3 / 2, size * 10);
    let parts = [
        "code 79",
        &format!("failed to write the checkpoint of step {}: ", 2 * step),
        "No space left on device",
        &format!("the file system of {}/test has ", job.runs().display()),
        &format!(" free; the checkpoint of step {step} is complete, and the next attempt continues from it"),
        &format!("continuing after step {step} from "),
    ];
    let printed = job.start_through(command).ends(0, &parts);
    let needed = printed
        .split_once("; a checkpoint needs ")
        .and_then(|(_, rest)| rest.split_once(" bytes"))
        .and_then(|(number, _)| number.parse::<u64>().ok())
        .expect("a number");
    assert!(
        (size * 9 / 10..=size).contains(&needed),
        "{needed} of {size} bytes"
    );
    let left = format!("\n.partial-step-{:08}\n", 2 * step);
    assert!(!printed.contains(&left), "left over: {printed}");
}
