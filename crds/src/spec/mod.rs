//! The manifest, a file a section.

mod augmentation;
mod checkpoint;
mod data;
mod elastic;
mod job;
mod model;
mod placement;
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
pub use workers::{DEFAULT_GPU_RESOURCE, Device, ImagePullPolicy, Workers};
