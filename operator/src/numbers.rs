//! Rounding for display.

/// Rounds to this many decimals, because `kubectl get` prints all digits.
pub(crate) fn rounded(value: f64, decimals: i32) -> f64 {
    let scale = 10_f64.powi(decimals);
    (value * scale).round() / scale
}
