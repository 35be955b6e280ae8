//! Step 5: applies changes.

use std::time::Duration;

use crds::{ViTTrainingJob, conditions};
use futures::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::api::{DeleteParams, DynamicObject};
use kube::runtime::events::EventType;
use kube::{Api, Client, Resource as _, ResourceExt as _};
use tracing::{debug, warn};

use super::changes::{Changes, WorkloadChange};
use super::context::Context;
use super::events;
use crate::api::kueue::Workload;
use crate::api::pod_group::{POD_GROUP, Version};
use crate::error::Error;
use crate::objects::{create, create_of_kind, delete, delete_of_kind, kind, replace_status, with_uid};
use crate::policy::gang::{PodId, is_grouped};

/// Concurrent calls for the pods of one gang.
const PODS_AT_ONCE: usize = 16;
/// After this time a round leaves the remaining pods to the next, to notice failures.
const CREATING: Duration = Duration::from_secs(1);

/// Applies changes, idempotently.
pub(crate) async fn apply(
    context: &Context,
    client: &Client,
    job: &ViTTrainingJob,
    changes: Changes,
) -> Result<(), Error> {
    let Changes {
        attempt,
        pod_groups,
        create_pod_group,
        create_config_map,
        create_service,
        create_network_policy,
        create_pods,
        delete_pods,
        stop_seconds,
        force_delete_pods,
        outdated,
        delete_service,
        delete_network_policy,
        workload,
        delete_job,
    } = changes;
    let namespace = job.namespace().unwrap_or_default();
    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    let config_maps: Api<ConfigMap> = Api::namespaced(client.clone(), &namespace);
    let services: Api<Service> = Api::namespaced(client.clone(), &namespace);
    let network_policies: Api<NetworkPolicy> = Api::namespaced(client.clone(), &namespace);

    let gracefully = delete_pods.into_iter().map(|pod| (pod, stop_seconds));
    let by_force = force_delete_pods.into_iter().map(|pod| (pod, Some(0)));
    // Try all: one failed deletion must not leave GPUs with other pods.
    let deleted: Vec<Result<(), Error>> = stream::iter(gracefully.chain(by_force))
        .map(|(pod, grace_period_seconds)| {
            let parameters = DeleteParams {
                grace_period_seconds,
                ..DeleteParams::default()
            };
            delete(&pods, pod.name, with_uid(Some(pod.uid), parameters))
        })
        .buffered(PODS_AT_ONCE)
        .collect()
        .await;
    deleted.into_iter().collect::<Result<(), Error>>()?;
    for name in outdated {
        if let Some(version) = pod_groups {
            let api = api_of_groups(client, job, version);
            delete_of_kind(&api, POD_GROUP, name.clone(), DeleteParams::default()).await?;
        }
        delete(&config_maps, name, DeleteParams::default()).await?;
    }
    if delete_service {
        delete(&services, job.name_any(), DeleteParams::default()).await?;
    }
    if delete_network_policy {
        delete(&network_policies, job.name_any(), DeleteParams::default()).await?;
    }
    if let Some(change) = workload {
        change_workload(context, client, job, change).await?;
    }
    // The next round tries again.
    let turn = (!create_pods.is_empty()).then(|| context.creating.try_acquire());
    if matches!(turn, Some(Err(_))) {
        return Ok(());
    }
    if let (Some(version), Some(pod_group)) = (pod_groups, create_pod_group) {
        create_group(context, job, version, pod_group).await?;
    }
    if let Some(config_map) = create_config_map {
        create(client, job, config_map).await?;
    }
    if let Some(service) = create_service {
        create(client, job, service).await?;
    }
    // Before the pods, so that their ports are never open to others.
    if let Some(network_policy) = create_network_policy {
        create(client, job, network_policy).await?;
    }
    if !create_pods.is_empty() {
        create_gang(context, job, attempt, create_pods).await?;
    }
    if delete_job {
        let expired = events::event(
            EventType::Normal,
            conditions::reasons::EXPIRED,
            "Delete",
            "spec.ttlSecondsAfterFinished has passed",
        );
        context.publish(job.object_ref(&()), vec![expired]);
        let jobs: Api<ViTTrainingJob> = Api::namespaced(client.clone(), &namespace);
        delete(
            &jobs,
            job.name_any(),
            with_uid(job.uid(), DeleteParams::background()),
        )
        .await?;
    }
    Ok(())
}

async fn change_workload(
    context: &Context,
    client: &Client,
    job: &ViTTrainingJob,
    change: WorkloadChange,
) -> Result<(), Error> {
    let api: Api<Workload> = Api::namespaced(client.clone(), &job.namespace().unwrap_or_default());
    match change {
        WorkloadChange::Create(workload) => create(client, job, workload).await.map(drop),
        WorkloadChange::Delete(workload) => {
            let parameters = with_uid(workload.uid(), DeleteParams::default());
            delete(&api, workload.name_any(), parameters).await
        }
        WorkloadChange::UpdateStatus(workload) => replace_status(&api, kind::<Workload>(), &workload)
            .await
            .map(drop),
        // A gang must not depend on Kueue's webhook.
        WorkloadChange::TryUpdateStatus(workload) => {
            if let Err(error) = replace_status(&api, kind::<Workload>(), &workload).await {
                context.metrics.failed(error.category());
                debug!(%error, "failed to report pod readiness to Kueue");
            }
            Ok(())
        }
    }
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
async fn create_gang(
    context: &Context,
    job: &ViTTrainingJob,
    attempt: i32,
    pods: Vec<Pod>,
) -> Result<(), Error> {
    let uid = job.uid().unwrap_or_default();
    let wanted = pods.len();
    let results: Vec<Result<(), Error>> = stream::iter(pods)
        .take_until(tokio::time::sleep(CREATING))
        .map(|pod| async {
            let name = pod.name_any();
            let wants_group = is_grouped(&pod);
            let own = create(&context.client, job, pod).await?;
            if wants_group && own.created.is_some_and(|pod| !is_grouped(&pod)) {
                warn_of_lost_group(context);
            }
            let created = PodId {
                name,
                uid: own.uid.unwrap_or_default(),
            };
            context.memory.pod_created(&uid, attempt, created);
            Ok(())
        })
        // Ordered, so that of several errors always the same is reported.
        .buffered(PODS_AT_ONCE)
        .collect()
        .await;
    let is_whole = results.len() == wanted;
    results.into_iter().collect::<Result<(), Error>>()?;
    if is_whole {
        context.memory.gang_created(&uid, attempt);
    }
    Ok(())
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
