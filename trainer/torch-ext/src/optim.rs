//! Operations over all parameters in one call each.

use tch::Tensor;

use crate::error::{Error, check};
use crate::sys;

/// Numbers of one AdamW step (arXiv 1711.05101).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamWStep {
    /// Learning rate of this step.
    pub learning_rate: f64,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Decoupled weight decay.
    pub weight_decay: f64,
    /// Added to the denominator.
    pub epsilon: f64,
}

/// One fused AdamW step (`at::_fused_adamw_`) of `parameters` and their moments, all lists in the same order. `step`
/// is a float scalar on the parameters' device that counts this step already: 1 for the first.
///
/// # Panics
/// Where the lists differ in length.
pub fn fused_adamw(
    parameters: &[Tensor],
    gradients: &[Tensor],
    first_moments: &[Tensor],
    second_moments: &[Tensor],
    step: &Tensor,
    numbers: AdamWStep,
) -> Result<(), Error> {
    let count = parameters.len();
    assert!(
        [gradients, first_moments, second_moments]
            .iter()
            .all(|list| list.len() == count),
        "lists of AdamW differ in length"
    );
    let [parameters, gradients, first_moments, second_moments] =
        [parameters, gradients, first_moments, second_moments].map(sys::pointers);
    // SAFETY: all four lists hold `count` pointers to tensors that are borrowed for the call.
    let status = unsafe {
        sys::vit_fused_adamw(
            parameters.as_ptr(),
            gradients.as_ptr(),
            first_moments.as_ptr(),
            second_moments.as_ptr(),
            count,
            step.as_ptr().cast(),
            numbers.learning_rate,
            numbers.beta1,
            numbers.beta2,
            numbers.weight_decay,
            numbers.epsilon,
        )
    };
    check(status, || "failed to take an AdamW step".into())
}

/// Euclidean norm over all elements of all tensors.
pub fn global_norm(tensors: &[Tensor]) -> Result<f64, Error> {
    let pointers = sys::pointers(tensors);
    let mut norm = 0.0;
    // SAFETY: the tensors are borrowed for the call and `norm` is a valid place.
    let status = unsafe { sys::vit_global_norm(pointers.as_ptr(), pointers.len(), &raw mut norm) };
    check(status, || "failed to take the norm of the gradients".into())?;
    Ok(norm)
}

/// Multiplies every tensor by `factor` in place.
pub fn scale(tensors: &[Tensor], factor: f64) -> Result<(), Error> {
    let pointers = sys::pointers(tensors);
    // SAFETY: the tensors are borrowed for the call.
    let status = unsafe { sys::vit_scale(pointers.as_ptr(), pointers.len(), factor) };
    check(status, || "failed to scale the gradients".into())
}

/// Sets every tensor to zero in place.
pub fn zero(tensors: &[Tensor]) -> Result<(), Error> {
    let pointers = sys::pointers(tensors);
    // SAFETY: the tensors are borrowed for the call.
    let status = unsafe { sys::vit_zero(pointers.as_ptr(), pointers.len()) };
    check(status, || "failed to zero the gradients".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(tensor: &Tensor) -> Vec<f64> {
        Vec::try_from(tensor.to_kind(tch::Kind::Double)).expect("a vector")
    }

    #[test]
    fn an_adamw_step_is_the_papers() {
        let parameters = [
            Tensor::from_slice(&[1.0_f32, -2.0]),
            Tensor::from_slice(&[0.5_f32]),
        ];
        let gradients = [
            Tensor::from_slice(&[0.1_f32, -0.3]),
            Tensor::from_slice(&[2.0_f32]),
        ];
        let zeros = || parameters.iter().map(Tensor::zeros_like).collect::<Vec<_>>();
        let (first, second) = (zeros(), zeros());
        let numbers = AdamWStep {
            learning_rate: 0.01,
            beta1: 0.9,
            beta2: 0.999,
            weight_decay: 0.1,
            epsilon: 1e-8,
        };
        fused_adamw(
            &parameters,
            &gradients,
            &first,
            &second,
            &Tensor::from(1.0_f32),
            numbers,
        )
        .expect("steps");
        // In the first step the corrected moments are g and g^2: w - lr * wd * w - lr * sign(g).
        let expected = [
            1.0 * (1.0 - 0.001) - 0.01,
            -2.0 * (1.0 - 0.001) + 0.01,
            0.5 * (1.0 - 0.001) - 0.01,
        ];
        let found: Vec<f64> = parameters.iter().flat_map(values).collect();
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-6, "{found} is not {expected}");
        }
        assert!((values(&first[1])[0] - 0.2).abs() < 1e-6);
        assert!((values(&second[1])[0] - 0.004).abs() < 1e-6);
    }

    #[test]
    fn norm_scale_and_zero_go_over_all_tensors() {
        let tensors = [
            Tensor::from_slice(&[3.0_f32]),
            Tensor::from_slice(&[0.0_f32, 4.0]),
        ];
        assert!((global_norm(&tensors).expect("a norm") - 5.0).abs() < 1e-6);
        scale(&tensors, 0.5).expect("scales");
        assert_eq!(values(&tensors[1]), [0.0, 2.0]);
        zero(&tensors).expect("zeroes");
        assert!(global_norm(&tensors).expect("a norm").abs() < f64::EPSILON);
    }

    #[test]
    fn a_cpp_exception_becomes_an_error_with_its_message() {
        let error = global_norm(&[]).expect_err("no tensors");
        assert!(
            error
                .to_string()
                .starts_with("failed to take the norm of the gradients: "),
            "{error}"
        );
    }
}
