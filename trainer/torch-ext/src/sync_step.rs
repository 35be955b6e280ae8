//! Synchronization cost of a step, whatever its collectives.

use tch::Tensor;

use crate::error::{Error, check};
use crate::handle::{Handle, tensor_from};
use crate::process_group::ProcessGroup;
use crate::sys::{self, RawMeasurement, RawRecorder};

pub use crate::sys::{SyncCost, SyncTimes};

impl SyncCost {
    fn map(&self, seconds: impl Fn(f64) -> f64, amount: impl Fn(u64) -> u64) -> Self {
        Self {
            total: seconds(self.total),
            exposed: seconds(self.exposed),
            straggler: seconds(self.straggler),
            bytes: amount(self.bytes),
            collectives: amount(self.collectives),
        }
    }

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
        self.collectives += other.collectives;
    }
}

impl SyncTimes {
    /// The mean, if this is the sum over `count` steps.
    #[must_use]
    pub fn mean(&self, count: f64) -> Self {
        let mean =
            |cost: &SyncCost| cost.map(|seconds| seconds / count, |amount| (amount as f64 / count) as u64);
        Self {
            all: mean(&self.all),
            all_reduce: mean(&self.all_reduce),
            reduce_scatter: mean(&self.reduce_scatter),
            all_gather: mean(&self.all_gather),
            all_to_all: mean(&self.all_to_all),
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
        self.all_to_all += other.all_to_all;
        self.waited_in_forward += other.waited_in_forward;
    }
}

/// Number format in which gradients are summed. Parameters keep gradients of their own type.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Compression {
    /// In their own type.
    #[default]
    None,
    /// In bf16: half the bytes of fp32 gradients, with 8 bits of their mantissa.
    Bf16,
}

/// Records the collectives of the running step: those of a [`Reducer`](crate::Reducer),
/// [`Sharded`](crate::Sharded) or [`Collectives`](crate::Collectives). The first two bound it.
#[derive(Debug)]
pub struct SyncRecorder {
    pub(crate) handle: Handle<RawRecorder>,
}

impl SyncRecorder {
    /// `control` has all ranks on the CPU. `reports`, also all ranks, sums the report tensors on
    /// the device. Without it `control` does, during the gradient reduction. That works only on the
    /// CPU: the host would have to wait for a GPU's numbers.
    pub fn new(control: &ProcessGroup, reports: Option<&ProcessGroup>) -> Result<Self, Error> {
        let reports = reports.map_or(std::ptr::null_mut(), |group| group.handle.as_ptr());
        let handle = Handle::new(sys::vit_recorder_free, |out| {
            // SAFETY: the groups are borrowed for the call (the C++ side keeps references of its own), one may be null, and
            // `out` is a valid place for the object's pointer.
            let status = unsafe { sys::vit_recorder_new(reports, control.handle.as_ptr(), out) };
            check(status, || {
                "failed to prepare the measurement of synchronization".into()
            })
        })?;
        Ok(Self { handle })
    }
}

/// The measurement of a step.
#[derive(Debug)]
pub struct Measurement(Handle<RawMeasurement>);

impl Measurement {
    /// The sums of a step's reports and its measurement, which `finish` writes to its arguments.
    ///
    /// # Safety
    /// Where `finish` succeeds it must have written a tensor and an object that it gives away.
    pub(crate) unsafe fn from_step(
        finish: impl FnOnce(*mut *mut std::ffi::c_void, *mut *mut RawMeasurement) -> std::ffi::c_int,
    ) -> Result<(Tensor, Self), Error> {
        let mut sums = None;
        let measurement = Handle::new(sys::vit_measurement_free, |measurement| {
            // SAFETY: as the caller says.
            let finished = unsafe {
                tensor_from("failed to average gradients over the ranks", |sums| {
                    finish(sums, measurement)
                })
            };
            sums = Some(finished?);
            Ok(())
        })?;
        Ok((sums.expect("the call succeeded"), Self(measurement)))
    }

    /// Synchronization cost of the step, which the device must have finished. The ranks compare
    /// their measurements: on the CPU since the step's end, on a GPU in this call.
    pub fn times(self) -> Result<SyncTimes, Error> {
        let mut times = SyncTimes::default();
        // SAFETY: the measurement is valid and `times` has the layout of the C++ struct.
        let status = unsafe { sys::vit_measurement_times(self.0.as_ptr(), &raw mut times) };
        check(status, || {
            "failed to compare synchronization times between ranks".into()
        })?;
        Ok(times)
    }
}
