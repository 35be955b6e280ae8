//! Where the time of a step goes.

use std::rc::Rc;

use tch::Device;
use torch_ext::{Error, Moment, SyncTimes};

use crate::metrics::Phases;

/// Takes the time of a step lap by lap, each as long as the device was at it: a GPU does later what is queued now.
#[derive(Debug)]
pub(super) struct StepClock {
    device: Device,
    start: Rc<Moment>,
    laps: Vec<(Lap, Rc<Moment>)>,
}

/// What a lap was spent on.
#[derive(Clone, Copy, Debug)]
enum Lap {
    /// Since the step before.
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
            start: Rc::new(Moment::now(device)?),
            laps: Vec::new(),
        })
    }

    /// Of the step that follows and begins now: what the host did between the two is part of it, so that steps add up to the time
    /// that passes.
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

    /// Images are there.
    pub(super) fn data(&mut self) -> Result<(), Error> {
        self.end_of(Lap::Data)
    }

    /// The loss is computed.
    pub(super) fn forward(&mut self) -> Result<(), Error> {
        self.end_of(Lap::Forward)
    }

    /// Gradients are there; after the last micro-batch those of all ranks.
    pub(super) fn backward(&mut self) -> Result<(), Error> {
        self.end_of(Lap::Backward)
    }

    /// Weights are changed.
    pub(super) fn optimizer(&mut self) -> Result<(), Error> {
        self.end_of(Lap::Optimizer)
    }

    fn end_of(&mut self, lap: Lap) -> Result<(), Error> {
        self.laps.push((lap, Rc::new(Moment::now(self.device)?)));
        Ok(())
    }

    /// The phases of the step, which the device has come to the end of. In its forward and backward passes the rank waited for
    /// others as `sync` says.
    pub(super) fn end(&self, sync: &SyncTimes) -> Result<Phases, Error> {
        let mut phases = Phases {
            sync_exposed: sync.all.exposed,
            sync_straggler: sync.all.straggler,
            ..Phases::default()
        };
        let mut last: &Moment = &self.start;
        for (lap, end) in &self.laps {
            let seconds = end.seconds_since(last)?;
            last = end;
            match lap {
                Lap::Data => phases.data += seconds,
                Lap::Forward => phases.forward += seconds,
                Lap::Backward => phases.backward += seconds,
                // What the host does there follows from the step before: reports, and what ranks agreed on.
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
