//! What the log of a job's training tells of its optimizer steps.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::context::Namespace;

/// Optimizer steps of a job's training.
#[derive(Debug)]
pub(crate) struct Steps {
    pub(crate) done: i64,
    pub(crate) saved: i64,
    /// Done anew after a checkpoint from before them.
    pub(crate) again: i64,
    /// Done and saved by attempts that were killed before they logged that.
    pub(crate) unlogged: i64,
}

impl Namespace<'_> {
    /// Waits until the job has trained and saved further than its log tells now. Asserts that no optimizer step is missing, and
    /// none is done twice but those after the checkpoint that a later attempt continued from.
    pub(crate) fn check_continues(&self, job: &str) -> Result<Steps> {
        let saved = self.steps(job)?.saved;
        self.wait_checkpoint_after(job, saved)?;
        self.steps(job)
    }

    /// Asserts the same of a job that has ended, and that all its steps are done and saved.
    pub(crate) fn check_steps(&self, job: &str) -> Result<Steps> {
        let steps = self.steps(job)?;
        let total = self.total_steps(job)?;
        ensure!(
            steps.done == total && steps.saved == total,
            "{job} has {total} steps: {steps:?}"
        );
        Ok(steps)
    }

    fn total_steps(&self, job: &str) -> Result<i64> {
        Ok(self
            .status(job)?
            .progress
            .context("progress is told")?
            .total_steps)
    }

    /// What the log of a job's training tells so far; asserts that no step is missing or done twice without need.
    pub(crate) fn steps(&self, job: &str) -> Result<Steps> {
        let epochs = i64::from(
            self.context
                .block_on(async { self.jobs().get(job).await })?
                .spec
                .training
                .epochs,
        );
        let steps_per_epoch = self.total_steps(job)? / epochs;
        let path = self.folder.join("checkpoints").join(job).join("log.jsonl");
        let log = fs_err::read_to_string(&path)?;
        // A line that is being written has no end yet.
        let complete = log.rsplit_once('\n').map_or("", |(complete, _)| complete);
        count(complete, steps_per_epoch).with_context(|| path.display().to_string())
    }
}

/// Follows a log line by line. A checkpoint is due at the end of each epoch at the latest.
fn count(log: &str, steps_per_epoch: i64) -> Result<Steps> {
    let (mut attempt, mut start) = (0, 0);
    let (mut done, mut told, mut saved, mut again, mut unlogged) = (0, 0, 0, 0, 0);
    for line in log.lines() {
        let record: Value = serde_json::from_str(line).with_context(|| line.to_owned())?;
        let step = record["step"]
            .as_i64()
            .with_context(|| format!("no step in {line}"))?;
        match record["kind"].as_str() {
            Some("start") => {
                ensure!(
                    record["attempt"] == attempt + 1,
                    "attempt {attempt} is followed by {line}"
                );
                // An attempt that is killed may have completed the next checkpoint without having logged it.
                let next_due = (saved / steps_per_epoch + 1) * steps_per_epoch;
                ensure!(
                    (saved..=next_due).contains(&step),
                    "the last checkpoint has step {saved}, the next one was due at {next_due}, and the attempt starts as {line}"
                );
                again += (done - step).max(0);
                unlogged += step - saved;
                (attempt, start, done, told, saved) = (attempt + 1, step, step, step, step);
            }
            Some("train") => {
                ensure!(step >= done, "step {done} is followed by {line}");
                ensure!(
                    record["steps"] == step - told,
                    "the steps after {told} are not all in {line}"
                );
                (done, told) = (step, step);
            }
            // Written beside training, which is further by then.
            Some("checkpoint") => {
                // One that was stopped at the end of an epoch saves before the evaluation, and the next one after it.
                let is_evaluated_now = step == saved && step == start;
                ensure!(
                    step > saved || is_evaluated_now,
                    "the checkpoint of step {saved} is followed by {line}"
                );
                saved = step;
                done = done.max(step);
            }
            _ => {}
        }
    }
    Ok(Steps {
        done,
        saved,
        again,
        unlogged,
    })
}
