//! The jobs of a study: which there are, in which order they are tried, and what they look like. Pure.

use std::collections::BTreeSet;
use std::sync::Arc;

use contract::CheckpointWriters;
use crds::spec::Measure;
use crds::{ViTScalingStudy, ViTTrainingJob, labels};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Resource as _, ResourceExt as _};
use planner::policy::request::{GangRequest, Shape};
use serde_json::json;
use study::{Plan, Records, Run, fingerprint, most_bytes};

/// A repetition of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot<'a> {
    pub(super) run: &'a Run,
    /// From 0.
    pub(super) repetition: u32,
}

/// Which nodes a job may have.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct Nodes {
    /// Those on which the study measures, where they are known.
    pub(super) pinned: Vec<String>,
    /// Those that it must not have: other studies measure there, or a GPU has failed.
    pub(super) excluded: BTreeSet<String>,
}

impl Slot<'_> {
    /// What people call it.
    pub(super) fn words(&self) -> String {
        format!("{} #{}", self.run.label, self.repetition + 1)
    }

    /// Nodes of its gang.
    pub(super) fn nodes(&self) -> usize {
        self.run.config.nodes as usize
    }

    /// Tells how it chooses nodes: slots with the same key can be measured on the same ones.
    pub(super) fn node_choice(&self) -> String {
        let spec = &self.run.spec;
        let workers = &spec.workers;
        let chooses = json!([
            self.run.gpus_per_node,
            workers.gpu_resource,
            workers.node_selector,
            workers.tolerations,
            spec.placement,
            spec.scheduling.queue_name,
        ]);
        fingerprint(&chooses)
    }

    /// What a node must have for it; nothing of a job that cannot be run.
    pub(super) fn shape(&self) -> Arc<Shape> {
        let job = ViTTrainingJob::new("run", self.run.spec.clone());
        crds::validate(&job).map_or_else(|_| Arc::default(), |valid| GangRequest::from(&valid).shape)
    }

    /// Whether a job of it may have any node that it could have outside of a study.
    pub(super) fn leaves_nodes_open(&self, job: &ViTTrainingJob) -> bool {
        job.spec.placement.nodes == self.run.spec.placement.nodes
    }

    pub(super) fn job_name(&self, study: &ViTScalingStudy, number: u32) -> String {
        let name = format!("{}-{}-{}", study.name_any(), self.run.key, self.repetition + 1);
        if number > 1 {
            format!("{name}-{number}")
        } else {
            name
        }
    }

    /// The job of a try, counted from 1.
    pub(super) fn job(&self, study: &ViTScalingStudy, number: u32, nodes: &Nodes) -> ViTTrainingJob {
        let mut job = ViTTrainingJob::new(&self.job_name(study, number), self.run.job(self.repetition));
        job.metadata.namespace = study.namespace();
        job.metadata.owner_references = owner(study).map(|owner| vec![owner]);
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
            warmup_steps: measure.warmup_steps,
        });
        // A run without a break begins at the first step, and leaves nothing behind.
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

/// The study as the owner of what it makes.
pub(super) fn owner(study: &ViTScalingStudy) -> Option<OwnerReference> {
    let owner = study.controller_owner_ref(&())?;
    Some(OwnerReference {
        block_owner_deletion: Some(true),
        ..owner
    })
}

/// Every repetition of every run, in the order in which they are tried: all runs once before any is repeated, so that what
/// changes in a cluster over the hours does not meet one point alone; those of the most nodes and ranks first, so that all others can
/// be measured on some of their nodes.
pub(super) fn slots(plan: &Plan) -> Vec<Slot<'_>> {
    let mut once: Vec<&Run> = plan.runs.iter().collect();
    once.sort_by_key(|run| std::cmp::Reverse((run.config.nodes, run.config.ranks_per_node)));
    let mut slots = Vec::new();
    for repetition in 0..plan.repetitions {
        slots.extend(once.iter().map(|run| Slot { run, repetition }));
    }
    slots
}

/// The plan of a study for a cluster, or every reason why there is none.
pub(super) fn plan(study: &ViTScalingStudy) -> Result<Plan, String> {
    let plan = study::plan(&study.spec).map_err(|error| error.to_string())?;
    let mut problems = Vec::new();
    let epochs = usize::try_from(study.spec.measure.epochs).unwrap_or_default();
    let bytes = most_bytes(&plan, epochs);
    if bytes > Records::MOST_BYTES {
        problems.push(format!(
            "{} runs of {} repetitions and {epochs} epochs each measure more than a ConfigMap holds ({bytes} bytes of {}): \
             divide the study",
            plan.runs.len(),
            plan.repetitions,
            Records::MOST_BYTES
        ));
    }
    // What is wrong with one run is often wrong with all.
    let mut told = BTreeSet::new();
    for run in &plan.runs {
        let why = if !run.speeds.is_empty() {
            "speeds slow the ranks of one machine: in a cluster, give workers.resources.limits of cpu in their place"
                .to_owned()
        } else if !crds::spec::is_for_vit_operator(run.spec.managed_by.as_deref()) {
            "managedBy names another controller: leave it out".to_owned()
        } else {
            let job = Slot { run, repetition: 0 }.job(study, 1, &Nodes::default());
            let Err(error) = crds::validate(&job) else {
                continue;
            };
            error.to_string()
        };
        if told.insert(why.clone()) {
            problems.push(format!("{}: {why}", run.label));
        }
    }
    if problems.is_empty() {
        Ok(plan)
    } else {
        Err(problems.join("; "))
    }
}
