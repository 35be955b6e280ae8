//! Tests of the harness: parallel clusters, killed and restarted nodes, no leftovers. Needs root.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::PostParams;
use kube::runtime::wait::await_condition;
use serde_json::json;
use vit_tests::{Cluster, ClusterConfig, ClusterName, GpuProduct, NodeConfig, cluster, image};

const DEADLINE: Duration = Duration::from_secs(60);

fn name(text: &str) -> ClusterName {
    text.parse().expect("a cluster's name")
}

fn assert_nothing_left(name: &ClusterName) -> Result<()> {
    let left = cluster::leftovers(name)?;
    ensure!(left.is_empty(), "cluster {name} left behind: {}", left.join(", "));
    Ok(())
}

#[tokio::test]
async fn clusters_run_side_by_side_and_leave_nothing_behind() -> Result<()> {
    let (first, second) = (name("harness-a"), name("harness-b"));
    cluster::down(&first)?;
    cluster::down(&second)?;
    let with_node = ClusterConfig {
        nodes: vec![NodeConfig::with_gpus("node0", &GpuProduct::TESLA_T4, 2)],
        ..ClusterConfig::control_plane(first.clone())
    };
    let a = Cluster::up(with_node.clone()).await?;
    let b = Cluster::up(ClusterConfig::control_plane(second.clone())).await?;
    ensure!(a.kubectl_output(&["get", "nodes", "-o", "name"])?.trim() == "node/node0");
    ensure!(
        b.kubectl_output(&["get", "nodes", "-o", "name"])?
            .trim()
            .is_empty()
    );

    let again = Cluster::up(with_node)
        .await
        .expect_err("a healthy cluster is not replaced");
    ensure!(again.to_string().contains("already running"), "{again:#}");

    b.down()?;
    assert_nothing_left(&second)?;
    ensure!(
        a.kubectl_output(&["get", "--raw", "/readyz"])? == "ok",
        "the other cluster is damaged"
    );
    a.down()?;
    assert_nothing_left(&first)
}

#[tokio::test]
async fn a_killed_node_comes_back_with_its_gpus_and_pods() -> Result<()> {
    let name = name("harness-node");
    cluster::down(&name)?;
    let config = ClusterConfig {
        nodes: vec![NodeConfig::with_gpus("node0", &GpuProduct::H200, 2)],
        ..ClusterConfig::control_plane(name.clone())
    };
    let cluster = Cluster::up(config.clone()).await?;
    let outcome = killed_node(&cluster).await;
    if let Err(error) = outcome {
        let dump = cluster.dump();
        cluster.down()?;
        return Err(error.context(dump));
    }

    // A cluster that lost a node is unhealthy: attaching fails, and `up` replaces it.
    cluster.kill_node("node0")?;
    let refused = Cluster::attach(&name)
        .await
        .expect_err("a broken cluster is not attached to");
    ensure!(refused.to_string().contains("kubelet-node0"), "{refused:#}");
    let cluster = Cluster::up(config).await?;
    cluster.down()?;
    assert_nothing_left(&name)
}

async fn killed_node(cluster: &Cluster) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(cluster.client(), "default");
    let pod = json!({
        "metadata": {"name": "sleeper"},
        "spec": {"containers": [{
            "name": "sleeper", "image": image::PAUSE, "resources": {"limits": {"nvidia.com/gpu": "2"}},
        }]},
    });
    pods.create(&PostParams::default(), &serde_json::from_value(pod)?)
        .await?;
    wait(&pods, |restarts| restarts == 0)
        .await
        .context("the pod did not start")?;
    cluster.kill_node("node0")?;
    cluster.start_node("node0").await?;
    wait(&pods, |restarts| restarts > 0)
        .await
        .context("the pod did not restart")
}

/// Waits until the pod's container is ready and its restart count satisfies `restarts`.
async fn wait(pods: &Api<Pod>, restarts: impl Fn(i32) -> bool) -> Result<()> {
    let runs = |pod: Option<&Pod>| {
        let statuses = pod.and_then(|pod| pod.status.as_ref()?.container_statuses.as_ref());
        statuses
            .into_iter()
            .flatten()
            .any(|status| status.ready && restarts(status.restart_count))
    };
    tokio::time::timeout(DEADLINE, await_condition(pods.clone(), "sleeper", runs)).await??;
    Ok(())
}
