//! Accuracy on held-out images, over all ranks.

use tch::Kind;

use crate::data::Dataset;
use crate::distributed::World;
use crate::error::TrainError;
use crate::model::VisionTransformer;

/// What all ranks counted together.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Counts {
    /// Images classified right.
    pub(crate) correct: u64,
    /// Images classified.
    pub(crate) counted: u64,
    /// Ranks that were told to stop.
    pub(crate) stop_requests: u64,
}

/// Classifies every image of `data` exactly once over all ranks. `stop` rides along, so that ranks agree on stopping
/// after an evaluation without a collective of its own.
pub(crate) fn evaluate(
    world: &World,
    model: &VisionTransformer,
    data: &Dataset,
    image_size: u32,
    batch_size: u32,
    stop: bool,
) -> Result<Counts, TrainError> {
    let mine = share(data.len(), world.rank, world.size);
    let mut correct = 0;
    for indices in mine.chunks(batch_size as usize) {
        correct += tch::no_grad(|| {
            let (images, labels) = data.batch(indices, image_size);
            let predicted = model.forward(&images).argmax(1, false);
            predicted
                .eq_tensor(&labels)
                .sum(Kind::Int64)
                .int64_value(&[])
                .cast_unsigned()
        });
    }
    let [correct, counted, stop_requests] = world.sum([correct, mine.len() as u64, u64::from(stop)])?;
    Ok(Counts {
        correct,
        counted,
        stop_requests,
    })
}

/// This rank's images: every `size`-th, so that shares differ by one at most and none is repeated to fill up.
fn share(len: u64, rank: u32, size: u32) -> Vec<u64> {
    (u64::from(rank)..len).step_by(size as usize).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_cover_each_image_once_whatever_the_number_of_ranks() {
        for (len, size) in [(10, 3), (2, 5), (0, 2), (360, 7), (9, 1)] {
            let mut all: Vec<u64> = (0..size).flat_map(|rank| share(len, rank, size)).collect();
            all.sort_unstable();
            assert_eq!(all, (0..len).collect::<Vec<_>>(), "{len} images on {size} ranks");
        }
    }
}
