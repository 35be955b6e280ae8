//! Numbers that ranks exchange with every step. They are summed with the gradients, so all ranks
//! decide on the same values and no step needs another collective.

use tch::{Kind, Tensor};

/// One rank's report of a step; sums over its images stay on its device until they are sent.
#[derive(Debug)]
pub(super) struct RankReport {
    pub(super) stop: bool,
    /// Whether a checkpoint is due after the next step; only rank 0 knows.
    pub(super) save: bool,
    pub(super) loss_sum: Tensor,
    pub(super) correct: Tensor,
    pub(super) images: u64,
    /// Images skipped so far in this epoch because they cannot be read.
    pub(super) left_out: u64,
    /// [`Mesh::disagreement`](crate::distributed::Mesh::disagreement) on this step's images.
    pub(super) disagreement: i64,
    /// Compute time of an earlier step, without waiting for other ranks.
    pub(super) compute_seconds: f64,
}

/// The reports of all ranks, reduced.
#[derive(Debug, PartialEq)]
pub(super) struct ReducedReport {
    /// Whether any rank was told to stop.
    pub(super) stop: bool,
    /// Whether a checkpoint is to be taken after the next step.
    pub(super) save: bool,
    /// Mean over all images.
    pub(super) loss: f64,
    pub(super) correct: u64,
    pub(super) images: u64,
    pub(super) left_out: u64,
    /// Whether ranks that should have the same images have different ones.
    pub(super) images_differ: bool,
    /// By rank.
    pub(super) compute_seconds: Vec<f64>,
    /// The ranks whose loss is not a finite number.
    pub(super) not_finite: Vec<u32>,
}

/// Numbers before the per-rank ones.
const NUMBERS: usize = 7;

impl RankReport {
    /// The numbers of `rank` of `ranks` ranks, on the device of its losses; per-rank numbers come
    /// last. Of the ranks that have the same images, only one `counts` them.
    pub(super) fn to_tensor(&self, (rank, ranks): (u32, u32), counts: bool) -> Tensor {
        let options = (Kind::Double, self.loss_sum.device());
        // Filled on the device: a copy would make the host wait.
        let number = |value: f64| Tensor::full([], value, options);
        let of_images = if counts {
            [
                self.loss_sum.shallow_clone(),
                self.correct.to_kind(Kind::Double),
                number(self.images as f64),
                number(self.left_out as f64),
            ]
        } else {
            std::array::from_fn(|_| number(0.0))
        };
        let [loss_sum, correct, images, left_out] = of_images;
        let numbers = [
            number(f64::from(self.stop)),
            number(f64::from(self.save)),
            // Exact: 32 bits for each rank.
            number(self.disagreement as f64),
            loss_sum,
            correct,
            images,
            left_out,
        ];
        let by_rank = Tensor::zeros([2, i64::from(ranks)], options);
        let own = by_rank.select(1, i64::from(rank));
        let _ = own.get(0).fill_(self.compute_seconds);
        own.get(1)
            .copy_(&self.loss_sum.isfinite().logical_not().to_kind(Kind::Double));
        Tensor::cat(&[Tensor::stack(&numbers, 0), by_rank.reshape([-1])], 0)
    }

    /// Whether the losses of all ranks are finite: a scalar on the device of `sums`.
    pub(super) fn is_finite(sums: &Tensor) -> Tensor {
        let by_rank = sums.slice(0, NUMBERS as i64, None, 1).reshape([2, -1]);
        by_rank.get(1).sum(Kind::Double).le(0.0)
    }
}

impl ReducedReport {
    /// Reads the sums of all ranks' [`RankReport::to_tensor`].
    pub(super) fn from_sums(sums: &[f64]) -> Self {
        let (numbers, by_rank) = sums
            .split_first_chunk::<NUMBERS>()
            .expect("a report has these numbers");
        let [stop, save, disagreement, losses, correct, images, left_out] = *numbers;
        let (compute_seconds, not_finite) = by_rank.split_at(by_rank.len() / 2);
        Self {
            stop: stop > 0.0,
            save: save > 0.0,
            loss: losses / images,
            correct: correct as u64,
            images: images as u64,
            left_out: left_out as u64,
            images_differ: disagreement != 0.0,
            compute_seconds: compute_seconds.to_vec(),
            not_finite: (0..)
                .zip(not_finite)
                .filter(|(_, flag)| **flag > 0.0)
                .map(|(rank, _)| rank)
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_over_the_ranks_say_what_each_has_told() {
        let report = |stop, loss_sum: f64, correct: i64, compute_seconds| RankReport {
            stop,
            save: !stop,
            loss_sum: Tensor::from(loss_sum),
            correct: Tensor::from(correct),
            images: 8,
            left_out: 1,
            disagreement: 0,
            compute_seconds,
        };
        let agreed = |ranks: [RankReport; 2]| {
            let [first, second] = ranks;
            let sums = first.to_tensor((0, 2), true) + second.to_tensor((1, 2), true);
            let is_finite = RankReport::is_finite(&sums).int64_value(&[]) == 1;
            let agreed = ReducedReport::from_sums(&Vec::<f64>::try_from(sums).expect("numbers"));
            assert_eq!(is_finite, agreed.not_finite.is_empty());
            agreed
        };
        assert_eq!(
            agreed([report(false, 8.0, 3, 0.25), report(true, 24.0, 4, 0.5)]),
            ReducedReport {
                stop: true,
                save: true,
                loss: 2.0,
                correct: 7,
                images: 16,
                left_out: 2,
                images_differ: false,
                compute_seconds: vec![0.25, 0.5],
                not_finite: vec![],
            }
        );
        let diverged = agreed([report(false, 8.0, 0, 0.0), report(false, f64::NAN, 0, 0.0)]);
        assert_eq!(diverged.not_finite, [1]);
        assert!(!diverged.stop);

        // Two ranks with the same images.
        let same = || report(false, 8.0, 3, 0.25);
        let sums = same().to_tensor((0, 2), true) + same().to_tensor((1, 2), false);
        let agreed = ReducedReport::from_sums(&Vec::<f64>::try_from(sums).expect("numbers"));
        assert_eq!((agreed.images, agreed.correct, agreed.left_out), (8, 3, 1));
        assert_eq!(
            (agreed.loss, &agreed.compute_seconds[..]),
            (1.0, &[0.25, 0.25][..])
        );
    }
}
