//! The order of the training images in an epoch, and each rank's part of it.
//!
//! The order depends on seed and epoch only, not on the number of ranks: an optimizer step uses the
//! next `global_batch_size` places, and each rank a slice of them. So a run continues on another
//! number of ranks without repeating an image. The images at the end of an epoch that do not fill a
//! step are dropped (`drop_last` of PyTorch's `DistributedSampler`): all steps have the same size,
//! and the next epoch drops others.

use std::ops::Range;

use super::source::Shards;
use crate::random::{SplitMix64, Stream, derive};

/// Repeated augmentation repeats runs of this many images. So variants of an image are in the same
/// global batch or the next, and neighbors, which mixup pairs, are different images.
const REPEATED_RUN: u64 = 16;

/// An image, and its place in the epoch's order.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Item {
    pub(super) image: u64,
    pub(super) place: u64,
}

/// A rank's part of every optimizer step.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Share {
    /// Images per step, over all ranks.
    pub(crate) step: u64,
    /// Images of earlier ranks.
    pub(crate) before: u64,
    /// Images in each of this rank's micro-batches, none empty.
    pub(crate) micro_batches: Vec<u64>,
}

impl Share {
    /// This rank's places in `places`, whole steps only.
    pub(super) fn places(&self, places: Range<u64>) -> impl Iterator<Item = u64> {
        let own: u64 = self.micro_batches.iter().sum();
        let (step, before) = (self.step, self.before);
        let steps = places.end.saturating_sub(places.start) / step;
        (0..steps).flat_map(move |index| {
            let start = places.start + index * step + before;
            start..start + own
        })
    }
}

#[derive(Debug)]
pub(crate) struct EpochOrder {
    images: Vec<u32>,
    repeats: u64,
}

impl EpochOrder {
    /// A permutation of `0..len`, determined by seed and epoch, with each image at `repeats`
    /// places; the order still has `len` places.
    ///
    /// # Panics
    /// If `len` exceeds `u32::MAX`: such a set cannot be listed in memory.
    pub(crate) fn new(seed: u64, epoch: u32, len: u64, repeats: u32) -> Self {
        let mut images: Vec<u32> = (0..u32::try_from(len).expect("fewer than 4 billion images")).collect();
        shuffle(&mut images, &mut random(seed, epoch));
        Self {
            images,
            repeats: u64::from(repeats),
        }
    }

    /// As [`Self::new`], for images in shards: these are in random order, and the images of a few
    /// successive ones are shuffled. So only few are read at a time, each once.
    pub(super) fn from_shards(seed: u64, epoch: u32, shards: Shards<'_>, repeats: u32) -> Self {
        let Shards { lengths, at_once } = shards;
        let mut random = random(seed, epoch);
        let mut shards = Vec::with_capacity(lengths.len());
        let mut start = 0;
        for length in lengths {
            shards.push(start..start + length);
            start += length;
        }
        shuffle(&mut shards, &mut random);
        let mut images = Vec::with_capacity(start as usize);
        for window in shards.chunks(at_once) {
            let first = images.len();
            images.extend(window.iter().cloned().flatten());
            shuffle(&mut images[first..], &mut random);
        }
        Self {
            images,
            repeats: u64::from(repeats),
        }
    }

    pub(crate) fn image_at(&self, place: u64) -> u64 {
        let cycle = REPEATED_RUN * self.repeats;
        let position = place / cycle * REPEATED_RUN + place % cycle % REPEATED_RUN;
        u64::from(self.images[position as usize])
    }
}

fn random(seed: u64, epoch: u32) -> SplitMix64 {
    SplitMix64::new(derive(seed, Stream::Order, u64::from(epoch), 0))
}

/// Fisher and Yates.
fn shuffle<T>(values: &mut [T], random: &mut SplitMix64) {
    for last in (1..values.len()).rev() {
        values.swap(last, random.below(last as u64 + 1) as usize);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn all(order: &EpochOrder, len: u64) -> Vec<u64> {
        (0..len).map(|place| order.image_at(place)).collect()
    }

    #[test]
    fn every_image_comes_once_an_epoch_and_epochs_differ() {
        let order = |seed, epoch| all(&EpochOrder::new(seed, epoch, 1000, 1), 1000);
        let mut first = order(5, 0);
        assert_eq!(first, order(5, 0), "the order is a function of its inputs");
        assert_ne!(first, order(5, 1));
        assert_ne!(first, order(6, 0));
        first.sort_unstable();
        assert_eq!(first, (0..1000).collect::<Vec<_>>());
    }

    #[test]
    fn the_order_is_pinned_because_checkpoints_rely_on_it() {
        assert_eq!(
            all(&EpochOrder::new(0, 0, 10, 1), 10),
            [8, 9, 7, 1, 2, 6, 3, 0, 4, 5]
        );
    }

    #[test]
    fn few_shards_are_read_at_a_time_and_every_image_once() {
        let lengths: Vec<u32> = (1..=20).collect();
        let shards = Shards {
            lengths: &lengths,
            at_once: 8,
        };
        let order = all(&EpochOrder::from_shards(1, 0, shards, 1), 210);
        let shard_of = |image: u64| {
            lengths
                .iter()
                .scan(0, |end, length| {
                    *end += u64::from(*length);
                    Some(*end)
                })
                .position(|end| image < end)
                .expect("a shard")
        };
        let mut open = BTreeMap::new();
        for (place, image) in order.iter().enumerate() {
            let span = open.entry(shard_of(*image)).or_insert((place, place));
            span.1 = place;
        }
        for place in 0..210 {
            let at_once = open
                .values()
                .filter(|(first, last)| (*first..=*last).contains(&place))
                .count();
            assert!(at_once <= 8, "{at_once} shards at place {place}");
        }
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..210).collect::<Vec<_>>());
        assert_ne!(order, sorted);
    }

    #[test]
    fn repeated_images_come_close_together_but_never_as_neighbours() {
        for (len, repeats) in [(1000, 3), (7, 2), (33, 16), (96, 3)] {
            let order = all(&EpochOrder::new(2, 0, len, repeats), len);
            assert!(order.windows(2).all(|pair| pair[0] != pair[1]), "{order:?}");
            let mut places = BTreeMap::<u64, Vec<usize>>::new();
            for (place, image) in order.iter().enumerate() {
                places.entry(*image).or_default().push(place);
            }
            for places in places.values() {
                assert!(places.len() <= repeats as usize);
                assert!(places.last().expect("a place") - places[0] < 16 * repeats as usize);
            }
        }
        let order = all(&EpochOrder::new(2, 0, 96, 3), 96);
        assert_eq!(order[..16], order[16..32]);
        assert_eq!(order[..16], order[32..48]);
        assert_ne!(order[..16], order[48..64]);
    }

    #[test]
    fn ranks_share_every_step_and_an_incomplete_one_is_left_out() {
        let places = |step, before, micro_batches: &[u64], range| {
            let micro_batches = micro_batches.to_vec();
            let share = Share {
                step,
                before,
                micro_batches,
            };
            share.places(range).collect::<Vec<_>>()
        };
        assert_eq!(places(4, 0, &[4], 0..11), (0..8).collect::<Vec<_>>());
        assert_eq!(places(4, 0, &[2], 0..11), [0, 1, 4, 5]);
        assert_eq!(places(4, 2, &[2], 0..11), [2, 3, 6, 7]);
        assert_eq!(places(4, 2, &[1, 1], 3..11), [5, 6, 9, 10]);
        assert_eq!(places(8, 0, &[4], 9..11), Vec::<u64>::new());
        // Uneven shares.
        assert_eq!(places(4, 0, &[1], 0..9), [0, 4]);
        assert_eq!(places(4, 1, &[2, 1], 0..9), [1, 2, 3, 5, 6, 7]);
        assert_eq!(places(4, 4, &[], 0..9), Vec::<u64>::new());
    }
}
