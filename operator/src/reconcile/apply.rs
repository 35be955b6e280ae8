//! Applies a step's writes.

use std::fmt::Debug;
use std::time::Duration;

use crds::{StoredJob, ViTTrainingJob, conditions};
use futures::{StreamExt as _, stream};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::api::{DeleteParams, DynamicObject, PostParams};
use kube::runtime::events::EventType;
use kube::{Api, Client, Resource, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tracing::{debug, warn};

use super::context::Context;
use super::events;
use super::step::{Object, Write};
use crate::api::kueue::Workload;
use crate::api::pod_group::{POD_GROUP, Version};
use crate::error::Error;
use crate::objects::{
    OwnedObject, create, create_of_kind, delete, delete_of_kind, kind, replace_status, with_uid,
    written_by_us,
};
use crate::policy::admitted::admitted;
use crate::policy::gang::{PodId, is_grouped};
use crate::watch::caches::Cached;

/// Concurrent calls for the pods of one gang.
const PODS_AT_ONCE: usize = 16;
/// After this time a round leaves the remaining pods to the next, to notice failures, and so that
/// large gangs do not hold all rounds.
const TURN: Duration = Duration::from_secs(1);

/// What a round has done.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Applied {
    All,
    /// The next round decides again and does the rest.
    Part,
}

/// Applies writes in order, idempotently, until one fails or its turn ends.
pub(crate) async fn apply(
    context: &Context,
    client: &Client,
    job: &ViTTrainingJob,
    writes: Vec<Write>,
) -> Result<Applied, Error> {
    for write in writes {
        if apply_one(context, client, job, write).await? == Applied::Part {
            return Ok(Applied::Part);
        }
    }
    Ok(Applied::All)
}

async fn apply_one(
    context: &Context,
    client: &Client,
    job: &ViTTrainingJob,
    write: Write,
) -> Result<Applied, Error> {
    let by_default = DeleteParams::default;
    let done = match write {
        Write::DeletePods(pods) => return delete_pods(context, &api(client, job), pods).await,
        Write::DryRun(pod) => dry_run(context, client, job, &pod).await,
        Write::DeleteAttempt(name, pod_groups) => {
            if let Some(version) = pod_groups {
                let groups = api_of_groups(client, job, version);
                delete_of_kind(&groups, POD_GROUP, name.clone(), by_default()).await?;
            }
            remove::<ConfigMap>(client, job, name, by_default()).await
        }
        Write::DeleteService => remove::<Service>(client, job, job.name_any(), by_default()).await,
        Write::DeleteNetworkPolicy => {
            remove::<NetworkPolicy>(client, job, job.name_any(), by_default()).await
        }
        Write::CreateWorkload(workload) => make(context, client, job, *workload).await.map(drop),
        Write::DeleteWorkload(workload) => {
            let parameters = with_uid(workload.uid(), by_default());
            remove::<Workload>(client, job, workload.name_any(), parameters).await
        }
        Write::UpdateWorkload(workload) => {
            let written = replace_status(&api(client, job), kind::<Workload>(), &*workload).await;
            written.map(|workload| workload.answered(&context.caches))
        }
        Write::TryUpdateWorkload(workload) => {
            let uid = job.uid().unwrap_or_default();
            if !context.memory.may_try_workload(&uid) {
                return Ok(Applied::All);
            }
            match replace_status(&api(client, job), kind::<Workload>(), &*workload).await {
                Ok(workload) => workload.answered(&context.caches),
                Err(error) => {
                    if error.is_refusal() {
                        context.memory.workload_refused(&uid);
                    }
                    context.metrics.failed(error.category());
                    debug!(%error, "failed to report pod readiness to Kueue");
                }
            }
            Ok(())
        }
        Write::Create(objects, pods) => create_all(context, client, job, objects, pods).await,
        Write::DeleteJob => {
            let expired = events::event(
                EventType::Normal,
                conditions::reasons::EXPIRED,
                "Delete",
                "spec.ttlSecondsAfterFinished has passed",
            );
            context.publish(job.object_ref(&()), vec![expired]);
            let parameters = with_uid(job.uid(), DeleteParams::background());
            remove::<StoredJob>(client, job, job.name_any(), parameters).await
        }
    };
    done.map(|()| Applied::All)
}

/// Creates an object unless the job has it, and puts it into its cache.
async fn make<K>(
    context: &Context,
    client: &Client,
    job: &ViTTrainingJob,
    object: K,
) -> Result<OwnedObject<K>, Error>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Cached
        + Clone
        + Debug
        + Serialize
        + DeserializeOwned,
{
    let own = create(client, job, object).await?;
    own.object.clone().answered(&context.caches);
    Ok(own)
}

/// Deletes an object of a kind whose deletion no round waits for.
async fn remove<K>(
    client: &Client,
    job: &ViTTrainingJob,
    name: String,
    parameters: DeleteParams,
) -> Result<(), Error>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
{
    delete(&api::<K>(client, job), name, parameters).await.map(drop)
}

/// Objects of a kind in the job's namespace.
fn api<K>(client: &Client, job: &ViTTrainingJob) -> Api<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
{
    Api::namespaced(client.clone(), &job.namespace().unwrap_or_default())
}

/// Remembers what admission adds to a pod. One that it refuses, or a webhook without dry runs, is met
/// again when the gang is created.
async fn dry_run(context: &Context, client: &Client, job: &ViTTrainingJob, pod: &Pod) -> Result<(), Error> {
    let parameters = PostParams {
        dry_run: true,
        ..written_by_us()
    };
    let created = api::<Pod>(client, job).create(&parameters, pod).await;
    let added = match created.map_err(Error::api("create", kind::<Pod>(), &pod.name_any())) {
        Ok(created) => pod
            .spec
            .as_ref()
            .zip(created.spec.as_ref())
            .map(|(built, pod)| admitted(built, pod))
            .unwrap_or_default(),
        Err(error) if !error.may_pass() && (error.is_refusal() || error.is_conflict()) => {
            debug!(%error, "a dry run of a pod is refused");
            let known = job.status.as_ref().and_then(|status| status.admitted_pod.clone());
            context.dry_runs.assume(job, known.unwrap_or_default());
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    context.dry_runs.keep(job, added);
    Ok(())
}

/// Deletes as many pods as a round may.
async fn delete_pods(
    context: &Context,
    api: &Api<Pod>,
    pods: Vec<(PodId, Option<u32>)>,
) -> Result<Applied, Error> {
    let all = pods.len();
    let deleted: Vec<Result<Option<Pod>, Error>> = stream::iter(pods)
        .take_until(tokio::time::sleep(TURN))
        .map(|(pod, grace_period_seconds)| {
            let parameters = DeleteParams {
                grace_period_seconds,
                ..DeleteParams::default()
            };
            delete(api, pod.name, with_uid(Some(pod.uid), parameters))
        })
        .buffered(PODS_AT_ONCE)
        .collect()
        .await;
    // An error must not hold up the rest.
    let is_part = deleted.len() < all && deleted.iter().any(Result::is_ok);
    let mut result = Ok(Applied::All);
    for deleted in deleted {
        match deleted {
            Ok(pod) => pod.into_iter().for_each(|pod| pod.answered(&context.caches)),
            Err(error) => result = result.and(Err(error)),
        }
    }
    if is_part { Ok(Applied::Part) } else { result }
}

async fn create_all(
    context: &Context,
    client: &Client,
    job: &ViTTrainingJob,
    objects: Vec<Object>,
    pods: Vec<Pod>,
) -> Result<(), Error> {
    // The next round tries again.
    let turn = (!pods.is_empty()).then(|| context.creating.try_acquire());
    if matches!(turn, Some(Err(_))) {
        return Ok(());
    }
    for object in objects {
        match object {
            Object::PodGroup(version, group) => create_group(context, job, version, *group).await?,
            Object::ConfigMap(config_map) => make(context, client, job, *config_map).await.map(drop)?,
            Object::Service(service) => make(context, client, job, *service).await.map(drop)?,
            Object::NetworkPolicy(policy) => make(context, client, job, *policy).await.map(drop)?,
        }
    }
    if pods.is_empty() {
        return Ok(());
    }
    create_gang(context, job, pods).await
}

fn api_of_groups(client: &Client, job: &ViTTrainingJob, version: Version) -> Api<DynamicObject> {
    let namespace = job.namespace().unwrap_or_default();
    Api::namespaced_with(client.clone(), &namespace, &version.resource())
}

/// Creates the PodGroup. If the server no longer serves its version, discovers the version again.
async fn create_group(
    context: &Context,
    job: &ViTTrainingJob,
    version: Version,
    group: DynamicObject,
) -> Result<(), Error> {
    let api = api_of_groups(&context.client, job, version);
    let result = create_of_kind(api, POD_GROUP, job, group).await;
    if result.as_ref().is_err_and(Error::is_not_found)
        && let Err(error) = context.settings.pod_groups.refresh(&context.client).await
    {
        warn!(%error, "failed to ask whether the API server serves PodGroups");
    }
    result.map(drop)
}

/// Creates as many pods as a round may.
async fn create_gang(context: &Context, job: &ViTTrainingJob, pods: Vec<Pod>) -> Result<(), Error> {
    let results: Vec<Result<(), Error>> = stream::iter(pods)
        .take_until(tokio::time::sleep(TURN))
        .map(|pod| async {
            let wants_group = is_grouped(&pod);
            let own = make(context, &context.client, job, pod).await?;
            if wants_group && own.is_new && !is_grouped(&own.object) {
                warn_of_lost_group(context);
            }
            Ok(())
        })
        // Ordered, so that of several errors always the same is reported.
        .buffered(PODS_AT_ONCE)
        .collect()
        .await;
    results.into_iter().collect()
}

fn warn_of_lost_group(context: &Context) {
    context.has_warned_of_lost_groups.call_once(|| {
        warn!(
            "an API server dropped spec.schedulingGroup of a pod, so the pods of its gang are bound one by one although \
             PodGroups are served: set the feature gate GenericWorkload equally on all API servers, or podGroups of the chart \
             to false"
        );
    });
}
