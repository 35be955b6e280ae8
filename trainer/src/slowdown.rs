//! What makes a rank compute as on a slower device.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use serde_json::Value;
use torch_ext::Member;

use crate::calibration::CalibrationFile;
use crate::distributed::World;
use crate::error::TrainError;
use crate::pass_time::PassTime;
use crate::speeds::Speeds;

/// What a rank waits beside what it computes, where it computes as on a slower device.
#[derive(Debug)]
pub(crate) struct Slowdown {
    /// Nothing where ranks compute as this machine does.
    emulated: Option<Emulated>,
}

/// A rank that computes as on a slower device.
#[derive(Debug)]
struct Emulated {
    /// Seconds of waiting for one of computing.
    wait: f64,
    /// Among those that do not meet others in their forward passes.
    place: Member,
    calibration: Option<CalibrationFile>,
    /// On this machine.
    forward: PassTime,
}

impl Slowdown {
    /// How long a micro-batch's forward and backward passes take, in forward passes.
    const PASSES: f64 = 3.0;
    /// Forward passes of which the median is taken: the shortest of a few varies more.
    const REPEATS: usize = 7;

    /// Of a rank that computes on `device`, with its place among those that do not meet others in their forward passes.
    pub(crate) fn of_environment(rank: u32, place: Member, device: tch::Device) -> Result<Self, TrainError> {
        let speeds = Speeds::of_environment()?.filter(|_| device == tch::Device::Cpu);
        let emulated = speeds.map(|speeds| Emulated {
            wait: 1.0 / speeds.of_rank(rank) - 1.0,
            place,
            calibration: speeds.calibration,
            forward: PassTime::default(),
        });
        Ok(Self { emulated })
    }

    /// Takes from the calibration file how long a forward pass of such a job takes on this machine. Where it does not say, passes
    /// of two micro-batches are measured: on one replica while the others wait, or, where weights are gathered in them, on all at
    /// once (`together`). All ranks must take part; where none is emulated nothing is done.
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

    /// Runs the forward pass of a micro-batch of so many images, and waits as much longer as a slower device would take for it
    /// and for its backward pass.
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

    /// How much longer both passes take than on this machine, in two parts. What comes before the forward pass is another one on
    /// each rank: on processors of their own their passes would not take longer for being computed at the same moment.
    fn waits(&self, images: u64) -> [Duration; 2] {
        let all = Slowdown::PASSES * self.wait * self.forward.seconds(images);
        let before = all * f64::from(self.place.rank) / f64::from(self.place.size);
        [before, all - before].map(Duration::from_secs_f64)
    }
}

/// Time that this thread has computed.
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
        // A tenth of the speed: nine times as long again, three passes.
        assert_eq!(waits(9.0, 0, 16), [0, 540]);
        assert_eq!(waits(9.0, 1, 16), [135, 405]);
        assert_eq!(waits(9.0, 3, 9), [263, 88], "13 ms, between those of 2 and 16");
        assert_eq!(waits(0.0, 3, 16), [0, 0], "as fast as this machine");
    }
}
