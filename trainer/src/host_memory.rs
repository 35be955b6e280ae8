//! Host-memory copies of tensors that may be on a GPU.

use tch::{Device, Kind, TchError, Tensor};

/// Queues a 32-bit copy, from a GPU into pinned memory, valid after [`wait_for_copies`].
pub(crate) fn host_copy(tensor: &Tensor) -> Result<Tensor, TchError> {
    host_copy_as(tensor, Kind::Float)
}

/// As [`host_copy`], in another kind.
pub(crate) fn host_copy_as(tensor: &Tensor, kind: Kind) -> Result<Tensor, TchError> {
    tch::no_grad(|| tensor.f_to_device_(Device::Cpu, kind, true, true))
}

/// Waits until all work queued on a device is done.
pub(crate) fn wait_for_copies(device: Device) -> Result<(), TchError> {
    if device != Device::Cpu {
        Tensor::f_zeros([1], (Kind::Float, device))?.f_double_value(&[0])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_keeps_the_values_of_its_moment() {
        let mut live = Tensor::full([2], 1.0, (Kind::Float, Device::Cpu));
        let copy = host_copy(&live).expect("copies");
        let _ = live.fill_(9.0);
        assert_eq!(Vec::<f32>::try_from(copy).expect("numbers"), [1.0, 1.0]);
    }
}
