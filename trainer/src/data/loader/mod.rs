//! The batches of one rank, one after the other.

mod pipeline;

use std::rc::Rc;
use std::sync::Arc;

use super::DataError;
use super::augment::{Moment, Preparation};
use super::batch::{Batch, Readable};
use super::order::Item;
use super::resident::Resident;

pub(super) use pipeline::Pipeline;

/// What batches are to be made of.
#[derive(Debug)]
pub(super) struct Task {
    pub(super) items: Vec<Item>,
    pub(super) batch_size: usize,
    /// The epoch that is trained; `None` to evaluate.
    pub(super) epoch: Option<u32>,
    pub(super) readable: Readable,
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
}

impl ResidentBatches {
    fn next(&mut self) -> Option<Batch> {
        let rest = &self.task.items[self.done..];
        if rest.is_empty() {
            return None;
        }
        let items = &rest[..rest.len().min(self.task.batch_size)];
        self.done += items.len();
        let (images, labels) = self.images.rows(items, self.preparation.device);
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
