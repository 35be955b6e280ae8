//! Averaging of gradients over the ranks while the backward pass still runs.

use tch::Tensor;

use crate::error::{Error, check};
use crate::handle::Handle;
use crate::process_group::ProcessGroup;
use crate::sys::{self, RawReducer, RawSyncTimes};

/// What gradient synchronisation cost one rank in one step, seconds. The step waited `exposed + straggler`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SyncTimes {
    /// Time in which a gradient all-reduce was under way, less `straggler`; at least `exposed`.
    pub total: f64,
    /// From the moment every rank had its last gradient until averaged gradients were usable.
    pub exposed: f64,
    /// From the own last gradient to the last rank's last gradient.
    pub straggler: f64,
    /// Bytes of gradients handed to all-reduce.
    pub bytes: u64,
}

/// The Reducer of PyTorch's `DistributedDataParallel` with a communication hook that measures [`SyncTimes`].
///
/// Sources: `torch/csrc/distributed/c10d/{reducer,comm,default_comm_hooks}.hpp` of PyTorch 2.11. Gradients are views
/// into the buckets (`gradient_as_bucket_view`), so they must be zeroed in place, not dropped.
#[derive(Debug)]
pub struct Reducer {
    handle: Handle<RawReducer>,
}

impl Reducer {
    /// Hooks into the gradients of `parameters`, which are all on one device and the same on every rank in number,
    /// order and shape. `gradients` reduces tensors of that device, `control` tensors on the CPU; they are separate
    /// groups, so that the few numbers of an arrival do not queue behind gradients.
    pub fn new(
        parameters: &[Tensor],
        gradients: &ProcessGroup,
        control: &ProcessGroup,
        bucket_bytes: usize,
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

    /// Ends the step whose backward pass has just returned: the sums of its arrival tensor, which had `N` elements,
    /// and what synchronisation cost.
    pub fn finish<const N: usize>(&mut self) -> Result<([f64; N], SyncTimes), Error> {
        let mut sums = [0.0; N];
        let mut times = RawSyncTimes::default();
        // SAFETY: the reducer is valid, `sums` has room for N numbers, `times` has the layout of the C++ struct.
        let status =
            unsafe { sys::vit_reducer_finish(self.handle.as_ptr(), sums.as_mut_ptr(), N, &raw mut times) };
        check(status, || "failed to average gradients over the ranks".into())?;
        let RawSyncTimes {
            total,
            exposed,
            straggler,
            bytes,
        } = times;
        Ok((
            sums,
            SyncTimes {
                total,
                exposed,
                straggler,
                bytes,
            },
        ))
    }
}
