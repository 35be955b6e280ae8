//! What the log of a job's training tells of its optimizer steps.

use anyhow::{Context as _, Result, ensure};
use crds::{Phase, ViTTrainingJob};
use kube::api::PostParams;
use serde_json::{Value, json};

use crate::context::Namespace;

/// So many steps, of an epoch with its checkpoint at most, may not have come into the log yet when an attempt is killed.
const UNLOGGED_STEPS: i64 = 100;

/// Optimizer steps of a job's training.
#[derive(Debug)]
pub(crate) struct Steps {
    pub(crate) done: i64,
    pub(crate) saved: i64,
    /// Done anew after a checkpoint from before them.
    pub(crate) again: i64,
}

impl Namespace<'_> {
    /// Asserts from the log of a job's training that no optimizer step is missing, and none is done twice but those
    /// after the checkpoint that a later attempt continued from.
    pub(crate) fn check_steps(&self, job: &str) -> Result<()> {
        self.count_steps(job).map(drop)
    }

    /// Has a job that would train on for long end soon, as a user would: it is suspended, which saves its last step, deleted,
    /// and created again under its name with fewer epochs. Asserts that it ends well, and the same of the steps of both.
    pub(crate) fn finish_soon(&self, name: &str) -> Result<()> {
        self.patch(name, json!({"suspend": true}))?;
        let suspended = self.wait_phase(name, Phase::Suspended)?;
        self.wait_gone("pods")?;
        let before = self.steps(name)?;
        ensure!(
            before.done == before.saved,
            "suspended without a checkpoint of its last step: {before:?}"
        );

        let jobs = self.jobs();
        let mut spec = self.context.block_on(async { jobs.get(name).await })?.spec;
        let total = suspended.progress.context("progress is told")?.total_steps;
        let steps_per_epoch = total / i64::from(spec.training.epochs);
        spec.training.epochs = i32::try_from(before.done / steps_per_epoch + 2)?;
        spec.suspend = false;
        self.kubectl(["delete", "vtj", name])?;
        let job = ViTTrainingJob::new(name, spec);
        self.context
            .block_on(async { jobs.create(&PostParams::default(), &job).await })?;
        self.wait_phase(name, Phase::Succeeded)?;
        let steps = self.steps_of(name, 2)?;
        ensure!(
            steps.again == before.again,
            "{before:?} before the job was created again, {steps:?} after it"
        );
        self.check_all_done(name, &steps).map(drop)
    }

    /// Asserts the same; gives how many steps the job has, and how many of them were done twice.
    pub(crate) fn count_steps(&self, job: &str) -> Result<(i64, i64)> {
        let steps = self.steps(job)?;
        Ok((self.check_all_done(job, &steps)?, steps.again))
    }

    /// Asserts that all steps of a job are done and saved; gives how many it has.
    fn check_all_done(&self, job: &str, &Steps { done, saved, .. }: &Steps) -> Result<i64> {
        let progress = self.status(job)?.progress.context("progress is told")?;
        let total = progress.total_steps;
        ensure!(
            done == total && saved == total,
            "{job}: {done} of {total} steps done, {saved} saved"
        );
        Ok(total)
    }

    /// What the log of a job's training tells so far; asserts that no step is missing or done twice without need.
    pub(crate) fn steps(&self, job: &str) -> Result<Steps> {
        self.steps_of(job, 1)
    }

    /// The same, where so many jobs of one name have trained after one another; each begins with attempt 1.
    fn steps_of(&self, job: &str, jobs: u32) -> Result<Steps> {
        let path = self.folder.join("checkpoints").join(job).join("log.jsonl");
        let log = fs_err::read_to_string(&path)?;
        let (mut begun, mut attempt) = (1, 0);
        let (mut done, mut told, mut saved, mut again) = (0, 0, 0, 0);
        // A line that is being written has no end yet.
        let complete = log.rsplit_once('\n').map_or("", |(complete, _)| complete);
        for line in complete.lines() {
            let record: Value =
                serde_json::from_str(line).with_context(|| format!("{}: {line}", path.display()))?;
            let step = record["step"]
                .as_i64()
                .with_context(|| format!("{}: no step in {line}", path.display()))?;
            match record["kind"].as_str() {
                Some("start") => {
                    if begun < jobs && record["attempt"] == 1 && attempt > 0 {
                        (begun, attempt) = (begun + 1, 0);
                    }
                    ensure!(
                        record["attempt"] == attempt + 1,
                        "attempt {attempt} is followed by {line}"
                    );
                    // A checkpoint that was complete may not have been logged yet when its attempt ended.
                    ensure!(
                        step >= saved,
                        "the last checkpoint has step {saved}, and the attempt starts as {line}"
                    );
                    ensure!(
                        step <= done.max(saved) + UNLOGGED_STEPS,
                        "{done} steps were done and {saved} saved, and the attempt starts as {line}"
                    );
                    again += (done - step).max(0);
                    (attempt, done, told) = (attempt + 1, step, step);
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
                    ensure!(
                        step > saved,
                        "the checkpoint of step {saved} is followed by {line}"
                    );
                    saved = step;
                    done = done.max(step);
                }
                _ => {}
            }
        }
        ensure!(begun == jobs, "{begun} of {jobs} jobs are in {}", path.display());
        Ok(Steps { done, saved, again })
    }
}
