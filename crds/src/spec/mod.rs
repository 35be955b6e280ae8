//! The manifest, a file a section.

mod checkpoint;
mod data;
mod job;
mod model;
mod placement;
mod training;
mod volume;
mod workers;

pub use checkpoint::{Checkpoint, Resume};
pub use data::{Data, DataFormat};
pub use job::{FailurePolicy, Parallelism, ViTTrainingJob, ViTTrainingJobSpec};
pub use model::{Model, Pooling};
pub use placement::{GpuRequirements, Placement};
pub use training::{Optimizer, OptimizerName, Schedule, ScheduleName, Training};
pub use volume::{HostPath, PersistentVolumeClaim, Volume};
pub use workers::{Device, ImagePullPolicy, Workers};
