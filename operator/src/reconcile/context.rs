//! What all rounds share.

use std::collections::HashSet;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Once};
use std::time::Duration;

use crds::labels;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::client::ClientBuilder;
use kube::runtime::events::{Event, Recorder, Reporter};
use kube::runtime::reflector::Store;
use kube::{Client, Resource as _};
use planner::{GuardedJob, SharedPlanner};
use tokio::sync::{Semaphore, mpsc};
use tower::limit::ConcurrencyLimitLayer;
use tower::timeout::TimeoutLayer;
use tracing::{Instrument as _, warn};

use super::agents::AgentClient;
use super::memory::Memory;
use crate::metrics::Metrics;
use crate::watch::caches::Caches;
use crate::watch::pod_groups::PodGroups;
use crate::watch::trigger::Trigger;

/// Calls to the API server under way at once, of all rounds together. A server that is busy gets none faster through more of
/// them, and each would be a connection of its own, with its TLS handshake and its buffers.
pub(super) const CALLS_AT_ONCE: usize = 32;
/// A call that has no answer by then failed, and is made again: the server may have lost its power, which the connection does not
/// tell. No call of a round is a watch.
pub(super) const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// How many rounds may create pods at the same time: fewer than there can be, so that failures and suspensions always find room
/// while large gangs are created.
const GANGS_CREATED_AT_ONCE: usize = 48;
/// How many rounds may have Events under way. Those of further rounds are dropped: Events are not worth a growing queue.
const EVENTS_AT_ONCE: usize = 1024;

#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) network_policies: bool,
    pub(crate) pod_groups: PodGroups,
    /// Of what stands beside another trainer in its pods.
    pub(crate) agent_image: Option<String>,
}

pub(crate) struct Context {
    /// Lets no more than [`CALLS_AT_ONCE`] through, for [`CALL_TIMEOUT`] each.
    pub(crate) client: Client,
    /// The same again, for what lets go of GPUs: it must not queue behind a thousand pods that are being created.
    pub(super) urgent: Client,
    pub(crate) jobs: Store<GuardedJob>,
    pub(crate) caches: Caches,
    pub(crate) memory: Memory,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) settings: Settings,
    pub(super) agents: AgentClient,
    recorder: Recorder,
    /// Has a permit for each of [`EVENTS_AT_ONCE`].
    publishing: Arc<Semaphore>,
    /// Has a permit for each of [`GANGS_CREATED_AT_ONCE`].
    pub(super) creating: Semaphore,
    /// Rounds begun, which tells them apart in the log.
    pub(super) rounds: AtomicU64,
    /// Whether it was logged that the API server does not know the group of a pod.
    pub(super) has_warned_of_lost_groups: Once,
    /// Locked while GPUs are looked for and promised.
    pub(super) planner: SharedPlanner,
    pub(super) triggers: mpsc::UnboundedSender<Trigger>,
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
            has_warned_of_lost_groups: Once::new(),
            triggers,
        }
    }

    /// Publishes Events about a job beside the round, which never waits for them.
    pub(crate) fn publish(&self, job: ObjectReference, events: Vec<Event>) {
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

    pub(crate) fn forget_gone(&self) {
        let uids: HashSet<String> = self
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
