//! Gradients averaged over the ranks, with what the ranks tell each other beside them.

use std::fmt::Debug;
use std::rc::Rc;

use tch::Tensor;
use torch_ext::{Error, Measurement, Reducer, Sharded};

/// How gradients of all ranks become the mean that each rank's optimizer takes, or its part of it.
pub(super) trait GradientSync: Debug {
    /// Before the first micro-batch of a step.
    fn begin(&mut self) -> Result<(), Error>;
    /// Before the backward pass of the last one; `arrival` is added up over the ranks beside it.
    fn prepare(&mut self, arrival: &Tensor) -> Result<(), Error>;
    /// After it: the sums of the arrival, and what was measured.
    fn finish(&mut self) -> Result<(Tensor, Measurement), Error>;
}

/// Every rank has all gradients, and gets the mean of all.
impl GradientSync for Reducer {
    fn begin(&mut self) -> Result<(), Error> {
        Self::begin(self)
    }

    fn prepare(&mut self, arrival: &Tensor) -> Result<(), Error> {
        Self::prepare(self, arrival)
    }

    fn finish(&mut self) -> Result<(Tensor, Measurement), Error> {
        Self::finish(self)
    }
}

/// Every rank gets its shard of the mean.
impl GradientSync for Rc<Sharded> {
    fn begin(&mut self) -> Result<(), Error> {
        Sharded::begin(self)
    }

    fn prepare(&mut self, arrival: &Tensor) -> Result<(), Error> {
        Sharded::prepare(self, arrival)
    }

    fn finish(&mut self) -> Result<(Tensor, Measurement), Error> {
        Sharded::finish(self)
    }
}

/// A [`GradientSync`] that can be left out, to measure what it costs.
#[derive(Debug)]
pub(super) struct StepSync {
    ranks: Box<dyn GradientSync>,
    /// Without it a step takes this rank's own gradients and numbers.
    pub(super) is_on: bool,
    arrival: Tensor,
}

impl StepSync {
    pub(super) fn new(ranks: impl GradientSync + 'static) -> Self {
        Self {
            ranks: Box::new(ranks),
            is_on: true,
            arrival: Tensor::new(),
        }
    }

    /// See [`GradientSync::begin`].
    pub(super) fn begin(&mut self) -> Result<(), Error> {
        self.ranks.begin()
    }

    /// See [`GradientSync::prepare`].
    pub(super) fn prepare(&mut self, arrival: Tensor) -> Result<(), Error> {
        self.arrival = arrival;
        if self.is_on {
            self.ranks.prepare(&self.arrival)?;
        }
        Ok(())
    }

    /// See [`GradientSync::finish`]; nothing is measured where gradients were not averaged.
    pub(super) fn finish(&mut self) -> Result<(Tensor, Option<Measurement>), Error> {
        if self.is_on {
            let (sums, measurement) = self.ranks.finish()?;
            return Ok((sums, Some(measurement)));
        }
        Ok((self.arrival.shallow_clone(), None))
    }
}
