//! Checkpoints during training: when one is taken, and that training does not wait for its writing.
//!
//! Rank 0 alone writes, or every rank its share; all wait for the write at the end of an epoch and of training. Where every rank
//! holds the same weights and moments, a writer copies its own; where they are divided it collects the parts, and every rank
//! takes part in the snapshot. One write is under way at a time. A checkpoint that becomes due meanwhile by
//! `checkpoint.everySteps` or `everySeconds` is put off to the first step after that write; the end of an epoch and the
//! end of training wait for it. Rank 0 tells a step ahead that one is due, so that all ranks settle the step whose state it
//! holds.

use std::time::Instant;

use contract::Activity;

use super::Trainer;
use crate::checkpoint::{Cadence, CheckpointFolder, Snapshot, State, Writer, Written};
use crate::error::TrainError;

/// What a rank that writes saves with.
#[derive(Debug)]
pub(super) struct Saver {
    writer: Writer,
    /// Of rank 0, which says when a checkpoint is due.
    cadence: Option<Cadence>,
}

impl Saver {
    pub(super) fn new(folder: CheckpointFolder, cadence: Option<Cadence>) -> Self {
        Self {
            writer: Writer::new(folder),
            cadence,
        }
    }
}

impl Trainer {
    /// Whether a checkpoint is due after `step` and can be taken; false on all ranks but rank 0. Tells of a write that has ended.
    pub(super) fn save_is_due_after(&mut self, step: u64) -> Result<bool, TrainError> {
        let Some(saver) = &mut self.saver else {
            return Ok(false);
        };
        let written = saver.writer.poll()?;
        let cadence = saver.cadence.as_ref();
        let is_due = !saver.writer.is_busy() && cadence.is_some_and(|cadence| cadence.is_due(step));
        self.tell(written);
        Ok(is_due)
    }

    /// Within an epoch: begins to save the state after the step that was settled last.
    pub(super) fn save(&mut self) -> Result<(), TrainError> {
        self.observer.turn_to(Activity::Checkpointing);
        self.begin_save()?;
        self.observer.turn_to(Activity::Training);
        Ok(())
    }

    /// Begins to save the present state. Every rank returns once rank 0 has begun, which may have to wait for the previous
    /// write first. Ranks that went on would wait in their next step, where their agents kill them if the job is stopped.
    pub(super) fn begin_save_together(&mut self) -> Result<(), TrainError> {
        self.observer.turn_to(Activity::Checkpointing);
        self.begin_save()?;
        self.world.barrier()?;
        self.observer.turn_to(Activity::Training);
        Ok(())
    }

    /// Copies the present state and begins to write it, once the write before has ended.
    fn begin_save(&mut self) -> Result<(), TrainError> {
        if self.saved == Some(self.position) {
            return Ok(());
        }
        self.saved = Some(self.position);
        // Before the copy: two at a time would take twice the memory.
        let before = match &mut self.saver {
            Some(saver) => saver.writer.wait()?,
            None => None,
        };
        let start = Instant::now();
        let files = self.trained.state().collect(&self.world, self.writers)?;
        if let Some(saver) = &mut self.saver {
            let state = State::new(
                self.config.job.clone(),
                self.position,
                self.config.model.clone(),
                self.validation,
                self.data_identity.clone(),
            );
            let snapshot = Snapshot::new(state, files, start.elapsed());
            saver.writer.begin(snapshot, self.observer.writes())?;
            if let Some(cadence) = &mut saver.cadence {
                cadence.taken(self.position.step);
            }
        }
        self.tell(before);
        Ok(())
    }

    /// Saves the present state; every rank returns once it is complete.
    pub(super) fn save_and_wait(&mut self) -> Result<(), TrainError> {
        self.observer.turn_to(Activity::Checkpointing);
        self.begin_save()?;
        if let Some(saver) = &mut self.saver {
            let written = saver.writer.wait()?;
            self.tell(written);
        }
        self.world.barrier()
    }

    /// Training has failed: a write under way still ends well.
    pub(super) fn finish_save_after_failure(&mut self) {
        if let Some(saver) = &mut self.saver {
            let written = saver.writer.wait_after_failure();
            self.tell(written);
        }
    }

    fn tell(&mut self, written: Option<Written>) {
        if let Some(written) = written {
            self.observer.checkpoint(&written);
        }
    }
}
