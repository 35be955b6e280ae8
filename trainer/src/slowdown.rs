//! Emulation of a slower device.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use serde_json::Value;
use torch_ext::Member;

use crate::calibration::CalibrationFile;
use crate::distributed::World;
use crate::error::TrainError;
use crate::pass_time::PassTime;
use crate::speeds::Speeds;

/// The time that a rank waits to emulate a slower device.
#[derive(Debug)]
pub(crate) struct Slowdown {
    /// `None` at this machine's own speed.
    emulated: Option<Emulated>,
}

/// A rank that emulates a slower device.
#[derive(Debug)]
struct Emulated {
    /// Seconds of waiting per second of computation.
    wait: f64,
    /// This rank's place among those with separate forward passes.
    place: Member,
    calibration: Option<CalibrationFile>,
    /// A forward pass on this machine.
    forward: PassTime,
}

impl Slowdown {
    /// Duration of a micro-batch's forward and backward passes, in forward passes.
    const PASSES: f64 = 3.0;
    /// Number of forward passes; their median is used, because the shortest of a few varies more.
    const REPEATS: usize = 7;

    /// For a rank on `device`, with its place among those with separate forward passes.
    pub(crate) fn from_environment(
        rank: u32,
        place: Member,
        device: tch::Device,
    ) -> Result<Self, TrainError> {
        let speeds = Speeds::from_environment()?.filter(|_| device == tch::Device::Cpu);
        let emulated = speeds.map(|speeds| Emulated {
            wait: 1.0 / speeds.of_rank(rank) - 1.0,
            place,
            calibration: speeds.calibration,
            forward: PassTime::default(),
        });
        Ok(Self { emulated })
    }

    /// Reads the time of the job's forward pass from the calibration file. If missing, passes of
    /// two micro-batches are measured: on one replica while others wait, or, if they gather
    /// weights, on all (`together`). All ranks must take part; without emulation nothing is done.
    pub(crate) fn calibrate(
        &mut self,
        world: &World,
        (job, together): (&Value, bool),
        sizes: [u64; 2],
        forward: impl FnMut(u64) -> Result<(), TrainError>,
    ) -> Result<(), TrainError> {
        let Some(emulated) = &mut self.emulated else {
            return Ok(());
        };
        let file = emulated.calibration.as_ref().filter(|_| world.is_first());
        let known = file.map(|file| file.find(job)).transpose()?.flatten();
        let known: Option<PassTime> = world.broadcast_value(&known)?;
        let forward = match known {
            Some(known) => known,
            None => emulated.measure(world, together, sizes, forward)?,
        };
        if let (None, Some(file)) = (known, file) {
            file.add(job, forward)?;
        }
        emulated.forward = forward;
        Ok(())
    }

    /// Runs a micro-batch's forward pass, and waits for the extra time of a slower device in it and
    /// in the backward pass.
    pub(crate) fn around<T>(&self, images: u64, forward: impl FnOnce() -> T) -> T {
        let Some(emulated) = self.emulated.as_ref().filter(|_| images > 0) else {
            return forward();
        };
        let [before, after] = emulated.waits(images);
        std::thread::sleep(before);
        let result = forward();
        std::thread::sleep(after);
        result
    }
}

impl Emulated {
    fn measure(
        &self,
        world: &World,
        together: bool,
        sizes: [u64; 2],
        mut forward: impl FnMut(u64) -> Result<(), TrainError>,
    ) -> Result<PassTime, TrainError> {
        let mut measured = sizes.map(|images| (images, 0.0));
        if together || self.place.rank == 0 {
            for (images, seconds) in &mut measured {
                let mut took = [Duration::ZERO; Slowdown::REPEATS];
                for took in &mut took {
                    let start = computed();
                    forward(*images)?;
                    *took = computed().saturating_sub(start);
                }
                took.sort();
                *seconds = took[Slowdown::REPEATS / 2].as_secs_f64();
            }
        }
        for (_, seconds) in &mut measured {
            *seconds = world.gather(*seconds)?.into_iter().fold(0.0, f64::max);
        }
        Ok(PassTime::through(measured))
    }

    /// The extra time of both passes, in two parts. The first part differs by rank, so that passes
    /// do not compete for this machine's processors.
    fn waits(&self, images: u64) -> [Duration; 2] {
        let all = Slowdown::PASSES * self.wait * self.forward.seconds(images);
        let before = all * f64::from(self.place.rank) / f64::from(self.place.size);
        [before, all - before].map(Duration::from_secs_f64)
    }
}

/// CPU time of this thread.
fn computed() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slower_device_takes_as_many_times_as_long_for_any_number_of_images() {
        let emulated = |wait, rank| Emulated {
            wait,
            place: Member { rank, size: 4 },
            calibration: None,
            forward: PassTime::through([(16, 0.02), (2, 0.006)]),
        };
        let waits = |wait, rank, images| {
            emulated(wait, rank)
                .waits(images)
                .map(|part| (part + Duration::from_micros(500)).as_millis())
        };
        // A tenth of the speed: nine extra times three passes.
        assert_eq!(waits(9.0, 0, 16), [0, 540]);
        assert_eq!(waits(9.0, 1, 16), [135, 405]);
        assert_eq!(waits(9.0, 3, 9), [263, 88], "13 ms, between those of 2 and 16");
        assert_eq!(waits(0.0, 3, 16), [0, 0], "as fast as this machine");
    }
}
