//! The batches of one rank, one after the other.

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use super::augment::{Moment, Preparation};
use super::pipeline::Pipeline;
use super::resident::Resident;
use super::{Batch, DataError};

/// An image, and the place in the epoch's order that it is at.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Item {
    pub(super) image: u64,
    pub(super) place: u64,
}

/// What batches are to be made of.
#[derive(Debug)]
pub(super) struct Task {
    pub(super) items: Vec<Item>,
    pub(super) batch_size: usize,
    /// The epoch that is trained; `None` to evaluate.
    pub(super) epoch: Option<u32>,
    pub(super) readable: Readable,
}

/// How many images of all ranks together may be unreadable.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Readable {
    /// Images of the set.
    images: u64,
    /// `data.maxCorruptFraction`.
    fraction: f64,
}

impl Readable {
    pub(super) fn new(images: u64, fraction: f64) -> Self {
        Self { images, fraction }
    }

    /// An error where more images than that were left out, over all ranks. Each rank has named its first ones in its log.
    pub(crate) fn check(self, left_out: u64) -> Result<(), DataError> {
        let Self { images, fraction } = self;
        let allowed = self.allowed();
        if left_out <= allowed {
            return Ok(());
        }
        Err(DataError::TooManyCorrupt {
            left_out,
            images,
            fraction,
            allowed,
        })
    }

    /// The error of a rank that alone has one more than that, which is `image`.
    pub(super) fn refuse(self, image: String, reason: String, left_out: u64) -> DataError {
        DataError::Corrupt {
            image,
            reason,
            left_out,
            images: self.images,
            fraction: self.fraction,
            allowed: self.allowed(),
        }
    }

    pub(super) fn allowed(self) -> u64 {
        (self.images as f64 * self.fraction) as u64
    }
}

/// Which part of every optimizer step a rank takes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Share {
    pub(crate) rank: u32,
    pub(crate) ranks: u32,
    pub(crate) micro_batch: u32,
    /// Micro-batches of a step.
    pub(crate) accumulation: u32,
}

impl Share {
    /// This rank's places out of `places`, whole steps only.
    pub(super) fn places(self, places: Range<u64>) -> impl Iterator<Item = u64> {
        let local = u64::from(self.micro_batch) * u64::from(self.accumulation);
        let global = local * u64::from(self.ranks);
        let steps = places.end.saturating_sub(places.start) / global;
        (0..steps).flat_map(move |step| {
            let start = places.start + step * global + u64::from(self.rank) * local;
            start..start + local
        })
    }
}

/// Batches in order. Holds what it needs of the data set.
#[derive(Debug)]
pub(crate) enum Batches {
    /// Made when they are asked for, of images in memory.
    Resident(ResidentBatches),
    /// Made ahead, of images in files.
    Files(Pipeline),
}

/// Batches of images in memory.
#[derive(Debug)]
pub(crate) struct ResidentBatches {
    pub(super) images: Rc<Resident>,
    pub(super) preparation: Arc<Preparation>,
    pub(super) task: Task,
    pub(super) done: usize,
}

impl Batches {
    /// The next batch, which may have to be waited for; `None` after the last one.
    pub(crate) fn next(&mut self) -> Result<Option<Batch>, DataError> {
        match self {
            Self::Resident(batches) => Ok(batches.next()),
            Self::Files(pipeline) => pipeline.next(),
        }
    }

    /// Images that could not be read so far, on this rank.
    pub(crate) fn left_out(&self) -> u64 {
        match self {
            Self::Resident(_) => 0,
            Self::Files(pipeline) => pipeline.left_out(),
        }
    }

    /// How many images of all ranks together may be unreadable.
    pub(crate) fn readable(&self) -> Readable {
        match self {
            Self::Resident(batches) => batches.task.readable,
            Self::Files(pipeline) => pipeline.readable(),
        }
    }
}

impl ResidentBatches {
    fn next(&mut self) -> Option<Batch> {
        let rest = &self.task.items[self.done..];
        if rest.is_empty() {
            return None;
        }
        let items = &rest[..rest.len().min(self.task.batch_size)];
        self.done += items.len();
        let (images, labels) = self.images.rows(items, self.preparation.device());
        Some(match self.task.epoch {
            Some(epoch) => {
                let places: Vec<u64> = items.iter().map(|item| item.place).collect();
                let moment = Moment {
                    epoch,
                    places: &places,
                };
                self.preparation.training(images, labels, moment)
            }
            None => self.preparation.evaluation(images, labels),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_share_every_step_and_an_incomplete_one_is_left_out() {
        let share = |rank, ranks, micro_batch, accumulation| Share {
            rank,
            ranks,
            micro_batch,
            accumulation,
        };
        let places = |share: Share, range| share.places(range).collect::<Vec<_>>();
        assert_eq!(places(share(0, 1, 4, 1), 0..11), (0..8).collect::<Vec<_>>());
        assert_eq!(places(share(0, 2, 2, 1), 0..11), [0, 1, 4, 5]);
        assert_eq!(places(share(1, 2, 2, 1), 0..11), [2, 3, 6, 7]);
        assert_eq!(places(share(1, 2, 1, 2), 3..11), [5, 6, 9, 10]);
        assert_eq!(places(share(0, 2, 4, 1), 9..11), Vec::<u64>::new());
    }
}
