//! Numbers on a device that the host reads later.

use tch::{Kind, Tensor};

use crate::error::{Error, check};
use crate::handle::Handle;
use crate::sys::{self, RawReadback};

/// An asynchronous copy of numbers from a device to the host.
#[derive(Debug)]
pub struct Readback {
    handle: Handle<RawReadback>,
    count: usize,
}

impl Readback {
    /// Starts copying `values` as they are after the work queued before.
    pub fn begin(values: &Tensor) -> Result<Self, Error> {
        let values = values.to_kind(Kind::Double).contiguous();
        let handle = Handle::new(sys::vit_readback_free, |out| {
            // SAFETY: the tensor is borrowed for the call, and `out` is a valid place for the object's pointer.
            let status = unsafe { sys::vit_readback_new(values.as_ptr().cast(), out) };
            check(status, || "failed to copy numbers to the host".into())
        })?;
        Ok(Self {
            handle,
            count: values.numel(),
        })
    }

    /// Waits for the numbers.
    pub fn wait(self) -> Result<Vec<f64>, Error> {
        let mut numbers = vec![0.0; self.count];
        // SAFETY: the copy is valid and `numbers` has room for as many as it is said to.
        let status =
            unsafe { sys::vit_readback_wait(self.handle.as_ptr(), numbers.as_mut_ptr(), self.count) };
        check(status, || "failed to read numbers from the device".into())?;
        Ok(numbers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_moment_when_the_copy_began() {
        let mut values = Tensor::from_slice(&[1.0_f32, 2.5]);
        let readback = Readback::begin(&values).expect("begins");
        let _ = values.fill_(0.0);
        assert_eq!(readback.wait().expect("numbers"), [1.0, 2.5]);
    }
}
