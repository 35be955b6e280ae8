//! Watches of Kueue's Workloads and ResourceFlavors.

use std::sync::Arc;

use crds::ViTTrainingJob;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher::Event;
use kube::{Api, Client, Resource, ResourceExt as _};
use tokio::sync::mpsc;

use super::cache::Cache;
use super::stores::{own, store, triggering, watching};
use super::trigger::{Trigger, is_owned_by, own_api, owner_of};
use crate::api::kueue::{ResourceFlavor, Workload};
use crate::policy::admission::Queue;

/// The stores of Kueue's objects. They stay empty if the cluster does not serve these kinds.
#[derive(Clone, Debug)]
pub(crate) struct Kueue {
    pub(super) workloads: Cache<Workload>,
    flavors: Cache<ResourceFlavor>,
}

impl Kueue {
    /// The stores, and the tasks that update them, which never end.
    pub(super) fn start(
        client: &Client,
        namespace: Option<&str>,
        triggers: &mpsc::UnboundedSender<Trigger>,
    ) -> (Self, Vec<BoxFuture<'static, ()>>) {
        let of_owner = |event: &Event<Workload>| match event {
            Event::Apply(workload) | Event::InitApply(workload) | Event::Delete(workload) => {
                owner_of(&workload.metadata)
            }
            // Jobs may have waited for the first list.
            Event::InitDone => Some(Trigger::Waiting),
            Event::Init => None,
        };
        let of_all =
            |event: &Event<ResourceFlavor>| (!matches!(event, Event::Init)).then_some(Trigger::Waiting);
        let on_event = triggering(triggers.clone(), of_owner);
        let (workloads, workload_watch) = store(own_api(client, namespace), own(), on_event);
        let all = watching();
        let (flavors, flavor_watch) = store(
            Api::all(client.clone()),
            all,
            triggering(triggers.clone(), of_all),
        );
        let confirmed = workloads.confirm(client.clone()).boxed();
        let tasks = vec![workload_watch, flavor_watch, confirmed];
        (Self { workloads, flavors }, tasks)
    }

    /// Empty stores, if jobs may not name queues.
    pub(super) fn off() -> Self {
        Self {
            workloads: Cache::new(|_| ()),
            flavors: Cache::new(|_| ()),
        }
    }

    /// The queue state of a job that names a queue; `priority` is that of its class.
    pub(crate) fn queue_of(&self, job: &ViTTrainingJob, priority: Option<i32>) -> Queue {
        let workload = self.workload_of(job);
        let names = workload.as_deref().map(Workload::flavors).unwrap_or_default();
        let flavor = |name: &str| Some((name.to_owned(), self.flavors.store().get(&ObjectRef::new(name))?));
        Queue {
            is_known: self.is_known(),
            flavors: names.into_iter().filter_map(flavor).collect(),
            workload,
            priority,
        }
    }

    /// Whether Workloads and ResourceFlavors have been listed.
    fn is_known(&self) -> bool {
        is_listed(self.workloads.store()) && is_listed(self.flavors.store())
    }

    fn workload_of(&self, job: &ViTTrainingJob) -> Option<Arc<Workload>> {
        let name = ObjectRef::new(&job.name_any()).within(&job.namespace().unwrap_or_default());
        self.workloads
            .store()
            .get(&name)
            .filter(|workload| is_owned_by(&workload.metadata, job))
    }
}

fn is_listed<K>(store: &Store<K>) -> bool
where
    K: Resource<DynamicType = ()> + Clone + 'static,
{
    store
        .wait_until_ready()
        .now_or_never()
        .is_some_and(|ready| ready.is_ok())
}
