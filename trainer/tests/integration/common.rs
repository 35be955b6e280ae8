//! A small data set, a manifest for it, and runs of the built trainer.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use image::RgbImage;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use safetensors::SafeTensors;
use serde_json::Value;
use simulated_gpu::SimulatedGpus;
use tch::{Kind, Tensor};

use crate::device::{Device, gpus};

/// The trainer as built for these tests.
pub(crate) const TRAINER: &str = env!("CARGO_BIN_EXE_vit-trainer");
/// Longer than any step of a test, even on a busy machine.
pub(crate) const DEADLINE: Duration = Duration::from_secs(120);
/// Held-out images: not a multiple of any world size used here.
pub(crate) const HELD_OUT: usize = 13;
const RECORD_BYTES: usize = 3073;

/// A job in a new folder.
pub(crate) struct Job {
    folder: tempfile::TempDir,
    pub(crate) device: Device,
    /// The machine's GPUs, if the device is a GPU.
    pub(crate) gpus: SimulatedGpus,
    pub(crate) nodes: u32,
    pub(crate) ranks_per_node: u32,
    pub(crate) micro_batch: u32,
    pub(crate) accumulation: u32,
    pub(crate) epochs: u32,
    pub(crate) learning_rate: f64,
    pub(crate) resume: &'static str,
    pub(crate) breakdown: bool,
    /// `spec.data` without the volume; begins with the format.
    pub(crate) data_fields: String,
    /// `spec.model`.
    pub(crate) model: String,
    /// Additional arguments of `run`.
    pub(crate) arguments: Vec<String>,
    pub(crate) every_steps: Option<u32>,
    /// Which ranks write checkpoints.
    pub(crate) writers: &'static str,
    /// Name and other parameters of the optimizer.
    pub(crate) optimizer: &'static str,
    /// Additional lines of `training`, `key: value`, separated by semicolons.
    pub(crate) training: &'static str,
    /// `spec.parallelism`.
    pub(crate) parallelism: &'static str,
    /// `spec.training.schedule`.
    pub(crate) schedule: &'static str,
}

impl Job {
    /// `images` training images in the CIFAR-10 binary layout; two ranks on two nodes.
    pub(crate) fn new(images: usize) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let data = folder.path().join("data");
        fs_err::create_dir(&data).expect("a folder");
        for file in 0..5 {
            let bytes = records(file, images / 5 + usize::from(file < images % 5));
            fs_err::write(data.join(format!("data_batch_{}.bin", file + 1)), bytes).expect("writes");
        }
        fs_err::write(data.join("test_batch.bin"), records(9, HELD_OUT)).expect("writes");
        Self {
            folder,
            device: Device::current(),
            gpus: gpus(),
            nodes: 2,
            ranks_per_node: 1,
            micro_batch: 4,
            accumulation: 1,
            epochs: 2,
            learning_rate: 1e-3,
            resume: "Auto",
            breakdown: false,
            data_fields: "format: cifar10".into(),
            model: "{imageSize: 32, patchSize: 16, hiddenSize: 16, depth: 2, heads: 2, numClasses: 10, pooling: average}"
                .into(),
            arguments: Vec::new(),
            optimizer: "name: adamw",
            training: "seed: 0",
            parallelism: "{}",
            schedule: "name: cosine, warmupEpochs: 1",
            every_steps: None,
            writers: "Auto",
        }
    }

    /// Sets the number of ranks, on as few nodes as possible, because each node needs another agent.
    /// On the CPU, nodes make no difference; simulated GPUs are on two, if the ranks are even.
    pub(crate) fn spread(&mut self, ranks: u32) {
        self.nodes = match self.device {
            Device::Cpu => 1,
            Device::SimulatedGpus if ranks > 2 && ranks.is_multiple_of(2) => 2,
            Device::SimulatedGpus => ranks,
        };
        self.ranks_per_node = ranks / self.nodes;
    }

    /// Writes this many images to evaluate.
    pub(crate) fn hold_out(&self, images: usize) {
        fs_err::write(self.data().join("test_batch.bin"), records(9, images)).expect("writes");
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    pub(crate) fn checkpoints(&self) -> PathBuf {
        self.runs().join("test")
    }

    fn is_streamed(&self) -> bool {
        self.data_fields.contains("cache: {")
    }

    fn manifest(&self) -> String {
        let Self {
            device,
            gpus: _,
            nodes,
            ranks_per_node,
            micro_batch,
            accumulation,
            epochs,
            learning_rate,
            resume,
            breakdown,
            data_fields,
            model,
            arguments: _,
            every_steps,
            writers,
            optimizer,
            training,
            parallelism,
            schedule,
            folder: _,
        } = self;
        let device = device.in_manifest();
        let training = training.replace("; ", "\n    ");
        let volume = if data_fields.starts_with("format: synthetic") || self.is_streamed() {
            ""
        } else {
            ", volume: {persistentVolumeClaim: {claimName: unused}}"
        };
        let every_steps = every_steps.map_or_else(String::new, |steps| format!("everySteps: {steps}, "));
        format!(
            "apiVersion: vit-operator.dev/v1alpha1
kind: ViTTrainingJob
metadata: {{name: test}}
spec:
  image: unused
  model: {model}
  data: {{{data_fields}{volume}}}
  training:
    epochs: {epochs}
    microBatchSize: {micro_batch}
    gradientAccumulationSteps: {accumulation}
    wallClockBreakdown: {breakdown}
    optimizer: {{{optimizer}, learningRate: {learning_rate:e}, weightDecay: 0.05}}
    {training}
    schedule: {{{schedule}}}
  parallelism: {parallelism}
  workers: {{nodes: {nodes}, gpusPerNode: {ranks_per_node}, device: {device}}}
  checkpoint: {{resume: {resume}, writers: {writers}, {every_steps}keep: 2, volume: {{persistentVolumeClaim: {{claimName: unused}}}}}}
"
        )
    }

    pub(crate) fn write_manifest(&self) -> PathBuf {
        let path = self.folder.path().join("job.yaml");
        fs_err::write(&path, self.manifest()).expect("writes");
        path
    }

    pub(crate) fn start(&self) -> Running {
        self.start_through(Command::new(TRAINER))
    }

    /// The folder with the jobs' folders.
    pub(crate) fn runs(&self) -> PathBuf {
        self.folder.path().join("runs")
    }

    /// Starts `vit-trainer run` by a command to which its arguments are added.
    pub(crate) fn start_through(&self, mut command: Command) -> Running {
        let manifest = self.write_manifest();
        let log = self.checkpoints().join("log.jsonl");
        let logged = train_lines(&log);
        self.device.prepare(&mut command, &self.gpus);
        let child = command
            // Tests run beside each other: more threads would only wait for processors.
            .env("OMP_NUM_THREADS", "1")
            .arg("run")
            .arg("-f")
            .arg(&manifest)
            .args((!self.is_streamed()).then(|| format!("--data={}", self.data().display())))
            .arg("--checkpoints")
            .arg(self.runs())
            .args(&self.arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("starts");
        Running { child, log, logged }
    }

    /// Runs to the end and checks the exit code and parts of the output, which it returns.
    #[track_caller]
    pub(crate) fn ends(&self, code: i32, parts: &[&str]) -> String {
        self.start().ends(code, parts)
    }

    /// Runs to the end, which must be a success.
    #[track_caller]
    pub(crate) fn run_well(&self) {
        self.ends(0, &[]);
    }

    /// Runs until it has made some progress, and stops it.
    #[track_caller]
    pub(crate) fn stop(&self, signal: Signal) {
        let mut running = self.start();
        running.await_progress(1);
        running.signal(signal);
        running.ends(143, &[]);
    }

    /// Runs in two parts: stops, and continues to the end.
    #[track_caller]
    pub(crate) fn stop_and_continue(&self) {
        self.stop(Signal::SIGTERM);
        self.run_well();
        let step = self.log("start")[1]["step"].as_u64();
        assert!(step > Some(0), "the second part continued");
    }

    /// Log records of one kind.
    pub(crate) fn log(&self, kind: &str) -> Vec<Value> {
        let text = fs_err::read_to_string(self.checkpoints().join("log.jsonl")).expect("a log");
        let records = text
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        records.filter(|record| record["kind"] == kind).collect()
    }

    pub(crate) fn newest(&self) -> PathBuf {
        let entries = fs_err::read_dir(self.checkpoints()).expect("a folder");
        let folders = entries.map(|entry| entry.expect("an entry").path());
        folders.filter(|path| path.is_dir()).max().expect("a checkpoint")
    }

    /// The newest checkpoint's weights by name.
    pub(crate) fn weights(&self) -> Vec<(String, Vec<f32>)> {
        weights_of(&self.newest().join("model.safetensors"))
    }
}

/// Asserts that these files of two jobs' newest checkpoints are identical; `story` names the jobs.
pub(crate) fn assert_same_files(one: &Job, other: &Job, files: &[&str], story: &str) {
    for file in files {
        assert!(
            bytes(&one.newest(), file) == bytes(&other.newest(), file),
            "{story}: {file} differs"
        );
    }
}

pub(crate) fn weights_of(path: &Path) -> Vec<(String, Vec<f32>)> {
    let bytes = fs_err::read(path).expect("weights");
    let file = SafeTensors::deserialize(&bytes).expect("safetensors");
    let mut weights: Vec<_> = file
        .iter()
        .map(|(name, view)| {
            let (values, rest) = view.data().as_chunks::<4>();
            assert!(rest.is_empty());
            (
                name.to_owned(),
                values.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect(),
            )
        })
        .collect();
    weights.sort_by(|left: &(String, Vec<f32>), right| left.0.cmp(&right.0));
    weights
}

/// Noise around a shade that depends on the class, so that it can be learned.
fn records(seed: usize, count: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(count * RECORD_BYTES);
    let mut noise = seed as u32 * 7919 + 1;
    for index in 0..count {
        let label = (index + seed) % 10;
        bytes.push(label as u8);
        for _ in 1..RECORD_BYTES {
            noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            bytes.push((label * 20) as u8 + (noise >> 26) as u8);
        }
    }
    bytes
}

/// Writes images of 32-bit floats in one channel, and labels 0, 1, 2, 0, ..., as `NumPy` files.
pub(crate) fn write_arrays(folder: &Path, images: &[f32], side: i64) {
    let images = Tensor::from_slice(images).reshape([-1, side, side]);
    let labels = Tensor::arange(images.size()[0], (Kind::Int64, tch::Device::Cpu)).remainder(3);
    for (name, array) in [("train_images.npy", images), ("train_labels.npy", labels)] {
        array.write_npy(folder.join(name)).expect("writes");
    }
}

/// A running `run`. Dropping it kills it, and its agents then end by themselves.
pub(crate) struct Running {
    child: Child,
    log: PathBuf,
    /// Lines of training in the log before the start.
    logged: usize,
}

fn train_lines(log: &Path) -> usize {
    let text = fs_err::read_to_string(log).unwrap_or_default();
    text.lines()
        .filter(|line| line.contains(r#""kind":"train""#))
        .count()
}

impl Running {
    pub(crate) fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("a process id")
    }

    /// Waits until training has logged `lines` lines since the start.
    pub(crate) fn await_progress(&mut self, lines: usize) {
        let start = Instant::now();
        while train_lines(&self.log) < self.logged + lines {
            if self.child.try_wait().expect("a child").is_some() {
                let (code, printed) = self.end();
                panic!("it ended with exit code {code} before it made progress: {printed}");
            }
            assert!(start.elapsed() < DEADLINE, "no progress");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Whether the log has a line of that kind.
    pub(crate) fn has_logged(&self, kind: &str) -> bool {
        let text = fs_err::read_to_string(&self.log).unwrap_or_default();
        text.contains(&format!(r#""kind":"{kind}""#))
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid()), signal).expect("signals");
    }

    /// Waits for the end and checks the exit code and parts of the output, which it returns.
    #[track_caller]
    pub(crate) fn ends(mut self, code: i32, parts: &[&str]) -> String {
        let (found, printed) = self.end();
        assert_eq!(found, code, "{printed}");
        for part in parts {
            assert!(printed.contains(part), "no {part:?} in: {printed}");
        }
        printed
    }

    /// Exit code and all output.
    fn end(&mut self) -> (i32, String) {
        let mut output = self.child.stdout.take().expect("a pipe");
        let mut errors = self.child.stderr.take().expect("a pipe");
        // Concurrently: a process blocks on a full pipe.
        let errors = std::thread::spawn(move || {
            let mut printed = String::new();
            errors.read_to_string(&mut printed).expect("reads");
            printed
        });
        let mut printed = String::new();
        output.read_to_string(&mut printed).expect("reads");
        printed += &errors.join().expect("a thread that ends");
        let status = self.child.wait().expect("ends");
        (status.code().expect("no signal"), printed)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Has already ended in a successful test.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn children(parent: i32) -> Vec<i32> {
    let processes = fs_err::read_dir("/proc").expect("/proc");
    let pids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| {
        // pid (command) state parent ...
        let stat = fs_err::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let after_command = stat.rsplit(')').next().unwrap_or_default();
        after_command.split_whitespace().nth(1) == Some(parent.to_string().as_str())
    })
    .collect()
}

/// The value of an environment variable of a process.
pub(crate) fn variable(pid: i32, name: &str) -> Option<String> {
    let environment = fs_err::read_to_string(format!("/proc/{pid}/environ")).ok()?;
    let prefix = format!("{name}=");
    environment
        .split('\0')
        .find_map(|entry| Some(entry.strip_prefix(&prefix)?.to_owned()))
}

pub(crate) fn descendants(run: i32) -> Vec<i32> {
    let agents = children(run);
    let ranks = agents.iter().flat_map(|agent| children(*agent));
    agents.iter().copied().chain(ranks).collect()
}

/// The process of a global rank in a run.
pub(crate) fn process_of_rank(run: i32, rank: u32) -> i32 {
    let ranks = children(run).into_iter().flat_map(children);
    ranks
        .into_iter()
        .find(|pid| variable(*pid, "RANK") == Some(rank.to_string()))
        .expect("the rank is running")
}

pub(crate) fn await_condition(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(
            start.elapsed() < DEADLINE,
            "{what} took more than {} s",
            DEADLINE.as_secs()
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Whether all of these processes have ended.
pub(crate) fn all_gone(pids: &[i32]) -> bool {
    pids.iter().all(|pid| {
        let stat = fs_err::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.is_empty()
            || stat
                .rsplit(')')
                .next()
                .is_some_and(|rest| rest.trim_start().starts_with('Z'))
    })
}

/// Checkpoint files with tensors, of a job that keeps an average.
pub(crate) const FILES: [&str; 3] = ["model.safetensors", "optimizer.safetensors", "ema.safetensors"];
/// Bound on accumulated rounding after ten steps.
const TOLERANCE: f32 = 1e-5;

/// Asserts that two jobs' newest checkpoints are equal except for rounding.
#[track_caller]
pub(crate) fn assert_close(found: &Job, expected: &Job, story: &str) {
    for file in FILES {
        let [found, expected] = [found, expected].map(|job| weights_of(&job.newest().join(file)));
        let distance = distance(&found, &expected);
        assert!(distance < TOLERANCE, "{story}: {file} is off by {distance}");
    }
}

/// The largest difference between two sets of weights.
pub(crate) fn distance(left: &[(String, Vec<f32>)], right: &[(String, Vec<f32>)]) -> f32 {
    differences(left, right).map(f32::abs).fold(0.0, f32::max)
}

/// The norm of the difference of two sets of weights.
pub(crate) fn norm_of_difference(left: &[(String, Vec<f32>)], right: &[(String, Vec<f32>)]) -> f64 {
    let squares = differences(left, right).map(|difference| f64::from(difference).powi(2));
    squares.sum::<f64>().sqrt()
}

fn differences(left: &[(String, Vec<f32>)], right: &[(String, Vec<f32>)]) -> impl Iterator<Item = f32> {
    assert_eq!(left.len(), right.len());
    left.iter()
        .zip(right)
        .flat_map(|((left_name, left), (right_name, right))| {
            assert_eq!((left_name, left.len()), (right_name, right.len()));
            left.iter().zip(right).map(|(left, right)| left - right)
        })
}

pub(crate) fn bytes(folder: &Path, file: &str) -> Vec<u8> {
    fs_err::read(folder.join(file)).expect("a file of a checkpoint")
}

pub(crate) fn text(path: &Path) -> &str {
    path.to_str().expect("a path of plain letters")
}

/// Encodes a picture as a JPEG file.
pub(crate) fn jpeg(picture: &RgbImage) -> Vec<u8> {
    let mut file = mozjpeg::Compress::new(mozjpeg::ColorSpace::JCS_RGB);
    file.set_size(picture.width() as usize, picture.height() as usize);
    let mut file = file.start_compress(Vec::new()).expect("starts");
    file.write_scanlines(picture).expect("encodes");
    file.finish().expect("ends")
}
