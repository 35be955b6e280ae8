//! Whether the cluster can bind the pods of a gang together.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use k8s_openapi::Resource as _;
use k8s_openapi::api::scheduling::v1alpha2::PodGroup;
use kube::Client;
use tracing::{info, warn};

/// How long an answer may take.
const CALL: Duration = Duration::from_secs(5);
/// Between two questions where there is no answer.
const RETRY: Duration = Duration::from_secs(1);

/// Whether gangs get PodGroups: where that is wanted, and the API server serves them as far as is known.
#[derive(Debug)]
pub(crate) struct PodGroups {
    are_wanted: bool,
    are_served: AtomicBool,
}

impl PodGroups {
    /// Nothing is known yet.
    pub(crate) fn new(are_wanted: bool) -> Self {
        Self {
            are_wanted,
            are_served: AtomicBool::new(false),
        }
    }

    /// As if the server had answered.
    #[cfg(test)]
    pub(crate) fn known(are_served: bool) -> Self {
        Self {
            are_wanted: true,
            are_served: AtomicBool::new(are_served),
        }
    }

    /// Whether gangs get them.
    pub(crate) fn are_used(&self) -> bool {
        self.are_wanted && self.are_served.load(Ordering::Relaxed)
    }

    /// Asks the API server until it has answered.
    pub(crate) async fn discover(&self, client: &Client) {
        if !self.are_wanted {
            return;
        }
        loop {
            match tokio::time::timeout(CALL, self.ask(client)).await {
                Ok(Ok(())) => return,
                Ok(Err(error)) => warn!(%error, "failed to ask whether the API server serves PodGroups"),
                Err(_) => warn!("the API server does not say in time whether it serves PodGroups"),
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Asks the API server once: it may have been restarted with other flags, or upgraded.
    pub(crate) async fn ask(&self, client: &Client) -> Result<(), kube::Error> {
        let are_served = are_served(client).await?;
        let were_served = self.are_served.swap(are_served, Ordering::Relaxed);
        if are_served != were_served {
            info!(are_served, "PodGroups of {}", PodGroup::API_VERSION);
        }
        Ok(())
    }
}

/// Whether the API server serves PodGroups (alpha in Kubernetes 1.36, off by default).
async fn are_served(client: &Client) -> Result<bool, kube::Error> {
    match client.list_api_group_resources(PodGroup::API_VERSION).await {
        Ok(list) => Ok(list
            .resources
            .iter()
            .any(|resource| resource.kind == PodGroup::KIND)),
        // In plain text, so that it has no reason but the code.
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::json;

    use super::*;

    /// What a server is taken for that answers with this.
    async fn served(code: u16, answer: String) -> Result<bool, kube::Error> {
        let (service, mut handle) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
        let server = tokio::spawn(async move {
            let (request, send) = handle.next_request().await.expect("a question");
            assert_eq!(request.uri().path(), "/apis/scheduling.k8s.io/v1alpha2");
            let body = Body::from(answer.into_bytes());
            send.send_response(Response::builder().status(code).body(body).expect("a response"));
        });
        let answer = are_served(&Client::new(service, "default")).await;
        server.await.expect("served");
        answer
    }

    fn resources(kinds: &[&str]) -> String {
        let resource = |kind: &&str| json!({"name": kind.to_lowercase(), "singularName": "", "kind": kind, "namespaced": true, "verbs": []});
        json!({
            "kind": "APIResourceList", "groupVersion": "scheduling.k8s.io/v1alpha2",
            "resources": kinds.iter().map(resource).collect::<Vec<_>>(),
        })
        .to_string()
    }

    #[tokio::test]
    async fn a_server_says_whether_it_has_pod_groups() {
        assert!(
            served(200, resources(&["Workload", "PodGroup"]))
                .await
                .expect("an answer")
        );
        assert!(!served(200, resources(&["Workload"])).await.expect("an answer"));
        assert!(
            !served(404, "404 page not found\n".into())
                .await
                .expect("an answer")
        );
        served(503, "apiserver is shutting down".into())
            .await
            .expect_err("nothing is known");
    }
}
