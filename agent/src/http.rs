//! The endpoints of a pod: `/metrics`, `/progress` (which also takes requests for a checkpoint), `/heartbeats`
//! and `/healthz`.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use axum::Router;
use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use contract::{Heartbeats, Progress, ProgressQuery};
use tokio::net::TcpListener;

/// Content of a pod's endpoints.
pub trait Shown: Send + Sync + 'static {
    /// Metrics in Prometheus' text format.
    fn metrics(&self) -> prometheus::Result<Vec<u8>>;

    /// The run's progress, with rank 0's current heartbeat; `None` in other pods, and before rank 0
    /// has reported.
    fn progress(&self) -> Option<Progress>;

    /// Current heartbeats of the pod's ranks.
    fn heartbeats(&self) -> Heartbeats;

    /// A checkpoint of a later step than this is wanted. Repeated until there is one. Another trainer
    /// cannot be asked.
    fn save_after(&self, _step: u64) {}
}

/// Listens at an address. On a machine without IPv6, `[::]` means every address of IPv4.
///
/// # Errors
/// If the address cannot be used.
pub async fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    match TcpListener::bind(address).await {
        Err(_) if address.ip() == Ipv6Addr::UNSPECIFIED => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await
        }
        listener => listener,
    }
}

/// Serves in the background until the process ends, on every address of the pod, with IPv6 if
/// available.
pub async fn serve<S: Shown>(port: u16, shown: Arc<S>) -> std::io::Result<()> {
    let listener = listen((Ipv6Addr::UNSPECIFIED, port).into()).await?;
    let router = Router::new()
        .route("/metrics", get(metrics::<S>))
        .route("/progress", get(progress::<S>))
        .route("/heartbeats", get(heartbeats::<S>))
        .route("/healthz", get(|| async { "ok\n" }))
        .with_state(shown);
    tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, router).await {
            tracing::error!("the HTTP server stopped: {error}");
        }
    });
    Ok(())
}

async fn metrics<S: Shown>(State(shown): State<Arc<S>>) -> Response {
    match shown.metrics() {
        Ok(text) => (
            [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")],
            text,
        )
            .into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

async fn progress<S: Shown>(State(shown): State<Arc<S>>, Query(query): Query<ProgressQuery>) -> Response {
    match shown.progress() {
        Some(progress) => {
            if let Some(step) = query.save_after {
                shown.save_after(step);
            }
            axum::Json(progress).into_response()
        }
        None => (
            StatusCode::SERVICE_UNAVAILABLE,
            "rank 0 does not train in this pod yet\n",
        )
            .into_response(),
    }
}

async fn heartbeats<S: Shown>(State(shown): State<Arc<S>>) -> Response {
    axum::Json(shown.heartbeats()).into_response()
}
