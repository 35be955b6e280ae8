//! Least squares with coefficients that are not negative: times add up, none is given back.

use nalgebra::{DMatrix, DVector};

/// Coefficients of features, none below 0, whose sums come closest to values, each by its relative error; `None` without
/// rows. Of features that the rows do not tell apart, the first one is used.
pub(super) fn fit<const FEATURES: usize>(rows: &[([f64; FEATURES], f64)]) -> Option<[f64; FEATURES]> {
    let rows: Vec<_> = rows.iter().filter(|(_, value)| *value > 0.0).collect();
    if rows.is_empty() {
        return None;
    }
    // So few features that every choice of those that count can be tried.
    let choices = (1_usize..1 << FEATURES).filter_map(|choice| {
        let chosen: Vec<usize> = (0..FEATURES)
            .filter(|feature| choice >> feature & 1 == 1)
            .collect();
        let scaled = DMatrix::from_fn(rows.len(), chosen.len(), |row, column| {
            rows[row].0[chosen[column]] / rows[row].1
        });
        let ones = DVector::from_element(rows.len(), 1.0);
        let svd = scaled.clone().svd(true, true);
        if svd.rank(1e-9) < chosen.len() {
            return None;
        }
        let solution = svd.solve(&ones, 1e-12).ok()?;
        let error = (scaled * &solution - ones).norm_squared();
        solution.iter().all(|value| *value >= 0.0).then(|| {
            let mut all = [0.0; FEATURES];
            for (feature, value) in chosen.iter().zip(solution.iter()) {
                all[*feature] = *value;
            }
            (error, all)
        })
    });
    // A feature more must explain something: what rounding leaves is no reason.
    let best = choices.reduce(|best, next| if next.0 < best.0 - 1e-12 { next } else { best });
    best.map(|(_, coefficients)| coefficients)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_taken_apart() {
        let rows: Vec<([f64; 3], f64)> = (1..6)
            .map(|n| {
                let x = f64::from(n);
                ([1.0, x, x * x], 2.0 + 0.5 * x)
            })
            .collect();
        let found = fit(&rows).expect("rows");
        for (found, expected) in found.iter().zip([2.0, 0.5, 0.0]) {
            assert!((found - expected).abs() < 1e-9, "{found} is not {expected}");
        }
    }

    #[test]
    fn nothing_is_negative_and_nothing_is_made_of_no_rows() {
        // Falls with x: a slope would be negative.
        let rows = [([1.0, 1.0], 3.0), ([1.0, 2.0], 2.0), ([1.0, 3.0], 1.0)];
        let [constant, slope] = fit(&rows).expect("rows");
        assert!(constant > 0.0 && slope == 0.0, "{constant} {slope}");
        assert_eq!(fit::<2>(&[]), None);
        // One row tells one feature.
        assert_eq!(fit(&[([1.0, 2.0], 4.0)]).map(|found| found[0]), Some(4.0));
    }
}
