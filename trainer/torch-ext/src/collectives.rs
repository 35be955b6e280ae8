//! Collectives inside forward and backward passes, among ranks that compute one model together.

use std::ffi::{c_int, c_void};

use tch::Tensor;

use crate::error::{Error, check};
use crate::handle::{Handle, tensor_from};
use crate::process_group::ProcessGroup;
use crate::sync_step::SyncRecorder;
use crate::sys::{self, RawCollectives, RawTensor};

/// Ranks that compute one model together, with the same images and the same loss. Every rank calls
/// the same operations in the same order.
///
/// The cost of an operation is added to the running step of the recorder, if any.
#[derive(Debug)]
pub struct Collectives {
    handle: Handle<RawCollectives>,
}

// SAFETY: it is a reference of its own, counted atomically, to an object that never changes. The process group takes calls
// from any thread; the recorder is used by the backward pass, on whatever thread that is, and by the thread that waits for
// it, never at the same time.
unsafe impl Send for Collectives {}

impl Collectives {
    /// For the ranks of `group`, which takes tensors on the model's device; `control` has the same
    /// ranks and takes CPU tensors.
    pub fn new(group: &ProcessGroup, control: &ProcessGroup, recorder: &SyncRecorder) -> Result<Self, Error> {
        let handle = Handle::new(sys::vit_collectives_free, |out| {
            // SAFETY: groups and recorder are borrowed for the call (the C++ side keeps references of its own), and `out` is a
            // valid place for the object's pointer.
            let status = unsafe {
                sys::vit_collectives_new(
                    group.handle.as_ptr(),
                    control.handle.as_ptr(),
                    recorder.handle.as_ptr(),
                    out,
                )
            };
            check(status, || "failed to prepare collectives".into())
        })?;
        Ok(Self { handle })
    }

    /// Another handle to the same object.
    pub fn share(&self) -> Result<Self, Error> {
        let handle = Handle::new(sys::vit_collectives_free, |out| {
            // SAFETY: the object is valid, and `out` is a valid place for the pointer.
            let status = unsafe { sys::vit_collectives_share(self.handle.as_ptr(), out) };
            check(status, || "failed to share collectives".into())
        })?;
        Ok(Self { handle })
    }

    /// Sends the i-th of equal `parts` along the first dimension, one per rank, to the i-th rank.
    /// Returns the received parts in the order of the ranks.
    pub fn all_to_all(&self, parts: &Tensor) -> Result<Tensor, Error> {
        let action = "failed to exchange activations with other ranks";
        self.apply(sys::vit_all_to_all, parts, action)
    }

    /// Passes on values that are equal on every rank. Each rank uses them differently, and their
    /// gradient is the sum over the ranks.
    pub fn used_in_parts(&self, values: &Tensor) -> Result<Tensor, Error> {
        self.apply(sys::vit_used_in_parts, values, "failed to pass on activations")
    }

    /// The sum over the ranks, used identically by all. Each rank's part gets the sum's gradient.
    pub fn sum_of_parts(&self, values: &Tensor) -> Result<Tensor, Error> {
        self.apply(sys::vit_sum_of_parts, values, SUMMING)
    }

    /// The sum over the ranks, used identically by all, if these also average parameter gradients.
    /// Each rank's part gets the gradient of the sum of all ranks' losses.
    pub fn sum_for_all(&self, values: &Tensor) -> Result<Tensor, Error> {
        self.apply(sys::vit_sum_for_all, values, SUMMING)
    }

    fn apply(
        &self,
        operation: unsafe extern "C" fn(*mut RawCollectives, RawTensor, *mut *mut c_void) -> c_int,
        values: &Tensor,
        action: &str,
    ) -> Result<Tensor, Error> {
        // SAFETY: all operations of this signature take a live object and a tensor, which are borrowed for the call, and give
        // away the tensor that they write where they succeed.
        unsafe {
            tensor_from(action, |output| {
                operation(self.handle.as_ptr(), values.as_ptr().cast(), output)
            })
        }
    }
}

const SUMMING: &str = "failed to sum activations over the ranks";
