//! The batches of one rank, one after the other.

mod pipeline;
mod resident;
mod stages;

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
    pub(super) batch_size: usize,
    /// The epoch that is trained; `None` to evaluate.
    pub(super) epoch: Option<u32>,
    pub(super) readable: Readable,
}

impl Task {
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
