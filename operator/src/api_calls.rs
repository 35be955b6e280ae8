//! A layer of kube's client that counts and times calls to the API server.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use tokio::time::Instant;
use tower::{Layer, Service};

use crate::metrics::Metrics;

#[derive(Clone, Debug)]
pub(crate) struct CountCalls(pub(crate) Arc<Metrics>);

#[derive(Clone, Debug)]
pub(crate) struct Counted<S> {
    inner: S,
    metrics: Arc<Metrics>,
}

impl<S> Layer<S> for CountCalls {
    type Service = Counted<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Counted {
            inner,
            metrics: Arc::clone(&self.0),
        }
    }
}

impl<S, Q, A> Service<Request<Q>> for Counted<S>
where
    S: Service<Request<Q>, Response = Response<A>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        let (metrics, method) = (Arc::clone(&self.metrics), request.method().clone());
        let (began, answer) = (Instant::now(), self.inner.call(request));
        Box::pin(async move {
            let answer = answer.await;
            let code = answer.as_ref().ok().map(Response::status);
            metrics.called(&method, code, began.elapsed());
            answer
        })
    }
}

#[cfg(test)]
mod tests {
    use http::StatusCode;
    use k8s_openapi::api::core::v1::Pod;
    use kube::client::{Body, ClientBuilder};
    use kube::{Api, Client};
    use tower_test::mock;

    use super::*;

    async fn delete_pod(client: Client) -> Result<(), kube::Error> {
        let pods = Api::<Pod>::namespaced(client, "research");
        pods.delete("digits-1-0", &kube::api::DeleteParams::default())
            .await
            .map(drop)
    }

    #[tokio::test]
    async fn a_call_is_counted_by_method_and_answer() {
        let metrics = Arc::new(Metrics::new().expect("metrics"));
        let (service, mut server) = mock::pair::<Request<Body>, Response<Body>>();
        let client = ClientBuilder::new(service, "default")
            .with_layer(&CountCalls(Arc::clone(&metrics)))
            .build();
        let call = tokio::spawn(delete_pod(client.clone()));
        let (_, answer) = server.next_request().await.expect("a call");
        let mut missing = Response::new(Body::from(b"{}".to_vec()));
        *missing.status_mut() = StatusCode::NOT_FOUND;
        answer.send_response(missing);
        call.await.expect("it ends").expect_err("the pod does not exist");

        let call = tokio::spawn(delete_pod(client));
        let (_, answer) = server.next_request().await.expect("a call");
        answer.send_error("the connection is gone");
        call.await.expect("it ends").expect_err("no answer");

        let text = metrics
            .render(
                [],
                &crate::metrics::gpu_counts::GpuCounts::default(),
                crate::fixtures::at(100),
            )
            .expect("renders");
        for line in [
            r#"vit_operator_api_requests_total{code="404",method="DELETE"} 1"#,
            r#"vit_operator_api_requests_total{code="none",method="DELETE"} 1"#,
            r#"vit_operator_api_request_seconds_count{method="DELETE"} 2"#,
        ] {
            assert!(
                text.lines().any(|found| found == line),
                "{line} is not in:\n{text}"
            );
        }
    }
}
