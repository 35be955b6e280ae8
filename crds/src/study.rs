//! The `ViTScalingStudy` resource: a job measured at many points.

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::spec::ViTTrainingJobSpec;

/// ViTScalingStudy measures one job at many points: numbers of ranks, batch sizes, and whatever else a variant changes.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "vit-operator.dev",
    version = "v1alpha1",
    kind = "ViTScalingStudy",
    plural = "vitscalingstudies",
    shortname = "vits",
    namespaced
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ViTScalingStudySpec {
    /// template is the job that every point is made from.
    pub template: JobTemplate,
    /// measure says how much of each point is trained and measured.
    #[serde(default)]
    pub measure: Measure,
    /// sweeps are the points, by what changes along them.
    #[schemars(length(min = 1, max = 32))]
    pub sweeps: Vec<Sweep>,
    /// predict is what is calculated from what was measured, for ranks and networks that were not.
    #[serde(default)]
    pub predict: Predict,
}

/// JobTemplate is a job without a name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct JobTemplate {
    /// spec of a ViTTrainingJob.
    pub spec: ViTTrainingJobSpec,
}

/// Measure says how much of each point is trained and measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Measure {
    /// epochs that each point trains, in place of the template's.
    #[schemars(range(min = 1, max = 10_000))]
    pub epochs: i32,
    /// warmupSteps are the steps at the start of each point that times leave out. Accuracies count all.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub warmup_steps: i32,
    /// repetitions of each point, each with a seed of its own: results are medians.
    #[schemars(range(min = 1, max = 100))]
    pub repetitions: i32,
    /// timeoutSeconds is how long a run may take; one that takes longer has failed.
    #[schemars(range(min = 1, max = 604_800))]
    pub timeout_seconds: i32,
}

impl Default for Measure {
    fn default() -> Self {
        Self {
            epochs: 2,
            warmup_steps: 5,
            repetitions: 3,
            timeout_seconds: 3600,
        }
    }
}

/// Sweep is a row of points. Every combination of what its lists name is a point.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Sweep {
    /// name of the sweep, by which the report tells it.
    #[schemars(length(min = 1, max = 40), regex(pattern = "^[a-z0-9]([a-z0-9-]*[a-z0-9])?$"))]
    pub name: String,
    /// mode is what the sweep is about, which the report draws along the axis: Strong (the same data on more ranks), Weak
    /// (data that grow with the ranks), Batch (microBatchSize), Accumulation (gradientAccumulationSteps) or Variants.
    pub mode: Mode,
    /// ranks to train on; the template's workers if not given. Ranks fill nodes of workers.gpusPerNode, of which they must
    /// be a multiple; fewer than those share one node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(range(min = 1, max = 65536)))]
    pub ranks: Vec<i32>,
    /// globalBatch, of a sweep over ranks: Grows keeps microBatchSize, so that more ranks take more images in a step (what
    /// many studies report as strong scaling); Fixed divides the images of the fewest ranks' step among all.
    #[serde(default)]
    pub global_batch: GlobalBatch,
    /// fractionPerRank is the share of the training images that each rank adds, in mode Weak: 0.1 trains on a tenth of
    /// them with one rank, and on all with ten.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.000_001, max = 1.0))]
    pub fraction_per_rank: Option<f64>,
    /// microBatchSize of each rank; the template's if not given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(range(min = 1, max = 65536)))]
    pub micro_batch_size: Vec<i32>,
    /// gradientAccumulationSteps of a step; the template's if not given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(range(min = 1, max = 1024)))]
    pub gradient_accumulation_steps: Vec<i32>,
    /// variants change anything else of the template: precision, parallelism, placement, the optimizer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub variants: Vec<Variant>,
}

/// Mode is what a sweep is about.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
pub enum Mode {
    /// The same data on more ranks.
    Strong,
    /// Data that grow with the ranks.
    Weak,
    /// Images of a rank's micro-batch.
    Batch,
    /// Micro-batches of a step.
    Accumulation,
    /// What else is changed, in the order given.
    Variants,
}

/// GlobalBatch says what becomes of the images of a step on more ranks.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
pub enum GlobalBatch {
    /// They grow with the ranks.
    #[default]
    Grows,
    /// They stay the same.
    Fixed,
}

/// Variant is a change of the template.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Variant {
    /// name by which the report tells it.
    #[schemars(length(min = 1, max = 40))]
    pub name: String,
    /// spec is a part of a ViTTrainingJob's spec that replaces the template's, as a merge patch (RFC 7386): objects are
    /// merged, null takes a field away, anything else replaces.
    #[serde(default, skip_serializing_if = "serde_json::Value::is_null")]
    #[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
    pub spec: serde_json::Value,
    /// speeds of the ranks, each a share of the machine's, to try on CPUs what devices do that are not alike; the last one
    /// is of all further ranks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024), inner(range(min = 0.0001, max = 1.0)))]
    pub speeds: Vec<f64>,
    /// external is another trainer, which runs the points in place of vit-trainer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external: Option<External>,
}

/// External is another trainer. A process of it is started for each rank, with torchrun's environment: RANK, WORLD_SIZE,
/// LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, MASTER_ADDR and MASTER_PORT. VIT_RUN_CONFIG names a file of JSON with the
/// point's configuration, and VIT_LOG the file to which rank 0 writes lines of JSON as vit-trainer's log.jsonl has them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct External {
    /// command and its arguments.
    #[schemars(length(min = 1, max = 64))]
    pub command: Vec<String>,
}

/// Predict says what is calculated from what was measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Predict {
    /// ranks for which a step is predicted, with the template's batch.
    #[schemars(length(max = 32), inner(range(min = 1, max = 1_000_000)))]
    pub ranks: Vec<i32>,
    /// links are networks between ranks, in place of the measured one.
    #[schemars(length(max = 16))]
    pub links: Vec<Link>,
}

/// Link is a network between ranks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Link {
    /// name by which the report tells it.
    #[schemars(length(min = 1, max = 40))]
    pub name: String,
    /// latencyMicroseconds of a message.
    #[schemars(range(min = 0.0))]
    pub latency_microseconds: f64,
    /// gigabitsPerSecond of each rank.
    #[schemars(range(min = 0.000_001))]
    pub gigabits_per_second: f64,
}

#[cfg(test)]
mod tests {
    use kube::CustomResourceExt as _;

    use super::*;

    #[test]
    fn the_schema_takes_whatever_a_variant_changes() {
        let crd = serde_json::to_value(ViTScalingStudy::crd()).expect("JSON");
        let sweep = crd
            .pointer(
                "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/sweeps/items/properties",
            )
            .expect("sweeps");
        let spec = &sweep["variants"]["items"]["properties"]["spec"];
        assert_eq!(spec["x-kubernetes-preserve-unknown-fields"], true, "{spec}");
        assert_eq!(sweep["ranks"]["items"]["minimum"], 1.0, "{}", sweep["ranks"]);
    }
}
