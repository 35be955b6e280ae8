//! `/metrics`, `/healthz` and `/readyz`.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use crds::Phase;
use kube::runtime::reflector::Store;
use tokio::net::TcpListener;

use crate::metrics::Metrics;
use crate::reconcile::GuardedJob;

/// What the endpoints tell about.
#[derive(Clone, Debug)]
pub(crate) struct Endpoints {
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) jobs: Store<GuardedJob>,
    /// Whether the caches are filled.
    pub(crate) is_ready: Arc<AtomicBool>,
}

/// Serves until `stop` ends.
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
        // The process serves: that is all a liveness probe asks. Losing the lease or a watch task ends it anyway.
        .route("/healthz", get(|| async { "ok" }))
        .route("/readyz", get(ready))
        .with_state(endpoints)
}

async fn metrics(State(endpoints): State<Endpoints>) -> Response {
    let phases = endpoints.jobs.state().into_iter().filter_map(|job| {
        Some(
            job.0
                .as_ref()
                .ok()?
                .status
                .as_ref()?
                .phase
                .unwrap_or(Phase::Pending),
        )
    });
    match endpoints.metrics.render(phases) {
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
