//! Storage for jobs on the local cluster: host folders, shared by all nodes, as claims.

use std::path::Path;

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::{Namespace, PersistentVolume, PersistentVolumeClaim};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};

/// User id of the trainer in its image.
const TRAINER_USER: u32 = 65532;
/// Size of every volume; it has no effect.
const SIZE: &str = "1Gi";

/// Creates a namespace that enforces Pod Security "restricted".
pub async fn restricted_namespace(client: &Client, name: &str) -> Result<()> {
    let namespace = json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}});
    apply(&Api::<Namespace>::all(client.clone()), name, namespace).await
}

/// Makes a folder available as the volume `name` to claims of a storage class. A missing folder is
/// created for the trainer's user.
pub async fn offer_folder(client: &Client, name: &str, storage_class: &str, folder: &Path) -> Result<()> {
    if !folder.exists() {
        fs_err::create_dir_all(folder)?;
        std::os::unix::fs::chown(folder, Some(TRAINER_USER), Some(TRAINER_USER))
            .with_context(|| format!("failed to chown {} to user {TRAINER_USER}", folder.display()))?;
    }
    let volume = json!({"spec": {
        "capacity": {"storage": SIZE},
        "accessModes": ["ReadWriteOnce", "ReadWriteMany"],
        "storageClassName": storage_class,
        "persistentVolumeReclaimPolicy": "Retain",
        "hostPath": {"path": folder},
    }});
    apply(&Api::<PersistentVolume>::all(client.clone()), name, volume).await
}

/// Makes a folder available as the claim `claim` of a namespace. A missing folder is created for
/// the trainer's user.
pub async fn claim_folder(client: &Client, namespace: &str, claim: &str, folder: &Path) -> Result<()> {
    let volume = format!("{namespace}-{claim}");
    offer_folder(client, &volume, "", folder).await?;
    let request = json!({"spec": {
        "accessModes": ["ReadWriteMany"],
        "storageClassName": "",
        "volumeName": volume,
        "resources": {"requests": {"storage": SIZE}},
    }});
    apply(
        &Api::<PersistentVolumeClaim>::namespaced(client.clone(), namespace),
        claim,
        request,
    )
    .await
}

async fn apply<K>(api: &Api<K>, name: &str, mut object: Value) -> Result<()>
where
    K: kube::Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    object["apiVersion"] = K::api_version(&()).into();
    object["kind"] = K::kind(&()).into();
    object["metadata"]["name"] = name.into();
    let parameters = PatchParams::apply("vit-tests").force();
    api.patch(name, &parameters, &Patch::Apply(object))
        .await
        .with_context(|| format!("failed to apply {} {name}", K::kind(&())))?;
    Ok(())
}
