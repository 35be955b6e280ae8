//! The order in which an epoch sees the training images.
//!
//! The order depends on seed and epoch alone, not on the number of ranks: an optimizer step takes the next
//! `global_batch_size` images, and each rank a slice of them. So a run continues after a restart with another number
//! of ranks without seeing an image twice. What is left at the end of an epoch and is less than a step is dropped
//! (`drop_last` of PyTorch's `DistributedSampler`): a mean over equal slices is then the mean over the batch, and the
//! next epoch's order drops other images.

use std::ops::Range;

/// The order of one epoch.
#[derive(Debug)]
pub(crate) struct EpochOrder(Vec<u32>);

impl EpochOrder {
    /// A permutation of `0..len`, which seed and epoch determine.
    ///
    /// # Panics
    /// Where `len` exceeds `u32::MAX`: such a set does not fit in memory.
    pub(crate) fn new(seed: u64, epoch: u32, len: u64) -> Self {
        let mut order: Vec<u32> = (0..u32::try_from(len).expect("fewer than 4 billion images")).collect();
        let mut random = SplitMix64(seed ^ (u64::from(epoch) + 1).wrapping_mul(0xa076_1d64_78bd_642f));
        // Fisher and Yates.
        for last in (1..order.len()).rev() {
            order.swap(last, random.below(last as u64 + 1) as usize);
        }
        Self(order)
    }

    /// Indices of the images at these places of the order.
    pub(crate) fn slice(&self, places: Range<u64>) -> Vec<u64> {
        self.0[places.start as usize..places.end as usize]
            .iter()
            .map(|index| u64::from(*index))
            .collect()
    }
}

/// `SplitMix64` (Steele, Lea, Flood 2014), written out so that no upgrade of a library changes the order of a run that
/// is to be resumed.
struct SplitMix64(u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, by the high half of a product (Lemire); its bias is below `bound` / 2^64.
    fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_image_comes_once_an_epoch_and_epochs_differ() {
        let [mut first, second] = [0, 1].map(|epoch| EpochOrder::new(5, epoch, 1000).slice(0..1000));
        assert_eq!(
            first,
            EpochOrder::new(5, 0, 1000).slice(0..1000),
            "the order is a function of its inputs"
        );
        assert_ne!(first, second);
        assert_ne!(first, EpochOrder::new(6, 0, 1000).slice(0..1000));
        first.sort_unstable();
        assert_eq!(first, (0..1000).collect::<Vec<_>>());
    }

    #[test]
    fn the_order_is_pinned_because_checkpoints_rely_on_it() {
        assert_eq!(
            EpochOrder::new(0, 0, 10).slice(0..10),
            [9, 5, 1, 0, 3, 6, 4, 7, 8, 2]
        );
    }
}
