//! kubeflow training-operator 1.8.1, started outside a cluster.
//!
//! In a pod, its webhook's certificate is mounted from a Secret that it fills itself. Here the
//! certificate is copied to its private `/tmp`. No job passes the webhook, which only saves work.

use std::path::Path;

use anyhow::{Context as _, Result};
use fs_err as fs;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use serde_json::json;
use vit_tests::binaries::{self, Binaries};
use vit_tests::process;

use crate::testbed::Testbed;

/// The name of its program, process and log.
pub(crate) const TRAINING_OPERATOR: &str = "training-operator";

const NAMESPACE: &str = "kubeflow";
const SECRET: &str = "training-operator-webhook-cert";
const CERTIFICATES: &str = "tmp/k8s-webhook-server/serving-certs";
/// Its concurrent reconciles; the default is one.
const THREADS: u32 = 8;

/// Starts training-operator and waits until it is ready.
pub(crate) async fn start_training_operator(testbed: &Testbed) -> Result<()> {
    let state = testbed.cluster.state();
    let crd = binaries::training_operator_source()?.join("manifests/base/crds/kubeflow.org_pytorchjobs.yaml");
    let crd = crd.display().to_string();
    let kubectl = |arguments: &[&str]| testbed.cluster.kubectl_output(arguments);
    kubectl(&["apply", "--server-side", "-f", &crd])?;
    testbed.established("pytorchjobs.kubeflow.org").await?;
    kubectl(&["create", "namespace", NAMESPACE])?;
    kubectl(&["create", "secret", "generic", SECRET, "--namespace", NAMESPACE])?;
    let webhooks = state.directory().join("webhooks.json");
    let configuration = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "validator.training-operator.kubeflow.org"},
    });
    fs::write(&webhooks, configuration.to_string())?;
    kubectl(&["apply", "-f", &webhooks.display().to_string()])?;

    let program = Binaries::build_training_operator()?.path(TRAINING_OPERATOR);
    let program = program.display().to_string();
    let kubeconfig = format!("KUBECONFIG={}", testbed.cluster.kubeconfig().display());
    let threads = format!("--controller-threads={THREADS}");
    let words = [
        "unshare",
        "--mount",
        "sh",
        "-c",
        r#"mount -t tmpfs tmpfs /tmp && exec "$@""#,
        "sh",
        "env",
        &kubeconfig,
        &program,
        "--enable-scheme=pytorchjob",
        &threads,
    ]
    .map(str::to_owned);
    let path = testbed.cluster.binaries().search_path();
    let pid = process::start(state, TRAINING_OPERATOR, None, &words, &path)?;
    copy_certificate(testbed, Path::new(&format!("/proc/{pid}/root"))).await?;
    let ready = format!("http://{}:8081/readyz", state.addresses().api());
    testbed
        .until("training-operator did not become ready", || {
            process::check(state, TRAINING_OPERATOR)?;
            Ok(ureq::get(&ready).call().is_ok())
        })
        .await
}

/// Writes the Secret's entries as files once it is filled, like the kubelet.
async fn copy_certificate(testbed: &Testbed, root: &Path) -> Result<()> {
    let secrets: Api<Secret> = Api::namespaced(testbed.client.clone(), NAMESPACE);
    let is_filled = |secret: Option<&Secret>| {
        let data = secret.and_then(|secret| secret.data.as_ref());
        data.is_some_and(|data| data.contains_key("tls.crt"))
    };
    let filled = kube::runtime::wait::await_condition(secrets, SECRET, is_filled);
    let secret = tokio::time::timeout(std::time::Duration::from_secs(60), filled)
        .await
        .context("training-operator did not create a certificate")??;
    let folder = root.join(CERTIFICATES);
    fs::create_dir_all(&folder)?;
    let data = secret.and_then(|secret| secret.data).unwrap_or_default();
    // It waits for the certificate, so write that last.
    for name in ["tls.key", "tls.crt"] {
        let value = data
            .get(name)
            .with_context(|| format!("the Secret has no {name}"))?;
        fs::write(folder.join(name), &value.0)?;
    }
    Ok(())
}
