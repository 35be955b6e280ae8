//! Multi-tensor operations over all parameters.

use tch::{Kind, Tensor};

use crate::error::{Error, check};
use crate::process_group::ProcessGroup;
use crate::sys::{self, RawGate};

pub use crate::sys::{AdamNumbers, SgdNumbers};

fn assert_same_length(lists: &[&[Tensor]]) {
    assert!(
        lists.windows(2).all(|pair| pair[0].len() == pair[1].len()),
        "lists of an optimizer differ in length"
    );
}

/// The device's decision on a step, which the host need not know: float scalars, named like the
/// arguments of `at::_fused_adamw_`. They are copied if the parameters are on another device.
#[derive(Debug)]
pub struct Gate {
    /// Divisor of the gradients.
    pub grad_scale: Option<Tensor>,
    /// If 1, the step is skipped: weights and state stay, even with NaN gradients. Otherwise 0.
    pub found_inf: Tensor,
}

impl Gate {
    /// Valid while the gate is borrowed.
    fn raw(&self) -> RawGate {
        RawGate {
            grad_scale: self
                .grad_scale
                .as_ref()
                .map_or(std::ptr::null(), |scale| scale.as_ptr().cast()),
            found_inf: self.found_inf.as_ptr().cast(),
        }
    }
}

/// One fused AdamW step (`at::_fused_adamw_`) of `parameters` and their first and second `moments`.
/// `step` is a float scalar on the gate's device: 1 for the first step.
///
/// # Panics
/// If the lists differ in length.
pub fn fused_adamw(
    parameters: &[Tensor],
    gradients: &[Tensor],
    [first_moments, second_moments]: [&[Tensor]; 2],
    step: &Tensor,
    gate: &Gate,
    numbers: AdamNumbers,
) -> Result<(), Error> {
    let lists = [parameters, gradients, first_moments, second_moments];
    assert_same_length(&lists);
    let [parameters, gradients, first_moments, second_moments] = lists.map(sys::pointers);
    let gate = gate.raw();
    // SAFETY: all four lists hold as many pointers to tensors, which are borrowed for the call, as are step and gate; gate
    // and numbers have the layout of the C++ structs.
    let status = unsafe {
        sys::vit_fused_adamw(
            parameters.as_ptr(),
            gradients.as_ptr(),
            first_moments.as_ptr(),
            second_moments.as_ptr(),
            parameters.len(),
            step.as_ptr().cast(),
            &raw const gate,
            &raw const numbers,
        )
    };
    check(status, || "failed to take an AdamW step".into())
}

/// One fused SGD step (`at::_fused_sgd_`) of `parameters`. `momentum_buffers` start at zero; they
/// are empty without momentum.
///
/// # Panics
/// If the lists differ in length.
pub fn fused_sgd(
    parameters: &[Tensor],
    gradients: &[Tensor],
    momentum_buffers: &[Tensor],
    gate: &Gate,
    numbers: SgdNumbers,
) -> Result<(), Error> {
    assert_same_length(&[parameters, gradients]);
    assert!(
        numbers.momentum.abs() < f64::MIN_POSITIVE || momentum_buffers.len() == parameters.len(),
        "momentum needs a buffer for each parameter"
    );
    let [parameters, gradients, momentum_buffers] =
        [parameters, gradients, momentum_buffers].map(sys::pointers);
    let gate = gate.raw();
    // SAFETY: the lists hold as many pointers to tensors, which are borrowed for the call as is the gate (the buffers are
    // not read where there is no momentum); gate and numbers have the layout of the C++ structs.
    let status = unsafe {
        sys::vit_fused_sgd(
            parameters.as_ptr(),
            gradients.as_ptr(),
            momentum_buffers.as_ptr(),
            parameters.len(),
            &raw const gate,
            &raw const numbers,
        )
    };
    check(status, || "failed to take an SGD step".into())
}

/// Element counts of parameters for [`lamb`].
#[derive(Debug)]
pub struct Sizes {
    /// Counts of the tensors, int32 on their device.
    own: Tensor,
    /// Counts of the whole parameters, if the tensors are pieces of them.
    whole: Vec<i64>,
}

impl Sizes {
    /// For `parameters` that are pieces of ones with `whole` elements, or whole.
    ///
    /// If a parameter has 2^31 elements or more.
    #[must_use]
    pub fn new(parameters: &[Tensor], whole: Vec<i64>) -> Self {
        assert_eq!(parameters.len(), whole.len(), "a size for each parameter");
        let own: Vec<i32> = parameters
            .iter()
            .map(|parameter| i32::try_from(parameter.numel()).expect("fewer than 2^31 elements"))
            .collect();
        let device = parameters.first().map_or(tch::Device::Cpu, Tensor::device);
        Self {
            own: Tensor::from_slice(&own).to_device(device),
            whole,
        }
    }
}

/// One LAMB step of `parameters`, equal to that of timm's `Lamb`, with a constant number of
/// kernels. `step` is a float scalar on the gate's device: 1 for the first step.
///
/// With `ranks`, each of which calls this, the parameters are this rank's pieces and may be empty.
/// The ranks communicate on the device of the gate.
///
/// # Panics
/// If the lists differ in length.
pub fn lamb(
    parameters: &[Tensor],
    gradients: &[Tensor],
    [first_moments, second_moments]: [&[Tensor]; 2],
    (sizes, ranks): (&Sizes, Option<&ProcessGroup>),
    step: &Tensor,
    gate: &Gate,
    numbers: AdamNumbers,
) -> Result<(), Error> {
    let lists = [parameters, gradients, first_moments, second_moments];
    assert_same_length(&lists);
    assert_eq!(parameters.len(), sizes.whole.len(), "a size for each parameter");
    let [parameters, gradients, first_moments, second_moments] = lists.map(sys::pointers);
    let gate = gate.raw();
    // SAFETY: all lists hold as many pointers to tensors, which are borrowed for the call, as are sizes, group, step and
    // gate; without a group its pointer is null; gate and numbers have the layout of the C++ structs.
    let status = unsafe {
        sys::vit_lamb(
            parameters.as_ptr(),
            gradients.as_ptr(),
            first_moments.as_ptr(),
            second_moments.as_ptr(),
            parameters.len(),
            sizes.own.as_ptr().cast(),
            sizes.whole.as_ptr(),
            ranks.map_or(std::ptr::null(), |group| group.handle.as_ptr().cast_const()),
            step.as_ptr().cast(),
            &raw const gate,
            &raw const numbers,
        )
    };
    check(status, || "failed to take a LAMB step".into())
}

/// Euclidean norm over all elements of all tensors, a float scalar on their device.
pub fn global_norm(tensors: &[Tensor]) -> Result<Tensor, Error> {
    let device = tensors.first().map_or(tch::Device::Cpu, Tensor::device);
    let norm = Tensor::zeros([], (Kind::Float, device));
    let pointers = sys::pointers(tensors);
    // SAFETY: the tensors are borrowed for the call, the norm too.
    let status = unsafe { sys::vit_global_norm(pointers.as_ptr(), pointers.len(), norm.as_ptr().cast()) };
    check(status, || "failed to take the norm of the gradients".into())?;
    Ok(norm)
}

/// Sets every tensor to zero in place.
pub fn zero(tensors: &[Tensor]) -> Result<(), Error> {
    let pointers = sys::pointers(tensors);
    // SAFETY: the tensors are borrowed for the call.
    let status = unsafe { sys::vit_zero(pointers.as_ptr(), pointers.len()) };
    check(status, || "failed to zero the gradients".into())
}

/// Copies `values` into `targets`, which may differ in number format and device.
///
/// # Panics
/// If the lists differ in length.
pub fn copy(targets: &[Tensor], values: &[Tensor]) -> Result<(), Error> {
    assert_same_length(&[targets, values]);
    if targets.is_empty() {
        return Ok(());
    }
    let [targets, values] = [targets, values].map(sys::pointers);
    // SAFETY: both lists hold as many pointers to tensors, which are borrowed for the call.
    let status = unsafe { sys::vit_copy(targets.as_ptr(), values.as_ptr(), targets.len()) };
    check(status, || "failed to copy tensors".into())
}

/// Moves `averages` toward `values` by the fraction `weight`.
///
/// # Panics
/// If the lists differ in length.
pub fn lerp(averages: &[Tensor], values: &[Tensor], weight: f64) -> Result<(), Error> {
    assert_same_length(&[averages, values]);
    let [averages, values] = [averages, values].map(sys::pointers);
    // SAFETY: both lists hold as many pointers to tensors, which are borrowed for the call.
    let status = unsafe { sys::vit_lerp(averages.as_ptr(), values.as_ptr(), averages.len(), weight) };
    check(status, || "failed to average tensors".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(tensor: &Tensor) -> Vec<f64> {
        Vec::try_from(tensor.to_kind(tch::Kind::Double)).expect("a vector")
    }

    fn close(found: &[Tensor], expected: &[f64]) {
        let found: Vec<f64> = found.iter().flat_map(values).collect();
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-6, "{found} is not {expected}");
        }
    }

    fn parameters() -> [Tensor; 2] {
        [
            Tensor::from_slice(&[1.0_f32, -2.0]),
            Tensor::from_slice(&[0.5_f32]),
        ]
    }

    fn gradients() -> [Tensor; 2] {
        [
            Tensor::from_slice(&[0.1_f32, -0.3]),
            Tensor::from_slice(&[2.0_f32]),
        ]
    }

    fn zeros() -> Vec<Tensor> {
        parameters().iter().map(Tensor::zeros_like).collect()
    }

    fn whole(parameters: &[Tensor]) -> Sizes {
        let sizes = parameters.iter().map(|parameter| parameter.numel() as i64);
        Sizes::new(parameters, sizes.collect())
    }

    fn open_gate() -> Gate {
        Gate {
            grad_scale: None,
            found_inf: Tensor::from(0.0_f32),
        }
    }

    /// Weights and both kinds of state after a step of each optimizer with initial state.
    fn stepped(gradients: &[Tensor], step: f32, gate: &Gate) -> Vec<Vec<f64>> {
        let step = Tensor::from(step);
        let sgd_numbers = SgdNumbers {
            learning_rate: 0.1,
            momentum: 0.5,
            weight_decay: 0.1,
            nesterov: false,
        };
        let mut found = Vec::new();
        for optimizer in ["adamw", "sgd", "lamb"] {
            let (weights, first, second) = (parameters(), self::gradients(), zeros());
            // A fused step writes the divided gradients back.
            let gradients = &gradients.iter().map(Tensor::copy).collect::<Vec<_>>();
            match optimizer {
                "adamw" => fused_adamw(&weights, gradients, [&first, &second], &step, gate, NUMBERS),
                "sgd" => fused_sgd(&weights, gradients, &first, gate, sgd_numbers),
                _ => {
                    let sizes = whole(&weights);
                    lamb(
                        &weights,
                        gradients,
                        [&first, &second],
                        (&sizes, None),
                        &step,
                        gate,
                        NUMBERS,
                    )
                }
            }
            .expect("steps");
            let tensors = weights.iter().chain(&first).chain(&second);
            found.push(tensors.flat_map(values).collect());
        }
        found
    }

    #[test]
    fn a_step_that_is_not_taken_changes_nothing_even_where_gradients_are_no_numbers() {
        let gradients = [
            Tensor::from_slice(&[f32::NAN, f32::INFINITY]),
            Tensor::from_slice(&[1.0_f32]),
        ];
        let before: Vec<f64> = [Vec::from(parameters()), self::gradients().into(), zeros()]
            .iter()
            .flatten()
            .flat_map(values)
            .collect();
        for grad_scale in [None, Some(Tensor::from(f32::NAN))] {
            let closed = Gate {
                grad_scale,
                found_inf: Tensor::from(1.0_f32),
            };
            // As before the first update: the step is not counted.
            assert_eq!(stepped(&gradients, 0.0, &closed), vec![before.clone(); 3]);
        }
    }

    #[test]
    fn gradients_are_divided_by_their_scale() {
        let scaled = gradients().map(|gradient| gradient * 8.0);
        let gate = Gate {
            grad_scale: Some(Tensor::from(8.0_f32)),
            ..open_gate()
        };
        assert_eq!(
            stepped(&scaled, 1.0, &gate),
            stepped(&gradients(), 1.0, &open_gate()),
            "a power of two changes no bit"
        );
    }

    const NUMBERS: AdamNumbers = AdamNumbers {
        learning_rate: 0.01,
        betas: [0.9, 0.999],
        weight_decay: 0.1,
        epsilon: 1e-8,
    };

    #[test]
    fn an_adamw_step_is_the_papers() {
        let (parameters, first, second) = (parameters(), zeros(), zeros());
        fused_adamw(
            &parameters,
            &gradients(),
            [&first, &second],
            &Tensor::from(1.0_f32),
            &open_gate(),
            NUMBERS,
        )
        .expect("steps");
        // In the first step the corrected moments are g and g^2: w - lr * wd * w - lr * sign(g).
        close(
            &parameters,
            &[
                1.0 * (1.0 - 0.001) - 0.01,
                -2.0 * (1.0 - 0.001) + 0.01,
                0.5 * (1.0 - 0.001) - 0.01,
            ],
        );
        assert!((values(&first[1])[0] - 0.2).abs() < 1e-6);
        assert!((values(&second[1])[0] - 0.004).abs() < 1e-6);
    }

    #[test]
    fn an_sgd_step_adds_decay_to_the_gradient_and_remembers_it() {
        let (parameters, buffers) = (parameters(), zeros());
        let numbers = SgdNumbers {
            learning_rate: 0.1,
            momentum: 0.5,
            weight_decay: 0.1,
            nesterov: true,
        };
        for _ in 0..2 {
            fused_sgd(&parameters, &gradients(), &buffers, &open_gate(), numbers).expect("steps");
        }
        let expected = |start: f64, gradient: f64| {
            let (mut weight, mut buffer) = (start, 0.0);
            for _ in 0..2 {
                let decayed = gradient + 0.1 * weight;
                buffer = 0.5 * buffer + decayed;
                weight -= 0.1 * (decayed + 0.5 * buffer);
            }
            weight
        };
        close(
            &parameters,
            &[expected(1.0, 0.1), expected(-2.0, -0.3), expected(0.5, 2.0)],
        );
    }

    #[test]
    fn a_lamb_step_is_as_long_as_the_weights_it_decays() {
        let (parameters, first, second) = (parameters(), zeros(), zeros());
        lamb(
            &parameters,
            &gradients(),
            [&first, &second],
            (&whole(&parameters), None),
            &Tensor::from(1.0_f32),
            &open_gate(),
            NUMBERS,
        )
        .expect("steps");
        // In the first step the update is sign(g) + wd * w; its length becomes that of w.
        let (first_update, second_update) = ([1.0 + 0.1, -1.0 - 0.2], 1.0 + 0.05);
        let ratio = 5.0_f64.sqrt() / (1.1_f64 * 1.1 + 1.2 * 1.2).sqrt();
        close(
            &parameters,
            &[
                1.0 - 0.01 * ratio * first_update[0],
                -2.0 - 0.01 * ratio * first_update[1],
                0.5 - 0.01 * 0.5 / second_update * second_update,
            ],
        );
    }

    #[test]
    fn norm_and_zero_go_over_all_tensors() {
        let tensors = [
            Tensor::from_slice(&[3.0_f32]),
            Tensor::from_slice(&[0.0_f32, 4.0]),
        ];
        let norm = |tensors: &[Tensor]| global_norm(tensors).expect("a norm").double_value(&[]);
        assert!((norm(&tensors) - 5.0).abs() < 1e-6);
        zero(&tensors).expect("zeroes");
        assert!(norm(&tensors).abs() < f64::EPSILON);
    }

    #[test]
    fn the_norm_of_half_precision_is_taken_in_32_bits() {
        let tensors = [
            Tensor::full([4], 60_000.0, (Kind::Half, tch::Device::Cpu)),
            Tensor::zeros([1], (Kind::Float, tch::Device::Cpu)),
        ];
        let norm = global_norm(&tensors).expect("a norm").double_value(&[]);
        assert!((norm / 120_000.0 - 1.0).abs() < 1e-3, "{norm}");
    }

    #[test]
    fn copies_change_the_number_format_and_averages_move_by_the_weight() {
        let halves = [Tensor::from_slice(&[1.5_f32, -2.0]).to_kind(Kind::BFloat16)];
        let floats = [Tensor::from_slice(&[0.0_f32, 0.0])];
        copy(&floats, &halves).expect("copies");
        assert_eq!(values(&floats[0]), [1.5, -2.0]);
        lerp(&floats, &[Tensor::from_slice(&[2.5_f32, 2.0])], 0.25).expect("moves");
        assert_eq!(values(&floats[0]), [1.75, -1.0]);
    }

    /// Invariant G19.
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
