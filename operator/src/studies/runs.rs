//! The jobs of a study and their order. Pure.

use std::collections::BTreeSet;
use std::sync::Arc;

use contract::CheckpointWriters;
use crds::spec::Measure;
use crds::{ViTScalingStudy, ViTTrainingJob, labels};
use kube::ResourceExt as _;
use planner::policy::request::{GangRequest, Shape};
use serde_json::json;
use study::{Plan, Run, StudyJob};

use crate::build::owned_by;

/// A repetition of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct RunRepetition<'a> {
    pub(super) run: &'a Run,
    /// From 0.
    pub(super) repetition: u32,
}

/// The nodes that a job may use.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct Nodes {
    /// The study's nodes, if known.
    pub(super) pinned: Vec<String>,
    /// Nodes with a failed GPU.
    pub(super) excluded: BTreeSet<String>,
}

impl RunRepetition<'_> {
    /// Its name in messages.
    pub(super) fn words(&self) -> String {
        format!("{} #{}", self.run.label, self.repetition + 1)
    }

    /// The number of nodes of its gang.
    pub(super) fn nodes(&self) -> usize {
        self.run.config.nodes as usize
    }

    /// A key of its node requirements: runs with the same key can be measured on the same nodes.
    pub(super) fn node_choice(&self) -> String {
        let spec = &self.run.spec;
        let workers = &spec.workers;
        json!([
            self.run.gpus_per_node,
            workers.gpu_resource,
            workers.node_selector,
            workers.tolerations,
            spec.placement,
            spec.scheduling.queue_name,
        ])
        .to_string()
    }

    /// The shape that a node must fit; empty for an invalid job.
    pub(super) fn shape(&self) -> Arc<Shape> {
        let job = ViTTrainingJob::new("run", self.run.spec.clone());
        crds::validate(&job).map_or_else(|_| Arc::default(), |valid| GangRequest::from(&valid).shape)
    }

    pub(super) fn job_name(&self, study: &ViTScalingStudy, number: u32) -> String {
        let name = format!("{}-{}-{}", study.name_any(), self.run.key, self.repetition + 1);
        if number > 1 {
            format!("{name}-{number}")
        } else {
            name
        }
    }

    /// The job of a try; `number` counts from 1.
    pub(super) fn job(&self, study: &ViTScalingStudy, number: u32, nodes: &Nodes) -> ViTTrainingJob {
        let mut job = ViTTrainingJob::new(&self.job_name(study, number), self.run.job(self.repetition));
        job.metadata.namespace = study.namespace();
        job.metadata.owner_references = owned_by(study);
        let own = [
            (labels::MANAGED_BY, labels::MANAGER.to_owned()),
            (labels::STUDY_NAME, study.name_any()),
            (labels::RUN, self.run.key.clone()),
            (labels::REPETITION, (self.repetition + 1).to_string()),
            (labels::TRY, number.to_string()),
        ];
        job.metadata.labels = Some(own.map(|(key, value)| (key.into(), value)).into());
        let measure = &study.spec.measure;
        let spec = &mut job.spec;
        spec.suspend = false;
        spec.ttl_seconds_after_finished = None;
        spec.active_deadline_seconds = Some(measure.timeout_seconds);
        spec.measure = Some(Measure {
            warmup_steps: measure.warmup_steps.try_into().unwrap_or(0),
        });
        // An uninterrupted run starts at the first step and leaves no checkpoints.
        spec.failure_policy.max_restarts = 0;
        spec.checkpoint.volume = None;
        spec.checkpoint.writers = CheckpointWriters::Auto;
        let placement = &mut spec.placement;
        if nodes.pinned.is_empty() {
            let excluded: BTreeSet<&String> = placement.exclude_nodes.iter().chain(&nodes.excluded).collect();
            placement.exclude_nodes = excluded.into_iter().cloned().collect();
        } else {
            placement.nodes.clone_from(&nodes.pinned);
        }
        job
    }
}

/// Every repetition of every run, in order: all runs once before any is repeated, so that changes
/// of the cluster over time affect all points; the largest first, as others can reuse their nodes.
pub(super) fn slots(plan: &Plan) -> Vec<RunRepetition<'_>> {
    let mut once: Vec<&Run> = plan.runs.iter().collect();
    once.sort_by_key(|run| std::cmp::Reverse((run.config.nodes, run.config.ranks_per_node)));
    let mut slots = Vec::new();
    for repetition in 0..plan.repetitions {
        slots.extend(once.iter().map(|run| RunRepetition { run, repetition }));
    }
    slots
}

/// The repetition that a job measures; `None` for a job of another version of the operator.
pub(super) fn slot_of<'a>(job: &StudyJob, slots: &'a [RunRepetition<'_>]) -> Option<&'a RunRepetition<'a>> {
    slots.iter().find(|slot| job.is_try_of(slot.run, slot.repetition))
}

/// The plan of a study in a cluster, or all its problems.
pub(super) fn plan(study: &ViTScalingStudy) -> Result<Plan, String> {
    let plan = study::plan(&study.spec).map_err(|error| error.to_string())?;
    let mut problems = Vec::new();
    // All runs often have the same problem.
    let mut reported = BTreeSet::new();
    for run in &plan.runs {
        let why = if !run.speeds.is_empty() {
            "speeds slow the ranks of one machine: in a cluster, set workers.resources.limits.cpu instead"
                .to_owned()
        } else if !crds::spec::is_for_vit_operator(run.spec.managed_by.as_deref()) {
            "managedBy names another controller: omit it".to_owned()
        } else {
            let job = RunRepetition { run, repetition: 0 }.job(study, 1, &Nodes::default());
            let Err(error) = crds::validate(&job) else {
                continue;
            };
            error.to_string()
        };
        if reported.insert(why.clone()) {
            problems.push(format!("{}: {why}", run.label));
        }
    }
    if problems.is_empty() {
        Ok(plan)
    } else {
        Err(problems.join("; "))
    }
}
