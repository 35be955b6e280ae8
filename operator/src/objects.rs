//! Idempotent calls to the API server about single objects.

use std::fmt::Debug;

use crds::{ViTScalingStudy, labels};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, Client, Resource, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::error::{Error, WRITE_STATUS};

/// Replaces an object's status and returns the stored object. The resource version makes the server
/// refuse a status computed from an outdated object.
pub(crate) async fn replace_status<K>(api: &Api<K>, kind: &'static str, object: &K) -> Result<K, Error>
where
    K: Resource + Clone + Debug + Serialize + DeserializeOwned,
{
    let name = object.name_any();
    let written = api.replace_status(&name, &written_by_us(), object).await;
    written.map_err(Error::api(WRITE_STATUS, kind, &name))
}

/// Writes the difference of two statuses and returns the stored object: what this version does not
/// know stays. The resource version is as in [`replace_status`].
pub(crate) async fn patch_status<K, S: Serialize>(
    api: &Api<K>,
    metadata: &ObjectMeta,
    [last, next]: [&S; 2],
) -> Result<K, Error>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let name = metadata.name.as_deref().unwrap_or_default();
    let failed = Error::api(WRITE_STATUS, kind::<K>(), name);
    let [last, next] = match (serde_json::to_value(last), serde_json::to_value(next)) {
        (Ok(last), Ok(next)) => [last, next],
        (Err(error), _) | (_, Err(error)) => return Err(failed(kube::Error::SerdeError(error))),
    };
    let patch = Patch::Merge(json!({
        "metadata": {"resourceVersion": metadata.resource_version},
        "status": difference(&last, next),
    }));
    let parameters = PatchParams {
        field_manager: written_by_us().field_manager,
        ..PatchParams::default()
    };
    api.patch_status(name, &parameters, &patch).await.map_err(failed)
}

/// The merge patch (RFC 7386) that turns `last` into `next`.
fn difference(last: &Value, next: Value) -> Value {
    match (last, next) {
        (Value::Object(last), Value::Object(mut next)) => {
            for (name, last) in last {
                match next.remove(name) {
                    Some(same) if same == *last => {}
                    changed => {
                        next.insert(name.clone(), difference(last, changed.unwrap_or_default()));
                    }
                }
            }
            next.into()
        }
        (_, next) => next,
    }
}

pub(crate) fn written_by_us() -> PostParams {
    PostParams {
        field_manager: Some(labels::MANAGER.into()),
        ..PostParams::default()
    }
}

/// An object of its owner, as it is stored.
pub(crate) struct OwnedObject<K> {
    pub(crate) object: K,
    /// Whether this call created it.
    pub(crate) is_new: bool,
}

/// Creates an object unless its owner already has it. Never changes someone else's object.
pub(crate) fn create<K, O>(
    client: &Client,
    owner: &O,
    object: K,
) -> impl Future<Output = Result<OwnedObject<K>, Error>>
where
    O: Resource<DynamicType = ()>,
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + Serialize
        + DeserializeOwned,
{
    let api = Api::namespaced(client.clone(), &owner.namespace().unwrap_or_default());
    create_of_kind(api, kind::<K>(), owner, object)
}

/// [`create`] for a kind known only at run time.
pub(crate) async fn create_of_kind<K, O>(
    api: Api<K>,
    kind: &'static str,
    owner: &O,
    object: K,
) -> Result<OwnedObject<K>, Error>
where
    O: Resource<DynamicType = ()>,
    K: Resource + Clone + Debug + Serialize + DeserializeOwned,
{
    let name = object.name_any();
    match api.create(&written_by_us(), &object).await {
        Ok(object) => Ok(OwnedObject { object, is_new: true }),
        Err(kube::Error::Api(status)) if status.is_already_exists() => {
            let existing = api.get(&name).await.map_err(Error::api("get", kind, &name))?;
            let owners = existing.owner_references();
            let is_of = |known: &OwnerReference| known.kind == O::kind(&()) && known.name == owner.name_any();
            if owners
                .iter()
                .any(|known| Some(&known.uid) == owner.uid().as_ref())
            {
                Ok(OwnedObject {
                    object: existing,
                    is_new: false,
                })
            } else if owners.iter().any(is_of) {
                Err(Error::LastOwnersObject {
                    kind,
                    name,
                    owner: owner_word::<O>(),
                })
            } else {
                Err(Error::NameTaken {
                    kind,
                    name,
                    owner: owner_word::<O>(),
                })
            }
        }
        Err(error) => Err(Error::api("create", kind, &name)(error)),
    }
}

/// Limits a deletion to the object with this uid: another object may have reused its name.
pub(crate) fn with_uid(uid: Option<String>, parameters: DeleteParams) -> DeleteParams {
    parameters.preconditions(Preconditions {
        uid,
        resource_version: None,
    })
}

/// Deletes an object; succeeds if it does not exist. Returns the stored object if it still exists.
pub(crate) fn delete<K>(
    api: &Api<K>,
    name: String,
    parameters: DeleteParams,
) -> impl Future<Output = Result<Option<K>, Error>>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    delete_of_kind(api, kind::<K>(), name, parameters)
}

/// [`delete`] for a kind known only at run time.
pub(crate) async fn delete_of_kind<K>(
    api: &Api<K>,
    kind: &'static str,
    name: String,
    parameters: DeleteParams,
) -> Result<Option<K>, Error>
where
    K: Clone + Debug + DeserializeOwned,
{
    let is_by_uid = parameters.preconditions.is_some();
    match api.delete(&name, &parameters).await {
        Ok(answer) => Ok(answer.left()),
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(None),
        // Another object has reused the name: this one is gone.
        Err(kube::Error::Api(status)) if is_by_uid && status.is_conflict() => Ok(None),
        Err(error) => Err(Error::api("delete", kind, &name)(error)),
    }
}

/// The name of a kind known at compile time.
pub(crate) fn kind<K: Resource<DynamicType = ()>>() -> &'static str {
    match K::kind(&()) {
        std::borrow::Cow::Borrowed(kind) => kind,
        std::borrow::Cow::Owned(_) => "object",
    }
}

/// The owner's kind in messages.
pub(crate) fn owner_word<O: Resource<DynamicType = ()>>() -> &'static str {
    if kind::<O>() == kind::<ViTScalingStudy>() {
        "study"
    } else {
        "job"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_patch_has_what_was_added_changed_and_removed() {
        let last =
            json!({"same": [1], "list": [1, 2], "inner": {"same": 1, "old": 1, "gone": {}}, "gone": 1});
        let next =
            json!({"same": [1], "list": [2], "inner": {"same": 1, "old": 2, "new": {"a": 1}}, "new": 1});
        let patch = difference(&last, next);
        let expected =
            json!({"list": [2], "inner": {"old": 2, "gone": null, "new": {"a": 1}}, "gone": null, "new": 1});
        assert_eq!(patch, expected);
        assert_eq!(difference(&last, last.clone()), json!({}));
        assert_eq!(
            difference(&Value::Null, last.clone()),
            last,
            "there was no status"
        );
    }
}
