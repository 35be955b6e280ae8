//! Non-negative least squares: times only add up.

use nalgebra::{DMatrix, DVector};

/// An equation: features and the value of their weighted sum.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row<const FEATURES: usize> {
    pub(super) features: [f64; FEATURES],
    pub(super) value: f64,
    /// Errors are relative to this.
    pub(super) scale: f64,
}

/// Non-negative coefficients with the least squared error; `None` without rows. Of features that
/// the rows do not separate, the first is used.
pub(super) fn fit<const FEATURES: usize>(rows: &[Row<FEATURES>]) -> Option<[f64; FEATURES]> {
    let rows: Vec<_> = rows.iter().filter(|row| row.scale > 0.0).collect();
    if rows.is_empty() {
        return None;
    }
    // Features have different units, such as bytes: scale each by its largest value.
    let largest: [f64; FEATURES] = std::array::from_fn(|feature| {
        let values = rows.iter().map(|row| (row.features[feature] / row.scale).abs());
        let most = values.fold(0.0, f64::max);
        if most > 0.0 { most } else { 1.0 }
    });
    // There are few enough features to try every subset.
    let choices = (1_usize..1 << FEATURES).filter_map(|choice| {
        let chosen: Vec<usize> = (0..FEATURES)
            .filter(|feature| choice >> feature & 1 == 1)
            .collect();
        let scaled = DMatrix::from_fn(rows.len(), chosen.len(), |row, column| {
            rows[row].features[chosen[column]] / rows[row].scale / largest[chosen[column]]
        });
        let values = DVector::from_fn(rows.len(), |row, _| rows[row].value / rows[row].scale);
        let svd = scaled.clone().svd(true, true);
        if svd.rank(1e-9) < chosen.len() {
            return None;
        }
        let solution = svd.solve(&values, 1e-12).ok()?;
        let error = (scaled * &solution - values).norm_squared();
        solution.iter().all(|value| *value >= 0.0).then(|| {
            let mut all = [0.0; FEATURES];
            for (feature, value) in chosen.iter().zip(solution.iter()) {
                all[*feature] = *value / largest[*feature];
            }
            (error, all)
        })
    });
    // Another subset must reduce the error by more than rounding.
    let best = choices.reduce(|best, next| if next.0 < best.0 - 1e-12 { next } else { best });
    best.map(|(_, coefficients)| coefficients)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row<const FEATURES: usize>(features: [f64; FEATURES], value: f64) -> Row<FEATURES> {
        Row {
            features,
            value,
            scale: 1.0,
        }
    }

    #[test]
    fn sums_are_taken_apart() {
        let rows: Vec<Row<3>> = (1..6)
            .map(f64::from)
            .map(|x| row([1.0, x, x * x], 2.0 + 0.5 * x))
            .collect();
        let found = fit(&rows).expect("rows");
        for (found, expected) in found.iter().zip([2.0, 0.5, 0.0]) {
            assert!((found - expected).abs() < 1e-9, "{found} is not {expected}");
        }
    }

    #[test]
    fn nothing_is_negative_and_nothing_is_made_of_no_rows() {
        // The values fall with x: a slope would be negative.
        let rows = [row([1.0, 1.0], 3.0), row([1.0, 2.0], 2.0), row([1.0, 3.0], 1.0)];
        let [constant, slope] = fit(&rows).expect("rows");
        assert!(
            (constant - 2.0).abs() < 1e-9 && slope.abs() < 1e-12,
            "{constant} {slope}"
        );
        assert_eq!(fit::<2>(&[]), None);
        // One row determines one feature.
        assert_eq!(fit(&[row([1.0, 2.0], 4.0)]).map(|found| found[0]), Some(4.0));
    }

    #[test]
    fn an_error_counts_by_the_row_s_scale() {
        let rows = |scale| {
            [
                row([1.0], 1.0),
                Row {
                    features: [1.0],
                    value: 3.0,
                    scale,
                },
            ]
        };
        let found = |scale| fit(&rows(scale)).map_or(0.0, |[found]| found);
        assert!((found(1.0) - 2.0).abs() < 1e-9);
        assert!((found(1e-3) - 3.0).abs() < 1e-3);
        assert!((found(1e3) - 1.0).abs() < 1e-3);
    }
}
