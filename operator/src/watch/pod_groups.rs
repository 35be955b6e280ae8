//! Discovers whether the API server serves PodGroups, to bind the pods of a gang together.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kube::Client;
use tracing::{info, warn};

use crate::api::pod_group::Version;

/// Timeout of a call.
const CALL: Duration = Duration::from_secs(5);
/// Time between calls without an answer.
const RETRY: Duration = Duration::from_secs(1);

/// Whether gangs get PodGroups: if enabled, and the API server is known to serve them.
#[derive(Debug)]
pub(crate) struct PodGroups {
    are_wanted: bool,
    served: Mutex<Option<Version>>,
}

impl PodGroups {
    pub(crate) fn new(are_wanted: bool) -> Self {
        Self {
            are_wanted,
            served: Mutex::default(),
        }
    }

    #[cfg(test)]
    pub(crate) fn known(served: Option<Version>) -> Self {
        Self {
            are_wanted: true,
            served: Mutex::new(served),
        }
    }

    /// The version of the PodGroups that gangs get, if they get any.
    pub(crate) fn version(&self) -> Option<Version> {
        *self.lock()
    }

    /// Asks the API server until it answers.
    pub(crate) async fn discover(&self, client: &Client) {
        if !self.are_wanted {
            return;
        }
        loop {
            match tokio::time::timeout(CALL, self.refresh(client)).await {
                Ok(Ok(())) => {
                    if self.version().is_none() {
                        log_version(None);
                    }
                    return;
                }
                Ok(Err(error)) => warn!(%error, "failed to ask whether the API server serves PodGroups"),
                Err(_) => warn!("timed out asking whether the API server serves PodGroups"),
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Asks the API server once: it may have been upgraded or restarted with other flags.
    pub(crate) async fn refresh(&self, client: &Client) -> Result<(), kube::Error> {
        let served = served(client).await?;
        let last = std::mem::replace(&mut *self.lock(), served);
        if served != last {
            log_version(served);
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Option<Version>> {
        self.served.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn log_version(served: Option<Version>) {
    if let Some(Version(version)) = served {
        info!(version, "gangs get PodGroups");
    } else {
        info!(
            "the API server serves PodGroups in no supported version of scheduling.k8s.io ({}): the pods of a gang are bound one by \
             one",
            Version::ALL.map(|Version(version)| version).join(", ")
        );
    }
}

/// The newest version of PodGroups that the API server serves, if any: all are off by default.
async fn served(client: &Client) -> Result<Option<Version>, kube::Error> {
    for version in Version::ALL {
        let resource = version.resource();
        match client.list_api_group_resources(&resource.api_version).await {
            Ok(list) if list.resources.iter().any(|served| served.kind == resource.kind) => {
                return Ok(Some(version));
            }
            Ok(_) => {}
            // The response is plain text, so only its code is known.
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::json;

    use super::*;

    /// The version found at a server that serves these versions with this response, and no others.
    async fn found(
        versions: &'static [&str],
        code: u16,
        kinds: &[&str],
    ) -> Result<Option<Version>, kube::Error> {
        let resource = |kind: &&str| json!({"name": kind.to_lowercase(), "singularName": "", "kind": kind, "namespaced": true, "verbs": []});
        let known = json!({
            "kind": "APIResourceList", "groupVersion": "scheduling.k8s.io/any",
            "resources": kinds.iter().map(resource).collect::<Vec<_>>(),
        })
        .to_string();
        let (service, mut handle) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
        tokio::spawn(async move {
            while let Some((request, send)) = handle.next_request().await {
                let version = request.uri().path().strip_prefix("/apis/scheduling.k8s.io/");
                let (code, answer) = match version.expect("a version of the group") {
                    version if versions.contains(&version) => (code, known.clone()),
                    _ => (404, "404 page not found\n".into()),
                };
                let body = Body::from(answer.into_bytes());
                send.send_response(Response::builder().status(code).body(body).expect("a response"));
            }
        });
        served(&Client::new(service, "default")).await
    }

    #[tokio::test]
    async fn the_newest_pod_groups_that_a_server_has_are_used() {
        let both = &["Workload", "PodGroup"][..];
        for (versions, kinds, expected) in [
            (&["v1alpha2"][..], both, Some("v1alpha2")),
            (&["v1alpha2", "v1beta1"], both, Some("v1beta1")),
            (&["v1alpha3"], both, None),
            (&["v1alpha2"], &["Workload"], None),
            (&[], both, None),
        ] {
            let found = found(versions, 200, kinds).await.expect("an answer");
            assert_eq!(found, expected.map(Version), "{versions:?} with {kinds:?}");
        }
        found(&["v1alpha2"], 503, &[])
            .await
            .expect_err("nothing is known");
    }
}
