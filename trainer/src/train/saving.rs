//! Checkpoints during training: when one is due, and writing without a wait.
//!
//! Rank 0 alone writes, or every rank its share; all wait for the write at the end of an epoch and
//! of training. If every rank holds the same weights and moments, a writer copies its own. If they
//! are sharded, writers collect the parts and every rank takes part in the snapshot. One write runs
//! at a time: a checkpoint that becomes due meanwhile waits for the first step after it. Rank 0
//! announces a checkpoint one step ahead, so that all ranks settle the step whose state it holds.

use std::time::Instant;

use contract::Activity;

use super::Trainer;
use crate::checkpoint::{Cadence, CheckpointFolder, Snapshot, State, Writer, Written};
use crate::error::TrainError;

/// The checkpoint writer of a rank that has one.
#[derive(Debug)]
pub(super) struct Saver {
    writer: Writer,
    /// Only on rank 0, which decides when a checkpoint is due.
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
    /// Whether rank 0 takes a checkpoint after `step`. Reports a write that has ended.
    pub(super) fn save_is_due_after(&mut self, step: u64) -> Result<bool, TrainError> {
        let Some(saver) = &mut self.saver else {
            return Ok(false);
        };
        let written = saver.writer.poll()?;
        let cadence = saver.cadence.as_ref();
        let is_due = !saver.writer.is_busy() && cadence.is_some_and(|cadence| cadence.is_due(step));
        self.report(written);
        Ok(is_due)
    }

    /// Within an epoch: starts saving the state after the step settled last.
    pub(super) fn save(&mut self) -> Result<(), TrainError> {
        self.observer.turn_to(Activity::Checkpointing);
        self.begin_save()?;
        self.observer.turn_to(Activity::Training);
        Ok(())
    }

    /// Starts saving the current state. Every rank returns once rank 0 has started. Otherwise ranks
    /// would wait in their next step, where their agents kill them if the job is stopped.
    pub(super) fn begin_save_together(&mut self) -> Result<(), TrainError> {
        self.observer.turn_to(Activity::Checkpointing);
        self.begin_save()?;
        self.world.barrier()?;
        self.observer.turn_to(Activity::Training);
        Ok(())
    }

    /// Copies the current state and starts writing it, once the previous write has ended.
    fn begin_save(&mut self) -> Result<(), TrainError> {
        if self.saved == Some(self.position) {
            return Ok(());
        }
        self.saved = Some(self.position);
        // Before the copy: two at once would need twice the memory.
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
        self.report(before);
        Ok(())
    }

    /// Saves the current state; every rank returns once it is complete.
    pub(super) fn save_and_wait(&mut self) -> Result<(), TrainError> {
        self.observer.turn_to(Activity::Checkpointing);
        self.begin_save()?;
        if let Some(saver) = &mut self.saver {
            let written = saver.writer.wait()?;
            self.report(written);
        }
        self.world.barrier()
    }

    /// Training has failed: a running write is still completed.
    pub(super) fn finish_save_after_failure(&mut self) {
        if let Some(saver) = &mut self.saver {
            let written = saver.writer.wait_after_failure();
            self.report(written);
        }
    }

    fn report(&mut self, written: Option<Written>) {
        if let Some(written) = written {
            self.observer.checkpoint(&written);
        }
    }
}
