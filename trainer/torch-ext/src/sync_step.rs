//! What synchronisation costs a step, whatever it consists of.

use tch::Tensor;

use crate::error::{Error, check};
use crate::handle::{Handle, tensor_of};
use crate::sys::{self, RawMeasurement};

pub use crate::sys::{SyncCost, SyncTimes};

impl SyncCost {
    fn map(&self, seconds: impl Fn(f64) -> f64, bytes: impl Fn(u64) -> u64) -> Self {
        Self {
            total: seconds(self.total),
            exposed: seconds(self.exposed),
            straggler: seconds(self.straggler),
            bytes: bytes(self.bytes),
        }
    }

    #[expect(
        clippy::trivially_copy_pass_by_ref,
        reason = "serde calls it with a reference"
    )]
    pub(crate) fn is_zero(&self) -> bool {
        *self == Self::default()
    }
}

impl std::ops::AddAssign for SyncCost {
    fn add_assign(&mut self, other: Self) {
        self.total += other.total;
        self.exposed += other.exposed;
        self.straggler += other.straggler;
        self.bytes += other.bytes;
    }
}

impl SyncTimes {
    /// The mean, where this is the sum over `count` steps.
    #[must_use]
    pub fn mean(&self, count: f64) -> Self {
        let mean =
            |cost: &SyncCost| cost.map(|seconds| seconds / count, |bytes| (bytes as f64 / count) as u64);
        Self {
            all: mean(&self.all),
            all_reduce: mean(&self.all_reduce),
            reduce_scatter: mean(&self.reduce_scatter),
            all_gather: mean(&self.all_gather),
            waited_in_forward: self.waited_in_forward / count,
        }
    }
}

impl std::ops::AddAssign for SyncTimes {
    fn add_assign(&mut self, other: Self) {
        self.all += other.all;
        self.all_reduce += other.all_reduce;
        self.reduce_scatter += other.reduce_scatter;
        self.all_gather += other.all_gather;
        self.waited_in_forward += other.waited_in_forward;
    }
}

/// In what form gradients are added up over the ranks. Parameters keep gradients of their own type either way.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Compression {
    /// In their own type.
    #[default]
    None,
    /// In bf16, which halves the bytes of fp32 gradients and keeps 8 bits of their mantissa.
    Bf16,
}

/// What adds up the numbers of an arrival.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ArrivalOver {
    /// The group of CPU tensors, beside the gradients. Only where those are on the CPU too: of a GPU's numbers it would know
    /// nothing before the host had waited for them.
    Control,
    /// The group of the gradients, in their queue.
    Gradients,
}

/// What was measured of a step.
#[derive(Debug)]
pub struct Measurement(Handle<RawMeasurement>);

impl Measurement {
    /// The sums of a step's arrival and its measurement, which `finish` writes to its arguments.
    ///
    /// # Safety
    /// Where `finish` succeeds it must have written a tensor and an object that it gives away.
    pub(crate) unsafe fn of_step(
        finish: impl FnOnce(*mut *mut std::ffi::c_void, *mut *mut RawMeasurement) -> std::ffi::c_int,
    ) -> Result<(Tensor, Self), Error> {
        let mut sums = None;
        let measurement = Handle::new(sys::vit_measurement_free, |measurement| {
            // SAFETY: as the caller says.
            let finished = unsafe {
                tensor_of("failed to average gradients over the ranks", |sums| {
                    finish(sums, measurement)
                })
            };
            sums = Some(finished?);
            Ok(())
        })?;
        Ok((sums.expect("the call succeeded"), Self(measurement)))
    }

    /// What synchronisation cost in the step, which the device must have come to the end of. The ranks compare their
    /// measurements beside what follows the step on the CPU, where a call at once waits for that, and with this call on a GPU.
    pub fn times(self) -> Result<SyncTimes, Error> {
        let mut times = SyncTimes::default();
        // SAFETY: the measurement is valid and `times` has the layout of the C++ struct.
        let status = unsafe { sys::vit_measurement_times(self.0.as_ptr(), &raw mut times) };
        check(status, || {
            "failed to compare the times of synchronisation over the ranks".into()
        })?;
        Ok(times)
    }
}
