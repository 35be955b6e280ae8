//! Ranks of different speeds, with images in proportion to their speed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::common::{Job, assert_close, await_condition, process_of_rank};
use crate::device::{Device, on_each_device};

on_each_device!(ranks_of_unlike_speed_train_what_one_rank_trains,);

const ADAMW: &str = "name: adamw, epsilon: 1e-4";
const SGD: &str = "name: sgd, momentum: 0.9";
/// Needs norms of whole parameters.
const LAMB: &str = "name: lamb, epsilon: 1e-4";
const EVERYTHING: &str = "clipGradNorm: 0.5; layerDecay: 0.8; ema: {decay: 0.9}";

/// Ten steps of 48 images, mixed in pairs.
fn job(optimizer: &'static str, parallelism: &'static str) -> Job {
    let mut job = Job::new(480);
    job.model =
        "{imageSize: 32, patchSize: 8, hiddenSize: 24, depth: 3, heads: 4, numClasses: 10, pooling: token, \
        dropPath: 0.4}"
            .into();
    job.data_fields = "format: cifar10, augmentation: {mixup: 0.8, cutmix: 1.0}".into();
    (job.micro_batch, job.epochs, job.learning_rate) = (8, 1, 1e-2);
    (job.optimizer, job.training, job.parallelism) = (optimizer, EVERYTHING, parallelism);
    job
}

/// Compares weights, and accuracies on the way: another order of sums may change one image.
#[track_caller]
fn assert_same(found: &Job, expected: &Job, story: &str) {
    assert_close(found, expected, story);
    for (kind, images) in [("train", 480.0), ("evaluation", 13.0)] {
        let of = |job: &Job| {
            let last = job.log(kind).pop().expect("a line");
            last["accuracy"].as_f64().expect("a share") * images
        };
        let difference = (of(found) - of(expected)).abs();
        assert!(difference < 1.5, "{story}: {difference} images of {kind}");
    }
}

/// Ranks of these speeds; groups of `together` compute a model together.
fn weigh(job: &mut Job, speeds: &str, together: u32) {
    job.training = "balance: Weighted; clipGradNorm: 0.5; layerDecay: 0.8; ema: {decay: 0.9}";
    let ranks = u32::try_from(speeds.split(',').count()).expect("a few");
    job.spread(ranks);
    job.accumulation = 6 * together / ranks;
    if job.device == Device::Cpu {
        job.arguments = vec!["--speeds".into(), speeds.into()];
        return;
    }
    // Many times the duration of any operator.
    let is_slow = |speed: &str| speed.parse::<f64>().expect("a number") < 0.2;
    job.gpus.slow = speeds
        .split(',')
        .map(|speed| 200 * u32::from(is_slow(speed)))
        .collect();
}

/// Images per step by replica, in the order of decisions.
fn shares(job: &Job) -> Vec<Vec<u64>> {
    let images = |record: &Value| serde_json::from_value(record["images"].clone()).expect("numbers");
    job.log("shares").iter().map(images).collect()
}

#[test]
fn what_slow_ranks_cost_is_logged() {
    let slowdown = |speeds: &str| {
        let mut job = job(ADAMW, "{}");
        job.nodes = u32::try_from(speeds.split(',').count()).expect("a few");
        job.arguments = vec!["--speeds".into(), speeds.into()];
        job.run_well();
        // Of all steps: the last line may cover a single one.
        let (mut steps, mut sum) = (0.0, 0.0);
        for line in job.log("train") {
            let of_line = line["steps"].as_f64().expect("a number");
            if let Some(slowdown) = line["slowdown"].as_f64() {
                steps += of_line;
                sum += of_line * slowdown;
            }
        }
        (steps > 0.0).then_some(sum / steps)
    };
    // If one rank needs five times as long as the others, they wait for almost all of that. All are
    // so slow that a busy machine hardly changes their times.
    assert!(slowdown("0.02,0.004,0.02").is_some_and(|slowdown| (2.5..5.5).contains(&slowdown)));
    assert!(slowdown("0.02,0.02,0.02").is_some_and(|slowdown| (1.0..1.5).contains(&slowdown)));
    assert_eq!(slowdown("0.2"), None, "one rank waits for nobody");
}

fn ranks_of_unlike_speed_train_what_one_rank_trains() {
    for (optimizer, cases) in [
        (
            ADAMW,
            &[
                ("0.008,1,0.5", 1, "{zeroStage: 3}"),
                ("1,0.15,0.03", 1, "{}"),
                ("1,0.05", 1, "{zeroStage: 1}"),
                ("1,0.15,0.03", 1, "{zeroStage: 2}"),
            ][..],
        ),
        (
            SGD,
            &[
                ("1,1,0.03,0.03", 2, "{sequence: 2, acrossNodes: true}"),
                (
                    "0.008,0.008,1,1",
                    2,
                    "{sequence: 2, acrossNodes: true, zeroStage: 3}",
                ),
            ],
        ),
        (LAMB, &[("1,1,0.008,0.008", 2, "{tensor: 2, acrossNodes: true}")]),
    ] {
        let mut alone = job(optimizer, "{}");
        (alone.nodes, alone.accumulation, alone.device) = (1, 6, Device::Cpu);
        alone.run_well();
        // Ranks on slow simulated GPUs wait for the slowest.
        for (speeds, together, parallelism) in Device::current().cases(cases, 1, 1).iter().copied() {
            let story = format!("{optimizer}, {parallelism}, {speeds}");
            let mut weighted = job(optimizer, parallelism);
            weigh(&mut weighted, speeds, together);
            weighted.run_well();
            let shares = shares(&weighted)
                .pop()
                .unwrap_or_else(|| panic!("{story}: no uneven ones"));
            assert_eq!(shares.iter().sum::<u64>(), 48, "{story}");
            assert!(shares.iter().min() < shares.iter().max(), "{story}: {shares:?}");
            assert!(
                shares.iter().all(|images| images % 2 == 0),
                "pairs stay whole: {shares:?}"
            );
            if speeds.contains("0.008") && weighted.device == Device::Cpu {
                assert!(shares.contains(&0), "{story}: {shares:?}");
            }
            assert_same(&weighted, &alone, &story);
        }
    }
}

/// Notifies another thread when dropped, also in a panic.
#[derive(Default)]
struct IsOver(Arc<AtomicBool>);

impl Drop for IsOver {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_rank_that_becomes_slow_gives_images_away_in_the_middle_of_an_epoch() {
    let mut weighted = job(SGD, "{}");
    weigh(&mut weighted, "0.5,0.5", 1);
    (weighted.epochs, weighted.learning_rate) = (30, 1e-5);
    let running = weighted.start();
    await_condition("the first steps", || running.has_logged("train"));
    let slow = Pid::from_raw(process_of_rank(running.pid(), 1));
    let known = shares(&weighted).len();
    let gives_away = || {
        shares(&weighted)[known..]
            .iter()
            .position(|images| images[0] > images[1])
    };
    std::thread::scope(|scope| {
        let is_over = IsOver::default();
        let ends = Arc::clone(&is_over.0);
        scope.spawn(move || {
            // Stopped most of the time.
            while !ends.load(Ordering::Relaxed) {
                for (signal, milliseconds) in [(Signal::SIGSTOP, 15), (Signal::SIGCONT, 5)] {
                    kill(slow, signal).expect("signals");
                    std::thread::sleep(Duration::from_millis(milliseconds));
                }
            }
        });
        await_condition("new shares", || gives_away().is_some());
    });
    running.ends(0, &[]);
    let decided = &weighted.log("shares")[known + gives_away().expect("it did")];
    let step = decided["step"].as_u64().expect("a step");
    // An epoch has ten steps.
    assert!(
        (1..=8).contains(&(step % 10)),
        "{step} is in the middle of an epoch"
    );

    let mut alone = job(SGD, "{}");
    (alone.nodes, alone.accumulation) = (1, 6);
    (alone.epochs, alone.learning_rate) = (30, 1e-5);
    alone.run_well();
    assert_same(&weighted, &alone, "shares that changed");
}
