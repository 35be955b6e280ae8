//! The manifest, a file a section.

mod augmentation;
mod checkpoint;
mod data;
mod elastic;
mod job;
mod model;
mod placement;
pub mod reserved;
mod training;
mod volume;
mod workers;

pub use augmentation::{Augmentation, RandomCrop, RandomResizedCrop};
pub use checkpoint::{Checkpoint, Resume};
pub use data::{Data, DataFormat, Interpolation, Normalization};
pub use elastic::Elastic;
pub use job::{
    CONTROLLER, FailurePolicy, GradientCompression, Parallelism, Scheduling, ViTTrainingJob,
    ViTTrainingJobSpec, is_for_vit_operator,
};
pub use model::{Model, Pooling, Pretrained};
pub use placement::{GpuRequirements, Homogeneity, Placement, Topology};
pub use training::{
    ActivationCheckpointing, Ema, LearningRateScaling, LossScale, Optimizer, OptimizerName, Precision,
    ScalingRule, Schedule, ScheduleName, Training,
};
pub use volume::{HostPath, PersistentVolumeClaim, Volume};
pub use workers::{DEFAULT_GPU_RESOURCE, Device, ImagePullPolicy, ImagePullSecret, Workers};

/// The rule that these fields stay as they are, given or not.
fn unchanged(fields: &[&str]) -> kube::core::Rule {
    // `self.?field == oldSelf.?field` would say the same at a cost that the API server takes for unbounded.
    let rule = fields
        .iter()
        .map(|field| {
            format!(
                "has(self.{field}) == has(oldSelf.{field}) && (!has(self.{field}) || self.{field} == oldSelf.{field})"
            )
        })
        .collect::<Vec<_>>()
        .join(" && ");
    let names = match fields {
        [all_but_last @ .., last] if !all_but_last.is_empty() => {
            format!("{} and {last}", all_but_last.join(", "))
        }
        _ => fields.concat(),
    };
    let message = format!("{names} cannot be changed; create a new job");
    kube::core::Rule::new(rule).message(message.as_str())
}
