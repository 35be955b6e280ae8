//! `/metrics`, `/healthz` and `/readyz`.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use crds::spec::DEFAULT_GPU_RESOURCE;
use crds::{StoredJob, ViTTrainingJob};
use kube::runtime::reflector::Store;
use planner::SharedPlanner;
use tokio::net::TcpListener;

use crate::clock::Clock;
use crate::metrics::Metrics;
use crate::metrics::gpu_counts::{self, GpuCounts};

#[derive(Clone, Debug)]
pub(crate) struct Endpoints {
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) jobs: Store<StoredJob>,
    pub(crate) planner: SharedPlanner,
    pub(crate) is_ready: Arc<AtomicBool>,
    pub(crate) clock: Clock,
}

pub(crate) async fn serve(
    listener: TcpListener,
    endpoints: Endpoints,
    stop: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    axum::serve(listener, router(endpoints))
        .with_graceful_shutdown(stop)
        .await
}

fn router(endpoints: Endpoints) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        // Enough for liveness: losing the lease or a watch ends the process anyway.
        .route("/healthz", get(|| async { "ok" }))
        .route("/readyz", get(ready))
        .with_state(endpoints)
}

async fn metrics(State(endpoints): State<Endpoints>) -> Response {
    let jobs = endpoints.jobs.state();
    let own: Vec<&ViTTrainingJob> = jobs
        .iter()
        .filter_map(|job| job.readable())
        .filter(|job| job.is_for_vit_operator())
        .collect();
    // Only the leader promises GPUs, so only it knows which are free.
    let gpus = if endpoints.metrics.is_leader() {
        let asked = own.iter().map(|job| job.spec.workers.gpu_resource.as_str());
        let resources = asked.chain([DEFAULT_GPU_RESOURCE]).collect();
        gpu_counts::count(endpoints.planner.lock().inventory(), &resources)
    } else {
        GpuCounts::default()
    };
    match endpoints.metrics.render(own, &gpus, endpoints.clock.now()) {
        Ok(text) => ([(header::CONTENT_TYPE, prometheus::TEXT_FORMAT)], text).into_response(),
        Err(error) => (
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("failed to render metrics: {error}"),
        )
            .into_response(),
    }
}

async fn ready(State(endpoints): State<Endpoints>) -> Response {
    if endpoints.is_ready.load(Ordering::Relaxed) {
        "ok".into_response()
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "caches are being filled").into_response()
    }
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, to_bytes};
    use axum::http::Request;
    use kube::runtime::{reflector, watcher};
    use tower::ServiceExt as _;

    use super::*;
    use crate::fixtures::{self, assert_contains};

    async fn get(endpoints: &Endpoints, path: &str) -> (StatusCode, String) {
        let request = Request::get(path).body(Body::empty()).expect("a request");
        let response = router(endpoints.clone())
            .oneshot(request)
            .await
            .expect("an answer");
        let status = response.status();
        let body = to_bytes(response.into_body(), usize::MAX).await.expect("a body");
        (status, String::from_utf8(body.to_vec()).expect("text"))
    }

    #[tokio::test]
    async fn the_operator_is_ready_once_its_caches_are_filled_and_alive_before() {
        let (jobs, mut writer) = reflector::store();
        writer.apply_watcher_event(&watcher::Event::Apply(fixtures::job().into()));
        let endpoints = Endpoints {
            metrics: Arc::new(Metrics::new().expect("metrics")),
            jobs,
            planner: SharedPlanner::default(),
            is_ready: Arc::default(),
            clock: Clock::starting_at(fixtures::at(100)),
        };
        assert_eq!(get(&endpoints, "/healthz").await.0, StatusCode::OK);
        assert_eq!(
            get(&endpoints, "/readyz").await.0,
            StatusCode::SERVICE_UNAVAILABLE
        );
        endpoints.is_ready.store(true, Ordering::Relaxed);
        assert_eq!(get(&endpoints, "/readyz").await, (StatusCode::OK, "ok".into()));
        let (status, text) = get(&endpoints, "/metrics").await;
        assert_eq!(status, StatusCode::OK);
        assert_contains(&text, "# TYPE vit_operator_reconciles_total counter");
        // A job without a status counts.
        assert_contains(&text, "vit_operator_jobs{phase=\"Pending\"} 1");
    }
}
