//! Watches and caches of Nodes, pods, PriorityClasses, Services, NetworkPolicies and ConfigMaps.
//!
//! Nodes, pods and PriorityClasses are reduced to what [planning](planner) needs. Jobs' pods are
//! indexed by job, and the last state of a deleted pod is kept: it may say why the pod failed.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crds::ViTTrainingJob;
use futures::future::BoxFuture;
use futures::{FutureExt as _, Stream, StreamExt as _, future};
use jiff::Timestamp;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::core::PartialObjectMeta;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher::{self, Event, watcher as watch};
use kube::{Api, Client, Resource, ResourceExt as _};
use planner::facts::inventory::{NodeFacts, NodeHealth};
use planner::facts::pods::{JobKey, bound_node, has_ended};
use planner::facts::resources::requests_of;
use planner::{Planner, SharedPlanner};
use serde::de::DeserializeOwned;
use tokio::sync::{mpsc, watch as latest};
use tokio::time::Instant;
use tracing::warn;

use super::cache::{Cache, confirm};
use super::gangs::Gangs;
use super::kueue::Kueue;
use super::newest::Newest;
use super::stores::{own, store, triggering, watching};
use super::trigger::{Trigger, is_owned_by, own_api, owner_of};
use super::unready::Unready;
use crate::api::kueue::Workload;
use crate::policy::admission::Queue;
use crate::policy::gang::PodView;

/// Receivers of the watches' events.
#[derive(Clone)]
struct Subscribers {
    planner: SharedPlanner,
    triggers: mpsc::UnboundedSender<Trigger>,
}

#[derive(Clone, Debug)]
pub(crate) struct Caches {
    planner: SharedPlanner,
    services: Cache<PartialObjectMeta<Service>>,
    network_policies: Cache<PartialObjectMeta<NetworkPolicy>>,
    config_maps: Cache<PartialObjectMeta<ConfigMap>>,
    kueue: Kueue,
    gangs: Arc<Mutex<Gangs>>,
    unready: Unready,
    /// Whether nodes, pods and PriorityClasses, which have no store, have been listed once.
    listed: [latest::Receiver<bool>; 3],
}

#[derive(Debug, thiserror::Error)]
#[error("a watch ended before it had listed everything")]
pub(crate) struct NeverSynced;

impl Caches {
    /// The caches, and the task that updates them and the planner, which ends only by a bug.
    /// `namespace` limits the watched jobs' objects; GPUs in use are always counted in the whole
    /// cluster. Kueue's objects are watched if `queues` is set.
    pub(crate) fn start(
        client: &Client,
        namespace: Option<&str>,
        queues: bool,
        planner: SharedPlanner,
        triggers: mpsc::UnboundedSender<Trigger>,
    ) -> (Self, BoxFuture<'static, ()>) {
        let (services, service_watch) = own_objects(client, namespace, &triggers);
        let (network_policies, network_policy_watch) = own_objects(client, namespace, &triggers);
        let (config_maps, config_map_watch) = own_objects(client, namespace, &triggers);
        let [nodes, pods, classes] = [(); 3].map(|()| latest::Sender::new(false));
        let (kueue, queue_watches) = if queues {
            Kueue::start(client, namespace, &triggers)
        } else {
            (Kueue::off(), vec![])
        };
        let caches = Self {
            planner: planner.clone(),
            services,
            network_policies,
            config_maps,
            kueue,
            gangs: Arc::default(),
            unready: Unready::default(),
            listed: [&nodes, &pods, &classes].map(latest::Sender::subscribe),
        };
        let subscribers = Subscribers { planner, triggers };
        let (seen, known) = (caches.clone(), caches.clone());
        let confirmed = confirm(
            client.clone(),
            move |before| lock(&seen.gangs).newest.unconfirmed(before),
            move |answer: &Pod, stored| {
                known.see(|newest| newest.confirmed(answer, stored, Instant::now()));
            },
        );
        let unready = caches.unready.clone();
        let follow_nodes = move |planner: &mut Planner, event: &Event<Node>| {
            let is_news = planner.follow_nodes(event);
            unready.follow(event, |node| planner.inventory().nodes.contains_key(node));
            is_news
        };
        let tasks = [
            confirmed.boxed(),
            Box::pin(watch_planned(
                events_of::<Node>(client),
                subscribers.clone(),
                follow_nodes,
                Trigger::Capacity,
                nodes,
            )) as BoxFuture<'static, ()>,
            Box::pin(watch_planned(
                events_of::<PriorityClass>(client),
                subscribers.clone(),
                Planner::follow_classes,
                // The planner does not know jobs that wait for quota.
                Trigger::Waiting,
                classes,
            )),
            Box::pin(watch_pods(
                events_of::<Pod>(client),
                subscribers,
                Arc::clone(&caches.gangs),
                pods,
            )),
            service_watch,
            network_policy_watch,
            config_map_watch,
        ];
        let all = future::select_all(tasks.into_iter().chain(queue_watches));
        (caches, Box::pin(async move { drop(all.await) }))
    }

    /// Waits until every cache is filled.
    pub(crate) async fn synced(&self) -> Result<(), NeverSynced> {
        for listed in &self.listed {
            let mut listed = listed.clone();
            listed.wait_for(|listed| *listed).await.map_err(|_| NeverSynced)?;
        }
        self.services
            .store()
            .wait_until_ready()
            .await
            .map_err(|_| NeverSynced)?;
        self.network_policies
            .store()
            .wait_until_ready()
            .await
            .map_err(|_| NeverSynced)?;
        self.config_maps
            .store()
            .wait_until_ready()
            .await
            .map_err(|_| NeverSynced)
    }

    pub(crate) fn planner(&self) -> &SharedPlanner {
        &self.planner
    }

    /// The health of a node; `None` if it does not exist.
    pub(crate) fn node_health(&self, name: &str) -> Option<NodeHealth> {
        self.planner.lock().node_health(name)
    }

    /// How long this process has seen a node unready; `None` if it is ready or does not exist.
    pub(crate) fn unready_for(&self, name: &str) -> Option<Duration> {
        self.unready.lasts(name)
    }

    pub(crate) fn node(&self, name: &str) -> Option<NodeFacts> {
        self.planner.lock().inventory().nodes.get(name).cloned()
    }

    /// A job's existing pods of all attempts, and its deleted pods of one attempt. Forgets deleted
    /// pods of older attempts.
    pub(crate) fn pods_of(
        &self,
        job: &ViTTrainingJob,
        attempt: i32,
        now: Timestamp,
    ) -> (Vec<PodView>, Vec<PodView>) {
        lock(&self.gangs).pods_of(&JobKey::of(job), attempt, now)
    }

    pub(crate) fn has_service(&self, job: &ViTTrainingJob) -> bool {
        has_own(self.services.store(), job)
    }

    pub(crate) fn has_network_policy(&self, job: &ViTTrainingJob) -> bool {
        has_own(self.network_policies.store(), job)
    }

    pub(crate) fn config_maps_of(&self, job: &ViTTrainingJob) -> BTreeSet<String> {
        self.config_maps
            .store()
            .state_filter(|config_map| is_owned_by(&config_map.metadata, job))
            .iter()
            .map(|config_map| config_map.name_any())
            .collect()
    }

    pub(crate) fn queue_of(&self, job: &ViTTrainingJob) -> Queue {
        if job.spec.scheduling.queue_name.is_none() {
            return Queue::default();
        }
        let class = job.spec.workers.priority_class_name.as_deref();
        self.kueue.queue_of(job, self.planner.lock().priority(class))
    }

    fn see(&self, events: impl FnOnce(&mut Newest<Pod>) -> Vec<Event<Pod>>) {
        see(&mut self.planner.lock(), &self.gangs, events);
    }

    /// Forgets the deleted pods of jobs that lost no pod for this long.
    pub(crate) fn forget_departed(&self, after: Duration) {
        lock(&self.gangs).forget_departed(after);
    }

    pub(crate) fn retain(&self, exists: impl Fn(&str) -> bool) {
        lock(&self.gangs).retain(exists);
    }
}

/// Caches for tests.
#[cfg(test)]
impl Caches {
    /// Jobs with a Service also have their NetworkPolicy.
    pub(crate) fn holding(
        planner: SharedPlanner,
        nodes: &[Node],
        pods: &[Pod],
        services: &[Service],
    ) -> Self {
        let unready = Unready::default();
        for node in nodes {
            let event = Event::Apply(node.clone());
            unready.follow(&event, |_| true);
            planner.lock().follow_nodes(&event);
        }
        let gangs: Arc<Mutex<Gangs>> = Arc::default();
        for pod in pods {
            lock(&gangs).follow(&Event::Apply(pod.clone()));
            planner.lock().follow_pods(&Event::Apply(pod.clone()));
        }
        Self {
            planner,
            services: cache_of(services),
            network_policies: cache_of(services),
            config_maps: cache_of(&[]),
            kueue: Kueue::off(),
            gangs,
            unready,
            listed: [(); 3].map(|()| latest::channel(true).1),
        }
    }
}

/// A cache with the metadata of these Services as objects of another kind.
#[cfg(test)]
fn cache_of<K: Resource<DynamicType = ()> + Clone + Default + 'static>(
    services: &[Service],
) -> Cache<PartialObjectMeta<K>> {
    let cache = Cache::new(|_| ());
    for service in services {
        cache.watched(Event::Apply(PartialObjectMeta {
            metadata: service.metadata.clone(),
            ..PartialObjectMeta::default()
        }));
    }
    cache
}

/// A kind whose answers the caches take.
pub(crate) trait Cached {
    /// Takes the answer to a write of this object.
    fn answered(self, caches: &Caches);
}

impl Cached for Pod {
    fn answered(self, caches: &Caches) {
        caches.see(|newest| newest.answered(self, Instant::now()));
    }
}

impl Cached for Workload {
    fn answered(self, caches: &Caches) {
        caches.kueue.workloads.answered(self);
    }
}

impl Cached for Service {
    fn answered(self, caches: &Caches) {
        caches.services.answered(metadata_of(self));
    }
}

impl Cached for NetworkPolicy {
    fn answered(self, caches: &Caches) {
        caches.network_policies.answered(metadata_of(self));
    }
}

impl Cached for ConfigMap {
    fn answered(self, caches: &Caches) {
        caches.config_maps.answered(metadata_of(self));
    }
}

fn metadata_of<K: Resource<DynamicType = ()> + Default>(mut object: K) -> PartialObjectMeta<K> {
    PartialObjectMeta {
        metadata: std::mem::take(object.meta_mut()),
        ..PartialObjectMeta::default()
    }
}

fn lock(gangs: &Mutex<Gangs>) -> MutexGuard<'_, Gangs> {
    gangs.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether the job's single object of this kind exists.
fn has_own<K>(store: &Store<PartialObjectMeta<K>>, job: &ViTTrainingJob) -> bool
where
    K: Resource<DynamicType = ()> + Clone + 'static,
{
    let name = ObjectRef::new(&job.name_any()).within(&job.namespace().unwrap_or_default());
    store
        .get(&name)
        .is_some_and(|object| is_owned_by(&object.metadata, job))
}

/// The events of all objects of a kind.
fn events_of<K>(client: &Client) -> impl Stream<Item = watcher::Result<Event<K>>> + Send + 'static
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    watch(Api::all(client.clone()), watching())
}

/// Watches the objects of a kind: `follow` handles an event and returns triggers.
async fn watch_all<K>(
    events: impl Stream<Item = watcher::Result<Event<K>>> + Send,
    Subscribers { planner, triggers }: Subscribers,
    listed: latest::Sender<bool>,
    mut follow: impl FnMut(&mut Planner, Event<K>) -> Vec<Trigger> + Send,
) {
    events
        .default_backoff()
        .for_each(|event| {
            match event {
                Ok(event) => {
                    let is_listed = matches!(event, Event::InitDone);
                    let to_look_at = follow(&mut planner.lock(), event);
                    if is_listed {
                        listed.send_replace(true);
                    }
                    for trigger in to_look_at {
                        // The receiver lives as long as the process.
                        let _ = triggers.send(trigger);
                    }
                }
                Err(error) => warn!(%error, "a watch was interrupted and starts again"),
            }
            future::ready(())
        })
        .await;
}

/// Watches the objects of a kind for the planner only. A relevant change sends the trigger.
async fn watch_planned<K>(
    events: impl Stream<Item = watcher::Result<Event<K>>> + Send,
    subscribers: Subscribers,
    mut follow: impl FnMut(&mut Planner, &Event<K>) -> bool + Send,
    trigger: Trigger,
    listed: latest::Sender<bool>,
) {
    let follow = |planner: &mut Planner, event: Event<K>| {
        let is_news = follow(planner, &event);
        let is_whole = matches!(event, Event::Apply(_) | Event::Delete(_) | Event::InitDone);
        if is_news && is_whole {
            vec![trigger.clone()]
        } else {
            vec![]
        }
    };
    watch_all(events, subscribers, listed, follow).await;
}

async fn watch_pods(
    events: impl Stream<Item = watcher::Result<Event<Pod>>> + Send,
    subscribers: Subscribers,
    gangs: Arc<Mutex<Gangs>>,
    listed: latest::Sender<bool>,
) {
    let follow = |planner: &mut Planner, event: Event<Pod>| {
        let events = see(planner, &gangs, |newest| newest.watched(event));
        events.iter().flat_map(triggers_of).collect()
    };
    watch_all(events, subscribers, listed, follow).await;
}

/// Events for the planner and the gangs, under the planner's lock: once a pod is seen to be gone, its
/// GPUs are free.
fn see(
    planner: &mut Planner,
    gangs: &Mutex<Gangs>,
    events: impl FnOnce(&mut Newest<Pod>) -> Vec<Event<Pod>>,
) -> Vec<Event<Pod>> {
    let mut gangs = lock(gangs);
    let events = events(&mut gangs.newest);
    for event in &events {
        planner.follow_pods(event);
        gangs.follow(event);
    }
    events
}

fn triggers_of(event: &Event<Pod>) -> Vec<Trigger> {
    let (pod, is_gone) = match event {
        Event::Apply(pod) | Event::InitApply(pod) => (pod, has_ended(pod)),
        Event::Delete(pod) => (pod, true),
        Event::Init => return vec![],
        Event::InitDone => return vec![Trigger::Capacity],
    };
    let mut triggers: Vec<Trigger> = owner_of(&pod.metadata).into_iter().collect();
    let held_gpus = pod
        .spec
        .as_ref()
        .is_some_and(|spec| requests_of(spec).keys().any(|resource| resource.contains('/')));
    if is_gone && held_gpus && (bound_node(pod).is_some() || !triggers.is_empty()) {
        triggers.push(Trigger::Capacity);
    }
    triggers
}

/// The store of jobs' objects of a kind, and the task that updates it. A deletion triggers the job,
/// which recreates the object.
fn own_objects<K>(
    client: &Client,
    namespace: Option<&str>,
    triggers: &mpsc::UnboundedSender<Trigger>,
) -> (Cache<PartialObjectMeta<K>>, BoxFuture<'static, ()>)
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + DeserializeOwned
        + Send
        + Sync
        + 'static,
{
    let deleted = |event: &Event<PartialObjectMeta<K>>| match event {
        Event::Delete(object) => owner_of(&object.metadata),
        _ => None,
    };
    let on_event = triggering(triggers.clone(), deleted);
    let (cache, watch) = store(own_api(client, namespace), own(), on_event);
    let confirmed = cache.confirm(client.clone());
    (cache, future::join(watch, confirmed).map(drop).boxed())
}

#[cfg(test)]
mod tests;
