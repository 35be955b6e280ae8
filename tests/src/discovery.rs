//! Writes Prometheus' scrape targets.
//!
//! Debian's Prometheus has no Kubernetes service discovery, so a process of the harness watches the
//! pods and writes the targets to a file that Prometheus watches. It uses the common pod
//! annotations `prometheus.io/scrape`, `prometheus.io/port` and `prometheus.io/path`.

use std::path::{Path, PathBuf};

use anyhow::Result;
use fs_err as fs;
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::{WatchStreamExt as _, reflector, watcher};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::progress::say;
use crate::state::State;

/// The name under which its process and log are recorded.
pub const COMPONENT: &str = "discovery";

/// The file that Prometheus watches.
pub fn targets_file(state: &State) -> PathBuf {
    state.directory().join("targets.json")
}

/// Writes the targets whenever a pod changes, until the process ends. A failed watch, such as while
/// the API server restarts, is retried.
pub async fn run(state: &State, client: Client) -> Result<()> {
    let path = targets_file(state);
    let (pods, writer) = reflector::store();
    let mut changes = Box::pin(
        watcher(Api::<Pod>::all(client), watcher::Config::default())
            .default_backoff()
            .reflect(writer)
            .touched_objects(),
    );
    let mut written = None;
    while let Some(change) = changes.next().await {
        if let Err(error) = change {
            say(format_args!("watching pods failed: {error}"));
            continue;
        }
        let now = targets(pods.state().iter().map(AsRef::as_ref));
        if written.as_ref() != Some(&now) {
            write(&path, &now)?;
            written = Some(now);
        }
    }
    Ok(())
}

/// Replaces the file atomically, so that Prometheus never reads half of it.
pub fn write(path: &Path, targets: &Value) -> Result<()> {
    let part = path.with_extension("part");
    fs::write(&part, serde_json::to_vec_pretty(targets)?)?;
    Ok(fs::rename(part, path)?)
}

/// The scrape targets of these pods, in the format of Prometheus's `file_sd_configs`.
fn targets<'a>(pods: impl IntoIterator<Item = &'a Pod>) -> Value {
    let mut groups: Vec<_> = pods.into_iter().filter_map(target).collect();
    groups.sort_by_key(|group| group["labels"]["pod"].to_string());
    Value::Array(groups)
}

/// A pod's target; `None` if it is not annotated, has no address yet, or has ended.
fn target(pod: &Pod) -> Option<Value> {
    let annotations = pod.metadata.annotations.as_ref()?;
    let annotation = |name: &str| {
        annotations
            .get(&format!("prometheus.io/{name}"))
            .map(String::as_str)
    };
    let status = pod.status.as_ref()?;
    let ended = matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"));
    if annotation("scrape") != Some("true") || ended {
        return None;
    }
    Some(json!({
        "targets": [format!("{}:{}", status.pod_ip.as_ref()?, annotation("port")?)],
        "labels": {
            "__metrics_path__": annotation("path").unwrap_or("/metrics"),
            "namespace": pod.metadata.namespace,
            "pod": pod.metadata.name,
            "node": pod.spec.as_ref()?.node_name,
        },
    }))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::json;

    use super::targets;

    fn pod(name: &str, scrape: &str, phase: &str) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "default", "annotations":
                {"prometheus.io/scrape": scrape, "prometheus.io/port": "9400"}},
            "spec": {"nodeName": "node0", "containers": []},
            "status": {"phase": phase, "podIP": "10.244.0.2"},
        }))
        .unwrap()
    }

    #[test]
    fn running_annotated_pods_are_scraped() {
        let pods = [
            pod("a", "true", "Running"),
            pod("b", "false", "Running"),
            pod("c", "true", "Succeeded"),
            pod("d", "true", "Failed"),
        ];
        let expected = json!([{
            "targets": ["10.244.0.2:9400"],
            "labels": {"__metrics_path__": "/metrics", "namespace": "default", "pod": "a", "node": "node0"},
        }]);
        assert_eq!(targets(&pods), expected);
    }

    #[test]
    fn a_pod_without_an_address_waits() {
        let mut pending = pod("a", "true", "Pending");
        pending.status.as_mut().unwrap().pod_ip = None;
        assert_eq!(targets(&[pending]), json!([]));
    }
}
