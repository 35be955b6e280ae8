//! Where the time of a step goes.

use std::rc::Rc;

use tch::Device;
use torch_ext::{DeviceEvent, Error, SyncTimes};

use crate::metrics::Phases;

/// Times a step lap by lap on the device: a GPU does later what is queued now.
#[derive(Debug)]
pub(super) struct StepClock {
    device: Device,
    start: Rc<DeviceEvent>,
    laps: Vec<(Lap, Rc<DeviceEvent>)>,
}

/// What happens in a lap.
#[derive(Clone, Copy, Debug)]
enum Lap {
    /// Since the previous step.
    Between,
    Data,
    Forward,
    Backward,
    Optimizer,
}

impl StepClock {
    pub(super) fn start(device: Device) -> Result<Self, Error> {
        Ok(Self {
            device,
            start: Rc::new(DeviceEvent::now(device)?),
            laps: Vec::new(),
        })
    }

    /// The clock of the next step, which begins now. It includes the host work between the two
    /// steps, so that steps add up to the time that passes.
    pub(super) fn following(&self) -> Result<Self, Error> {
        let end = self.laps.last().map_or(&self.start, |(_, end)| end);
        let mut next = Self {
            device: self.device,
            start: Rc::clone(end),
            laps: Vec::new(),
        };
        next.end_of(Lap::Between)?;
        Ok(next)
    }

    /// Images are ready.
    pub(super) fn data(&mut self) -> Result<(), Error> {
        self.end_of(Lap::Data)
    }

    /// The loss is computed.
    pub(super) fn forward(&mut self) -> Result<(), Error> {
        self.end_of(Lap::Forward)
    }

    /// Gradients are ready; after the last micro-batch those of all ranks.
    pub(super) fn backward(&mut self) -> Result<(), Error> {
        self.end_of(Lap::Backward)
    }

    /// Weights are updated.
    pub(super) fn optimizer(&mut self) -> Result<(), Error> {
        self.end_of(Lap::Optimizer)
    }

    fn end_of(&mut self, lap: Lap) -> Result<(), Error> {
        self.laps.push((lap, Rc::new(DeviceEvent::now(self.device)?)));
        Ok(())
    }

    /// The phases of the step, which the device must have finished. `sync` holds the waiting for
    /// other ranks in its forward and backward passes.
    pub(super) fn end(&self, sync: &SyncTimes) -> Result<Phases, Error> {
        let mut phases = Phases {
            sync_exposed: sync.all.exposed,
            sync_straggler: sync.all.straggler,
            ..Phases::default()
        };
        let mut last: &DeviceEvent = &self.start;
        for (lap, end) in &self.laps {
            let seconds = end.seconds_since(last)?;
            last = end;
            match lap {
                Lap::Data => phases.data += seconds,
                Lap::Forward => phases.forward += seconds,
                Lap::Backward => phases.backward += seconds,
                // Host work for the previous step: reports, and decisions of all ranks.
                Lap::Optimizer | Lap::Between => phases.optimizer += seconds,
            }
        }
        let waited = sync.all.exposed + sync.all.straggler;
        phases.forward -= sync.waited_in_forward.min(phases.forward);
        phases.backward -= (waited - sync.waited_in_forward).clamp(0.0, phases.backward);
        Ok(phases)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn the_time_between_two_steps_is_part_of_the_later_one() {
        const PAUSE: Duration = Duration::from_millis(20);
        let began = Instant::now();
        let mut first = StepClock::start(Device::Cpu).expect("a clock");
        first.forward().expect("a lap");
        first.optimizer().expect("a lap");
        // The time under test, not a wait for something.
        std::thread::sleep(PAUSE);
        let mut second = first.following().expect("a clock");
        second.data().expect("a lap");
        let most = began.elapsed().as_secs_f64();
        let [first, second] = [first, second].map(|clock| clock.end(&SyncTimes::default()).expect("phases"));
        assert!(second.optimizer >= PAUSE.as_secs_f64(), "{second:?}");
        assert!(first.sum() + second.sum() <= most, "{first:?}, {second:?}");
    }
}
