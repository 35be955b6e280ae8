//! What the log of a job's training tells of its optimizer steps.

use anyhow::{Context as _, Result, ensure};
use vit_tests::training_log::{Steps, count};

use crate::context::Namespace;

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
        let total = self
            .status(job)?
            .progress
            .context("progress is told")?
            .total_steps;
        ensure!(
            steps.done == total && steps.saved == total,
            "{job} has {total} steps: {steps:?}"
        );
        Ok(steps)
    }

    /// What the log of a job's training tells so far; asserts that no step is missing or done twice without need.
    pub(crate) fn steps(&self, job: &str) -> Result<Steps> {
        let steps_per_epoch = {
            let job = self.context.block_on(async { self.jobs().get(job).await })?;
            let progress = job.status.and_then(|status| status.progress);
            let total = progress.context("progress is told")?.total_steps;
            total / i64::from(job.spec.training.epochs)
        };
        let path = self.folder.join("checkpoints").join(job).join("log.jsonl");
        let log = fs_err::read_to_string(&path)?;
        // A line that is being written has no end yet.
        let complete = log.rsplit_once('\n').map_or("", |(complete, _)| complete);
        count(complete, steps_per_epoch).with_context(|| path.display().to_string())
    }
}
