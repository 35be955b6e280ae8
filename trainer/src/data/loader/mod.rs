//! The batches of one rank, one after the other.

mod pipeline;
mod resident;
mod stages;

use std::ops::Range;

use super::DataError;
use super::augment::Moment;
use super::batch::{Batch, Readable};
use super::order::Item;

pub(super) use pipeline::Pipeline;
pub(super) use resident::ResidentBatches;
use stages::Progress;
pub(crate) use stages::StageSeconds;

/// What batches are to be made of.
#[derive(Debug)]
pub(super) struct Task {
    pub(super) items: Vec<Item>,
    pub(super) batching: Batching,
    /// The epoch that is trained; `None` to evaluate.
    pub(super) epoch: Option<u32>,
    pub(super) readable: Readable,
}

/// The sizes of batches, one after the other and then again from the first on.
#[derive(Clone, Debug)]
pub(super) struct Batching {
    /// Where each of them ends, within a round of all.
    ends: Vec<usize>,
    largest: usize,
}

impl Batching {
    /// Of these sizes, none of which is 0. Without any there is nothing to be made.
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

    /// The batch that an item is in.
    fn batch_of(&self, item: usize) -> usize {
        let within = item % self.round();
        item / self.round() * self.ends.len() + self.ends.partition_point(|end| *end <= within)
    }

    /// The items of a batch, of `items` in all; none after the last one.
    fn items(&self, batch: usize, items: usize) -> Range<usize> {
        let count = self.ends.len().max(1);
        let (round, within) = (batch / count * self.round(), batch % count);
        let start = within.checked_sub(1).map_or(0, |before| self.ends[before]);
        let end = self.ends.get(within).copied().unwrap_or(0);
        (round + start).min(items)..(round + end).min(items)
    }
}

impl Task {
    /// The items of a batch; none after the last one.
    fn items_of(&self, batch: usize) -> Range<usize> {
        self.batching.items(batch, self.items.len())
    }

    /// When in training an item is used; `None` to evaluate.
    fn moment(&self, item: Item) -> Option<Moment> {
        self.epoch.map(|epoch| Moment {
            epoch,
            place: item.place,
        })
    }
}

/// Batches in order. Holds what it needs of the data set.
#[derive(Debug)]
pub(crate) enum Batches {
    /// Made when they are asked for, of images that the device holds, or is given as they are stored.
    Resident(ResidentBatches),
    /// Made ahead by threads of the host.
    Prepared(Pipeline),
}

impl Batches {
    /// The next batch, which may have to be waited for; `None` after the last one. On a GPU its copy and its operations
    /// are queued, and nothing waits for them.
    pub(crate) fn next(&mut self) -> Result<Option<Batch>, DataError> {
        match self {
            Self::Resident(batches) => batches.next(),
            Self::Prepared(pipeline) => pipeline.next(),
        }
    }

    /// Images that could not be read so far, on this rank.
    pub(crate) fn left_out(&self) -> u64 {
        match self {
            Self::Resident(_) => 0,
            Self::Prepared(pipeline) => pipeline.left_out(),
        }
    }

    /// What threads of the host have done so far to make batches ahead; `None` where there are none.
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
