//! Ranks that compute as on slower devices: to try on one machine what unlike GPUs do.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::time::Duration;

use contract::{Device, RunConfig};
use nix::time::{ClockId, clock_gettime};
use torch_ext::Member;

use crate::error::TrainError;

/// The least speed.
const LEAST: f64 = 1e-4;

/// Speeds of all ranks, each a share of this machine's.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Speeds(Vec<f64>);

impl Speeds {
    /// Environment variable by which ranks get them, separated by commas.
    const VARIABLE: &str = "VIT_SPEEDS";

    /// Those of the command line; `None` where it has none.
    pub(crate) fn of_arguments(speeds: &[f64], config: &RunConfig) -> Result<Option<Self>, TrainError> {
        (!speeds.is_empty())
            .then(|| Self::new(speeds, config))
            .transpose()
    }

    /// Of the ranks of a run.
    fn new(speeds: &[f64], config: &RunConfig) -> Result<Self, TrainError> {
        let ranks = config.world_size();
        let refuse = |message: String| Err(TrainError::Config(format!("--speeds {message}")));
        if speeds.len() != ranks as usize {
            return refuse(format!(
                "has {} for {ranks} ranks: give one speed per rank",
                speeds.len()
            ));
        }
        if let Some(speed) = speeds.iter().find(|speed| !(LEAST..=1.0).contains(*speed)) {
            return refuse(format!(
                "has {speed}: must be between {LEAST} and 1, the speed of this machine"
            ));
        }
        if config.device != Device::Cpu {
            return refuse(
                "needs workers.device cpu: a GPU cannot be made to compute as a slower one".into(),
            );
        }
        Ok(Self(speeds.to_vec()))
    }

    /// For the environment of the ranks. Each computes on one thread: its own speed must not depend on how many ranks share this
    /// machine.
    pub(crate) fn variables(&self) -> [(OsString, OsString); 2] {
        let speeds: Vec<String> = self.0.iter().map(f64::to_string).collect();
        [
            (Self::VARIABLE.into(), speeds.join(",").into()),
            ("OMP_NUM_THREADS".into(), "1".into()),
        ]
    }

    /// Reads back what [`Self::variables`] has written; `None` where nothing has.
    fn of_environment() -> Result<Option<Self>, TrainError> {
        let Ok(speeds) = std::env::var(Self::VARIABLE) else {
            return Ok(None);
        };
        let parsed: Result<Vec<f64>, _> = speeds.split(',').map(str::parse).collect();
        let parsed = parsed
            .map_err(|error| TrainError::Config(format!("{} is {speeds:?}: {error}", Self::VARIABLE)))?;
        Ok(Some(Self(parsed)))
    }
}

/// What a rank waits beside what it computes.
#[derive(Debug, Default)]
pub(crate) struct Slowdown {
    /// Seconds of waiting for one of computing.
    wait: f64,
    /// Which part of it comes before a forward pass. Another one on each rank: on processors of their own their forward passes
    /// would not take longer for being computed at the same moment, as they do on the same ones, and the wait would make many
    /// times as much of that.
    before: f64,
    /// The least seconds of a forward pass so far, by its images. What takes longer is this machine's doing, not the device's
    /// that is emulated: the wait would make many times as much of it.
    forward: BTreeMap<u64, Duration>,
}

impl Slowdown {
    /// How long a micro-batch's forward and backward passes take, in forward passes.
    const PASSES: f64 = 3.0;

    /// Of a rank that computes on `device`, with its place among those that do not meet others in their forward passes.
    pub(crate) fn of_environment(rank: u32, place: Member, device: tch::Device) -> Result<Self, TrainError> {
        let speeds = Speeds::of_environment()?.filter(|_| device == tch::Device::Cpu);
        let Some(Speeds(speeds)) = speeds else {
            return Ok(Self::default());
        };
        let speed = speeds.get(rank as usize).copied().unwrap_or(1.0);
        Ok(Self {
            wait: 1.0 / speed.max(LEAST) - 1.0,
            before: f64::from(place.rank) / f64::from(place.size),
            forward: BTreeMap::new(),
        })
    }

    /// Runs the forward pass of a micro-batch of so many images, and waits as much longer as a slower device would take for it
    /// and for its backward pass. By the time that this thread computes: while it waits for other ranks, a slower one would not
    /// take longer.
    pub(crate) fn around<T>(&mut self, images: u64, forward: impl FnOnce() -> T) -> T {
        if images == 0 || self.wait <= 0.0 {
            return forward();
        }
        let waited = self.wait_before(images);
        std::thread::sleep(waited);
        let start = computed();
        let result = forward();
        let took = computed().saturating_sub(start);
        std::thread::sleep(self.wait(images, took).saturating_sub(waited));
        result
    }

    /// What comes before a forward pass; nothing where there was none of so many images.
    fn wait_before(&self, images: u64) -> Duration {
        let least = self.forward.get(&images).copied().unwrap_or_default();
        least.mul_f64(Self::PASSES * self.wait * self.before)
    }

    /// How much longer both passes would take, where the forward pass took so long.
    fn wait(&mut self, images: u64, took: Duration) -> Duration {
        let least = self.forward.entry(images).or_insert(took);
        *least = took.min(*least);
        least.mul_f64(Self::PASSES * self.wait)
    }
}

/// Time that this thread has computed.
fn computed() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::fixtures::config;

    #[test]
    fn what_slows_this_machine_for_a_moment_does_not_slow_the_emulated_device() {
        let mut slowdown = Slowdown {
            wait: 9.0,
            before: 0.5,
            ..Slowdown::default()
        };
        let mut waits = |images, milliseconds| {
            let before = slowdown.wait_before(images);
            let all = slowdown.wait(images, Duration::from_millis(milliseconds));
            (before.as_millis(), all.as_millis())
        };
        // A tenth of the speed: nine times as long again, three passes; a part of what is known comes first.
        assert_eq!(
            [waits(8, 20), waits(8, 10), waits(8, 30)],
            [(0, 540), (270, 270), (135, 270)]
        );
        assert_eq!(waits(16, 25), (0, 675), "other images take another time");
    }

    #[test]
    fn speeds_are_those_of_ranks_on_the_cpu() {
        let config = RunConfig {
            nodes: 2,
            device: Device::Cpu,
            ..config("{format: synthetic, syntheticImages: 80}")
        };
        let speeds = Speeds::new(&[1.0, 0.25], &config).expect("one a rank");
        assert_eq!(speeds.variables()[0].1, "1,0.25");
        let refused = |speeds: &[f64], config: &RunConfig| {
            Speeds::new(speeds, config).expect_err("refused").to_string()
        };
        assert_eq!(
            refused(&[1.0], &config),
            "--speeds has 1 for 2 ranks: give one speed per rank"
        );
        for speed in [0.0, 1.5, f64::NAN] {
            assert!(refused(&[1.0, speed], &config).contains("must be between 0.0001 and 1"));
        }
        let on_any = RunConfig {
            device: Device::Auto,
            ..config
        };
        assert!(refused(&[1.0, 0.5], &on_any).contains("needs workers.device cpu"));
    }
}
