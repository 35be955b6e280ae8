//! Gangs in a cluster whose scheduler supports PodGroups.

use anyhow::{Context as _, Result, ensure};
use crds::Phase;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::scheduling::v1beta1::PodGroup;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use serde_json::json;

use crate::context::{Context, Namespace};
use crate::steps::{saved_step, until};

/// A pod whose anti-affinity keeps the gang off its node, which only kube-scheduler knows.
const HERMIT: &str = "hermit";

pub(crate) fn gang_is_bound_as_one_where_the_scheduler_can(context: &Context<'_>) -> Result<()> {
    let gates = "--feature-gates=GenericWorkload=true".to_owned();
    let served = "--runtime-config=scheduling.k8s.io/v1beta1=true".to_owned();
    let outcome = switch(context, &[served, gates.clone()], &[gates])
        .and_then(|()| context.restart_operator())
        .and_then(|()| train(context));
    let restored = switch(context, &[], &[]);
    outcome.and(restored)
}

/// Restarts API server, controller manager and scheduler with additional flags. The controller
/// manager removes finalizers of PodGroups without pods.
fn switch(context: &Context<'_>, server: &[String], gates: &[String]) -> Result<()> {
    let cluster = &context.cluster;
    let began = Timestamp::now();
    let outcome = context.block_on(async {
        cluster.restart_with_flags("kube-apiserver", server).await?;
        cluster
            .restart_with_flags("kube-controller-manager", gates)
            .await?;
        cluster.restart_with_flags("kube-scheduler", gates).await
    });
    context.rights_were_unsettled(began);
    outcome
}

fn train(context: &Context<'_>) -> Result<()> {
    let namespace = context.namespace("pod-groups")?;
    hold_back(context, &namespace)?;
    wait_scheduled(&namespace, "True")?;
    wait_bound(&namespace, 3)?;

    // Each attempt has its own group, and those of earlier attempts are deleted.
    namespace.wait_checkpoint("digits")?;
    namespace.patch("digits", json!({"suspend": true}))?;
    let suspended = namespace.wait_phase("digits", Phase::Suspended)?;
    namespace.patch("digits", json!({"suspend": false}))?;
    namespace.wait_checkpoint_after("digits", saved_step(&suspended)?)?;
    let outdated = namespace.pod_group("digits-1")?;
    ensure!(outdated.is_none(), "{outdated:?}");

    namespace.kubectl(["delete", "vtj", "digits"])?;
    namespace.wait_gone("pods,podgroups")
}

/// Creates a gang with a pod that cannot be bound, checks that none is, and removes the obstacle.
fn hold_back(context: &Context<'_>, namespace: &Namespace<'_>) -> Result<()> {
    let hermit: Pod = serde_json::from_value(json!({
        "metadata": {"name": HERMIT},
        "spec": {
            "nodeName": "node0",
            "containers": [{"name": "none", "image": "there.is/none:here"}],
            "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{
                "labelSelector": {"matchLabels": {"vit-operator.dev/job-name": "digits"}},
                "namespaces": [namespace.name],
                "topologyKey": "kubernetes.io/hostname",
            }]}},
        },
    }))?;
    let others: Api<Pod> = Api::namespaced(context.client.clone(), "default");
    context.block_on(async { others.create(&PostParams::default(), &hermit).await })?;
    namespace.apply_all(&[json!({
        "apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup", "metadata": {"name": "digits-1"},
        "spec": {"schedulingPolicy": {"basic": {}}},
    })])?;
    // Needs all nodes with these GPUs, including node0.
    let spec = json!({"workers": {"nodes": 3}, "training": {"epochs": 5000}});
    let held_back = namespace
        .create("digits", spec)
        .and_then(|()| leave_alone(namespace))
        .and_then(|()| wait_scheduled(namespace, "False"))
        .and_then(|()| {
            let bound: Vec<String> = bound_to(namespace)?.into_iter().flatten().collect();
            ensure!(bound.is_empty(), "part of the gang is on {bound:?}");
            Ok(())
        });
    let gone = DeleteParams::default().grace_period(0);
    context.block_on(async { others.delete(HERMIT, &gone).await })?;
    held_back
}

/// Checks that a foreign group with the gang's name is reported and kept, and deletes it.
fn leave_alone(namespace: &Namespace<'_>) -> Result<()> {
    let told = "failed to create PodGroup digits-1: an object with this name does not belong to this job";
    namespace.wait_message("digits", told)?;
    namespace.kubectl(["delete", "podgroup", "digits-1"])?;
    Ok(())
}

/// Waits until the first attempt's group has this status of `PodGroupInitiallyScheduled`.
fn wait_scheduled(namespace: &Namespace<'_>, wanted: &str) -> Result<()> {
    until(|| {
        let group = namespace.pod_group("digits-1")?;
        let conditions = group
            .as_ref()
            .and_then(|group| group.status.as_ref()?.conditions.as_ref());
        let is_wanted = conditions
            .into_iter()
            .flatten()
            .any(|condition| condition.type_ == "PodGroupInitiallyScheduled" && condition.status == wanted);
        ensure!(is_wanted, "PodGroupInitiallyScheduled is not {wanted}: {group:?}");
        Ok(())
    })
}

/// Waits until this many pods are bound: the scheduler reports a group as scheduled before it has
/// bound the last one.
fn wait_bound(namespace: &Namespace<'_>, pods: usize) -> Result<()> {
    until(|| {
        let nodes = bound_to(namespace)?;
        ensure!(
            nodes.iter().flatten().count() == pods,
            "{pods} pods should be bound: {nodes:?}"
        );
        Ok(())
    })
}

/// The node of each pod, if bound. All pods must be in the first attempt's group.
fn bound_to(namespace: &Namespace<'_>) -> Result<Vec<Option<String>>> {
    let mut nodes = Vec::new();
    for pod in namespace.pods()? {
        let spec = pod.spec.context("a pod has no spec")?;
        let group = spec.scheduling_group.and_then(|group| group.pod_group_name);
        ensure!(
            group.as_deref() == Some("digits-1"),
            "a pod is in group {group:?}"
        );
        nodes.push(spec.node_name);
    }
    Ok(nodes)
}

impl Namespace<'_> {
    fn pod_group(&self, name: &str) -> Result<Option<PodGroup>> {
        let groups: Api<PodGroup> = Api::namespaced(self.context.client.clone(), &self.name);
        Ok(self.context.block_on(async { groups.get_opt(name).await })?)
    }
}
