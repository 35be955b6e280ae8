//! Reads again what a watch may have missed.

use std::fmt::Debug;
use std::time::Duration;

use k8s_openapi::NamespaceResourceScope;
use kube::{Api, Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use tokio::time::Instant;
use tracing::warn;

/// Time between checks.
const INTERVAL: Duration = Duration::from_secs(10);
/// Time after which an answer that no watch has delivered is read again. It may be lost, by a restore
/// of etcd, or its object deleted while the watch was interrupted.
const UNCONFIRMED: Duration = Duration::from_secs(30);

/// Reads the objects of a kind that are [unconfirmed](super::newest::Newest::unconfirmed). Never ends.
pub(crate) async fn confirm<K>(
    client: Client,
    unconfirmed: impl Fn(Instant) -> Vec<K>,
    confirmed: impl Fn(&K, Option<K>),
) where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
{
    loop {
        tokio::time::sleep(INTERVAL).await;
        let Some(before) = Instant::now().checked_sub(UNCONFIRMED) else {
            continue;
        };
        for answer in unconfirmed(before) {
            let namespace = answer.namespace().unwrap_or_default();
            let api: Api<K> = Api::namespaced(client.clone(), &namespace);
            match api.get_opt(&answer.name_any()).await {
                Ok(stored) => confirmed(&answer, stored),
                Err(error) => warn!(%error, "failed to read what the watch has not delivered"),
            }
        }
    }
}
