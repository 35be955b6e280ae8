//! Jobs and studies that this version cannot read, because a later one wrote them.

use std::fmt::Debug;

use crds::conditions::{self, reasons, types};
use crds::{SpecSchema, Stored, Unreadable};
use jiff::Timestamp;
use k8s_openapi::NamespaceResourceScope;
use kube::runtime::controller::Action;
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use serde_json::json;
use tracing::warn;

use crate::error::Error;
use crate::objects::{owner_word, patch_status};

/// Leaves such an object alone, and sets its condition `Reconciled`. Fails if the condition is new, or
/// could not be written.
pub(crate) async fn leave_alone<K>(
    client: &Client,
    now: Timestamp,
    unreadable: &Unreadable,
) -> Result<Action, Error>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + SpecSchema
        + Clone
        + Debug
        + DeserializeOwned,
{
    let metadata = &unreadable.object.metadata;
    if metadata.deletion_timestamp.is_some() || !unreadable.is_for_vit_operator() {
        return Ok(Action::await_change());
    }
    let error = Error::Unreadable {
        object: owner_word::<K>(),
        why: Box::new(unreadable.clone()),
    };
    let last = unreadable.conditions();
    let mut next = last.clone();
    let cause = (reasons::RECONCILE_FAILED, &*error.to_string());
    let condition = conditions::condition(types::RECONCILED, false, cause, metadata.generation, now);
    conditions::set(&mut next, condition);
    if next == last {
        return Ok(Action::await_change());
    }
    let namespace = metadata.namespace.as_deref().unwrap_or_default();
    let api: Api<Stored<K>> = Api::namespaced(client.clone(), namespace);
    let [last, next] = [last, next].map(|conditions| json!({"conditions": conditions}));
    match patch_status(&api, metadata, [&last, &next]).await {
        Ok(_) => {}
        // The schema may refuse the whole object. Then only the Event and the log report the error.
        Err(refusal) if refusal.is_refusal() && !refusal.is_of_deleted() => {
            warn!(%refusal, "failed to write condition Reconciled of an object that cannot be read");
        }
        Err(failure) => return Err(failure),
    }
    Err(error)
}
