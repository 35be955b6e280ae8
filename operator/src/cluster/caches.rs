//! Watches of Nodes, pods, Services and ConfigMaps, kept in memory and trimmed to what is read here.
//!
//! Own pods are indexed by their job's uid, and their last state is kept when they go: a record of why a pod failed must
//! not be lost because the pod was deleted between two looks. An object that cannot be read is skipped, and does not
//! stop the watch.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crds::{ViTTrainingJob, labels};
use futures::{Stream, StreamExt as _, TryStreamExt as _, future};
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::{DeserializeGuard, PartialObjectMeta};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::reflector::{self, ObjectRef, Store, store::Writer};
use kube::runtime::watcher::{self, Event, watcher as watch};
use kube::{Api, Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;
use tracing::warn;

use super::gangs::Gangs;
use super::inventory::{Inventory, Membership, Reservation, bound_node, has_ended, is_ready, requests_of};
use crate::policy::gang::PodView;

/// What a change in the caches asks for.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Trigger {
    /// A look at one job.
    Job { namespace: String, name: String },
    /// A look at every job that waits for GPUs.
    Waiting,
}

/// The caches.
#[derive(Clone, Debug)]
pub(crate) struct Caches {
    nodes: Store<Node>,
    pods: Store<Pod>,
    services: Store<PartialObjectMeta<Service>>,
    config_maps: Store<PartialObjectMeta<ConfigMap>>,
    gangs: Arc<Mutex<Gangs>>,
}

impl Caches {
    /// The caches, and the tasks that keep them: they end only with an error of the program. `namespace` limits what
    /// of our own is watched; GPUs in use are counted over the whole cluster always.
    pub(crate) fn start(
        client: &Client,
        namespace: Option<&str>,
        triggers: mpsc::UnboundedSender<Trigger>,
    ) -> (Self, future::BoxFuture<'static, ()>) {
        let (nodes, node_writer) = reflector::store();
        let (pods, pod_writer) = reflector::store();
        let (services, service_writer) = reflector::store();
        let (config_maps, config_map_writer) = reflector::store();
        let caches = Self {
            nodes,
            pods,
            services,
            config_maps,
            gangs: Arc::default(),
        };
        let tasks = [
            Box::pin(watch_nodes(
                Api::all(client.clone()),
                node_writer,
                triggers.clone(),
            )) as future::BoxFuture<'static, ()>,
            Box::pin(watch_pods(
                Api::all(client.clone()),
                pod_writer,
                Arc::clone(&caches.gangs),
                triggers.clone(),
            )),
            Box::pin(watch_owned(
                own_api::<PartialObjectMeta<Service>>(client, namespace),
                service_writer,
                triggers.clone(),
            )),
            Box::pin(watch_owned(
                own_api::<PartialObjectMeta<ConfigMap>>(client, namespace),
                config_map_writer,
                triggers,
            )),
        ];
        let all = future::select_all(tasks);
        (caches, Box::pin(async move { drop(all.await) }))
    }

    /// Waits until every cache has been filled once.
    pub(crate) async fn synced(&self) -> Result<(), reflector::store::WriterDropped> {
        self.nodes.wait_until_ready().await?;
        self.pods.wait_until_ready().await?;
        self.services.wait_until_ready().await?;
        self.config_maps.wait_until_ready().await
    }

    /// What the cluster has, and what of it is free.
    pub(crate) fn inventory(&self, reservations: &HashMap<String, Reservation>) -> Inventory {
        let nodes = self.nodes.state();
        let pods = self.pods.state();
        Inventory::new(
            nodes.iter().map(AsRef::as_ref),
            pods.iter().map(AsRef::as_ref),
            reservations,
        )
    }

    /// Whether a node's kubelet says it is fine; `None` where there is no such node.
    pub(crate) fn is_node_ready(&self, name: &str) -> Option<bool> {
        self.nodes.get(&ObjectRef::new(name)).map(|node| is_ready(&node))
    }

    /// The pods of a job that exist, of all attempts, and those of one attempt that are gone. What is gone of other
    /// attempts is forgotten.
    pub(crate) fn pods_of(&self, uid: &str, attempt: i32) -> (Vec<PodView>, Vec<PodView>) {
        lock(&self.gangs).pods_of(uid, attempt)
    }

    pub(crate) fn has_service(&self, job: &ViTTrainingJob) -> bool {
        let name = ObjectRef::new(&job.name_any()).within(&job.namespace().unwrap_or_default());
        self.services
            .get(&name)
            .is_some_and(|service| is_owned_by(&service.metadata, job))
    }

    pub(crate) fn config_maps_of(&self, job: &ViTTrainingJob) -> BTreeSet<String> {
        self.config_maps
            .state_filter(|config_map| is_owned_by(&config_map.metadata, job))
            .iter()
            .map(|config_map| config_map.name_any())
            .collect()
    }

    /// Forgets the pods of jobs that are gone.
    pub(crate) fn retain(&self, exists: impl Fn(&str) -> bool) {
        lock(&self.gangs).retain(exists);
    }
}

/// Caches for tests, filled by hand.
#[cfg(test)]
impl Caches {
    pub(crate) fn holding(nodes: &[Node], pods: &[Pod], services: &[Service]) -> Self {
        let (node_store, mut node_writer) = reflector::store();
        for node in nodes {
            node_writer.apply_watcher_event(&Event::Apply(node.clone()));
        }
        let (pod_store, mut pod_writer) = reflector::store();
        let gangs: Arc<Mutex<Gangs>> = Arc::default();
        for pod in pods {
            lock(&gangs).follow(&Event::Apply(pod.clone()));
            pod_writer.apply_watcher_event(&Event::Apply(pod.clone()));
        }
        let (service_store, mut service_writer) = reflector::store();
        for service in services {
            service_writer.apply_watcher_event(&Event::Apply(PartialObjectMeta {
                metadata: service.metadata.clone(),
                ..PartialObjectMeta::default()
            }));
        }
        Self {
            nodes: node_store,
            pods: pod_store,
            services: service_store,
            config_maps: reflector::store().0,
            gangs,
        }
    }
}

fn lock(gangs: &Mutex<Gangs>) -> MutexGuard<'_, Gangs> {
    gangs.lock().unwrap_or_else(PoisonError::into_inner)
}

fn own_api<K>(client: &Client, namespace: Option<&str>) -> Api<K>
where
    K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
{
    match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    }
}

fn is_owned_by(metadata: &ObjectMeta, job: &ViTTrainingJob) -> bool {
    let uid = job.uid();
    metadata
        .owner_references
        .iter()
        .flatten()
        .any(|owner| Some(&owner.uid) == uid.as_ref())
}

async fn watch_nodes(
    api: Api<DeserializeGuard<Node>>,
    writer: Writer<Node>,
    triggers: mpsc::UnboundedSender<Trigger>,
) {
    readable(watch(api, watcher::Config::default()))
        .default_backoff()
        .modify(|node: &mut Node| {
            node.metadata.managed_fields = None;
            node.metadata.annotations = None;
            if let Some(status) = &mut node.status {
                status.images = None;
                status.volumes_attached = None;
                status.volumes_in_use = None;
            }
        })
        .reflect(writer)
        .for_each(|event| {
            if matches!(event, Ok(Event::Apply(_) | Event::Delete(_) | Event::InitDone)) {
                // The receiver lives as long as the process.
                let _ = triggers.send(Trigger::Waiting);
            }
            future::ready(())
        })
        .await;
}

async fn watch_pods(
    api: Api<DeserializeGuard<Pod>>,
    writer: Writer<Pod>,
    gangs: Arc<Mutex<Gangs>>,
    triggers: mpsc::UnboundedSender<Trigger>,
) {
    readable(watch(api, watcher::Config::default()))
        .default_backoff()
        .inspect_ok(move |event| lock(&gangs).follow(event))
        .modify(trim)
        .reflect(writer)
        .for_each(|event| {
            for trigger in event.iter().flat_map(triggers_of) {
                let _ = triggers.send(trigger);
            }
            future::ready(())
        })
        .await;
}

/// What counts of a pod once its view is taken: whose it is, where it is, what it asks for, whether it has ended.
fn trim(pod: &mut Pod) {
    pod.metadata.managed_fields = None;
    pod.metadata.annotations = None;
    if Membership::of(pod).is_none() {
        pod.metadata.labels = None;
        pod.metadata.owner_references = None;
    }
    if let Some(spec) = &mut pod.spec {
        let mut trimmed = k8s_openapi::api::core::v1::PodSpec {
            node_name: spec.node_name.take(),
            affinity: spec.affinity.take(),
            overhead: spec.overhead.take(),
            ..Default::default()
        };
        let keep =
            |container: &mut k8s_openapi::api::core::v1::Container| k8s_openapi::api::core::v1::Container {
                resources: container.resources.take(),
                restart_policy: container.restart_policy.take(),
                ..Default::default()
            };
        trimmed.containers = spec.containers.iter_mut().map(keep).collect();
        trimmed.init_containers = spec
            .init_containers
            .as_mut()
            .map(|containers| containers.iter_mut().map(keep).collect());
        *spec = trimmed;
    }
    if let Some(status) = &mut pod.status {
        *status = k8s_openapi::api::core::v1::PodStatus {
            phase: status.phase.take(),
            ..Default::default()
        };
    }
}

fn triggers_of(event: &Event<Pod>) -> Vec<Trigger> {
    let (pod, is_gone) = match event {
        Event::Apply(pod) | Event::InitApply(pod) => (pod, has_ended(pod)),
        Event::Delete(pod) => (pod, true),
        Event::Init => return vec![],
        Event::InitDone => return vec![Trigger::Waiting],
    };
    let mut triggers: Vec<Trigger> = owner_of(&pod.metadata).into_iter().collect();
    let held_gpus = pod
        .spec
        .as_ref()
        .is_some_and(|spec| requests_of(spec).keys().any(|resource| resource.contains('/')));
    if is_gone && held_gpus && (bound_node(pod).is_some() || !triggers.is_empty()) {
        triggers.push(Trigger::Waiting);
    }
    triggers
}

fn owner_of(metadata: &ObjectMeta) -> Option<Trigger> {
    let owner = metadata
        .owner_references
        .iter()
        .flatten()
        .find(|owner| owner.controller == Some(true) && owner.kind == ViTTrainingJob::kind(&()))?;
    Some(Trigger::Job {
        namespace: metadata.namespace.clone()?,
        name: owner.name.clone(),
    })
}

async fn watch_owned<K>(
    api: Api<PartialObjectMeta<K>>,
    writer: Writer<PartialObjectMeta<K>>,
    triggers: mpsc::UnboundedSender<Trigger>,
) where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let ours = watcher::Config::default().labels(&format!("{}={}", labels::MANAGED_BY, labels::MANAGER));
    watch(api, ours)
        .default_backoff()
        .modify(|object| object.metadata.managed_fields = None)
        .reflect(writer)
        .for_each(|event| {
            // Their deletion is what matters: they are made anew then.
            if let Ok(Event::Delete(object)) = &event
                && let Some(trigger) = owner_of(&object.metadata)
            {
                let _ = triggers.send(trigger);
            }
            if let Err(error) = event {
                warn!(%error, "a watch was interrupted and starts again");
            }
            future::ready(())
        })
        .await;
}

/// Only the objects that can be read; of one that cannot, the last version that could stays.
fn readable<K>(
    stream: impl Stream<Item = watcher::Result<Event<DeserializeGuard<K>>>> + Send,
) -> impl Stream<Item = watcher::Result<Event<K>>> + Send
where
    K: Resource<DynamicType = ()> + Default + Send + 'static,
{
    stream.filter_map(|event| {
        let read = |guarded: DeserializeGuard<K>| match guarded.0 {
            Ok(object) => Some(object),
            Err(invalid) => {
                let name = invalid.metadata.name.as_deref().unwrap_or_default();
                warn!(name, kind = %K::kind(&()), error = invalid.error, "an object that cannot be read is skipped");
                None
            }
        };
        future::ready(match event {
            Ok(Event::Init) => Some(Ok(Event::Init)),
            Ok(Event::InitDone) => Some(Ok(Event::InitDone)),
            Ok(Event::InitApply(object)) => read(object).map(|object| Ok(Event::InitApply(object))),
            Ok(Event::Apply(object)) => read(object).map(|object| Ok(Event::Apply(object))),
            Ok(Event::Delete(object)) => Some(Ok(Event::Delete(object.0.unwrap_or_else(|invalid| {
                let mut object = K::default();
                *object.meta_mut() = invalid.metadata;
                object
            })))),
            Err(error) => {
                warn!(%error, "a watch was interrupted and starts again");
                Some(Err(error))
            }
        })
    })
}

#[cfg(test)]
mod tests;
