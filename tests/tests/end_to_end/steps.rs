//! What stories do again and again: wait, and look at what a status and the log of a job's training tell.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use crds::{Phase, ViTTrainingJobStatus};
use serde_json::Value;
use vit_tests::training_log::{Steps, count};

use crate::context::{DEADLINE, Namespace};

/// Looks until there is no error, and gives up with the last one at the deadline.
pub(crate) fn until<T>(mut look: impl FnMut() -> Result<T>) -> Result<T> {
    let began = Instant::now();
    loop {
        let seen = look();
        if seen.is_ok() || began.elapsed() > DEADLINE {
            return seen.with_context(|| format!("waited {} s", DEADLINE.as_secs()));
        }
        std::thread::sleep(Duration::from_millis(250));
    }
}

/// Copies the files in a folder to another one, which is created if need be; how many there are.
pub(crate) fn copy_files(from: &Path, to: &Path) -> Result<usize> {
    fs_err::create_dir_all(to)?;
    let mut count = 0;
    for entry in fs_err::read_dir(from)? {
        let entry = entry?;
        fs_err::copy(entry.path(), to.join(entry.file_name()))?;
        count += 1;
    }
    Ok(count)
}

/// Asserts that a text has all these parts.
pub(crate) fn check_told(text: &str, parts: &[&str]) -> Result<()> {
    for part in parts {
        ensure!(text.contains(part), "{part:?} is not in: {text}");
    }
    Ok(())
}

/// Asserts how many attempts a job has had, and how many of them followed a failure.
pub(crate) fn check_attempts(status: &ViTTrainingJobStatus, attempt: i32, restarts: i32) -> Result<()> {
    let counted = (status.attempt, status.restarts);
    ensure!(
        counted == (attempt, restarts),
        "attempts and restarts: {counted:?}"
    );
    Ok(())
}

/// The nodes of a gang.
pub(crate) fn nodes_of(status: &ViTTrainingJobStatus) -> Result<Vec<String>> {
    let placement = status.placement.as_ref().context("placement is told")?;
    Ok(placement.nodes.clone())
}

/// The step of the last checkpoint.
pub(crate) fn saved_step(status: &ViTTrainingJobStatus) -> Result<i64> {
    let checkpoint = status.last_checkpoint.as_ref().context("a checkpoint is told")?;
    Ok(checkpoint.step)
}

impl Namespace<'_> {
    /// Waits until an attempt of the job trains.
    pub(crate) fn wait_attempt(&self, job: &str, attempt: i32) -> Result<ViTTrainingJobStatus> {
        self.wait(job, &format!("trains in attempt {attempt}"), |status| {
            status.attempt == attempt && status.phase == Some(Phase::Running)
        })
    }

    /// Waits until a condition of the job, or why it is not reconciled, tells this.
    pub(crate) fn wait_told(&self, job: &str, told: &str) -> Result<ViTTrainingJobStatus> {
        self.wait(job, &format!("tells: {told}"), |status| {
            let mut conditions = status.conditions.iter();
            conditions.any(|condition| condition.message.contains(told))
        })
    }

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
        count(&self.log(job)?, steps_per_epoch).with_context(|| format!("the log of {job}"))
    }

    /// Images of a step that each rank of a job takes, as its log tells last.
    pub(crate) fn shares(&self, job: &str) -> Result<Vec<i64>> {
        let mut last = None;
        for line in self.log(job)?.lines() {
            let record: Value = serde_json::from_str(line)?;
            if record["kind"] == "shares" {
                last = Some(serde_json::from_value(record["images"].clone())?);
            }
        }
        last.context("no shares are told")
    }

    /// The complete lines of the log of a job's training.
    fn log(&self, job: &str) -> Result<String> {
        let path = self.folder.join("checkpoints").join(job).join("log.jsonl");
        let mut log = fs_err::read_to_string(&path)?;
        // A line that is being written has no end yet.
        log.truncate(log.rfind('\n').unwrap_or(0));
        Ok(log)
    }
}
