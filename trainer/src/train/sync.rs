//! Gradients averaged over the ranks, with what the ranks tell each other beside them.

use tch::Tensor;
use torch_ext::{Error, Measurement, Reducer};

/// Averages the gradients of the backward pass between [`GradientSync::prepare`] and [`GradientSync::finish`].
#[derive(Debug)]
pub(super) struct GradientSync {
    reducer: Reducer,
    /// Without it a step takes this rank's own gradients and numbers, to measure what averaging costs.
    pub(super) is_on: bool,
    arrival: Tensor,
}

impl GradientSync {
    pub(super) fn new(reducer: Reducer) -> Self {
        Self {
            reducer,
            is_on: true,
            arrival: Tensor::new(),
        }
    }

    /// Before the backward pass; `arrival` is added up over the ranks beside it.
    pub(super) fn prepare(&mut self, arrival: Tensor) -> Result<(), Error> {
        self.arrival = arrival;
        if self.is_on {
            self.reducer.prepare(&self.arrival)?;
        }
        Ok(())
    }

    /// After the backward pass: the sums of the arrival, and what was measured where gradients were averaged.
    pub(super) fn finish(&mut self) -> Result<(Tensor, Option<Measurement>), Error> {
        if self.is_on {
            let (sums, measurement) = self.reducer.finish()?;
            return Ok((sums, Some(measurement)));
        }
        Ok((self.arrival.shallow_clone(), None))
    }
}
