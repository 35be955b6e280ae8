//! Where the time of a step goes.

use tch::Device;
use torch_ext::{Error, Moment, SyncTimes};

use crate::metrics::Phases;

/// Takes the time of a step lap by lap, each as long as the device was at it: a GPU does later what is queued now.
#[derive(Debug)]
pub(super) struct StepClock {
    device: Device,
    start: Moment,
    laps: Vec<(Lap, Moment)>,
}

/// What a lap was spent on.
#[derive(Clone, Copy, Debug)]
enum Lap {
    Data,
    Forward,
    Backward,
    Optimizer,
}

impl StepClock {
    pub(super) fn start(device: Device) -> Result<Self, Error> {
        Ok(Self {
            device,
            start: Moment::now(device)?,
            laps: Vec::new(),
        })
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
        self.laps.push((lap, Moment::now(self.device)?));
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
        let mut last = &self.start;
        for (lap, end) in &self.laps {
            let seconds = end.seconds_since(last)?;
            last = end;
            match lap {
                Lap::Data => phases.data += seconds,
                Lap::Forward => phases.forward += seconds,
                Lap::Backward => phases.backward += seconds,
                Lap::Optimizer => phases.optimizer += seconds,
            }
        }
        let waited = sync.all.exposed + sync.all.straggler;
        phases.forward -= sync.waited_in_forward.min(phases.forward);
        phases.backward -= (waited - sync.waited_in_forward).clamp(0.0, phases.backward);
        Ok(phases)
    }
}
