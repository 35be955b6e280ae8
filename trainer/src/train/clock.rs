//! Where the time of a step goes.

use std::time::Instant;

use torch_ext::SyncTimes;

use crate::metrics::Phases;

/// Takes the time of a step lap by lap.
#[derive(Debug)]
pub(super) struct StepClock {
    last: Instant,
    last_backward: f64,
    phases: Phases,
}

impl StepClock {
    pub(super) fn start() -> Self {
        Self {
            last: Instant::now(),
            last_backward: 0.0,
            phases: Phases::default(),
        }
    }

    /// Images are there.
    pub(super) fn data(&mut self) {
        self.phases.data += self.lap();
    }

    /// The loss is computed.
    pub(super) fn forward(&mut self) {
        self.phases.forward += self.lap();
    }

    /// Gradients are there; after the last micro-batch those of all ranks.
    pub(super) fn backward(&mut self) {
        self.last_backward = self.lap();
        self.phases.backward += self.last_backward;
    }

    /// Weights are changed.
    pub(super) fn optimizer(&mut self) {
        self.phases.optimizer += self.lap();
    }

    /// The time since the last lap, seconds.
    fn lap(&mut self) -> f64 {
        let now = Instant::now();
        now.duration_since(std::mem::replace(&mut self.last, now))
            .as_secs_f64()
    }

    /// The phases of the step, in whose last backward pass the rank waited for others as `sync` says.
    pub(super) fn end(self, sync: &SyncTimes) -> Phases {
        let waited = sync.exposed + sync.straggler;
        Phases {
            backward: self.phases.backward - waited.min(self.last_backward),
            sync_exposed: sync.exposed,
            sync_straggler: sync.straggler,
            ..self.phases
        }
    }
}
