//! Injects random faults while jobs train, and measures recovery time and lost steps.
//!
//! Two slots each train one job after another: a gang of two nodes, and one of a single node. Each
//! round injects one fault or two; the next starts once every job trains again. A job without
//! progress for [`STUCK`] ends the run. `make chaos` calls it; the same seed chooses the same
//! faults.

mod fault;
mod report;

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use crds::{Phase, ViTTrainingJobStatus};
use fastrand::Rng;
use jiff::Timestamp;
use serde_json::json;

use crate::context::{Context, Namespace};
use fault::Fault;
use report::Report;

/// Longest time without a new step or attempt.
const STUCK: Duration = Duration::from_secs(300);
const POLL: Duration = Duration::from_millis(250);
/// Nodes of the gang of each slot.
const SLOTS: [u32; 2] = [2, 1];
/// Long enough for one or two faults.
const EPOCHS: u32 = 30;

/// Duration and seed from `VIT_CHAOS_MINUTES` and `VIT_CHAOS_SEED`; `None` if not requested.
pub(crate) fn wanted() -> Result<Option<(Duration, u64)>> {
    let Some(minutes) = std::env::var_os("VIT_CHAOS_MINUTES") else {
        return Ok(None);
    };
    let minutes: f64 = minutes
        .to_str()
        .and_then(|minutes| minutes.parse().ok())
        .filter(|minutes| (0.0..=1440.0).contains(minutes))
        .with_context(|| format!("VIT_CHAOS_MINUTES is {}: must be 0 to 1440", minutes.display()))?;
    let seed = match std::env::var("VIT_CHAOS_SEED") {
        Ok(seed) => seed
            .parse()
            .with_context(|| format!("VIT_CHAOS_SEED is {seed:?}: must be a whole number"))?,
        Err(_) => fastrand::u64(..),
    };
    Ok(Some((Duration::from_secs_f64(minutes * 60.0), seed)))
}

/// A slot and its current job.
pub(crate) struct Slot {
    nodes: u32,
    index: usize,
    job: String,
    jobs: u32,
}

/// A job's state before a fault.
struct Before {
    attempt: i32,
    hit: bool,
}

/// Injects faults until the time is over, lets the jobs finish, and reports.
pub(crate) fn jobs_survive_random_faults(context: &Context<'_>) -> Result<()> {
    let (duration, seed) = wanted()?.context("VIT_CHAOS_MINUTES is not set")?;
    let namespace = context.namespace("chaos")?;
    let mut rng = Rng::with_seed(seed);
    let mut report = Report::new(seed);
    let mut slots: Vec<Slot> = (0..)
        .zip(SLOTS)
        .map(|(index, nodes)| Slot {
            nodes,
            index,
            job: String::new(),
            jobs: 0,
        })
        .collect();
    for slot in &mut slots {
        slot.next(&namespace)?;
    }
    let began = Instant::now();
    while began.elapsed() < duration {
        for slot in &mut slots {
            if slot.is_over(&namespace)? {
                report.ended(&namespace, &slot.job)?;
                slot.next(&namespace)?;
            }
            slot.wait_training(&namespace)?;
        }
        round(context, &namespace, &slots, &mut rng, &mut report)?;
        report.print_progress(began.elapsed(), duration);
    }
    for slot in &slots {
        slot.wait(&namespace, "ends", |_| false)?;
        report.ended(&namespace, &slot.job)?;
    }
    namespace.kubectl(["delete", "vtj", "--all", "--timeout=120s"])?;
    namespace.wait_gone("vtj,pods,services,configmaps,networkpolicies")?;
    report.write(began.elapsed())
}

/// Injects one fault or two, and waits until every job trains again.
fn round(
    context: &Context<'_>,
    namespace: &Namespace<'_>,
    slots: &[Slot],
    rng: &mut Rng,
    report: &mut Report,
) -> Result<()> {
    let first = Fault::choose(rng);
    let second = (rng.u8(..4) == 0)
        .then(|| Fault::choose(rng))
        // Without two nodes the larger gang would rightly wait.
        .filter(|second| !(first.takes_a_node() && second.takes_a_node()));
    let mut before: Vec<Before> = Vec::new();
    let mut placed: Vec<Vec<String>> = Vec::new();
    for slot in slots {
        let status = slot.status(namespace)?.unwrap_or_default();
        before.push(Before {
            attempt: status.attempt,
            hit: false,
        });
        placed.push(
            status
                .placement
                .map(|placement| placement.nodes)
                .unwrap_or_default(),
        );
    }
    let began = Instant::now();
    let mut repairs = Vec::new();
    let mut struck = Vec::new();
    for fault in std::iter::once(first).chain(second) {
        let victim = rng.usize(..slots.len());
        let node_rank = rng.usize(..slots[victim].nodes as usize);
        let node = placed[victim].get(node_rank).cloned();
        // A job that has just ended or was replaced has nothing to hit.
        let job = &slots[victim].job;
        if let Some(repair) = fault.strike(context, namespace, job, node_rank, node.clone())? {
            for (hit, nodes) in before.iter_mut().zip(&placed) {
                hit.hit |= fault.takes_a_node() && node.as_ref().is_some_and(|node| nodes.contains(node));
            }
            before[victim].hit |= fault.takes_a_pod();
            repairs.push(repair);
            struck.push(fault);
        }
    }
    let since = Timestamp::now();
    let mut outcome = Ok(());
    for (slot, before) in slots.iter().zip(&before) {
        outcome = outcome.and_then(|()| slot.wait_again(namespace, before, since));
    }
    let seconds = began.elapsed().as_secs_f64();
    for repair in repairs {
        repair.done(context)?;
    }
    outcome.with_context(|| format!("after {struck:?}"))?;
    if !struck.is_empty() {
        report.survived(&struck, seconds);
    }
    Ok(())
}

impl Slot {
    /// Starts the slot's next job.
    fn next(&mut self, namespace: &Namespace<'_>) -> Result<()> {
        self.jobs += 1;
        self.job = format!("slot{}-{}", self.index, self.jobs);
        namespace.create(
            &self.job,
            json!({
                "workers": {"nodes": self.nodes},
                "training": {"epochs": EPOCHS},
                "failurePolicy": {"nodeLostSeconds": 5},
            }),
        )
    }

    /// The job's status; `None` while the API server is unreachable.
    fn status(&self, namespace: &Namespace<'_>) -> Result<Option<ViTTrainingJobStatus>> {
        let Ok(status) = namespace.status(&self.job) else {
            return Ok(None);
        };
        if status.phase == Some(Phase::Failed) {
            bail!("{} failed: {status:#?}", self.job);
        }
        Ok(Some(status))
    }

    fn is_over(&self, namespace: &Namespace<'_>) -> Result<bool> {
        Ok(self
            .status(namespace)?
            .is_some_and(|status| status.phase == Some(Phase::Succeeded)))
    }

    fn wait_training(&self, namespace: &Namespace<'_>) -> Result<()> {
        self.wait(namespace, "trains", |status| {
            status.phase == Some(Phase::Running) && status.last_checkpoint.is_some()
        })
    }

    /// Waits until progress after a fault is reported; by the next attempt if the gang was hit.
    fn wait_again(&self, namespace: &Namespace<'_>, before: &Before, since: Timestamp) -> Result<()> {
        self.wait(namespace, "trains again", |status| {
            // The last report of an earlier attempt may arrive after the fault.
            let placed = status
                .placement
                .as_ref()
                .and_then(|placement| placement.time.as_ref());
            let since = placed.map_or(since, |placed| placed.0.max(since));
            let is_reported = status
                .progress
                .as_ref()
                .and_then(|progress| progress.updated_at.as_ref())
                .is_some_and(|time| time.0 > since);
            let is_next = !before.hit || status.attempt > before.attempt;
            status.phase == Some(Phase::Running) && is_reported && is_next
        })
    }

    /// Waits until the status is as wanted, or the job has succeeded.
    fn wait(
        &self,
        namespace: &Namespace<'_>,
        what: &str,
        wanted: impl Fn(&ViTTrainingJobStatus) -> bool,
    ) -> Result<()> {
        let (mut moved, mut last) = (Instant::now(), None);
        loop {
            let status = self.status(namespace)?;
            let reached = status.as_ref().map(|status| {
                let step = status.progress.as_ref().map(|progress| progress.step);
                (status.attempt, step)
            });
            if reached.is_some() && reached != last {
                (moved, last) = (Instant::now(), reached);
            }
            let is_over = |status: &ViTTrainingJobStatus| status.phase == Some(Phase::Succeeded);
            if status
                .as_ref()
                .is_some_and(|status| is_over(status) || wanted(status))
            {
                return Ok(());
            }
            ensure!(
                moved.elapsed() < STUCK,
                "waiting until {} {what}: no progress for {} s; its status is {status:#?}",
                self.job,
                STUCK.as_secs()
            );
            std::thread::sleep(POLL);
        }
    }
}
