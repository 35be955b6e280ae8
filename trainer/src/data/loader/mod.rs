//! The batches of one rank, in order.

mod pipeline;
mod resident;
mod stages;

use std::ops::Range;

use super::DataError;
use super::augment::TrainingMoment;
use super::batch::{Batch, Readable};
use super::order::Item;

pub(super) use pipeline::Pipeline;
pub(super) use resident::ResidentBatches;
use stages::Progress;
pub(crate) use stages::StageSeconds;

/// The batches to make.
#[derive(Debug)]
pub(super) struct Task {
    pub(super) items: Vec<Item>,
    pub(super) batching: Batching,
    /// The epoch to train; `None` to evaluate.
    pub(super) epoch: Option<u32>,
    pub(super) readable: Readable,
}

/// The sizes of successive batches, repeated from the first on.
#[derive(Clone, Debug)]
pub(super) struct Batching {
    /// The end of each batch, within a round of all.
    ends: Vec<usize>,
    largest: usize,
}

impl Batching {
    /// Batches of these sizes, none of which is 0. Without sizes there are no batches.
    pub(super) fn new(sizes: impl IntoIterator<Item = usize>) -> Self {
        let (mut ends, mut largest) = (Vec::new(), 0);
        for size in sizes {
            ends.push(ends.last().unwrap_or(&0) + size);
            largest = largest.max(size);
        }
        Self { ends, largest }
    }

    fn round(&self) -> usize {
        self.ends.last().copied().unwrap_or(1)
    }

    /// The batch of an item.
    fn batch_of(&self, item: usize) -> usize {
        let within = item % self.round();
        item / self.round() * self.ends.len() + self.ends.partition_point(|end| *end <= within)
    }

    /// The items of a batch, out of `items`; empty after the last batch.
    fn items(&self, batch: usize, items: usize) -> Range<usize> {
        let count = self.ends.len().max(1);
        let (round, within) = (batch / count * self.round(), batch % count);
        let start = within.checked_sub(1).map_or(0, |before| self.ends[before]);
        let end = self.ends.get(within).copied().unwrap_or(0);
        (round + start).min(items)..(round + end).min(items)
    }
}

impl Task {
    /// The items of a batch; empty after the last batch.
    fn items_of(&self, batch: usize) -> Range<usize> {
        self.batching.items(batch, self.items.len())
    }

    /// The moment in training at which an item is used; `None` to evaluate.
    fn moment(&self, item: Item) -> Option<TrainingMoment> {
        self.epoch.map(|epoch| TrainingMoment {
            epoch,
            place: item.place,
        })
    }
}

/// Batches in order. Holds all it needs of the data set.
#[derive(Debug)]
pub(crate) enum Batches {
    /// Made on demand, from images that the device holds or that are copied as stored.
    Resident(ResidentBatches),
    /// Made ahead by threads of the host.
    Prepared(Pipeline),
}

impl Batches {
    /// The next batch, for which it may wait; `None` after the last one. On a GPU its copy and
    /// operations are queued without waiting.
    pub(crate) fn next(&mut self) -> Result<Option<Batch>, DataError> {
        match self {
            Self::Resident(batches) => batches.next(),
            Self::Prepared(pipeline) => pipeline.next(),
        }
    }

    /// Images that this rank could not read so far.
    pub(crate) fn left_out(&self) -> u64 {
        match self {
            Self::Resident(_) => 0,
            Self::Prepared(pipeline) => pipeline.left_out(),
        }
    }

    /// What threads of the host have done so far; `None` without such threads.
    pub(crate) fn progress(&self) -> Option<Progress> {
        match self {
            Self::Resident(_) => None,
            Self::Prepared(pipeline) => Some(pipeline.progress()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_take_their_sizes_in_turn_and_the_last_one_what_is_left() {
        for (sizes, items, expected) in [
            (&[4][..], 10, &[0..4, 4..8, 8..10][..]),
            (&[2, 3], 9, &[0..2, 2..5, 5..7, 7..9]),
            (&[3], 6, &[0..3, 3..6]),
            (&[3], 0, &[]),
            (&[], 0, &[]),
        ] {
            let batching = Batching::new(sizes.iter().copied());
            for (batch, range) in expected.iter().enumerate() {
                assert_eq!(batching.items(batch, items), *range, "{sizes:?}, batch {batch}");
                for item in range.clone() {
                    assert_eq!(batching.batch_of(item), batch, "{sizes:?}, item {item}");
                }
            }
            assert!(batching.items(expected.len(), items).is_empty(), "{sizes:?}");
        }
    }
}
