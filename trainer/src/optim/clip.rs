//! Clipping by the global norm.

/// Keeps the quotient finite where the norm is zero, as in PyTorch's `clip_grad_norm_`.
const CLIP_EPSILON: f64 = 1e-6;

/// The factor that brings gradients of a norm within each limit in turn.
pub(crate) fn clip_factor(norm: f64, limits: impl IntoIterator<Item = Option<f64>>) -> f64 {
    limits.into_iter().flatten().fold(1.0, |factor, limit| {
        factor * (limit / (norm * factor + CLIP_EPSILON)).min(1.0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gradients_are_scaled_down_to_each_limit_and_never_up() {
        let factor = |norm, limits: [Option<f64>; 2]| clip_factor(norm, limits);
        for (norm, limits, expected) in [
            (4.0, [None, None], 1.0),
            (4.0, [Some(2.0), None], 0.5),
            (1.0, [Some(2.0), None], 1.0),
            (8.0, [Some(4.0), Some(1.0)], 0.125),
            (8.0, [Some(1.0), Some(4.0)], 0.125),
            (0.0, [Some(1.0), Some(1.0)], 1.0),
        ] {
            let found = factor(norm, limits);
            assert!((found - expected).abs() < 1e-6, "{norm} {limits:?}: {found}");
        }
    }
}
