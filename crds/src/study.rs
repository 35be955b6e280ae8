//! The `ViTScalingStudy` resource: a job measured at many points.

pub mod status;

use std::collections::BTreeMap;
use std::sync::LazyLock;

use contract::ConfigError;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::JSONSchemaProps;
use kube::{CustomResource, CustomResourceExt as _, KubeSchema};
use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::spec::{ViTTrainingJobSpec, sections};
use crate::validate::outside;
use status::ViTScalingStudyStatus;

/// ViTScalingStudy measures one job at many points: ranks, batch sizes and any other change.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "vit-operator.dev",
    version = "v1alpha1",
    kind = "ViTScalingStudy",
    plural = "vitscalingstudies",
    shortname = "vits",
    category = "all",
    namespaced,
    doc = "ViTScalingStudy measures one job at many points: ranks, batch sizes and any other change.",
    derive = "PartialEq",
    status = "ViTScalingStudyStatus",
    validation = Rule::new("size(self.metadata.name) <= 28").message("metadata.name must have at most 28 characters, because the names of its jobs contain it"),
    validation = Rule::new("self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')").message("metadata.name must be lower-case letters, digits and '-', starting with a letter, because the names of its jobs contain it"),
    validation = Rule::new("self.spec.template == oldSelf.spec.template && self.spec.measure == oldSelf.spec.measure && self.spec.predict == oldSelf.spec.predict").message("only suspend can be changed, and sweeps added: create another study"),
    validation = Rule::new("oldSelf.spec.sweeps.all(old, self.spec.sweeps.exists(sweep, sweep.name == old.name))").message("sweeps cannot be removed: create another study"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Runs", type_ = "string", description = "Measured runs, of all", json_path = ".status.runs.summary"),
    printcolumn(name = "Failed", type_ = "integer", description = "Runs that failed", json_path = ".status.runs.failed"),
    printcolumn(name = "Job", type_ = "string", description = "The job that is being measured", json_path = ".status.current.job"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Run", type_ = "string", description = "What is being measured", priority = 1, json_path = ".status.current.run"),
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ViTScalingStudySpec {
    /// template is the job from which every point is derived.
    pub template: JobTemplate,
    /// measure says how much of each point is trained and measured.
    #[serde(default)]
    pub measure: Measure,
    /// sweeps are rows of points, each along one dimension.
    #[schemars(length(min = 1, max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub sweeps: Vec<Sweep>,
    /// predict calculates step times for other numbers of ranks.
    #[serde(default)]
    pub predict: Predict,
    /// suspend stops the study and its current run until it is set to false again. Measured results
    /// are kept.
    #[serde(default)]
    pub suspend: bool,
}

impl ViTScalingStudySpec {
    /// Every value that is out of the schema's bounds.
    pub fn out_of_bounds(&self) -> Vec<ConfigError> {
        outside(schema(), self)
    }
}

/// The API server's schema of a study's spec.
pub(crate) fn schema() -> &'static JSONSchemaProps {
    static SECTIONS: LazyLock<BTreeMap<String, JSONSchemaProps>> =
        LazyLock::new(|| sections(ViTScalingStudy::crd()));
    &SECTIONS["spec"]
}

/// JobTemplate is a job without a name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct JobTemplate {
    /// spec of a ViTTrainingJob. measure.epochs replaces its epochs; in a cluster the study sets measure,
    /// activeDeadlineSeconds and failurePolicy.maxRestarts, and ignores suspend, ttlSecondsAfterFinished, checkpoint.volume and
    /// checkpoint.writers.
    #[schemars(transform = changeable)]
    pub spec: ViTTrainingJobSpec,
}

/// Measure says how much of each point is trained and measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Measure {
    /// epochs that each point trains, instead of the template's.
    #[schemars(range(min = 1, max = 10_000))]
    pub epochs: i32,
    /// warmupSteps at the start of each point do not count in times; in accuracies they do.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub warmup_steps: i32,
    /// repetitions of each point, each with another seed; results are medians.
    #[schemars(range(min = 1, max = 100))]
    pub repetitions: i32,
    /// retries is how often a run is retried after a failure that may be temporary.
    #[schemars(range(min = 0, max = 10))]
    pub retries: i32,
    /// timeoutSeconds is how long a run may last before it counts as failed.
    #[schemars(range(min = 1, max = 604_800))]
    pub timeout_seconds: i32,
}

impl Default for Measure {
    fn default() -> Self {
        Self {
            epochs: 2,
            warmup_steps: 5,
            repetitions: 3,
            retries: 1,
            timeout_seconds: 3600,
        }
    }
}

/// Sweep is a row of points: every combination of the values in its lists.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(
    validation = Rule::new("!(self.mode in ['Strong', 'Weak']) || (has(self.ranks) && size(self.ranks) > 1)").message("modes Strong and Weak need at least two ranks"),
    validation = Rule::new("self.mode != 'Batch' || (has(self.microBatchSize) && size(self.microBatchSize) > 1)").message("mode Batch needs at least two values of microBatchSize"),
    validation = Rule::new("self.mode != 'Accumulation' || (has(self.gradientAccumulationSteps) && size(self.gradientAccumulationSteps) > 1)").message("mode Accumulation needs at least two values of gradientAccumulationSteps"),
    validation = Rule::new("self.mode != 'Variants' || (has(self.variants) && size(self.variants) > 1)").message("mode Variants needs at least two variants"),
    validation = Rule::new("(self.mode == 'Weak') == has(self.fractionPerRank)").message("fractionPerRank must be given with mode Weak, and with no other"),
    validation = Rule::new("self.globalBatch == 'Grows' || has(self.ranks)").message("globalBatch Fixed needs ranks to divide the images among"),
    validation = Rule::new("self == oldSelf").message("a sweep cannot be changed: add another one")
)]
pub struct Sweep {
    /// name of the sweep in the report.
    #[schemars(length(min = 1, max = 40), regex(pattern = "^[a-z0-9]([a-z0-9-]*[a-z0-9])?$"))]
    pub name: String,
    /// mode is the axis of the sweep: Strong (the same data on more ranks), Weak (data in
    /// proportion to ranks), Batch (microBatchSize), Accumulation (gradientAccumulationSteps) or
    /// Variants.
    pub mode: Mode,
    /// ranks to train on; the template's workers by default. Ranks fill nodes of
    /// workers.gpusPerNode and must be a multiple of it; fewer share one node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(range(min = 1, max = 65536)))]
    pub ranks: Vec<i32>,
    /// globalBatch of a sweep over ranks. Grows keeps microBatchSize, which many studies report as
    /// strong scaling. Fixed divides the images of the fewest ranks' step among all ranks.
    #[serde(default)]
    pub global_batch: GlobalBatch,
    /// fractionPerRank is the share of the training images that each rank adds in mode Weak: with
    /// 0.1, one rank trains on a tenth of them and ten ranks on all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.000_001, max = 1.0))]
    pub fraction_per_rank: Option<f64>,
    /// microBatchSize of each rank; the template's by default.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(range(min = 1, max = 65536)))]
    pub micro_batch_size: Vec<i32>,
    /// gradientAccumulationSteps of a step; the template's by default.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(range(min = 1, max = 1024)))]
    pub gradient_accumulation_steps: Vec<i32>,
    /// variants change anything else: precision, parallelism, placement, the optimizer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub variants: Vec<Variant>,
}

/// Mode is the dimension of a sweep.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
pub enum Mode {
    /// The same data on more ranks.
    Strong,
    /// Data in proportion to the ranks.
    Weak,
    /// Images of a rank's micro-batch.
    Batch,
    /// Micro-batches of a step.
    Accumulation,
    /// Any other change, in the given order.
    Variants,
}

/// GlobalBatch says how the images of a step change with the ranks.
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
    /// name that the report shows.
    #[schemars(length(min = 1, max = 40))]
    pub name: String,
    /// without lists fields that are removed from the template's spec before spec is merged, by
    /// path: training.clipGradNorm.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 32),
        inner(
            length(max = 100),
            regex(pattern = r"^[a-z][a-zA-Z0-9]*(\.[a-z][a-zA-Z0-9]*)*$")
        )
    )]
    pub without: Vec<String>,
    /// spec overrides parts of the template's spec: objects are merged, other values replaced, null
    /// is refused. With external in it, another trainer runs the points.
    #[serde(default, skip_serializing_if = "serde_json::Value::is_null")]
    #[schemars(schema_with = "any_object")]
    pub spec: serde_json::Value,
    /// speeds of the ranks, each as a share of a core, to simulate unequal devices on CPUs; further
    /// ranks use the last one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024), inner(range(min = 0.0001, max = 1.0)))]
    pub speeds: Vec<f64>,
}

/// Predict calculates steps for other numbers of ranks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Predict {
    /// ranks for which a step is predicted, with the batch that was measured on the most numbers of ranks.
    #[schemars(length(max = 32), inner(range(min = 1, max = 1_000_000)))]
    pub ranks: Vec<i32>,
}

fn any_object(_: &mut schemars::SchemaGenerator) -> Schema {
    schemars::json_schema!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}

/// Removes the descriptions of fields and the rules against changes: studies make new jobs.
fn changeable(schema: &mut Schema) {
    fn walk(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                // They are as long as the rest; `kubectl explain vtj.spec` prints them.
                if fields.contains_key("type") || fields.contains_key("$ref") {
                    fields.remove("description");
                }
                if let Some(Value::Array(rules)) = fields.get_mut("x-kubernetes-validations") {
                    rules.retain(|rule| !rule["rule"].as_str().is_some_and(|rule| rule.contains("oldSelf")));
                }
                fields.values_mut().for_each(walk);
            }
            Value::Array(values) => values.iter_mut().for_each(walk),
            _ => {}
        }
    }
    let mut value = std::mem::take(schema).to_value();
    let description = value.get("description").cloned();
    walk(&mut value);
    if let (Some(fields), Some(description)) = (value.as_object_mut(), description) {
        fields.insert("description".into(), description);
    }
    *schema = value.try_into().unwrap_or_default();
}

#[cfg(test)]
mod tests {
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

    #[test]
    fn a_template_can_be_changed_and_keeps_the_other_rules() {
        let rules = |section: &str| {
            let schema = if section == "job" {
                serde_json::to_value(crate::spec::schema("spec"))
            } else {
                let sections = sections(ViTScalingStudy::crd());
                let template = sections["spec"].properties.as_ref().expect("fields")["template"].clone();
                serde_json::to_value(&template.properties.expect("fields")["spec"])
            };
            let schema = schema.expect("JSON");
            let rules = schema["x-kubernetes-validations"]
                .as_array()
                .expect("rules")
                .clone();
            let rule = |rule: &Value| rule["rule"].as_str().expect("a rule").to_owned();
            rules.iter().map(rule).collect::<Vec<_>>()
        };
        let (mut kept, of_job) = (rules("study"), rules("job"));
        assert!(of_job.iter().any(|rule| rule.contains("oldSelf")));
        kept.extend(of_job.iter().filter(|rule| rule.contains("oldSelf")).cloned());
        kept.sort();
        let mut of_job = of_job;
        of_job.sort();
        assert_eq!(kept, of_job);
    }
}
