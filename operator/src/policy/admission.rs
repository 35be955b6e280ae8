//! Whether Kueue admits a job that names a queue. The operator does what Kueue's job reconciler
//! does for built-in kinds (`pkg/controller/jobframework/reconciler.go`): it creates the Workload
//! (`build/workload.rs`), stops the gang after an eviction before it releases the quota, and
//! reports pod readiness and the job's end.

use std::collections::BTreeMap;
use std::sync::Arc;

use crds::ValidatedJob;
use crds::status::AdmissionStatus;

use crate::api::kueue::{POD_SET, ResourceFlavor, Workload, conditions};

#[derive(Clone, Debug, Default)]
pub(crate) struct Queue {
    /// Whether Kueue's objects have been listed.
    pub(crate) is_known: bool,
    pub(crate) workload: Option<Arc<Workload>>,
    /// Its assigned flavors that exist.
    pub(crate) flavors: BTreeMap<String, Arc<ResourceFlavor>>,
    /// The priority of the job's class; `None` if the class does not exist.
    pub(crate) priority: Option<i32>,
}

/// Whether a job may have GPUs.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum AdmissionState {
    NotAsked,
    /// Kueue's objects are not listed yet.
    Unknown,
    Absent,
    /// Its Workload asks for something else, or is over; only a decision knows.
    Outdated,
    /// It waits, with Kueue's message if there is one.
    Waits(Option<String>),
    /// It is evicted, with Kueue's message.
    Evicted(String),
    /// Its quota is of this flavor, which does not exist.
    NoFlavor(String),
    Granted(AdmissionStatus),
}

impl AdmissionState {
    /// Whether a gang must release its GPUs. If nothing is known, it keeps them.
    pub(crate) fn ends_gang(&self) -> bool {
        matches!(self, Self::Absent | Self::Waits(_) | Self::Evicted(_))
    }
}

/// Kueue's decision about a job.
pub(crate) fn admission_state(valid: &ValidatedJob, queue: &Queue) -> AdmissionState {
    if valid.spec.scheduling.queue_name.is_none() {
        return AdmissionState::NotAsked;
    }
    if !queue.is_known {
        return AdmissionState::Unknown;
    }
    let workload = queue
        .workload
        .as_ref()
        .filter(|workload| workload.metadata.deletion_timestamp.is_none());
    let Some(workload) = workload else {
        return AdmissionState::Absent;
    };
    let has_quota = workload.has(conditions::QUOTA_RESERVED).is_some();
    let evicted = workload.has(conditions::EVICTED);
    if let Some(evicted) = evicted.filter(|_| has_quota) {
        return AdmissionState::Evicted(evicted.message.clone());
    }
    if workload.has(conditions::ADMITTED).is_none() || workload.has(conditions::FINISHED).is_some() {
        let known = evicted.or_else(|| workload.condition(conditions::QUOTA_RESERVED));
        return AdmissionState::Waits(known.map(|condition| condition.message.clone()));
    }
    granted(workload, &queue.flavors).map_or_else(AdmissionState::NoFlavor, AdmissionState::Granted)
}

/// Whether the grant equals the recorded one, apart from its time.
pub(crate) fn is_recorded(granted: &AdmissionStatus, recorded: Option<&AdmissionStatus>) -> bool {
    recorded.is_some_and(|recorded| {
        let timeless = AdmissionStatus {
            time: None,
            ..recorded.clone()
        };
        timeless == *granted
    })
}

/// A Workload's grant, or the missing flavor.
fn granted(
    workload: &Workload,
    flavors: &BTreeMap<String, Arc<ResourceFlavor>>,
) -> Result<AdmissionStatus, String> {
    let status = workload.status.as_ref();
    let admission = status.and_then(|status| status.admission.as_ref());
    let assignment = admission.and_then(|admission| {
        admission
            .pod_set_assignments
            .iter()
            .find(|set| set.name == POD_SET)
    });
    let asked = workload.spec.pod_sets.iter().map(|set| set.count).sum();
    let mut granted = AdmissionStatus {
        cluster_queue: admission.map_or_else(String::new, |admission| admission.cluster_queue.clone()),
        nodes: assignment
            .and_then(|assignment| assignment.count)
            .unwrap_or(asked),
        ..AdmissionStatus::default()
    };
    for name in workload.flavors() {
        let flavor = flavors.get(name).ok_or(name)?;
        granted.flavors.push(name.into());
        granted.node_selector.extend(flavor.spec.node_labels.clone());
        granted
            .tolerations
            .extend(flavor.spec.tolerations.iter().cloned());
    }
    let updates = status
        .into_iter()
        .flat_map(|status| &status.admission_checks)
        .flat_map(|check| &check.pod_set_updates)
        .filter(|update| update.name == POD_SET);
    for update in updates {
        granted.node_selector.extend(update.node_selector.clone());
        granted.tolerations.extend(update.tolerations.iter().cloned());
        granted.pod_labels.extend(update.labels.clone());
        granted.pod_annotations.extend(update.annotations.clone());
    }
    Ok(granted)
}
