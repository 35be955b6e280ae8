//! Numbers as people read them.

/// To so many decimals: `kubectl get` prints all that a number has.
pub(crate) fn rounded(value: f64, decimals: i32) -> f64 {
    let scale = 10_f64.powi(decimals);
    (value * scale).round() / scale
}
