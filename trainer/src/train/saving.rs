//! Checkpoints during training: when one is taken, and that training does not wait for its writing.
//!
//! Every rank holds the same weights and moments, so rank 0 alone copies and writes them; the others wait for it at the
//! end of an epoch and of training. One write is under way at a time. A checkpoint that becomes due meanwhile by
//! `checkpoint.everySteps` or `everySeconds` is put off to the first step after that write; the end of an epoch and the
//! end of training wait for it. Rank 0 tells a step ahead that one is due, so that all ranks settle the step whose state it
//! holds.

use contract::Activity;

use super::Trainer;
use crate::checkpoint::{Cadence, CheckpointFolder, Position, Snapshot, State, Writer, Written};
use crate::error::TrainError;

/// What rank 0 saves with.
#[derive(Debug)]
pub(super) struct Saver {
    writer: Writer,
    cadence: Cadence,
    /// Of the newest snapshot, or of the checkpoint that training continued from.
    newest: Option<Position>,
}

impl Saver {
    pub(super) fn new(
        folder: CheckpointFolder,
        config: &contract::CheckpointConfig,
        start: Position,
        restored: bool,
    ) -> Self {
        Self {
            writer: Writer::new(folder),
            cadence: Cadence::new(config, start.step),
            newest: restored.then_some(start),
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
        let is_due = !saver.writer.is_busy() && saver.cadence.is_due(step);
        self.tell(written);
        Ok(is_due)
    }

    /// Within an epoch: begins to save the state after the step that was settled last.
    pub(super) fn save(&mut self) -> Result<(), TrainError> {
        if self.saver.is_none() {
            return Ok(());
        }
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
        let Some(saver) = &mut self.saver else {
            return Ok(());
        };
        if saver.newest == Some(self.position) {
            return Ok(());
        }
        // Before the copy: two at a time would take twice the memory.
        let before = saver.writer.wait()?;
        let state = State::new(
            self.config.job.clone(),
            self.position,
            self.config.model.clone(),
            self.validation_accuracy,
        );
        let snapshot = Snapshot::take(state, &self.trained.tensors().parts())?;
        saver.writer.begin(snapshot, self.observer.writes())?;
        saver.cadence.taken(self.position.step);
        saver.newest = Some(self.position);
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
