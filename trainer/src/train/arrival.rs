//! What ranks tell each other with every step. It is added up over them while gradients are reduced, so that all know the
//! same and take the same decisions, and no step needs another collective.

use tch::{Kind, Tensor};

/// What one rank tells. Sums over the images of its micro-batches are on its device, where they stay until they are sent.
#[derive(Debug)]
pub(super) struct Arrival {
    pub(super) stop: bool,
    pub(super) loss_sum: Tensor,
    pub(super) correct: Tensor,
    pub(super) images: u64,
    /// Images left out so far in this epoch, because they cannot be read.
    pub(super) left_out: u64,
    /// What the step before took it, without waiting for others.
    pub(super) compute_seconds: f64,
}

/// What all ranks have told.
#[derive(Debug, PartialEq)]
pub(super) struct Agreed {
    /// Whether some rank was told to stop.
    pub(super) stop: bool,
    /// Whether the losses of all ranks are finite numbers.
    pub(super) is_finite: bool,
    /// Mean over all images.
    pub(super) loss: f64,
    pub(super) correct: u64,
    pub(super) images: u64,
    pub(super) left_out: u64,
    /// By rank.
    pub(super) compute_seconds: Vec<f64>,
}

impl Arrival {
    /// The numbers of one of `ranks` ranks; the last of them are each rank's compute time.
    pub(super) fn to_tensor(&self, rank: u32, ranks: u32) -> Tensor {
        let options = (Kind::Double, self.loss_sum.device());
        let number = |value: f64| Tensor::full([], value, options);
        let numbers = [
            number(f64::from(self.stop)),
            self.loss_sum.isfinite().logical_not().to_kind(Kind::Double),
            self.loss_sum.shallow_clone(),
            self.correct.to_kind(Kind::Double),
            number(self.images as f64),
            number(self.left_out as f64),
        ];
        let compute_seconds = Tensor::zeros([i64::from(ranks)], options);
        // In place on the device: copying it there would make the host wait.
        let _ = compute_seconds.get(i64::from(rank)).fill_(self.compute_seconds);
        Tensor::cat(&[Tensor::stack(&numbers, 0), compute_seconds], 0)
    }
}

impl Agreed {
    /// Reads the sums of all ranks' [`Arrival::to_tensor`].
    pub(super) fn from_sums(sums: &[f64]) -> Self {
        let (numbers, compute_seconds) = sums.split_first_chunk().expect("an arrival has these numbers");
        let [stop, not_finite, losses, correct, images, left_out] = *numbers;
        Self {
            stop: stop > 0.0,
            is_finite: not_finite < 1.0,
            loss: losses / images,
            correct: correct as u64,
            images: images as u64,
            left_out: left_out as u64,
            compute_seconds: compute_seconds.to_vec(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_over_the_ranks_say_what_each_has_told() {
        let arrival = |stop, loss_sum: f64, correct: i64, compute_seconds| Arrival {
            stop,
            loss_sum: Tensor::from(loss_sum),
            correct: Tensor::from(correct),
            images: 8,
            left_out: 1,
            compute_seconds,
        };
        let agreed = |ranks: [Arrival; 2]| {
            let [first, second] = ranks;
            let sums = first.to_tensor(0, 2) + second.to_tensor(1, 2);
            Agreed::from_sums(&Vec::<f64>::try_from(sums).expect("numbers"))
        };
        assert_eq!(
            agreed([arrival(false, 8.0, 3, 0.25), arrival(true, 24.0, 4, 0.5)]),
            Agreed {
                stop: true,
                is_finite: true,
                loss: 2.0,
                correct: 7,
                images: 16,
                left_out: 2,
                compute_seconds: vec![0.25, 0.5],
            }
        );
        let diverged = agreed([arrival(false, 8.0, 0, 0.0), arrival(false, f64::NAN, 0, 0.0)]);
        assert!(!diverged.is_finite && !diverged.stop);
    }
}
