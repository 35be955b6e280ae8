//! What a round does.

use std::sync::Arc;
use std::time::Duration;

use crds::status::ViTTrainingJobStatus;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::core::DynamicObject;

use crate::api::kueue::Workload;
use crate::api::pod_group::Version;
use crate::policy::gang::{PodId, PodView};

/// What a round does: its writes in order, and then its status.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) status: Box<ViTTrainingJobStatus>,
    pub(crate) writes: Vec<Write>,
    /// Time until the next round unless something triggers it earlier.
    pub(crate) look_again: Duration,
    /// Whether its calls release GPUs, and do not queue behind the creation of pods.
    pub(crate) is_urgent: bool,
    /// The pod at fault if the API server would always refuse an object that it creates.
    pub(crate) blames: Option<Box<PodView>>,
}

/// A write to the API server, other than of the job's status.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Write {
    /// With grace periods in seconds; the pods' own if not given. All are tried, in several rounds if
    /// they are many, before an error is returned: one failed deletion must not leave GPUs with others.
    DeletePods(Vec<(PodId, Option<u32>)>),
    /// Asks what admission would make of the pod. Creates nothing.
    DryRun(Box<Pod>),
    /// Deletes an attempt's ConfigMap of this name, and its PodGroup if PodGroups are served.
    DeleteAttempt(String, Option<Version>),
    DeleteService,
    DeleteNetworkPolicy,
    CreateWorkload(Box<Workload>),
    DeleteWorkload(Arc<Workload>),
    UpdateWorkload(Box<Workload>),
    /// [`Self::UpdateWorkload`] that may fail: a gang must not depend on Kueue's webhook.
    TryUpdateWorkload(Box<Workload>),
    /// Objects, then pods. Pods, and the objects before them, only while few other gangs are created.
    Create(Vec<Object>, Vec<Pod>),
    /// After it no status is written.
    DeleteJob,
}

/// An object that the pods of a gang need.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Object {
    PodGroup(Version, Box<DynamicObject>),
    ConfigMap(Box<ConfigMap>),
    Service(Box<Service>),
    /// Before the pods, so that their ports are never open to others.
    NetworkPolicy(Box<NetworkPolicy>),
}

impl Step {
    /// Makes its calls pass those that create pods.
    pub(crate) fn urgent(self) -> Self {
        Self {
            is_urgent: true,
            ..self
        }
    }
}
