//! What of Kueue's API the operator needs (`kueue.x-k8s.io/v1beta2`, Kueue 0.15 or newer): the Workload, by which a job asks for
//! quota, and the ResourceFlavor, which says on which nodes that quota is. Fields that are not used here are kept as they
//! are in a Workload's status, which Kueue and the operator share.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use crds::{ViTTrainingJob, labels};
use futures::{FutureExt as _, StreamExt as _, future};
use k8s_openapi::api::core::v1::{PodTemplateSpec, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::reflector::{self, ObjectRef, Store, store::Writer};
use kube::runtime::watcher::{self, Event, watcher as watch};
use kube::{Api, Client, CustomResource, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::mpsc;
use tracing::{debug, warn};

use super::caches::{Trigger, is_owned_by, own_api, owner_of};
use crate::policy::admission::{Queue, flavors_of};

/// How often a cluster that does not serve Kueue's kinds is asked whether it does.
const ASKED_AGAIN: Duration = Duration::from_secs(30);

/// Types of a Workload's conditions.
pub(crate) mod conditions {
    /// A ClusterQueue keeps quota for it, and all its admission checks are ready.
    pub(crate) const ADMITTED: &str = "Admitted";
    /// A ClusterQueue keeps quota for it.
    pub(crate) const QUOTA_RESERVED: &str = "QuotaReserved";
    /// It is to stop and give its quota back.
    pub(crate) const EVICTED: &str = "Evicted";
    /// Whether it was put into the queue again after an eviction.
    pub(crate) const REQUEUED: &str = "Requeued";
    /// Its pods run.
    pub(crate) const PODS_READY: &str = "PodsReady";
    /// It is over.
    pub(crate) const FINISHED: &str = "Finished";
}

/// What asks for quota.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "kueue.x-k8s.io",
    version = "v1beta2",
    kind = "Workload",
    namespaced,
    schema = "disabled",
    status = "WorkloadStatus",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WorkloadSpec {
    #[serde(default)]
    pub(crate) queue_name: String,
    #[serde(default)]
    pub(crate) pod_sets: Vec<PodSet>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) priority_class_ref: Option<PriorityClassRef>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) priority: Option<i32>,
}

/// Pods that are alike.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PodSet {
    pub(crate) name: String,
    pub(crate) count: i32,
    /// The least number of them that will do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) min_count: Option<i32>,
    pub(crate) template: PodTemplateSpec,
}

/// Where a Workload's priority comes from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct PriorityClassRef {
    pub(crate) group: String,
    pub(crate) kind: String,
    pub(crate) name: String,
}

/// What became of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WorkloadStatus {
    #[serde(default)]
    pub(crate) conditions: Vec<Condition>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) admission: Option<Admission>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) admission_checks: Vec<AdmissionCheck>,
    #[serde(flatten)]
    pub(crate) others: BTreeMap<String, Value>,
}

/// The quota that it got.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Admission {
    pub(crate) cluster_queue: String,
    #[serde(default)]
    pub(crate) pod_set_assignments: Vec<PodSetAssignment>,
    #[serde(flatten)]
    pub(crate) others: BTreeMap<String, Value>,
}

/// The quota that a set of pods got.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PodSetAssignment {
    pub(crate) name: String,
    /// By resource.
    #[serde(default)]
    pub(crate) flavors: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) count: Option<i32>,
    #[serde(flatten)]
    pub(crate) others: BTreeMap<String, Value>,
}

/// What else has a say, such as an autoscaler.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct AdmissionCheck {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) pod_set_updates: Vec<PodSetUpdate>,
    #[serde(flatten)]
    pub(crate) others: BTreeMap<String, Value>,
}

/// What an admission check wants of a set of pods.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PodSetUpdate {
    pub(crate) name: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) node_selector: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) tolerations: Vec<Toleration>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) labels: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) annotations: BTreeMap<String, String>,
}

/// Nodes of one kind, as Kueue sees them.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "kueue.x-k8s.io",
    version = "v1beta2",
    kind = "ResourceFlavor",
    schema = "disabled"
)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ResourceFlavorSpec {
    /// Labels of its nodes.
    #[serde(default)]
    pub(crate) node_labels: BTreeMap<String, String>,
    /// Given to the pods that get quota of it.
    #[serde(default)]
    pub(crate) tolerations: Vec<Toleration>,
}

impl Workload {
    /// The condition of that type, where it is true.
    pub(crate) fn has(&self, type_: &str) -> Option<&Condition> {
        self.condition(type_)
            .filter(|condition| condition.status == "True")
    }

    /// The condition of that type.
    pub(crate) fn condition(&self, type_: &str) -> Option<&Condition> {
        self.status
            .as_ref()?
            .conditions
            .iter()
            .find(|condition| condition.type_ == type_)
    }
}

/// What is kept of Kueue's objects. Where the cluster serves none, the stores are never filled, and nothing waits for them.
#[derive(Clone, Debug)]
pub(crate) struct Kueue {
    workloads: Store<Workload>,
    flavors: Store<ResourceFlavor>,
}

impl Kueue {
    /// The stores, and the tasks that keep them: they never end.
    pub(crate) fn start(
        client: &Client,
        namespace: Option<&str>,
        triggers: mpsc::UnboundedSender<Trigger>,
    ) -> (Self, [future::BoxFuture<'static, ()>; 2]) {
        let (workloads, workload_writer) = reflector::store();
        let (flavors, flavor_writer) = reflector::store();
        let of_owner = |workload: &Workload| owner_of(&workload.metadata);
        let of_all = |_: &ResourceFlavor| Some(Trigger::Waiting);
        let ours = watcher::Config::default().labels(&format!("{}={}", labels::MANAGED_BY, labels::MANAGER));
        let tasks = [
            Box::pin(follow(
                own_api(client, namespace),
                ours,
                workload_writer,
                triggers.clone(),
                of_owner,
            )) as future::BoxFuture<'static, ()>,
            Box::pin(follow(
                Api::all(client.clone()),
                watcher::Config::default(),
                flavor_writer,
                triggers,
                of_all,
            )),
        ];
        (Self { workloads, flavors }, tasks)
    }

    /// Stores of nothing, where jobs may name no queues.
    pub(crate) fn off() -> (Self, [future::BoxFuture<'static, ()>; 2]) {
        let kueue = Self {
            workloads: reflector::store().0,
            flavors: reflector::store().0,
        };
        let never = || Box::pin(future::pending()) as future::BoxFuture<'static, ()>;
        (kueue, [never(), never()])
    }

    /// What is known of the place in a queue of a job that names one, and whose class has that priority.
    pub(crate) fn queue_of(&self, job: &ViTTrainingJob, priority: Option<i32>) -> Queue {
        let workload = self.workload_of(job);
        let names = workload.as_deref().map(flavors_of).unwrap_or_default();
        let flavor = |name: &str| Some((name.to_owned(), self.flavors.get(&ObjectRef::new(name))?));
        Queue {
            is_known: self.is_known(),
            flavors: names.into_iter().filter_map(flavor).collect(),
            workload,
            priority,
        }
    }

    /// Whether Workloads and ResourceFlavors have been listed.
    fn is_known(&self) -> bool {
        is_listed(&self.workloads) && is_listed(&self.flavors)
    }

    /// The job's own Workload.
    fn workload_of(&self, job: &ViTTrainingJob) -> Option<Arc<Workload>> {
        let name = ObjectRef::new(&job.name_any()).within(&job.namespace().unwrap_or_default());
        self.workloads
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

/// Keeps the store of a kind, and tells whom a change concerns. A cluster without Kueue has no such kind, and is asked again
/// after [`ASKED_AGAIN`]: a watch by itself would begin anew about once a second, for every beginning counts as a success of it.
async fn follow<K>(
    api: Api<K>,
    which: watcher::Config,
    writer: Writer<K>,
    triggers: mpsc::UnboundedSender<Trigger>,
    concerns: impl Fn(&K) -> Option<Trigger> + Send,
) where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    watch(api, which)
        .default_backoff()
        .modify(|object| object.meta_mut().managed_fields = None)
        .reflect(writer)
        .for_each(|event| {
            let mut is_served = true;
            match event {
                Ok(Event::Apply(object) | Event::InitApply(object) | Event::Delete(object)) => {
                    if let Some(trigger) = concerns(&object) {
                        // The receiver lives as long as the process.
                        let _ = triggers.send(trigger);
                    }
                }
                // Jobs that waited for the first list.
                Ok(Event::InitDone) => {
                    let _ = triggers.send(Trigger::Waiting);
                }
                Ok(Event::Init) => {}
                Err(error) if is_missing(&error) => {
                    debug!(kind = %K::kind(&()), "the API server does not serve Kueue's kinds");
                    is_served = false;
                }
                Err(error) => warn!(%error, "a watch was interrupted and starts again"),
            }
            async move {
                if !is_served {
                    tokio::time::sleep(ASKED_AGAIN).await;
                }
            }
        })
        .await;
}

/// Whether the API server knows no such kind.
fn is_missing(error: &watcher::Error) -> bool {
    let (watcher::Error::InitialListFailed(source) | watcher::Error::WatchStartFailed(source)) = error else {
        return false;
    };
    matches!(source, kube::Error::Api(status) if status.code == 404)
}
