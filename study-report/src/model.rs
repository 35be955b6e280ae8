//! Seconds of a step by ranks and batch.

use serde::Serialize;

/// Ranks and batch of a step.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Sizes {
    /// Number of ranks.
    pub ranks: u32,
    /// Images per micro-batch.
    pub micro_batch_size: u32,
    /// Micro-batches per step.
    pub gradient_accumulation_steps: u32,
}

impl Sizes {
    /// Images of each rank in a step.
    pub fn images(&self) -> u32 {
        self.micro_batch_size * self.gradient_accumulation_steps
    }
}

/// A measured step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// Its ranks and batch.
    pub sizes: Sizes,
    /// Its seconds.
    pub seconds: f64,
}

/// Seconds of a step of N ranks with n images each: `fixed + image n + doubling log2(N)`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CostModel {
    /// Seconds of any step.
    pub fixed: f64,
    /// Seconds per image of a rank.
    pub image: f64,
    /// Seconds per doubling of the ranks.
    pub doubling: f64,
}

impl CostModel {
    /// Coefficients of at least 0 with the least squared relative error; `None` without steps. Of
    /// terms that the steps do not separate, the first is used.
    pub fn fit(steps: &[Step]) -> Option<Self> {
        let rows = steps.iter().filter(|step| step.seconds > 0.0);
        let rows = rows.map(|step| terms(&step.sizes).map(|term| term / step.seconds));
        let [fixed, image, doubling] = non_negative(&rows.collect::<Vec<_>>())?;
        Some(Self {
            fixed,
            image,
            doubling,
        })
    }

    /// Fits the baseline: a step with as many images lasts as long on any number of ranks.
    pub fn constant(steps: &[Step]) -> Option<Self> {
        let on_one = steps.iter().map(|step| Step {
            sizes: Sizes {
                ranks: 1,
                ..step.sizes
            },
            ..*step
        });
        Self::fit(&on_one.collect::<Vec<_>>())
    }

    /// Seconds of a step.
    pub fn seconds(&self, sizes: &Sizes) -> f64 {
        let [one, images, doublings] = terms(sizes);
        self.fixed * one + self.image * images + self.doubling * doublings
    }
}

const TERMS: usize = 3;

fn terms(sizes: &Sizes) -> [f64; TERMS] {
    [1.0, sizes.images().into(), f64::from(sizes.ranks).log2()]
}

/// Coefficients of at least 0 with which the rows' sums are closest to 1.
fn non_negative(rows: &[[f64; TERMS]]) -> Option<[f64; TERMS]> {
    // There are few enough terms to try every subset.
    let fits = (1_u32..1 << TERMS).filter_map(|subset| {
        let found = least_squares(rows, subset)?;
        let sum = |row: &[f64; TERMS]| {
            row.iter()
                .zip(found)
                .map(|(term, factor)| term * factor)
                .sum::<f64>()
        };
        let error: f64 = rows.iter().map(|row| (sum(row) - 1.0).powi(2)).sum();
        found
            .iter()
            .all(|factor| *factor >= 0.0)
            .then_some((error, found))
    });
    // Another subset must reduce the error by more than rounding.
    let best = fits.reduce(|best, next| if next.0 < best.0 - 1e-12 { next } else { best });
    best.map(|(_, found)| found)
}

/// Solves the normal equations of the terms whose bits are set, by Gauss-Jordan elimination; `None`
/// if the rows do not separate them.
fn least_squares(rows: &[[f64; TERMS]], subset: u32) -> Option<[f64; TERMS]> {
    let chosen: Vec<usize> = (0..TERMS).filter(|term| subset >> term & 1 == 1).collect();
    let mut sums = [[0.0; TERMS + 1]; TERMS];
    for (term, sums) in sums.iter_mut().enumerate() {
        for row in rows {
            for (sum, other) in sums.iter_mut().zip(row.iter().chain([&1.0])) {
                *sum += row[term] * other;
            }
        }
    }
    let products = sums;
    for pivot in &chosen {
        let row = sums[*pivot];
        if row[*pivot] <= 1e-10 * products[*pivot][*pivot] {
            return None;
        }
        for other in &chosen {
            let factor = sums[*other][*pivot] / row[*pivot];
            for (sum, value) in sums[*other].iter_mut().zip(row) {
                *sum = if other == pivot {
                    value / row[*pivot]
                } else {
                    *sum - factor * value
                };
            }
        }
    }
    let mut found = [0.0; TERMS];
    for term in chosen {
        found[term] = sums[term][TERMS];
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(ranks: u32, images: u32, seconds: f64) -> Step {
        let sizes = Sizes {
            ranks,
            micro_batch_size: images,
            gradient_accumulation_steps: 1,
        };
        Step { sizes, seconds }
    }

    fn fitted(steps: &[Step]) -> [f64; TERMS] {
        let model = CostModel::fit(steps).expect("steps");
        [model.fixed, model.image, model.doubling]
    }

    fn assert_close(found: [f64; TERMS], expected: [f64; TERMS]) {
        for (value, wanted) in found.iter().zip(expected) {
            assert!((value - wanted).abs() < 1e-9, "{found:?} is not {expected:?}");
        }
    }

    #[test]
    fn the_terms_of_steps_that_follow_the_model_are_found() {
        let (fixed, image, doubling) = (0.005, 0.002, 0.0004);
        let sizes = [(1, 4), (1, 64), (2, 16), (4, 16), (8, 64)];
        let steps = sizes.map(|(ranks, images)| {
            let doublings = f64::from(ranks).log2();
            step(
                ranks,
                images,
                fixed + image * f64::from(images) + doubling * doublings,
            )
        });
        assert_close(fitted(&steps), [fixed, image, doubling]);
        let far = Sizes {
            gradient_accumulation_steps: 2,
            ..step(1024, 32, 0.0).sizes
        };
        let seconds = CostModel::fit(&steps).expect("steps").seconds(&far);
        assert!((seconds - 0.137).abs() < 1e-9, "{seconds}");
    }

    #[test]
    fn no_coefficient_is_negative() {
        // Steps become shorter with more ranks.
        assert_close(
            fitted(&[step(1, 16, 2.0), step(2, 16, 2.0), step(4, 16, 1.0)]),
            [4.0 / 3.0, 0.0, 0.0],
        );
        assert_eq!(CostModel::fit(&[]), None);
        assert_close(fitted(&[step(4, 16, 4.0)]), [4.0, 0.0, 0.0]);
    }

    #[test]
    fn errors_are_relative_and_the_baseline_ignores_the_ranks() {
        let constant = CostModel::constant(&[step(1, 16, 1.0), step(64, 16, 3.0)]).expect("steps");
        // The value c with the least (c/1 - 1)^2 + (c/3 - 1)^2.
        assert_close(
            [constant.fixed, constant.image, constant.doubling],
            [1.2, 0.0, 0.0],
        );
    }
}
