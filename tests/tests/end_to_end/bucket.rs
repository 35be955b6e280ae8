//! Data sets in S3 buckets, fetched before the ranks start, or streamed.

use std::net::Ipv4Addr;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use axum::Router;
use axum::error_handling::HandleError;
use axum::http::StatusCode;
use crds::Phase;
use crds::conditions::types;
use kube::ResourceExt as _;
use s3s::auth::SimpleAuth;
use s3s::service::S3ServiceBuilder;
use serde_json::json;
use tokio::net::TcpListener;

use crate::context::{Context, Namespace};
use crate::steps::{check_attempts, check_contains, copy_files};

const SECRET: &str = "bucket-credentials";

pub(crate) fn data_sets_are_fetched_and_streamed_from_buckets(context: &Context<'_>) -> Result<()> {
    let files = context.data_folder("bucket")?;
    let count = copy_files(context.digits(), &files.join("images"))?;
    let goldens = vit_tests::root().join("tests/peers/goldens/parquet/hub/data");
    copy_files(&goldens, &files.join("pictures"))?;
    let goldens = vit_tests::root().join("tests/peers/goldens/hf_vit");
    copy_files(&goldens, &files.join("weights"))?;
    let endpoint = context.block_on(serve(&files, context.cluster.host_address()))?;
    let fetched = context.data_folder("fetched")?;
    std::os::unix::fs::chown(&fetched, Some(65532), Some(65532))?;
    let namespace = context.namespace_with_data("bucket", &fetched)?;
    let job = |location: &str| {
        let from = json!({"locations": [location], "credentialsSecret": SECRET});
        json!({"data": {"from": from}, "training": {"epochs": 3}, "workers": {"nodes": 2}})
    };

    let volumes = json!([{"name": "late", "secret": {"secretName": "late"}}]);
    let mounts = json!([{"name": "late", "mountPath": "/late"}]);
    let workers = json!({"nodes": 1, "volumes": volumes, "volumeMounts": mounts});
    namespace.create("unmounted", json!({"workers": workers}))?;
    // A missing Secret is waited for, at most as long as a start.
    let mut early = job("s3://images");
    early["workers"]["nodes"] = 1.into();
    early["scheduling"] = json!({"startTimeoutSeconds": 30});
    namespace.create("early", early)?;
    let status = namespace.wait_phase("early", Phase::Failed)?;
    check_attempts(&status, 1, 0)?;
    let failure = status.last_failure.context("status.lastFailure is missing")?;
    ensure!(failure.class == "BadConfig", "{failure:?}");
    check_contains(&failure.message, &[SECRET, "not found"])?;

    // The kubelet reports a missing volume only in an Event.
    namespace.wait("unmounted", "names the missing volume", |status| {
        let running = status.condition(types::RUNNING);
        running.is_some_and(|running| {
            running.message.contains("FailedMount") && running.message.contains(r#"secret "late" not found"#)
        })
    })?;
    namespace.kubectl(["delete", "vtj/unmounted"])?;

    create_secret(&namespace, &endpoint)?;
    namespace.create("astray", job("s3://images/train-*.tar"))?;
    let status = namespace.wait_phase("astray", Phase::Failed)?;
    check_attempts(&status, 1, 0)?;
    let failure = status.last_failure.context("status.lastFailure is missing")?;
    ensure!(
        failure.class == "BadConfig" && failure.exit_code == Some(2),
        "{failure:?}"
    );
    check_contains(&failure.message, &["s3://images/train-*.tar"])?;

    namespace.create("digits", job("s3://images"))?;
    let status = namespace.wait_phase("digits", Phase::Succeeded)?;
    check_attempts(&status, 1, 0)?;
    let pods = namespace
        .pods()?
        .into_iter()
        .filter(|pod| pod.name_any().starts_with("digits-"));
    let pods: Vec<_> = pods.collect();
    ensure!(pods.len() == 2, "{} pods", pods.len());
    for pod in pods {
        let name = &pod.name_any();
        let told = namespace.kubectl(["logs", name, "-c", "fetch"])?;
        ensure!(told.contains(&format!("/data: {count} files")), "{name}: {told}");
        // Only the fetching container has the key.
        let spec = pod.spec.context("a pod has a specification")?;
        let sources = spec
            .containers
            .iter()
            .flat_map(|container| container.env_from.iter().flatten());
        ensure!(sources.count() == 0, "{name} gives the trainer credentials");
    }
    streams(&namespace)
}

/// Two pods stream Parquet files while they train, and cache them. They start from weights under Hugging Face's names
/// that they fetched.
fn streams(namespace: &Namespace<'_>) -> Result<()> {
    let from = json!({"locations": ["s3://pictures"], "credentialsSecret": SECRET});
    let data = json!({"format": "parquet", "volume": null, "from": from, "cache": {"sizeLimit": "64Mi"}});
    let weights = json!({"locations": ["s3://weights/model.safetensors"], "credentialsSecret": SECRET});
    let model = json!({
        "imageSize": 16, "patchSize": 4, "hiddenSize": 24, "depth": 2, "heads": 3, "mlpSize": 48, "pooling": "token",
        "pretrained": {"from": weights},
    });
    let training = json!({"epochs": 3, "microBatchSize": 4});
    namespace.create(
        "streams",
        json!({"model": model, "data": data, "training": training, "workers": {"nodes": 2}}),
    )?;
    let status = namespace.wait_phase("streams", Phase::Succeeded)?;
    check_attempts(&status, 1, 0)?;
    let told = namespace.kubectl(["logs", "streams-1-0", "-c", "trainer"])?;
    check_contains(
        &told,
        &["/pretrained/model.safetensors is for 5 classes: the head"],
    )
}

/// Starts an S3 server for the buckets in a folder, and returns its address.
async fn serve(folder: &Path, host: Ipv4Addr) -> Result<String> {
    let mut builder =
        S3ServiceBuilder::new(s3s_fs::FileSystem::new(folder).map_err(|error| anyhow::anyhow!("{error:?}"))?);
    builder.set_auth(SimpleAuth::from_single("key", "secret"));
    let failed = |_| async { StatusCode::INTERNAL_SERVER_ERROR };
    let router = Router::new().fallback_service(HandleError::new(builder.build(), failed));
    let listener = TcpListener::bind((host, 0)).await?;
    let endpoint = format!("http://{}", listener.local_addr()?);
    tokio::spawn(async { axum::serve(listener, router).await });
    Ok(endpoint)
}

fn create_secret(namespace: &Namespace<'_>, endpoint: &str) -> Result<()> {
    let endpoint = format!("--from-literal=AWS_ENDPOINT_URL={endpoint}");
    namespace.kubectl([
        "create",
        "secret",
        "generic",
        SECRET,
        "--from-literal=AWS_ACCESS_KEY_ID=key",
        "--from-literal=AWS_SECRET_ACCESS_KEY=secret",
        "--from-literal=AWS_REGION=us-east-1",
        &endpoint,
    ])?;
    Ok(())
}
