//! Storage for jobs on the local cluster: folders of this machine, which all its nodes share, as claims of a namespace.

use std::path::Path;

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::{
    HostPathVolumeSource, Namespace, PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimSpec,
    PersistentVolumeSpec, VolumeResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::api::{ObjectMeta, Patch, PatchParams};
use kube::{Api, Client};

/// User id of the trainer in its image.
const TRAINER_USER: u32 = 65532;

/// Creates a namespace that enforces Pod Security "restricted".
pub async fn restricted_namespace(client: &Client, name: &str) -> Result<()> {
    let labels = [(
        "pod-security.kubernetes.io/enforce".to_owned(),
        "restricted".to_owned(),
    )];
    let namespace = Namespace {
        metadata: ObjectMeta {
            name: Some(name.into()),
            labels: Some(labels.into()),
            ..ObjectMeta::default()
        },
        ..Namespace::default()
    };
    apply(&Api::<Namespace>::all(client.clone()), name, &namespace).await
}

/// What every volume has.
fn storage() -> [(String, Quantity); 1] {
    [("storage".to_owned(), Quantity("1Gi".into()))]
}

/// Makes a folder available as the volume `name` to claims of a storage class. The folder is created, and given to the
/// trainer's user if it is new.
pub async fn offer_folder(client: &Client, name: &str, storage_class: &str, folder: &Path) -> Result<()> {
    if !folder.exists() {
        fs_err::create_dir_all(folder)?;
        std::os::unix::fs::chown(folder, Some(TRAINER_USER), Some(TRAINER_USER))
            .with_context(|| format!("failed to give {} to user {TRAINER_USER}", folder.display()))?;
    }
    let volume = PersistentVolume {
        metadata: ObjectMeta {
            name: Some(name.into()),
            ..ObjectMeta::default()
        },
        spec: Some(PersistentVolumeSpec {
            capacity: Some(storage().into()),
            access_modes: Some(vec!["ReadWriteOnce".into(), "ReadWriteMany".into()]),
            storage_class_name: Some(storage_class.into()),
            persistent_volume_reclaim_policy: Some("Retain".into()),
            host_path: Some(HostPathVolumeSource {
                path: folder.display().to_string(),
                type_: None,
            }),
            ..PersistentVolumeSpec::default()
        }),
        ..PersistentVolume::default()
    };
    apply(&Api::all(client.clone()), name, &volume).await
}

/// Makes a folder available as the claim `claim` of a namespace. The folder is created, and given to the trainer's user
/// if it is new.
pub async fn claim_folder(client: &Client, namespace: &str, claim: &str, folder: &Path) -> Result<()> {
    let volume_name = format!("{namespace}-{claim}");
    offer_folder(client, &volume_name, "", folder).await?;
    let request = PersistentVolumeClaim {
        metadata: ObjectMeta {
            name: Some(claim.into()),
            namespace: Some(namespace.into()),
            ..ObjectMeta::default()
        },
        spec: Some(PersistentVolumeClaimSpec {
            access_modes: Some(vec!["ReadWriteMany".into()]),
            storage_class_name: Some(String::new()),
            volume_name: Some(volume_name),
            resources: Some(VolumeResourceRequirements {
                requests: Some(storage().into()),
                limits: None,
            }),
            ..PersistentVolumeClaimSpec::default()
        }),
        ..PersistentVolumeClaim::default()
    };
    apply(&Api::namespaced(client.clone(), namespace), claim, &request).await
}

async fn apply<K>(api: &Api<K>, name: &str, object: &K) -> Result<()>
where
    K: kube::Resource<DynamicType = ()>
        + Clone
        + std::fmt::Debug
        + serde::Serialize
        + serde::de::DeserializeOwned,
{
    api.patch(
        name,
        &PatchParams::apply("vit-tests").force(),
        &Patch::Apply(object),
    )
    .await
    .with_context(|| format!("failed to apply {} {name}", K::kind(&())))?;
    Ok(())
}
