//! Averaging of gradients over the ranks during the backward pass.

use tch::Tensor;

use crate::error::{Error, check};
use crate::handle::Handle;
use crate::process_group::ProcessGroup;
use crate::sync_step::{Compression, Measurement, SyncRecorder};
use crate::sys::{self, RawReducer};

/// The Reducer of PyTorch's `DistributedDataParallel` with a communication hook that measures [`SyncTimes`](crate::SyncTimes).
///
/// Sources: `torch/csrc/distributed/c10d/{reducer,comm,default_comm_hooks}.hpp` of PyTorch 2.11. Gradients are views
/// into the buckets (`gradient_as_bucket_view`), so they must be zeroed in place, not dropped.
#[derive(Debug)]
pub struct Reducer {
    handle: Handle<RawReducer>,
}

impl Reducer {
    /// Hooks into the gradients of `parameters`, on one device and equal on every rank in number,
    /// order and shape. `gradients` reduces on that device; `control` has the same ranks on the
    /// CPU. They are separate so that a few numbers do not queue behind gradients.
    pub fn new(
        parameters: &[Tensor],
        (gradients, control): (&ProcessGroup, &ProcessGroup),
        recorder: &SyncRecorder,
        bucket_bytes: usize,
        compression: Compression,
    ) -> Result<Self, Error> {
        let pointers = sys::pointers(parameters);
        let handle = Handle::new(sys::vit_reducer_free, |out| {
            // SAFETY: tensors, groups and recorder are valid and borrowed for the call (the C++ side keeps references of
            // its own), and `out` is a valid place for the object's pointer.
            let status = unsafe {
                sys::vit_reducer_new(
                    pointers.as_ptr(),
                    pointers.len(),
                    gradients.handle.as_ptr(),
                    control.handle.as_ptr(),
                    recorder.handle.as_ptr(),
                    bucket_bytes,
                    compression == Compression::Bf16,
                    out,
                )
            };
            check(status, || "failed to hook into the gradients".into())
        })?;
        Ok(Self { handle })
    }

    /// Begins a step.
    pub fn begin(&mut self) -> Result<(), Error> {
        // SAFETY: the reducer is valid.
        let status = unsafe { sys::vit_reducer_begin(self.handle.as_ptr()) };
        check(status, || "failed to begin a step".into())
    }

    /// Makes the next backward pass average gradients over the ranks and sum `report` with them.
    /// Without this call a backward pass only accumulates (PyTorch's `no_sync`).
    ///
    /// `report` is read when this rank's last gradient is ready.
    pub fn prepare(&mut self, report: &Tensor) -> Result<(), Error> {
        // SAFETY: reducer and tensor are valid; the C++ side keeps a reference to the tensor of its own.
        let status = unsafe { sys::vit_reducer_prepare(self.handle.as_ptr(), report.as_ptr().cast()) };
        check(status, || "failed to prepare the reduction of gradients".into())
    }

    /// Ends the step after its backward pass: the sums of its reports, in double precision, and the
    /// measurement. On a GPU, work queued from now on waits for gradients and sums.
    pub fn finish(&mut self) -> Result<(Tensor, Measurement), Error> {
        // SAFETY: the reducer is valid; where the call succeeds it has written a tensor and an object that it gives away.
        unsafe {
            Measurement::from_step(|sums, measurement| {
                sys::vit_reducer_finish(self.handle.as_ptr(), sums, measurement)
            })
        }
    }
}
