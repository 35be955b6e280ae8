//! Matrix products in half precision over weights in 32 bits.

use tch::{Kind, Tensor};

use crate::error::{Error, check};
use crate::sys;

/// Ends autocast when dropped, so that a panic in between does too.
struct Guard<'a>(&'a Tensor);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        // SAFETY: the tensor is borrowed for the guard's life.
        unsafe { sys::vit_autocast_leave(self.0.as_ptr().cast()) }
    }
}

/// Runs `forward` with autocast to `kind` on the device of `input`, like `torch.autocast`; libtorch
/// decides which operations run in 32 bits. Each weight is cast once during the call.
///
/// If `kind` is not half precision.
pub fn autocast<T>(input: &Tensor, kind: Kind, forward: impl FnOnce() -> T) -> Result<T, Error> {
    assert!(
        matches!(kind, Kind::BFloat16 | Kind::Half),
        "autocast is for half precision, not {kind:?}"
    );
    // SAFETY: the tensor is borrowed for the call.
    let status = unsafe { sys::vit_autocast_enter(input.as_ptr().cast(), kind == Kind::BFloat16) };
    check(status, || "failed to enable autocast".into())?;
    let _guard = Guard(input);
    Ok(forward())
}

#[cfg(test)]
mod tests {
    use tch::Device;

    use super::*;

    #[test]
    fn products_are_in_half_precision_inside_and_in_32_bits_outside() {
        let input = Tensor::ones([2, 3], (Kind::Float, Device::Cpu));
        let weight = Tensor::ones([4, 3], (Kind::Float, Device::Cpu));
        for kind in [Kind::BFloat16, Kind::Half] {
            let inside = autocast(&input, kind, || input.linear(&weight, None::<&Tensor>)).expect("runs");
            assert_eq!(inside.kind(), kind);
            assert_eq!(input.linear(&weight, None::<&Tensor>).kind(), Kind::Float);
        }
    }

    #[test]
    fn a_weight_that_changed_is_cast_anew() {
        let input = Tensor::ones([1, 1], (Kind::Float, Device::Cpu));
        let mut weight = Tensor::ones([1, 1], (Kind::Float, Device::Cpu)).set_requires_grad(true);
        let product = |weight: &Tensor| {
            let product = autocast(&input, Kind::BFloat16, || input.linear(weight, None::<&Tensor>));
            product.expect("runs").double_value(&[0, 0])
        };
        assert!((product(&weight) - 1.0).abs() < 1e-6);
        let _ = tch::no_grad(|| weight.fill_(3.0));
        assert!((product(&weight) - 3.0).abs() < 1e-6);
    }

    #[test]
    fn a_panic_ends_it() {
        let input = Tensor::ones([2, 3], (Kind::Float, Device::Cpu));
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            autocast(&input, Kind::BFloat16, || panic!("in between"))
        }));
        assert!(ended.is_err());
        assert_eq!(input.matmul(&input.tr()).kind(), Kind::Float);
    }
}
