//! Gradients averaged over the ranks, together with the ranks' reports.

use std::fmt::Debug;
use std::rc::Rc;

use tch::Tensor;
use torch_ext::{Error, Measurement, Reducer, Sharded};

/// Averages gradients over all ranks for the optimizer of each rank, whole or sharded.
pub(super) trait GradientSync: Debug {
    /// Before the first micro-batch of a step.
    fn begin(&mut self) -> Result<(), Error>;
    /// Before the backward pass of the last one; `report` is summed over the ranks during it.
    fn prepare(&mut self, report: &Tensor) -> Result<(), Error>;
    /// After it: the sums of the reports, and the measured times.
    fn finish(&mut self) -> Result<(Tensor, Measurement), Error>;
}

/// Every rank has whole gradients and gets the whole mean.
impl GradientSync for Reducer {
    fn begin(&mut self) -> Result<(), Error> {
        Self::begin(self)
    }

    fn prepare(&mut self, report: &Tensor) -> Result<(), Error> {
        Self::prepare(self, report)
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

    fn prepare(&mut self, report: &Tensor) -> Result<(), Error> {
        Sharded::prepare(self, report)
    }

    fn finish(&mut self) -> Result<(Tensor, Measurement), Error> {
        Sharded::finish(self)
    }
}

/// A [`GradientSync`] that can be switched off, to measure its cost.
#[derive(Debug)]
pub(super) struct StepSync {
    ranks: Box<dyn GradientSync>,
    /// If off, a step uses this rank's own gradients and numbers.
    pub(super) is_on: bool,
    report: Tensor,
}

impl StepSync {
    pub(super) fn new(ranks: impl GradientSync + 'static) -> Self {
        Self {
            ranks: Box::new(ranks),
            is_on: true,
            report: Tensor::new(),
        }
    }

    /// See [`GradientSync::begin`].
    pub(super) fn begin(&mut self) -> Result<(), Error> {
        self.ranks.begin()
    }

    /// See [`GradientSync::prepare`].
    pub(super) fn prepare(&mut self, report: Tensor) -> Result<(), Error> {
        self.report = report;
        if self.is_on {
            self.ranks.prepare(&self.report)?;
        }
        Ok(())
    }

    /// See [`GradientSync::finish`]; no measurement if gradients were not averaged.
    pub(super) fn finish(&mut self) -> Result<(Tensor, Option<Measurement>), Error> {
        if self.is_on {
            let (sums, measurement) = self.ranks.finish()?;
            return Ok((sums, Some(measurement)));
        }
        Ok((self.report.shallow_clone(), None))
    }
}
