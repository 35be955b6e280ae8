//! The `ViTTrainingJob` custom resource: types, schema, validation, and the run configuration a trainer gets from it.
//!
//! ```text
//!   YAML -> ViTTrainingJob --(spec/*)--> validate() -> ValidatedJob { RunConfig, gang, placement, volumes, ... }
//!                 |
//!                 +--(schema)--> generated/*.yaml, docs/reference/vittrainingjob.md   (`generate/`)
//! ```
//!
//! Both the operator and `vit-trainer run` go through [`validate`], so that a manifest means the same in a cluster and
//! on a laptop. There is no client here, and no async runtime.
#![forbid(unsafe_code)]
#![allow(
    unreachable_pub,
    reason = "the derive of KubeSchema makes a second, private struct of each type"
)]

pub mod conditions;
pub mod labels;
pub mod reference;
#[allow(
    clippy::doc_markdown,
    reason = "these texts are what `kubectl explain` prints, where backticks are noise"
)]
pub mod spec;
#[allow(
    clippy::doc_markdown,
    reason = "these texts are what `kubectl explain` prints, where backticks are noise"
)]
pub mod status;
#[allow(
    clippy::doc_markdown,
    reason = "these texts are what `kubectl explain` prints, where backticks are noise"
)]
pub mod study;
pub mod validate;

pub use spec::{ViTTrainingJob, ViTTrainingJobSpec};
pub use status::{Phase, ViTTrainingJobStatus};
pub use study::ViTScalingStudy;
pub use validate::{InvalidJob, ValidatedJob, validate};
