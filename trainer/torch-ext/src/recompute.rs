//! Activation checkpointing: forward passes that keep less and are recomputed in the backward pass.

use std::ffi::{c_int, c_void};
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tch::Tensor;

use crate::error::Error;
use crate::handle::tensor_from;
use crate::sys;

/// The closure of [`recompute`], run now and again in the backward pass, maybe on another thread.
type Closure = Box<dyn Fn(&Tensor) -> Result<Tensor, String> + Send>;

/// `closure(x)`, for which the backward pass keeps only `x` and runs the closure again.
/// `parameters` are all other tensors with a gradient that the closure uses. It must compute the
/// same both times, so it must not draw random numbers; autocast is restored.
pub fn recompute(
    x: &Tensor,
    parameters: &[&Tensor],
    closure: impl Fn(&Tensor) -> Result<Tensor, String> + Send + 'static,
) -> Result<Tensor, Error> {
    let closure: Box<Closure> = Box::new(Box::new(closure));
    let inputs = sys::pointers(std::iter::once(x).chain(parameters.iter().copied()));
    // SAFETY: the inputs are borrowed for the call; the closure's box is given away together with the only function that
    // frees it, and `run` and `free` know its type.
    unsafe {
        tensor_from("failed to run a block", |output| {
            sys::vit_recompute(
                Box::into_raw(closure).cast(),
                run,
                free,
                inputs.as_ptr(),
                inputs.len(),
                output,
            )
        })
    }
}

/// `linear(gelu(x))`, for which the backward pass keeps `x` and not `gelu(x)`.
pub fn gelu_linear(x: &Tensor, weight: &Tensor, bias: &Tensor) -> Result<Tensor, Error> {
    // SAFETY: the tensors are borrowed for the call.
    unsafe {
        tensor_from("failed to run an MLP", |output| {
            sys::vit_gelu_linear(raw(x), raw(weight), raw(bias), output)
        })
    }
}

/// `linear(layer_norm(x))`, for which the backward pass keeps `x` and its statistics and not
/// `layer_norm(x)`. `norm` and `linear` are weight and bias.
pub fn norm_linear(
    x: &Tensor,
    norm: [&Tensor; 2],
    linear: [&Tensor; 2],
    epsilon: f64,
) -> Result<Tensor, Error> {
    // SAFETY: the tensors are borrowed for the call.
    unsafe {
        tensor_from("failed to run a projection", |output| {
            sys::vit_norm_linear(
                raw(x),
                raw(norm[0]),
                raw(norm[1]),
                raw(linear[0]),
                raw(linear[1]),
                epsilon,
                output,
            )
        })
    }
}

fn raw(tensor: &Tensor) -> sys::RawTensor {
    tensor.as_ptr().cast()
}

/// Calls the closure at `data`, for C++.
extern "C" fn run(data: *const c_void, input: *mut c_void, output: *mut *mut c_void) -> c_int {
    // SAFETY: `data` is the box of `recompute` and not freed yet.
    let closure = unsafe { &*data.cast::<Closure>() };
    // A panic must not cross the C interface.
    let result = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: C++ owns `input` during the call; this is a handle of its own.
        let input = unsafe { Tensor::clone_from_ptr(input.cast()) };
        closure(&input)
    }));
    match result.unwrap_or_else(|_| Err("the closure of a block panicked".into())) {
        Ok(tensor) => {
            let mut given_away = ManuallyDrop::new(tensor);
            // SAFETY: `output` is a place of the caller's, who takes the tensor over.
            unsafe { *output = given_away.as_mut_ptr().cast() };
            0
        }
        Err(message) => {
            // SAFETY: the message is borrowed for the call, which copies it.
            unsafe { sys::vit_closure_error(message.as_ptr().cast(), message.len()) };
            1
        }
    }
}

/// Frees the closure at `data`, for C++.
extern "C" fn free(data: *mut c_void) {
    // SAFETY: C++ calls this once, when it is done with the box of `recompute`.
    drop(unsafe { Box::from_raw(data.cast::<Closure>()) });
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tch::{Device, Kind};

    use super::*;
    use crate::memory::Meter;

    fn leaf(shape: &[i64]) -> Tensor {
        (Tensor::randn(shape, (Kind::Float, Device::Cpu)) * 0.3).set_requires_grad(true)
    }

    fn gradients(output: &Tensor, leaves: &[&Tensor]) -> Vec<Tensor> {
        output.pow_tensor_scalar(2).sum(Kind::Float).backward();
        leaves
            .iter()
            .map(|leaf| {
                let mut gradient = leaf.grad();
                let copy = gradient.copy();
                let _ = gradient.zero_();
                copy
            })
            .collect()
    }

    fn mlp(x: &Tensor, [w1, b1, w2, b2]: [&Tensor; 4]) -> Tensor {
        x.linear(w1, Some(b1)).gelu("none").linear(w2, Some(b2))
    }

    #[test]
    fn recomputing_gives_the_same_gradients_and_keeps_less() {
        tch::manual_seed(1);
        let (x, w1, b1, w2, b2) = (
            leaf(&[64, 32]),
            leaf(&[128, 32]),
            leaf(&[128]),
            leaf(&[32, 128]),
            leaf(&[32]),
        );
        let leaves = [&x, &w1, &b1, &w2, &b2];
        let meter = Meter::start().expect("counts");
        let plain = mlp(&x, [&w1, &b1, &w2, &b2]);
        let kept_by_plain = meter.held();
        let expected = gradients(&plain, &leaves);
        drop((plain, meter));

        let [p1, p2, p3, p4] = [&w1, &b1, &w2, &b2].map(Tensor::shallow_clone);
        let meter = Meter::start().expect("counts");
        let again = recompute(&x, &leaves[1..], move |x| Ok(mlp(x, [&p1, &p2, &p3, &p4]))).expect("runs");
        let kept = meter.held();
        // Inputs of 64 x 128 values to the activation and to the second layer.
        assert_eq!(kept_by_plain - kept, 2 * 64 * 128 * 4);
        assert_eq!(kept, 64 * 32 * 4, "the output only");
        for (found, expected) in gradients(&again, &leaves).iter().zip(&expected) {
            assert!(found.equal(expected));
        }
    }

    #[test]
    fn cheap_parts_alone_can_be_recomputed() {
        tch::manual_seed(2);
        let (x, scale, shift, weight, bias) = (
            leaf(&[8, 16, 32]),
            leaf(&[32]),
            leaf(&[32]),
            leaf(&[48, 32]),
            leaf(&[48]),
        );
        let leaves = [&x, &scale, &shift, &weight, &bias];
        let plain = x
            .layer_norm([32], Some(&scale), Some(&shift), 1e-6, true)
            .linear(&weight, Some(&bias));
        let expected = gradients(&plain, &leaves);
        let again = norm_linear(&x, [&scale, &shift], [&weight, &bias], 1e-6).expect("runs");
        assert!(again.allclose(&plain, 1e-6, 1e-6, false));
        for (found, expected) in gradients(&again, &leaves).iter().zip(&expected) {
            assert!(found.allclose(expected, 1e-5, 1e-5, false));
        }

        let leaves = [&x, &weight, &bias];
        let plain = x.gelu("none").linear(&weight, Some(&bias));
        let expected = gradients(&plain, &leaves);
        drop(plain);
        let meter = Meter::start().expect("counts");
        let again = gelu_linear(&x, &weight, &bias).expect("runs");
        assert_eq!(meter.held(), 8 * 16 * 48 * 4, "the output only");
        drop(meter);
        for (found, expected) in gradients(&again, &leaves).iter().zip(&expected) {
            assert!(found.allclose(expected, 1e-5, 1e-5, false));
        }
    }

    #[test]
    fn a_closure_that_fails_or_panics_is_an_error_and_is_freed() {
        let x = leaf(&[2]);
        let message = recompute(&x, &[], |_| Err("no block today".into()))
            .expect_err("fails")
            .to_string();
        assert!(message.contains("no block today"), "{message}");
        let message = recompute(&x, &[], |_| panic!("at once"))
            .expect_err("fails")
            .to_string();
        assert!(message.contains("panicked"), "{message}");

        let calls = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&calls);
        let output = recompute(&x, &[], move |x| match counted.fetch_add(1, Ordering::SeqCst) {
            0 => Ok(x * 2.0),
            _ => Err("not again".into()),
        })
        .expect("runs once");
        let error = output
            .sum(Kind::Float)
            .f_backward()
            .expect_err("fails in the backward pass");
        assert!(error.to_string().contains("not again"), "{error}");
        drop(output);
        assert_eq!(
            Arc::strong_count(&calls),
            1,
            "the closure is freed with its graph"
        );
    }
}
