//! State shared by all rounds.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Once};
use std::time::Duration;

use crds::{StoredJob, labels};
use futures::FutureExt as _;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::client::ClientBuilder;
use kube::client::retry::RetryPolicy;
use kube::runtime::events::{Event, Recorder, Reporter};
use kube::{Client, Resource as _};
use planner::SharedPlanner;
use tokio::sync::{Semaphore, mpsc};
use tower::BoxError;
use tower::limit::ConcurrencyLimitLayer;
use tower::retry::RetryLayer;
use tower::timeout::TimeoutLayer;
use tower::util::option_layer;
use tracing::{Instrument as _, warn};

use super::agents::AgentClient;
use super::dry_run::DryRuns;
use super::memory::Memory;
use crate::clock::Clock;
use crate::error::Error;
use crate::metrics::Metrics;
use crate::watch::cache::Cache;
use crate::watch::caches::Caches;
use crate::watch::pod_groups::PodGroups;
use crate::watch::trigger::Trigger;

/// Concurrent calls to the API server of all rounds. More do not speed up a busy server, and each
/// would need its own connection.
pub(super) const CALLS_AT_ONCE: usize = 32;
/// Time within which a call's answer must begin; the round is then repeated. No call of a round is a
/// watch.
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Rounds that may create pods concurrently: fewer than all, so that failures and suspensions are
/// handled while large gangs are created.
const GANGS_CREATED_AT_ONCE: usize = 48;
/// Rounds with Events in flight. Events of further rounds are dropped, to bound the queue.
const EVENTS_AT_ONCE: usize = 1024;

#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) network_policies: bool,
    pub(crate) pod_groups: PodGroups,
    /// Of the sidecar of other trainers.
    pub(crate) agent_image: Option<String>,
    pub(crate) clock: Clock,
}

pub(crate) struct Context {
    /// Limited to [`CALLS_AT_ONCE`], each with [`CALL_TIMEOUT`].
    pub(crate) client: Client,
    /// The same for calls that release GPUs, so that they do not queue behind the creation of pods.
    pub(super) urgent: Client,
    pub(crate) jobs: Cache<StoredJob>,
    pub(crate) caches: Caches,
    pub(crate) memory: Arc<Memory>,
    pub(super) dry_runs: DryRuns,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) settings: Settings,
    pub(super) agents: AgentClient,
    recorder: Recorder,
    /// [`EVENTS_AT_ONCE`] permits.
    publishing: Arc<Semaphore>,
    /// [`GANGS_CREATED_AT_ONCE`] permits.
    pub(super) creating: Semaphore,
    /// Rounds started: their id in the log.
    pub(super) rounds: AtomicU64,
    /// Whether the log says that an API server dropped the group of a pod.
    pub(super) has_warned_of_lost_groups: Once,
    /// Locked while GPUs are found and promised.
    pub(super) planner: SharedPlanner,
    pub(super) triggers: mpsc::UnboundedSender<Trigger>,
}

impl Context {
    pub(crate) fn new(
        client: Client,
        jobs: Cache<StoredJob>,
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
        // Only rounds are limited: lease renewals must not queue behind the creation of pods.
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
            memory: Arc::default(),
            dry_runs: DryRuns::default(),
            metrics,
            settings,
            agents: AgentClient::new(),
            rounds: AtomicU64::new(1),
            has_warned_of_lost_groups: Once::new(),
            triggers,
        }
    }

    /// The client for the calls of a step.
    pub(super) fn client_for(&self, is_urgent: bool) -> &Client {
        if is_urgent { &self.urgent } else { &self.client }
    }

    /// Turns a panic of a round into its error, so that it ends no other. If it interrupted the planner,
    /// it goes on and ends the process: GPUs might be promised twice.
    pub(crate) async fn contain<T>(&self, round: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        AssertUnwindSafe(round)
            .catch_unwind()
            .await
            .unwrap_or_else(|panic| {
                if self.planner.is_poisoned() {
                    resume_unwind(panic);
                }
                let formatted = || panic.downcast_ref::<String>().cloned();
                let words = panic.downcast_ref::<&str>().map(ToString::to_string);
                Err(Error::Panicked(words.or_else(formatted).unwrap_or_default()))
            })
    }

    /// Publishes Events about a job in the background.
    pub(crate) fn publish(&self, job: ObjectReference, events: Vec<Event>) {
        if events.is_empty() {
            return;
        }
        let Ok(permit) = Arc::clone(&self.publishing).try_acquire_owned() else {
            warn!("dropped Events: too many are in flight");
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

    pub(crate) fn forget_gone(&self) {
        let uids: HashSet<String> = self
            .jobs
            .store()
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
        async move { client.send(request).await.map_err(BoxError::from) }
    });
    ClientBuilder::new(service, namespace)
        .with_layer(&option_layer(retries().map(RetryLayer::new)))
        .with_layer(&TimeoutLayer::new(CALL_TIMEOUT))
        // Outside the timeout, which must not include the wait for a permit.
        .with_layer(&ConcurrencyLimitLayer::new(CALLS_AT_ONCE))
        .build()
}

/// Four further tries if the API server is busy, within about three seconds, or when it says.
fn retries() -> Option<RetryPolicy> {
    RetryPolicy::new(Duration::from_millis(200), Duration::from_secs(5), 4, true).ok()
}
