//! One round of one job.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crds::status::ViTTrainingJobStatus;
use crds::{InvalidJob, Phase, StoredJob, ValidatedJob, ViTTrainingJob, conditions};
use kube::runtime::controller::Action;
use kube::runtime::events::EventType;
use kube::{Api, Resource as _, ResourceExt as _};
use tokio::time::Instant;
use tracing::{Instrument as _, debug, info, info_span, warn};

use super::apply::Applied;
use super::context::Context;
use super::observation::Observation;
use super::pace::{NEXT_TURN, can_wait};
use super::step::{Step, Write};
use super::{apply, decide, events, observe, poll, status, warnings};
use crate::error::Error;
use crate::objects;
use crate::stored::leave_alone;
use crate::watch::trigger::Trigger;

/// The API server's finalizer of a deletion that leaves what the object owns.
const ORPHAN: &str = "orphan";

/// Runs one round, and times, logs and counts it.
pub(crate) async fn reconcile(stored: Arc<StoredJob>, context: Arc<Context>) -> Result<Action, Error> {
    let span = info_span!(
        "reconcile",
        id = context.rounds.fetch_add(1, Ordering::Relaxed),
        job = stored.name_any(),
        namespace = stored.namespace().unwrap_or_default(),
        attempt = stored
            .readable()
            .and_then(|job| job.status.as_ref())
            .map_or(0, |status| status.attempt),
    );
    let (started, now) = (Instant::now(), context.settings.clock.now());
    let uid = stored.uid().unwrap_or_default();
    let running = async {
        match &stored.0 {
            Ok(job) => round(&context, job).await,
            Err(unreadable) => leave_alone::<ViTTrainingJob>(&context.client, now, unreadable).await,
        }
    };
    let result = Box::pin(context.contain(running.instrument(span.clone()))).await;
    context.metrics.reconciled(started.elapsed());
    match &result {
        Ok(_) => context.memory.succeeded(&uid),
        Err(error) if error.is_of_deleted() => {
            debug!(parent: &span, %error, "the job was deleted meanwhile");
            return Ok(Action::await_change());
        }
        Err(error) if error.is_conflict() => {
            context.metrics.failed(error.category());
            debug!(parent: &span, %error, "the job changed meanwhile");
            if context.memory.failures(&uid) > 0 {
                let read = context.jobs.read_again(&context.client, &stored);
                read.instrument(span).await;
            }
        }
        Err(error) => {
            context.metrics.failed(error.category());
            warn!(parent: &span, %error, category = error.category(), "reconcile failed");
            if !context.memory.reports(&uid, error) {
                return result;
            }
            let event = events::event(
                EventType::Warning,
                conditions::reasons::RECONCILE_FAILED,
                "Reconcile",
                &error.to_string(),
            );
            span.in_scope(|| context.publish(stored.object_ref(&()), vec![event]));
        }
    }
    result
}

async fn round(context: &Context, job: &ViTTrainingJob) -> Result<Action, Error> {
    if !job.is_for_vit_operator() {
        return Ok(Action::await_change());
    }
    if job.metadata.deletion_timestamp.is_some() {
        return depart(context, job).await;
    }
    let job = Arc::new(job.clone());
    let mut seen = observe::observe(context, Arc::clone(&job));
    if observe::catch_up(context, &seen).await? {
        seen = observe::observe(context, job);
    }
    let valid = crds::validate(&seen.job);
    // Pure, except that the planner finds and promises GPUs in one step.
    let mut step = decide_and_promise(context, &seen, &valid);
    poll::poll(context, &seen);
    warnings::read(context, &seen);
    let writes = std::mem::take(&mut step.writes);
    let deletes_job = writes.contains(&Write::DeleteJob);
    let client = context.client_for(step.is_urgent);
    let mut applied = apply::apply(context, client, &seen.job, writes).await;
    if let (Err(error), Some(pod)) = (&applied, &step.blames) {
        if error.is_final() {
            warn!(%error, "the API server rejects the gang; retrying cannot help");
            (step, applied) = (decide::end_of_refused(&seen, pod, error), Ok(Applied::All));
        } else if error.is_over_quota() {
            info!(%error, "a ResourceQuota refuses the gang, which waits without GPUs");
            (step, applied) = (decide::over_quota(&seen, error), Ok(Applied::All));
        }
    }
    if deletes_job && applied.is_ok() {
        return Ok(Action::await_change());
    }
    // Also after a failed call.
    let written = write_status(context, &seen, &step, applied.as_ref().err()).await;
    if let Err(error) = &written {
        not_written(context, &seen, &step, error);
    }
    let applied = applied?;
    written?;
    Ok(next_round(applied, &step))
}

/// Stops the gang of a job that is being deleted: a finalizer of others may keep the job, and what its
/// owner references delete, for long. The garbage collector does the rest.
async fn depart(context: &Context, job: &ViTTrainingJob) -> Result<Action, Error> {
    if job.finalizers().iter().any(|finalizer| finalizer == ORPHAN) {
        return Ok(Action::await_change());
    }
    let seen = observe::observe(context, Arc::new(job.clone()));
    let Some(mut step) = decide::depart(&seen) else {
        return Ok(Action::await_change());
    };
    let writes = std::mem::take(&mut step.writes);
    let applied = apply::apply(context, &context.urgent, job, writes).await?;
    Ok(next_round(applied, &step))
}

fn next_round(applied: Applied, step: &Step) -> Action {
    Action::requeue(match applied {
        Applied::All => step.look_again,
        Applied::Part => NEXT_TURN,
    })
}

/// Releases the GPUs that a status promised if the API server certainly refused it, and triggers
/// waiting jobs. Otherwise it may still store it, until it stores another: the next round writes one.
fn not_written(context: &Context, seen: &Observation, step: &Step, error: &Error) {
    let uid = seen.job.uid().unwrap_or_default();
    if error.is_refusal() {
        let is_released = context.planner.lock().release(&uid, step.status.attempt);
        // Repeatedly refused jobs would wake one another despite their back-off.
        if is_released && context.memory.failures(&uid) == 0 {
            // The receiver lives as long as the process.
            let _ = context.triggers.send(Trigger::Capacity);
        }
    } else if step.status.attempt > seen.status().attempt {
        let version = seen.job.resource_version().unwrap_or_default();
        let why = format!("{error}; it may still be stored, over version {version} of the job");
        context.memory.doubt(&uid, version, why);
    }
}

pub(super) fn decide_and_promise(
    context: &Context,
    seen: &Observation,
    valid: &Result<ValidatedJob, InvalidJob>,
) -> Step {
    let uid = seen.job.uid().unwrap_or_default();
    let version = seen.job.resource_version();
    let place = |attempt| {
        let started = Instant::now();
        let decision = context.planner.place(&uid, version.as_deref(), attempt, seen.now);
        context.metrics.placed(started.elapsed());
        decision
    };
    let growth = || context.planner.growth(&uid, seen.now);
    decide::decide(seen, valid, place, growth)
}

/// Writes the status if it changed, with the error of a failed call. If the last write may still be
/// stored, it changes: the API server does not store what changes nothing.
async fn write_status(
    context: &Context,
    seen: &Observation,
    step: &Step,
    error: Option<&Error>,
) -> Result<(), Error> {
    let job = &*seen.job;
    let uid = job.uid().unwrap_or_default();
    let last = seen.status();
    let version = job.resource_version();
    if let Some(before) = context.memory.stored_after_all(&uid, version.as_deref(), &last) {
        report(context, seen, &before, &last);
    }
    let mut next = ViTTrainingJobStatus::clone(&step.status);
    let doubt = context.memory.doubt_about(&uid, version.as_deref());
    if doubt.is_some() || error.is_none_or(|error| context.memory.reports(&uid, error)) {
        let why = doubt.or_else(|| error.map(Error::to_string));
        next = status::with_error(seen, next, why.as_deref());
    }
    if next == last || can_wait(context, job, &last, &next) {
        return Ok(());
    }
    let client = context.client_for(step.is_urgent).clone();
    let api: Api<StoredJob> = Api::namespaced(client, &job.namespace().unwrap_or_default());
    let written = objects::patch_status(&api, &job.metadata, [&job.status, &Some(next.clone())]).await;
    let written = written.inspect_err(|error| {
        if !error.is_refusal() {
            let version = version.unwrap_or_default();
            context
                .memory
                .unanswered(&uid, version, [last.clone(), next.clone()]);
        }
    })?;
    context.jobs.answered(written);
    context.memory.wrote(&uid, next.phase);
    report(context, seen, &last, &next);
    Ok(())
}

/// Counts, logs and publishes a transition that is stored.
fn report(context: &Context, seen: &Observation, last: &ViTTrainingJobStatus, next: &ViTTrainingJobStatus) {
    count(context, &seen.job, last, next, seen.now);
    if last.phase != next.phase {
        info!(
            from = last.phase.map_or("new", Phase::as_str),
            to = next.phase.map_or("new", Phase::as_str),
            "phase changed"
        );
    }
    context.publish(seen.job.object_ref(&()), events::between(last, next));
}

fn count(
    context: &Context,
    job: &ViTTrainingJob,
    last: &ViTTrainingJobStatus,
    next: &ViTTrainingJobStatus,
    now: jiff::Timestamp,
) {
    if let Some(class) = restarted_after(last, next) {
        context.metrics.restarted(class);
    }
    if last.phase != Some(Phase::Running)
        && next.phase == Some(Phase::Running)
        && next.attempt == 1
        && let Some(created) = job.creation_timestamp()
    {
        context
            .metrics
            .first_run_after(now.duration_since(created.0).as_secs_f64());
    }
}

/// The class of the failure after which a gang was placed again, final by then. A job that waited
/// for GPUs was pending; one that changed its size did not fail.
pub(super) fn restarted_after<'a>(
    last: &ViTTrainingJobStatus,
    next: &'a ViTTrainingJobStatus,
) -> Option<&'a str> {
    let failure = next.last_failure.as_ref()?;
    let is_placed =
        matches!(last.phase, Some(Phase::Restarting | Phase::Pending)) && next.phase == Some(Phase::Starting);
    (is_placed && failure.attempt == last.attempt).then_some(failure.class.as_str())
}
