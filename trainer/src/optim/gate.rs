//! Skipping of steps, and clipping by global norm: on the device, so the host does not wait.

use tch::{Kind, Tensor};
use torch_ext::optim::Gate;

/// Keeps the quotient finite for a zero norm, as in PyTorch's `clip_grad_norm_`.
const CLIP_EPSILON: f64 = 1e-6;

/// The gate for gradients of this `norm`, closed if `is_finite` is false. It scales gradients down
/// to each limit in turn and divides them by `loss_scale`, by which `norm` is already divided. All
/// are scalars on the same device.
pub(crate) fn gate(
    norm: &Tensor,
    is_finite: &Tensor,
    limits: impl IntoIterator<Item = Option<f64>>,
    loss_scale: Option<&Tensor>,
) -> Gate {
    let mut grad_scale = loss_scale.map(|scale| scale.to_kind(Kind::Float));
    let mut norm = norm.shallow_clone();
    for limit in limits.into_iter().flatten() {
        let divisor = ((&norm + CLIP_EPSILON) / limit)
            .clamp_min(1.0)
            .to_kind(Kind::Float);
        norm = &norm / &divisor;
        grad_scale = Some(match grad_scale {
            Some(scale) => scale * divisor,
            None => divisor,
        });
    }
    Gate {
        grad_scale,
        found_inf: is_finite.logical_not().to_kind(Kind::Float),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gradients_are_divided_down_to_each_limit_and_never_up() {
        for (norm, limits, expected) in [
            (4.0, [None, None], None),
            (4.0, [Some(2.0), None], Some(2.0)),
            (1.0, [Some(2.0), None], Some(1.0)),
            (8.0, [Some(4.0), Some(1.0)], Some(8.0)),
            (8.0, [Some(1.0), Some(4.0)], Some(8.0)),
            (0.0, [Some(1.0), Some(1.0)], Some(1.0)),
        ] {
            let gate = gate(&Tensor::from(norm), &Tensor::from(true), limits, None);
            let found = gate.grad_scale.map(|scale| scale.double_value(&[]));
            let near = match (found, expected) {
                (Some(found), Some(expected)) => f64::abs(found - expected) < 1e-5,
                (None, None) => true,
                _ => false,
            };
            assert!(near, "{norm} {limits:?}: {found:?} is not {expected:?}");
            assert!(gate.found_inf.double_value(&[]).abs() < f64::EPSILON);
        }
    }

    #[test]
    fn the_loss_scale_is_taken_out_and_what_is_no_number_closes_the_gate() {
        let closed = gate(
            &Tensor::from(f64::NAN),
            &Tensor::from(false),
            [Some(1.0)],
            Some(&Tensor::from(1024.0)),
        );
        assert!((closed.found_inf.double_value(&[]) - 1.0).abs() < f64::EPSILON);
        let open = gate(
            &Tensor::from(2.0),
            &Tensor::from(true),
            [Some(1.0)],
            Some(&Tensor::from(1024.0)),
        );
        let scale = open.grad_scale.expect("there is one");
        assert_eq!(scale.kind(), Kind::Float);
        assert!((scale.double_value(&[]) - 2048.0).abs() < 0.01);
    }
}
