//! Copies of many device tensors in host memory.

use tch::{Device, Tensor};

use crate::device;
use crate::error::{Error, check};
use crate::handle::{Handle, tensor_from};
use crate::sys;

/// Copies tensors to host memory, in 32 bits, through two pinned buffers of 32 MiB. The copies
/// themselves are not pinned, so their memory is returned.
#[derive(Debug)]
pub struct HostCopies(Handle<sys::RawHostCopies>);

impl HostCopies {
    /// For tensors on `device`.
    pub fn begin(device: Device) -> Result<Self, Error> {
        let handle = Handle::new(sys::vit_host_copies_free, |out| {
            // SAFETY: `out` is a valid place for the new object.
            check(
                unsafe { sys::vit_host_copies_new(device::index(device), out) },
                || "failed to begin copies in host memory".into(),
            )
        })?;
        Ok(Self(handle))
    }

    /// Starts copying a tensor from the device or the host. The copy has its values after
    /// [`Self::finish`].
    pub fn add(&mut self, tensor: &Tensor) -> Result<Tensor, Error> {
        // SAFETY: the object is alive and the tensor borrowed for the call, which makes a tensor for us.
        unsafe {
            tensor_from("failed to copy a tensor to host memory", |copy| {
                sys::vit_host_copies_add(self.0.as_ptr(), tensor.as_ptr().cast(), copy)
            })
        }
    }

    /// Returns once all copies have their values.
    pub fn finish(self) -> Result<(), Error> {
        // SAFETY: the object is alive.
        check(unsafe { sys::vit_host_copies_finish(self.0.as_ptr()) }, || {
            "failed to copy tensors to host memory".into()
        })
    }
}

#[cfg(test)]
mod tests {
    use tch::Kind;

    use super::*;

    #[test]
    fn a_copy_keeps_the_values_of_its_moment_in_32_bits() {
        let mut live = Tensor::full([2], 1.5, (Kind::BFloat16, Device::Cpu));
        let mut copies = HostCopies::begin(Device::Cpu).expect("begins");
        let copy = copies.add(&live).expect("copies");
        let _ = live.fill_(9.0);
        copies.finish().expect("finishes");
        assert_eq!(copy.kind(), Kind::Float);
        assert_eq!(Vec::<f32>::try_from(copy).expect("numbers"), [1.5, 1.5]);
    }
}
