//! Common steps: waiting, and checks of a job's status and training log.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use crds::{Phase, ViTTrainingJobStatus};
use serde_json::Value;
use vit_tests::training_log::{Steps, count};

use crate::context::{DEADLINE, Namespace};

/// Retries until there is no error; at the deadline, returns the last one.
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

/// Copies a folder's files to another, which is created if necessary. Returns their number.
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

/// Asserts that a text contains all these parts.
pub(crate) fn check_contains(text: &str, parts: &[&str]) -> Result<()> {
    for part in parts {
        ensure!(text.contains(part), "{part:?} is not in: {text}");
    }
    Ok(())
}

/// Asserts the number of a job's attempts, and of restarts after failures.
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
    let placement = status.placement.as_ref().context("no placement")?;
    Ok(placement.nodes.clone())
}

/// The step of the last checkpoint.
pub(crate) fn saved_step(status: &ViTTrainingJobStatus) -> Result<i64> {
    let checkpoint = status.last_checkpoint.as_ref().context("no lastCheckpoint")?;
    Ok(checkpoint.step)
}

impl Namespace<'_> {
    /// Waits until an attempt of the job trains.
    pub(crate) fn wait_attempt(&self, job: &str, attempt: i32) -> Result<ViTTrainingJobStatus> {
        self.wait(job, &format!("trains in attempt {attempt}"), |status| {
            status.attempt == attempt && status.phase == Some(Phase::Running)
        })
    }

    /// Waits until the message of a condition of the job contains `text`.
    pub(crate) fn wait_message(&self, job: &str, text: &str) -> Result<ViTTrainingJobStatus> {
        self.wait(job, &format!("reports: {text}"), |status| {
            let mut conditions = status.conditions.iter();
            conditions.any(|condition| condition.message.contains(text))
        })
    }

    /// Waits until the job has a checkpoint after the last one in its log. Asserts that no step is
    /// missing, and that only steps after the checkpoint of a later attempt are repeated.
    pub(crate) fn check_continues(&self, job: &str) -> Result<Steps> {
        let saved = self.steps(job)?.saved;
        self.wait_checkpoint_after(job, saved)?;
        self.steps(job)
    }

    /// Asserts the same for a finished job, and that all its steps are done and saved.
    pub(crate) fn check_steps(&self, job: &str) -> Result<Steps> {
        let steps = self.steps(job)?;
        let total = self.status(job)?.progress.context("no progress")?.total_steps;
        ensure!(
            steps.done == total && steps.saved == total,
            "{job} has {total} steps: {steps:?}"
        );
        Ok(steps)
    }

    /// The steps in a job's log so far. Asserts that no step is missing or repeated without need.
    pub(crate) fn steps(&self, job: &str) -> Result<Steps> {
        let steps_per_epoch = {
            let job = self.context.block_on(async { self.jobs().get(job).await })?;
            let progress = job.status.and_then(|status| status.progress);
            let total = progress.context("no progress")?.total_steps;
            total / i64::from(job.spec.training.epochs)
        };
        count(&self.log(job)?, steps_per_epoch).with_context(|| format!("the log of {job}"))
    }

    /// Each rank's images per step, from the last such line of the job's log.
    pub(crate) fn shares(&self, job: &str) -> Result<Vec<i64>> {
        let mut last = None;
        for line in self.log(job)?.lines() {
            let record: Value = serde_json::from_str(line)?;
            if record["kind"] == "shares" {
                last = Some(serde_json::from_value(record["images"].clone())?);
            }
        }
        last.context("the log has no shares")
    }

    /// The complete lines of a job's training log.
    fn log(&self, job: &str) -> Result<String> {
        let path = self.folder.join("checkpoints").join(job).join("log.jsonl");
        let mut log = fs_err::read_to_string(&path)?;
        // The last line may be incomplete.
        log.truncate(log.rfind('\n').unwrap_or(0));
        Ok(log)
    }
}
