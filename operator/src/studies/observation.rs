//! The observed state of one study: the input of a round's decisions.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use contract::FailureClass;
use crds::conditions::types;
use crds::study::status::ViTScalingStudyStatus;
use crds::{Phase, ViTScalingStudy, ViTTrainingJob, labels};
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;
use planner::facts::inventory::NodeFacts;
use study::Records;

use super::runs::RunRepetition;

/// How long runs avoid a node with a failed GPU; after that it is better than none.
const FAULT_REMEMBERED: SignedDuration = SignedDuration::from_mins(10);

/// The observed state of one study.
#[derive(Clone, Debug)]
pub(super) struct Observation {
    pub(super) study: Arc<ViTScalingStudy>,
    /// Its existing jobs.
    pub(super) jobs: Vec<Child>,
    pub(super) records: Records,
    /// Other running studies.
    pub(super) others: Vec<OtherStudy>,
    /// The existing nodes of the study.
    pub(super) facts: BTreeMap<String, NodeFacts>,
    pub(super) now: Timestamp,
}

/// Another running study.
#[derive(Clone, Debug)]
pub(super) struct OtherStudy {
    /// `namespace/name`.
    pub(super) name: String,
    /// Nodes that it keeps or has a job on.
    pub(super) nodes: BTreeSet<String>,
    /// Nodes that it has a job on.
    pub(super) measures_on: BTreeSet<String>,
    /// Whether it is older, and so keeps a node that both use.
    pub(super) goes_first: bool,
}

impl Observation {
    pub(super) fn status(&self) -> ViTScalingStudyStatus {
        self.study.status.clone().unwrap_or_default()
    }

    /// Nodes with a recent GPU failure.
    pub(super) fn faulty_nodes(&self) -> BTreeSet<&str> {
        let faulty = self.jobs.iter().filter_map(|child| child.faulty_node(self.now));
        faulty.collect()
    }

    /// Whether a job shares a node, which both got at the same time, with a run of an older study.
    pub(super) fn must_leave(&self, child: &Child) -> bool {
        self.others
            .iter()
            .filter(|other| other.goes_first)
            .any(|other| child.nodes().iter().any(|node| other.measures_on.contains(node)))
    }
}

/// A job of a study.
#[derive(Clone, Debug)]
pub(super) struct Child {
    pub(super) job: Arc<ViTTrainingJob>,
    pub(super) key: String,
    /// From 0.
    pub(super) repetition: u32,
    /// Which try it is, from 1.
    pub(super) number: u32,
    /// Whether any of its pods may still run.
    pub(super) has_pods: bool,
}

/// Whether a job belongs to a study, by its owner, because anyone can set labels.
pub(super) fn is_of(job: &ViTTrainingJob, study: &ViTScalingStudy) -> bool {
    let owners = job.owner_references();
    job.namespace() == study.namespace()
        && owners
            .iter()
            .any(|owner| Some(&owner.uid) == study.uid().as_ref())
}

impl Child {
    /// `None` for other jobs.
    pub(super) fn of(job: Arc<ViTTrainingJob>, study: &ViTScalingStudy, has_pods: bool) -> Option<Self> {
        if !is_of(&job, study) {
            return None;
        }
        let label = |name: &str| job.labels().get(name).cloned();
        let count = |name: &str| label(name)?.parse::<u32>().ok();
        Some(Self {
            key: label(labels::RUN)?,
            repetition: count(labels::REPETITION)?.checked_sub(1)?,
            number: count(labels::TRY)?,
            job,
            has_pods,
        })
    }

    pub(super) fn is_of(&self, slot: &RunRepetition<'_>) -> bool {
        (self.key.as_str(), self.repetition) == (slot.run.key.as_str(), slot.repetition)
    }

    fn phase(&self) -> Option<Phase> {
        self.job.status.as_ref()?.phase
    }

    pub(super) fn is_over(&self) -> bool {
        self.phase().is_some_and(Phase::is_terminal)
    }

    /// Whether it may disturb another run.
    pub(super) fn is_busy(&self) -> bool {
        !self.is_over() || self.has_pods
    }

    pub(super) fn is_being_deleted(&self) -> bool {
        self.job.metadata.deletion_timestamp.is_some()
    }

    pub(super) fn trains(&self) -> bool {
        self.phase() == Some(Phase::Running)
    }

    /// The nodes of its gang, running or not.
    pub(super) fn nodes(&self) -> &[String] {
        self.job.status.as_ref().map_or(&[], |status| status.nodes())
    }

    /// Whether it waits for GPUs.
    pub(super) fn is_placeless(&self) -> bool {
        self.phase().is_none_or(|phase| phase == Phase::Pending)
    }

    /// Whether it measures the steps that the study's present spec asks for.
    pub(super) fn measures_for(&self, study: &ViTScalingStudy) -> bool {
        let measure = self.job.spec.measure.as_ref();
        measure.is_some_and(|measure| measure.warmup_steps == study.spec.measure.warmup_steps)
    }

    /// Whether its deadline is that of the study's present spec.
    pub(super) fn has_the_deadline_of(&self, study: &ViTScalingStudy) -> bool {
        self.job.spec.active_deadline_seconds == Some(study.spec.measure.timeout_seconds)
    }

    /// The node whose GPU failure recently ended it.
    pub(super) fn faulty_node(&self, now: Timestamp) -> Option<&str> {
        let failure = self.job.status.as_ref()?.last_failure.as_ref()?;
        let is_recent = failure
            .time
            .as_ref()
            .is_some_and(|time| now.duration_since(time.0) < FAULT_REMEMBERED);
        let is_fault = failure.class == FailureClass::DeviceFault.as_str();
        failure.node.as_deref().filter(|_| is_fault && is_recent)
    }

    /// When it began to wait for GPUs.
    pub(super) fn waits_since(&self) -> Option<Timestamp> {
        let status = self.job.status.as_ref();
        let placed = status.and_then(|status| status.condition(types::PLACED));
        let placed = placed.filter(|placed| placed.status != "True");
        let since = placed.map(|placed| placed.last_transition_time.0);
        since.or(Some(self.job.creation_timestamp()?.0))
    }

    /// Why it waits.
    pub(super) fn waits_for(&self) -> String {
        let status = self.job.status.as_ref();
        let condition = |type_| status.and_then(|status| status.condition(type_));
        let placed = condition(types::PLACED).filter(|placed| placed.status != "True");
        let found = placed.or(condition(types::RUNNING));
        found.map_or_else(
            || "has just been created".into(),
            |condition| condition.message.clone(),
        )
    }
}
