//! Expected maximum of standard normal values.

/// Expected maximum of 0, 1, 2 ... standard normal values (Harter, Expected Values of Normal Order
/// Statistics, 1961).
const OF_FEW: [f64; 9] = [
    0.0, 0.0, 0.564_19, 0.846_28, 1.029_38, 1.162_96, 1.267_21, 1.352_18, 1.423_60,
];

/// Expected maximum of `count` standard normal values, within 1 %. Above the table it follows Blom,
/// Statistical Estimates and Transformed Beta-Variables, 1958, which is 4.5 % too high for two.
pub(super) fn expected_maximum(count: u32) -> f64 {
    OF_FEW.get(count as usize).copied().unwrap_or_else(|| {
        let count = f64::from(count);
        quantile((count - 0.375) / (count + 0.25))
    })
}

/// Standard normal quantile of a probability above one half, within 4.5e-4 (Abramowitz and Stegun
/// 26.2.23).
fn quantile(probability: f64) -> f64 {
    let t = (-2.0 * (1.0 - probability).ln()).sqrt();
    let above = 2.515_517 + t * (0.802_853 + t * 0.010_328);
    let below = 1.0 + t * (1.432_788 + t * (0.189_269 + t * 0.001_308));
    t - above / below
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_greatest_of_more_values_lies_higher() {
        assert!(expected_maximum(0) + expected_maximum(1) < f64::MIN_POSITIVE);
        // For two it is 1 / sqrt(pi); the others are from tables of order statistics (Harter 1961).
        for (count, expected) in [
            (2, 1.0 / std::f64::consts::PI.sqrt()),
            (9, 1.485_01),
            (16, 1.765_99),
            (100, 2.507_59),
        ] {
            let found = expected_maximum(count);
            assert!((found - expected).abs() < 0.01 * expected, "{count}: {found}");
        }
        assert!((1..20).all(|count| expected_maximum(count) < expected_maximum(count + 1)));
    }
}
