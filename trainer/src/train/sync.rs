//! Gradients averaged over the ranks, with what the ranks tell each other beside them.

use tch::Tensor;
use torch_ext::{Error, Reducer, SyncTimes};

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

    /// After the backward pass: the sums of the arrival.
    pub(super) fn finish(&mut self) -> Result<Vec<f64>, Error> {
        if self.is_on {
            return self.reducer.finish();
        }
        Ok(Vec::try_from(&self.arrival).expect("a vector of numbers"))
    }

    /// What the step cost, best asked some work later: meanwhile the ranks compare their times.
    pub(super) fn times(&mut self) -> Result<SyncTimes, Error> {
        if self.is_on {
            self.reducer.times()
        } else {
            Ok(SyncTimes::default())
        }
    }
}
