//! Installs Kueue on a cluster: the chart and the program of its pinned source.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::binaries::{self, Binaries};
use crate::{Cluster, image, root};

/// Namespace and release of Kueue.
pub const KUEUE: &str = "kueue-system";
const RELEASE: &str = "kueue";
const IMAGE: &str = "localhost/kueue:dev";
/// Time limit for its webhooks to answer after its pod is ready.
const WEBHOOKS: Duration = Duration::from_secs(120);

/// How long a gang that failed may take to recover before Kueue evicts it.
const RECOVERY: &str = "20s";

/// Installs Kueue with its chart's default configuration, but that gangs must recover, and waits until it
/// is ready.
pub fn install(cluster: &Cluster) -> Result<()> {
    let programs = Binaries::build_kueue()?;
    let context = tempfile::tempdir_in(root().join("target"))?;
    let program = programs.path("kueue");
    image::stage(context.path(), [(program.as_path(), "kueue")])?;
    let dockerfile = root().join("tests/images/kueue/Dockerfile");
    let archive = image::build(IMAGE, &dockerfile, context.path())?;
    cluster.load_image(&archive, &cluster.nodes())?;
    let (repository, tag) = IMAGE.rsplit_once(':').context("the image has a tag")?;
    let manager = "controllerManager.manager";
    let values = [
        format!("{manager}.image.repository={repository}"),
        format!("{manager}.image.tag={tag}"),
        format!("{manager}.image.pullPolicy=Never"),
        // Low requests: the nodes share one machine.
        format!("{manager}.resources.requests.cpu=10m"),
        format!("{manager}.resources.requests.memory=64Mi"),
        "controllerManager.featureGates[0].name=VisibilityOnDemand".to_owned(),
        "controllerManager.featureGates[0].enabled=false".to_owned(),
    ];
    let chart = binaries::kueue_source()?.join("charts/kueue");
    let configuration = context.path().join("configuration.yaml");
    std::fs::write(&configuration, configuration_of(&chart)?)?;
    let configuration = format!(
        "managerConfig.controllerManagerConfigYaml={}",
        configuration.display()
    );
    let flags = ["--set-file", &configuration];
    cluster.helm_upgrade(RELEASE, KUEUE, &chart, &values, &flags)?;
    // Its first pod creates the webhooks' certificate. The kubelet passes it to a running pod after
    // a minute, but to a new pod at once.
    let kubectl = |arguments: &[&str]| cluster.kubectl_output(&[&["--namespace", KUEUE], arguments].concat());
    let (secret, deployment) = (
        "secret/kueue-webhook-server-cert",
        "deployment/kueue-controller-manager",
    );
    kubectl(&[
        "wait",
        secret,
        r"--for=jsonpath={.data.tls\.crt}",
        "--timeout=120s",
    ])?;
    kubectl(&["rollout", "restart", deployment])?;
    kubectl(&["rollout", "status", deployment, "--timeout=300s"])?;
    wait_webhooks(cluster, context.path())?;
    // The disabled feature serves these APIs, and no namespace can be deleted without them.
    let mut services = vec!["delete", "apiservice", "--ignore-not-found"];
    services.extend([
        "v1beta1.visibility.kueue.x-k8s.io",
        "v1beta2.visibility.kueue.x-k8s.io",
    ]);
    cluster.kubectl_output(&services)?;
    Ok(())
}

fn configuration_of(chart: &Path) -> Result<String> {
    let values = std::fs::read_to_string(chart.join("values.yaml"))?;
    let values: Value = serde_saphyr::from_str(&values)?;
    let configuration = values["managerConfig"]["controllerManagerConfigYaml"].as_str();
    let mut configuration: Value = serde_saphyr::from_str(configuration.context("a configuration")?)?;
    configuration["waitForPodsReady"] = json!({
        "timeout": "5m", "recoveryTimeout": RECOVERY, "requeuingStrategy": {"backoffBaseSeconds": 1},
    });
    Ok(configuration.to_string())
}

/// Waits until the API server reaches the webhooks: kube-proxy may still route to the previous pod.
fn wait_webhooks(cluster: &Cluster, folder: &Path) -> Result<()> {
    let flavor = folder.join("flavor.json");
    let object = json!({
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "ResourceFlavor",
        "metadata": {"name": "webhooks-answer"},
    });
    std::fs::write(&flavor, object.to_string())?;
    let flavor = flavor.to_string_lossy();
    let started = Instant::now();
    loop {
        match cluster.kubectl_output(&["create", "--dry-run=server", "--filename", &flavor]) {
            Ok(_) => return Ok(()),
            Err(error) if started.elapsed() > WEBHOOKS => {
                return Err(error.context("Kueue's webhooks do not answer"));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(250)),
        }
    }
}

/// Uninstalls Kueue with its objects.
pub fn uninstall(cluster: &Cluster) -> Result<()> {
    cluster.helm_uninstall(RELEASE, KUEUE)?;
    Ok(())
}
