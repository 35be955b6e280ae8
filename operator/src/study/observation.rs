//! What is known of one study: a value, on which all decisions of a round are made.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crds::conditions::types;
use crds::study::status::ViTScalingStudyStatus;
use crds::{Phase, ViTScalingStudy, ViTTrainingJob, labels};
use jiff::Timestamp;
use kube::ResourceExt as _;
use study::Records;

/// What is known of one study.
#[derive(Clone, Debug)]
pub(super) struct Observation {
    pub(super) study: Arc<ViTScalingStudy>,
    /// Its jobs that exist.
    pub(super) jobs: Vec<Child>,
    pub(super) records: Records,
    /// Nodes on which other studies measure.
    pub(super) others: Vec<Other>,
    /// Nodes of the study that its runs cannot have, and why.
    pub(super) unusable: BTreeMap<String, &'static str>,
    pub(super) now: Timestamp,
}

/// Another study that is under way.
#[derive(Clone, Debug)]
pub(super) struct Other {
    /// `namespace/name`.
    pub(super) name: String,
    pub(super) nodes: BTreeSet<String>,
    /// Whether it keeps a node on which both measure.
    pub(super) goes_first: bool,
}

impl Observation {
    pub(super) fn status(&self) -> ViTScalingStudyStatus {
        self.study.status.clone().unwrap_or_default()
    }
}

/// A job of a study.
#[derive(Clone, Debug)]
pub(super) struct Child {
    pub(super) job: Arc<ViTTrainingJob>,
    pub(super) key: String,
    /// From 0.
    pub(super) repetition: u32,
    /// From 1.
    pub(super) number: u32,
}

impl Child {
    /// `None` for jobs of others.
    pub(super) fn of(job: Arc<ViTTrainingJob>, study: &ViTScalingStudy) -> Option<Self> {
        let owners = job.owner_references();
        let is_own = owners
            .iter()
            .any(|owner| Some(&owner.uid) == study.uid().as_ref());
        if !is_own || job.namespace() != study.namespace() {
            return None;
        }
        let label = |name: &str| job.labels().get(name).cloned();
        let count = |name: &str| label(name)?.parse::<u32>().ok();
        Some(Self {
            key: label(labels::RUN)?,
            repetition: count(labels::REPETITION)?.checked_sub(1)?,
            number: count(labels::TRY)?,
            job,
        })
    }

    fn phase(&self) -> Option<Phase> {
        self.job.status.as_ref()?.phase
    }

    pub(super) fn is_over(&self) -> bool {
        self.phase().is_some_and(Phase::is_terminal)
    }

    pub(super) fn is_going(&self) -> bool {
        self.job.metadata.deletion_timestamp.is_some()
    }

    pub(super) fn trains(&self) -> bool {
        self.phase() == Some(Phase::Running)
    }

    /// Where its gang is or was.
    pub(super) fn nodes(&self) -> &[String] {
        self.job.status.as_ref().map_or(&[], |status| status.nodes())
    }

    /// What it waits for.
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
