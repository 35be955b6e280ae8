//! Averaging of gradients over the ranks while the backward pass still runs.

use tch::Tensor;

use crate::error::{Error, check};
use crate::handle::{Handle, tensor_of};
use crate::process_group::ProcessGroup;
use crate::sys::{self, RawMeasurement, RawReducer};

pub use crate::sys::SyncTimes;

impl SyncTimes {
    /// The mean, where this is the sum over `count` steps.
    #[must_use]
    pub fn mean(&self, count: f64) -> Self {
        Self {
            total: self.total / count,
            exposed: self.exposed / count,
            straggler: self.straggler / count,
            bytes: (self.bytes as f64 / count) as u64,
        }
    }
}

impl std::ops::AddAssign for SyncTimes {
    fn add_assign(&mut self, other: Self) {
        self.total += other.total;
        self.exposed += other.exposed;
        self.straggler += other.straggler;
        self.bytes += other.bytes;
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

/// The Reducer of PyTorch's `DistributedDataParallel` with a communication hook that measures [`SyncTimes`].
///
/// Sources: `torch/csrc/distributed/c10d/{reducer,comm,default_comm_hooks}.hpp` of PyTorch 2.11. Gradients are views
/// into the buckets (`gradient_as_bucket_view`), so they must be zeroed in place, not dropped.
#[derive(Debug)]
pub struct Reducer {
    handle: Handle<RawReducer>,
}

/// What was measured of a step.
#[derive(Debug)]
pub struct Measurement(Handle<RawMeasurement>);

impl Reducer {
    /// Hooks into the gradients of `parameters`, which are all on one device and the same on every rank in number,
    /// order and shape. `gradients` reduces tensors of that device, `control` tensors on the CPU; they are separate
    /// groups, so that the few numbers of an arrival do not queue behind gradients.
    pub fn new(
        parameters: &[Tensor],
        gradients: &ProcessGroup,
        control: &ProcessGroup,
        bucket_bytes: usize,
        compression: Compression,
        arrival: ArrivalOver,
    ) -> Result<Self, Error> {
        let pointers = sys::pointers(parameters);
        let handle = Handle::new(sys::vit_reducer_free, |out| {
            // SAFETY: tensors and groups are valid and borrowed for the call (the C++ side keeps references of its
            // own), and `out` is a valid place for the object's pointer.
            let status = unsafe {
                sys::vit_reducer_new(
                    pointers.as_ptr(),
                    pointers.len(),
                    gradients.handle.as_ptr(),
                    control.handle.as_ptr(),
                    bucket_bytes,
                    compression == Compression::Bf16,
                    arrival == ArrivalOver::Gradients,
                    out,
                )
            };
            check(status, || "failed to hook into the gradients".into())
        })?;
        Ok(Self { handle })
    }

    /// Makes the backward pass that follows average gradients over the ranks, and add up `arrival` with them. A
    /// backward pass without this call before it only accumulates (PyTorch's `no_sync`).
    ///
    /// `arrival` is read when this rank's last gradient is ready.
    pub fn prepare(&mut self, arrival: &Tensor) -> Result<(), Error> {
        // SAFETY: reducer and tensor are valid; the C++ side keeps a reference to the tensor of its own.
        let status = unsafe { sys::vit_reducer_prepare(self.handle.as_ptr(), arrival.as_ptr().cast()) };
        check(status, || "failed to prepare the reduction of gradients".into())
    }

    /// Ends the step whose backward pass has just returned: the sums of its arrival tensor, in double precision, and what was
    /// measured. On a GPU neither gradients nor sums need be there yet; what is queued from now on waits for them.
    pub fn finish(&mut self) -> Result<(Tensor, Measurement), Error> {
        let mut sums = None;
        let measurement = Handle::new(sys::vit_measurement_free, |measurement| {
            // SAFETY: the reducer is valid; where the call succeeds it has written a tensor and an object that it gives away.
            let finished = unsafe {
                tensor_of("failed to average gradients over the ranks", |sums| {
                    sys::vit_reducer_finish(self.handle.as_ptr(), sums, measurement)
                })
            };
            sums = Some(finished?);
            Ok(())
        })?;
        Ok((sums.expect("the call succeeded"), Measurement(measurement)))
    }
}

impl Measurement {
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
