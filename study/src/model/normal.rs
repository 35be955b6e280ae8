//! How far the greatest of some normal values lies above their mean.

/// Expected greatest of so many standard normal values (Blom, Statistical Estimates and Transformed Beta-Variables, 1958):
/// within 1 % from 2 values on.
pub(super) fn expected_maximum(count: u32) -> f64 {
    if count < 2 {
        return 0.0;
    }
    let count = f64::from(count);
    quantile((count - 0.375) / (count + 0.25))
}

/// Of the standard normal distribution, for a probability above one half (Abramowitz and Stegun 26.2.23: within 4.5e-4).
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
        // Tables of order statistics (Harter 1961).
        for (count, expected) in [
            (2, 0.564_19),
            (4, 1.029_38),
            (8, 1.423_60),
            (16, 1.765_99),
            (100, 2.507_59),
        ] {
            let found = expected_maximum(count);
            assert!((found - expected).abs() < 0.05 * expected, "{count}: {found}");
        }
    }
}
