//! The supported versions of PodGroups (KEP-4671).

use kube::core::ApiResource;

pub(crate) const POD_GROUP: &str = "PodGroup";

/// A version of `scheduling.k8s.io` whose PodGroups have the fields that a gang needs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Version(pub(crate) &'static str);

impl Version {
    /// Newest first: those of Kubernetes 1.37 and 1.36.
    pub(crate) const ALL: [Self; 2] = [Self("v1beta1"), Self("v1alpha2")];

    pub(crate) fn resource(self) -> ApiResource {
        let Self(version) = self;
        ApiResource {
            group: "scheduling.k8s.io".into(),
            version: version.into(),
            api_version: format!("scheduling.k8s.io/{version}"),
            kind: POD_GROUP.into(),
            plural: "podgroups".into(),
        }
    }
}
