//! The manifest, one file per section. Sections that the trainer reads as they are, are in `contract`.

mod checkpoint;
mod data;
mod elastic;
pub(crate) mod external;
mod job;
mod model;
mod placement;
pub mod reserved;
mod volume;
mod workers;

use std::collections::BTreeMap;
use std::sync::LazyLock;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, ValidationRule,
};
use kube::CustomResourceExt as _;
use kube::core::{Message, Rule};

pub use checkpoint::Checkpoint;
pub use contract::{
    ActivationCheckpointing, AttentionBackend, Augmentation, Balance, ClassOrder, ClassWeights, DataFormat,
    Device, Ema, GradientCompression, Interpolation, LearningRateScaling, Loss, LossScale, Measure,
    Normalization, Offload, OffloadTo, Optimizer, OptimizerName, Parallelism, PixelType, Pooling, Precision,
    RandomCrop, RandomResizedCrop, ScalingRule, Schedule, ScheduleName, Strategy, Training,
};
pub use data::{Cache, Data, Origin};
pub use elastic::Elastic;
pub use external::External;
pub use job::{
    CONTROLLER, FailurePolicy, Scheduling, ViTTrainingJob, ViTTrainingJobSpec, is_for_vit_operator,
};
pub use model::{Model, Pretrained};
pub use placement::{GpuRequirements, Homogeneity, Placement, Topology};
pub use volume::{HostPath, PersistentVolumeClaim, Volume};
pub use workers::{DEFAULT_GPU_RESOURCE, ImagePullPolicy, ImagePullSecret, Workers};

static SECTIONS: LazyLock<BTreeMap<String, JSONSchemaProps>> =
    LazyLock::new(|| sections(ViTTrainingJob::crd()));

/// The schemas of a resource's sections.
pub(crate) fn sections(resource: CustomResourceDefinition) -> BTreeMap<String, JSONSchemaProps> {
    let versions = resource.spec.versions;
    let mut schemas = versions
        .into_iter()
        .filter_map(|version| version.schema?.open_api_v3_schema);
    schemas.find_map(|schema| schema.properties).unwrap_or_default()
}

/// The API server's schema of a section of the resource, `spec` or `status`.
pub fn schema(section: &str) -> &'static JSONSchemaProps {
    &SECTIONS[section]
}

/// The rule that these fields of the spec can be added, changed or removed only while the job has no gang.
fn settled(fields: &[&str]) -> Rule {
    let unchanged = fields
        .iter()
        .map(|field| same(field))
        .collect::<Vec<_>>()
        .join(" && ");
    let rest =
        "has(oldSelf.status) && has(oldSelf.status.phase) && oldSelf.status.phase in ['Suspended', 'Failed']";
    let names = match fields {
        [first @ .., last] if !first.is_empty() => format!("{} and {last}", first.join(", ")),
        _ => fields.concat(),
    };
    let message =
        format!("{names} can be changed only while the job is Suspended or Failed; suspend it first");
    Rule::new(format!("({rest}) || ({unchanged})")).message(message.as_str())
}

/// The condition that a field of the spec is not added, changed or removed.
fn same(field: &str) -> String {
    // The API server considers the cost of the equivalent `self.?field == oldSelf.?field`
    // unbounded.
    let field = format!("spec.{field}");
    format!(
        "has(self.{field}) == has(oldSelf.{field}) && (!has(self.{field}) || self.{field} == oldSelf.{field})"
    )
}

/// The rule that a product of fields is a multiple of another one, unless a condition holds. The
/// message has the numbers, in the words of [`contract::RunConfig::errors`], and ends with
/// `remark`.
fn multiple(unless: &str, dividend: &[&str], divisor: &[&str], remark: &str) -> Rule {
    let product = |fields: &[&str]| match fields {
        [field] => format!("self.{field}"),
        _ => format!("(self.{})", fields.join(" * self.")),
    };
    let (number, of) = (product(dividend), product(divisor));
    let (dividend, divisor) = (dividend.join(" x "), divisor.join(" x "));
    let text = format!("{dividend} is %d: must be a multiple of {divisor} (%d){remark}");
    // `format`, because the API server considers the length of `string(number)`, and so the cost,
    // unbounded.
    let message = Message::Expression(format!("'{text}'{FORMAT}[{number}, {of}])"));
    Rule::new(format!("{unless} || {number} % {of} == 0")).message(message)
}

const FORMAT: &str = ".format(";

/// A rule's message, without the numbers of a manifest.
pub(crate) fn text(rule: &ValidationRule) -> String {
    let expression = rule.message_expression.as_deref().unwrap_or_default();
    match (&rule.message, expression.split_once(FORMAT)) {
        (Some(message), _) => message.clone(),
        (None, Some((text, _))) => text
            .trim_matches('\'')
            .replace(" is %d:", "")
            .replace(" (%d)", ""),
        (None, None) => rule.rule.clone(),
    }
}
