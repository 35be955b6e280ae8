//! The same work as objects of each contender: gangs of pods with two GPUs each.

use anyhow::{Context as _, Result};
use crds::ViTTrainingJob;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::PostParams;
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

/// The namespace of all objects.
pub(crate) const NAMESPACE: &str = "default";
/// Objects created concurrently. More are not faster, because the API server has no CPU left.
pub(crate) const POSTED_AT_ONCE: usize = 32;
/// GPUs of a pod.
pub(crate) const GPUS: u32 = 2;

/// Our job with this many pods.
pub(crate) fn job(index: usize, pods: usize) -> Result<ViTTrainingJob> {
    let job = json!({
        "apiVersion": "vit-operator.dev/v1alpha1",
        "kind": "ViTTrainingJob",
        "metadata": {"name": format!("job-{index}")},
        "spec": {
            "image": "vit-trainer:latest",
            "model": {"name": "vit_base_patch16_224", "numClasses": 10},
            "data": {"format": "synthetic", "syntheticImages": 50_000},
            "training": {"epochs": 1, "microBatchSize": 64},
            "workers": {"nodes": pods, "gpusPerNode": GPUS},
            "checkpoint": {"volume": {"hostPath": {"path": "/var/lib/checkpoints"}}},
        },
    });
    serde_json::from_value(job).context("a ViTTrainingJob")
}

/// An Indexed Job with this many pods.
pub(crate) fn indexed_job(index: usize, pods: usize) -> Result<Job> {
    let job = json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": format!("job-{index}")},
        "spec": {
            "completionMode": "Indexed", "completions": pods, "parallelism": pods,
            "template": {"spec": pod_spec("trainer", "Never")},
        },
    });
    serde_json::from_value(job).context("an Indexed Job")
}

/// training-operator's job with this many pods, including the master.
pub(crate) fn pytorch_job(index: usize, pods: usize) -> Result<DynamicObject> {
    let replicas = |count: usize| json!({"replicas": count, "restartPolicy": "Never", "template": {"spec": pod_spec("pytorch", "Never")}});
    let job = json!({
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": format!("job-{index}")},
        "spec": {"pytorchReplicaSpecs": {"Master": replicas(1), "Worker": replicas(pods - 1)}},
    });
    serde_json::from_value(job).context("a PyTorchJob")
}

/// The API resource of `PyTorchJob`.
pub(crate) fn pytorch_jobs() -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("kubeflow.org", "v1", "PyTorchJob"))
}

/// A pod of others that uses these GPUs of a node.
pub(crate) fn foreign_pod(name: &str, node: &str, gpus: u32) -> Result<Pod> {
    let gpus = json!({"nvidia.com/gpu": gpus.to_string()});
    let pod = json!({
        "metadata": {"name": name},
        "spec": {
            "nodeName": node, "restartPolicy": "Never", "terminationGracePeriodSeconds": 0,
            "containers": [{
                "name": "foreign", "image": "vit-trainer:latest",
                "resources": {"requests": gpus, "limits": gpus},
            }],
        },
    });
    serde_json::from_value(pod).context("a pod")
}

fn pod_spec(container: &str, restart_policy: &str) -> serde_json::Value {
    let gpus = json!({"nvidia.com/gpu": GPUS.to_string()});
    json!({
        "restartPolicy": restart_policy,
        "containers": [{
            "name": container, "image": "vit-trainer:latest", "resources": {"requests": gpus, "limits": gpus},
        }],
    })
}

/// A pod as it was before its creation, without its owner, so that it can be created again.
pub(crate) fn as_posted(pod: Pod) -> Pod {
    let mut posted = Pod::default();
    posted.metadata.name = pod.metadata.name;
    posted.metadata.labels = pod.metadata.labels;
    posted.metadata.annotations = pod.metadata.annotations;
    posted.spec = pod.spec.map(|mut spec| {
        spec.node_name = None;
        spec
    });
    posted
}

/// Creates objects concurrently, as fast as the API server accepts them.
pub(crate) async fn post<K>(api: &Api<K>, objects: Vec<K>) -> Result<()>
where
    K: Clone + std::fmt::Debug + Serialize + DeserializeOwned,
{
    let parameters = PostParams::default();
    stream::iter(objects)
        .map(|object| {
            let parameters = &parameters;
            async move { api.create(parameters, &object).await }
        })
        .buffer_unordered(POSTED_AT_ONCE)
        .try_for_each(|_| async { Ok(()) })
        .await
        .context("cannot create the objects")
}
