//! The agent's endpoints.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use contract::Progress;
use tokio::net::TcpListener;

use super::Shown;
use crate::error::TrainError;

/// Serves in the background for as long as the process lives. Every address of the pod, IPv6 where there is one.
pub(super) async fn serve(port: u16, shown: Arc<Shown>) -> Result<(), TrainError> {
    let listener = match TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).await {
        Ok(listener) => Ok(listener),
        Err(_) => TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await,
    }
    .map_err(TrainError::system("failed to listen for HTTP (VIT_AGENT_PORT)"))?;
    let router = Router::new()
        .route("/metrics", get(metrics))
        .route("/progress", get(progress))
        .route("/heartbeats", get(heartbeats))
        .route("/healthz", get(|| async { "ok\n" }))
        .with_state(shown);
    tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, router).await {
            tracing::error!("the HTTP endpoints ended: {error}");
        }
    });
    Ok(())
}

async fn metrics(State(shown): State<Arc<Shown>>) -> Response {
    match shown.metrics.render() {
        Ok(text) => (
            [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")],
            text,
        )
            .into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

async fn progress(State(shown): State<Arc<Shown>>) -> Response {
    match shown.progress.read().ok().and_then(|progress| progress.clone()) {
        Some(progress) => {
            // Only the pod of rank 0 has a record, and rank 0 is the first of its pod.
            let heartbeat = shown.pulses.heartbeat(0);
            axum::Json(Progress {
                heartbeat,
                ..progress
            })
            .into_response()
        }
        None => (
            StatusCode::SERVICE_UNAVAILABLE,
            "rank 0 has not begun to train in this pod\n",
        )
            .into_response(),
    }
}

async fn heartbeats(State(shown): State<Arc<Shown>>) -> Response {
    axum::Json(shown.pulses.heartbeats()).into_response()
}
