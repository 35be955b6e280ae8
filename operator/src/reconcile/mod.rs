//! One round of one job: six calls, input and output only in the first and the last two.

mod agents;
mod apply;
mod changes;
mod events;
mod memory;
mod observe;
mod plan;
mod status;
mod unreadable;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use crds::status::ViTTrainingJobStatus;
use crds::{InvalidJob, Phase, ValidatedJob, ViTTrainingJob, conditions, labels};
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::client::ClientBuilder;
use kube::core::DeserializeGuard;
use kube::runtime::controller::Action;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::runtime::reflector::Store;
use kube::{Api, Client, Resource as _, ResourceExt as _};
use planner::SharedPlanner;
use tokio::sync::{Semaphore, mpsc};
use tower::limit::ConcurrencyLimitLayer;
use tower::timeout::TimeoutLayer;
use tracing::{Instrument as _, debug, info, info_span, warn};

use crate::cluster::caches::{Caches, Trigger};
use crate::cluster::pod_groups::PodGroups;
use crate::error::{self, Error};
use crate::metrics::Metrics;
use crate::policy::start;
use agents::AgentClient;
use memory::Memory;
#[cfg(test)]
pub(crate) use observe::Isolation;
pub(crate) use observe::Observation;
use observe::PROGRESS_INTERVAL;
use plan::Plan;

/// A job as the API server has it, whether it can be read or not.
pub(crate) type GuardedJob = DeserializeGuard<ViTTrainingJob>;

/// Until the cache shows our own last write.
const CATCH_UP: Duration = Duration::from_millis(100);
/// Between two looks at a gang that starts or stops; watches tell of nearly all changes before.
const IN_MOTION: Duration = Duration::from_secs(5);
/// Progress of all running jobs together is written so often a second at most.
const PROGRESS_WRITES: u32 = 25;
/// How many of their pods are ready is written so often a second for all gangs that start together, because it takes time from
/// the API server that their pods need ...
const START_WRITES: u32 = 5;
/// ... but so often for each of them.
const START_WRITTEN_EVERY: Duration = Duration::from_secs(60);
/// Jobs count as running whose agents were asked within this time, and as starting that were written as such within it.
const LATELY: Duration = Duration::from_secs(60);
/// Between two looks at a job that waits; watches tell of new capacity before.
const WAITING: Duration = Duration::from_secs(30);
/// Between two looks at a job that rests.
const RESTING: Duration = Duration::from_secs(300);

/// What jobs get beside their pods.
#[derive(Debug)]
pub(crate) struct Settings {
    /// Whether each gets a NetworkPolicy.
    pub(crate) network_policies: bool,
    /// Whether each gang gets a PodGroup.
    pub(crate) pod_groups: PodGroups,
}

/// Calls to the API server under way at once, of all rounds together. A server that is busy gets none faster through more of
/// them, and each would be a connection of its own, with its TLS handshake and its buffers.
const CALLS_AT_ONCE: usize = 32;
/// A call that has no answer by then failed, and is made again: the server may have lost its power, which the connection does not
/// tell. No call of a round is a watch.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// How many rounds may create pods at the same time: fewer than there can be, so that failures and suspensions always find room
/// while large gangs are created.
const GANGS_CREATED_AT_ONCE: usize = 48;
/// Until the next try to create the pods that a round has left out.
const NEXT_TURN: Duration = Duration::from_secs(1);
/// How many rounds may have Events under way. Those of further rounds are dropped: Events are not worth a growing queue.
const EVENTS_AT_ONCE: usize = 1024;

/// What every round works with.
pub(crate) struct Context {
    /// Lets no more than [`CALLS_AT_ONCE`] through, for [`CALL_TIMEOUT`] each.
    pub(crate) client: Client,
    /// The same again, for what lets go of GPUs: it must not queue behind a thousand pods that are being created.
    urgent: Client,
    pub(crate) jobs: Store<GuardedJob>,
    pub(crate) caches: Caches,
    pub(crate) memory: Memory,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) settings: Settings,
    agents: AgentClient,
    recorder: Recorder,
    /// Has a permit for each of [`EVENTS_AT_ONCE`].
    publishing: Arc<Semaphore>,
    /// Has a permit for each of [`GANGS_CREATED_AT_ONCE`].
    creating: Semaphore,
    /// Rounds begun, which tells them apart in the log.
    rounds: AtomicU64,
    /// Whether it was told that the API server does not know the group of a pod.
    told_of_lost_groups: Once,
    /// Locked while GPUs are looked for and promised.
    planner: SharedPlanner,
    triggers: mpsc::UnboundedSender<Trigger>,
}

impl Context {
    pub(crate) fn new(
        client: Client,
        jobs: Store<GuardedJob>,
        caches: Caches,
        triggers: mpsc::UnboundedSender<Trigger>,
        metrics: Arc<Metrics>,
        settings: Settings,
        instance: String,
    ) -> Self {
        let reporter = Reporter {
            controller: labels::MANAGER.into(),
            instance: Some(instance),
        };
        let urgent = limited(client.clone());
        // Only the rounds: whoever holds a lease must not queue behind a thousand pods.
        let client = limited(client);
        Self {
            recorder: Recorder::new(client.clone(), reporter),
            publishing: Arc::new(Semaphore::new(EVENTS_AT_ONCE)),
            creating: Semaphore::new(GANGS_CREATED_AT_ONCE),
            client,
            urgent,
            jobs,
            planner: caches.planner().clone(),
            caches,
            memory: Memory::default(),
            metrics,
            settings,
            agents: AgentClient::new(),
            rounds: AtomicU64::new(1),
            told_of_lost_groups: Once::new(),
            triggers,
        }
    }

    /// The client that carries a plan out.
    fn client_for(&self, plan: &Plan) -> &Client {
        if plan.lets_go() {
            &self.urgent
        } else {
            &self.client
        }
    }

    /// Publishes Events about a job beside the round, which never waits for them.
    fn publish(&self, job: ObjectReference, events: Vec<Event>) {
        if events.is_empty() {
            return;
        }
        let Ok(permit) = Arc::clone(&self.publishing).try_acquire_owned() else {
            warn!("dropped Events: too many are under way");
            return;
        };
        let recorder = self.recorder.clone();
        let publish = async move {
            for event in events {
                if let Err(error) = recorder.publish(&event, &job).await {
                    warn!(%error, reason = event.reason, "failed to create an Event");
                }
            }
            drop(permit);
        };
        tokio::spawn(publish.in_current_span());
    }

    /// Forgets everything about jobs that are gone.
    pub(crate) fn forget_gone(&self) {
        let uids: std::collections::HashSet<String> = self
            .jobs
            .state()
            .iter()
            .filter_map(|job| job.meta().uid.clone())
            .collect();
        self.memory.retain(|uid| uids.contains(uid));
        self.caches.retain(|uid| uids.contains(uid));
    }
}

fn limited(client: Client) -> Client {
    let namespace = client.default_namespace().to_owned();
    let service = tower::service_fn(move |request| {
        let client = client.clone();
        async move { client.send(request).await }
    });
    ClientBuilder::new(service, namespace)
        .with_layer(&TimeoutLayer::new(CALL_TIMEOUT))
        // Around the other: who waits for his turn is not late yet.
        .with_layer(&ConcurrencyLimitLayer::new(CALLS_AT_ONCE))
        .build()
}

/// One round, timed, logged and counted.
pub(crate) async fn reconcile(guarded: Arc<GuardedJob>, context: Arc<Context>) -> Result<Action, Error> {
    let span = info_span!(
        "reconcile",
        id = context.rounds.fetch_add(1, Ordering::Relaxed),
        job = guarded.name_any(),
        namespace = guarded.namespace().unwrap_or_default(),
        attempt = guarded
            .0
            .as_ref()
            .ok()
            .and_then(|job| job.status.as_ref())
            .map_or(0, |status| status.attempt),
    );
    let started = Instant::now();
    let uid = guarded.uid().unwrap_or_default();
    let result = match &guarded.0 {
        Ok(job) => round(&context, job).instrument(span.clone()).await,
        Err(invalid) => {
            unreadable::round(&context, invalid)
                .instrument(span.clone())
                .await
        }
    };
    context.metrics.reconciled(started.elapsed());
    match &result {
        Ok(_) => context.memory.succeeded(&uid),
        Err(error) if error.is_conflict() => {
            context.metrics.failed(error.category());
            debug!(parent: &span, %error, "the job changed meanwhile");
        }
        Err(error) => {
            context.metrics.failed(error.category());
            warn!(parent: &span, %error, category = error.category(), "reconcile failed");
            let event = events::event(
                EventType::Warning,
                conditions::reasons::RECONCILE_FAILED,
                "Reconcile",
                &error.to_string(),
            );
            span.in_scope(|| context.publish(guarded.object_ref(&()), vec![event]));
        }
    }
    result
}

async fn round(context: &Context, job: &ViTTrainingJob) -> Result<Action, Error> {
    if job.metadata.deletion_timestamp.is_some() || !job.is_for_vit_operator() {
        // What it owns goes with it, by owner references.
        return Ok(Action::await_change());
    }
    // 1. Observe: caches, and what agents have answered.
    let Some(observation) = observe::observe(context, Arc::new(job.clone())).await? else {
        return Ok(Action::requeue(CATCH_UP));
    };
    // 2. Validate: every error of the user is found here.
    let valid = crds::validate(&observation.job);
    // 3. Plan: a pure function, but for GPUs, which are looked for and promised in one step.
    let mut plan = plan_and_promise(context, &observation, &valid);
    // 4. Build: pure and infallible.
    let changes = changes::build(&observation, valid.as_ref().ok(), &plan);
    // 5. Apply: create and delete.
    let mut applied = apply::apply(context, context.client_for(&plan), &observation.job, changes).await;
    if let Err(error) = &applied
        && let Some(end) = plan::end_of_refused(&observation, &plan, error)
    {
        warn!(%error, "the API server rejects the gang for good");
        (plan, applied) = (end, Ok(()));
    }
    if matches!((&plan, &applied), (Plan::Expire, Ok(()))) {
        return Ok(Action::await_change());
    }
    // 6. Status: one write, and only if something changed. It is due after a failed call, too.
    let written = write_status(context, &observation, &plan, applied.as_ref().err()).await;
    settle_promise(context, &observation, &plan, &written);
    applied?;
    let status = written?;
    Ok(Action::requeue(next_round(context, &observation, &plan, &status)))
}

/// Takes back a promise that is certainly not recorded, and tells the jobs that wait. Where that is not known, it stays.
fn settle_promise(
    context: &Context,
    observation: &Observation,
    plan: &Plan,
    written: &Result<ViTTrainingJobStatus, Error>,
) {
    let uid = observation.job.uid().unwrap_or_default();
    let is_news = match (plan, written) {
        (Plan::Place { attempt, .. }, Err(error)) if error.is_refusal() => {
            let lets_go = context.planner.lock().release(&uid, *attempt);
            // Jobs that are refused again and again would wake one another in spite of their back-off.
            lets_go && !context.memory.is_failing(&uid)
        }
        (Plan::Place { .. }, _) | (_, Err(_)) => false,
        // The server took a status made from a version without the promise: an earlier write never came to be.
        (_, Ok(_)) => context
            .planner
            .lock()
            .release_open(&uid, observation.status().attempt),
    };
    if is_news {
        // The receiver lives as long as the process.
        let _ = context.triggers.send(Trigger::Waiting);
    }
}

fn plan_and_promise(
    context: &Context,
    observation: &Observation,
    valid: &Result<ValidatedJob, InvalidJob>,
) -> Plan {
    plan::plan(observation, valid, |attempt| {
        let started = Instant::now();
        let uid = observation.job.uid().unwrap_or_default();
        let decision = context.planner.place(&uid, attempt, observation.now);
        context.metrics.placed(started.elapsed());
        decision
    })
}

async fn write_status(
    context: &Context,
    observation: &Observation,
    plan: &Plan,
    hindrance: Option<&Error>,
) -> Result<ViTTrainingJobStatus, Error> {
    let job = &*observation.job;
    let last = observation.status();
    let mut next = status::next(observation, plan);
    if !hindrance.is_some_and(Error::is_conflict) {
        next = status::hindered(observation, next, hindrance);
    }
    // Where an earlier write may have promised something, only the server knows whether this is the last status.
    let is_open = context
        .planner
        .lock()
        .is_open(&job.uid().unwrap_or_default(), last.attempt);
    if !is_open && (next == last || can_wait(context, job, &last, &next)) {
        return Ok(next);
    }
    let client = context.client_for(plan).clone();
    let api: Api<ViTTrainingJob> = Api::namespaced(client, &job.namespace().unwrap_or_default());
    let object = ViTTrainingJob {
        status: Some(next.clone()),
        ..job.clone()
    };
    let written = apply::replace_status(&api, apply::kind::<ViTTrainingJob>(), &object).await?;
    context.memory.wrote(
        &job.uid().unwrap_or_default(),
        next.phase,
        written.resource_version(),
    );
    count(context, job, &last, &next, observation.now);
    if last.phase != next.phase {
        info!(
            from = last.phase.map_or("new", Phase::as_str),
            to = next.phase.map_or("new", Phase::as_str),
            "phase changed"
        );
    }
    context.publish(job.object_ref(&()), events::between(&last, &next));
    Ok(next)
}

/// Whether a status has no news but what moves all the time, and the last one was written only a moment ago. A job that comes to
/// its end is looked at no more so soon: what is known of it then is written at once.
fn can_wait(
    context: &Context,
    job: &ViTTrainingJob,
    last: &ViTTrainingJobStatus,
    next: &ViTTrainingJobStatus,
) -> bool {
    if !status::only_moves(last, next) {
        return false;
    }
    let pace = match next.phase {
        Some(Phase::Starting) => pace_of_starts(context),
        Some(Phase::Running) => pace(
            PROGRESS_INTERVAL,
            context.memory.asked_within(LATELY),
            PROGRESS_WRITES,
        ),
        _ => return false,
    };
    let written = context.memory.since_write(&job.uid().unwrap_or_default());
    written.is_some_and(|ago| ago < pace)
}

/// Time between two writes of what moves all the time, so that so many jobs together cost no more than `writes` a second.
fn pace(least: Duration, jobs: usize, writes: u32) -> Duration {
    let jobs = u32::try_from(jobs).unwrap_or(u32::MAX);
    least.max(Duration::from_secs(1).saturating_mul(jobs) / writes)
}

/// Time between two writes of how many pods of a gang that starts are ready.
fn pace_of_starts(context: &Context) -> Duration {
    pace(IN_MOTION, context.memory.starting_within(LATELY), START_WRITES).min(START_WRITTEN_EVERY)
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

/// The class of the failure after which a gang was placed again, which is known for good by then. A job that had to
/// wait for GPUs meanwhile was pending; one that changed its size did not fail.
fn restarted_after<'a>(last: &ViTTrainingJobStatus, next: &'a ViTTrainingJobStatus) -> Option<&'a str> {
    let failure = next.last_failure.as_ref()?;
    let is_placed =
        matches!(last.phase, Some(Phase::Restarting | Phase::Pending)) && next.phase == Some(Phase::Starting);
    (is_placed && failure.attempt == last.attempt).then_some(failure.class.as_str())
}

/// When to look again if nothing happens until then.
fn next_round(
    context: &Context,
    observation: &Observation,
    plan: &Plan,
    status: &ViTTrainingJobStatus,
) -> Duration {
    let after = |time: SignedDuration| Duration::try_from(time).unwrap_or(RESTING);
    match plan {
        Plan::Follow if status.phase == Some(Phase::Running) => PROGRESS_INTERVAL,
        // How long a node has been away, and how long the gang has taken, decides without anything happening.
        Plan::Follow if !observation.unready_nodes.is_empty() => IN_MOTION,
        Plan::Follow => {
            let left = start::left(&observation.job, status, observation.now).map(after);
            pace_of_starts(context).min(left.unwrap_or(RESTING).max(CATCH_UP))
        }
        Plan::Create { .. } => NEXT_TURN,
        Plan::CleanUp { .. } if observation.is_on_unready_node() => IN_MOTION,
        Plan::Wait(_) => WAITING,
        Plan::Rest(Some(time))
        | Plan::CleanUp {
            expires_in: Some(time),
            ..
        } => after(*time),
        Plan::Rest(None) | Plan::CleanUp { expires_in: None, .. } | Plan::Refuse(_) => RESTING,
        _ => IN_MOTION,
    }
}

/// When to try again after an error.
pub(crate) fn error_policy(job: Arc<GuardedJob>, error: &Error, context: Arc<Context>) -> Action {
    match error {
        Error::InvalidObject(_) => Action::await_change(),
        // Its end is near, and no event of this job tells of it.
        Error::LastJobsObject { .. } => Action::requeue(IN_MOTION),
        error if error.is_conflict() => Action::requeue(CATCH_UP),
        _ => Action::requeue(error::back_off(
            context.memory.failed(&job.uid().unwrap_or_default()),
        )),
    }
}

#[cfg(test)]
mod tests;
