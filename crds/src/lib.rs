//! The `ViTTrainingJob` custom resource: types, schema, validation, and the trainer's run
//! configuration.
//!
//! ```text
//!   YAML -> ViTTrainingJob --(spec/*)--> validate() -> ValidatedJob { RunConfig, gang, placement, volumes, ... }
//!                 |
//!                 +--(schema)--> CRDs of the chart, docs/reference/vittrainingjob.md   (`generate/`)
//! ```
//!
//! The operator and `vit-trainer run` both use [`validate`], so a manifest means the same in a
//! cluster and on a laptop. This crate has no client and no async runtime.
#![forbid(unsafe_code)]
#![allow(
    unreachable_pub,
    reason = "the KubeSchema derive makes a second, private struct of each type"
)]

pub mod conditions;
pub mod labels;
pub mod reference;
#[allow(
    clippy::doc_markdown,
    reason = "`kubectl explain` prints these texts, where backticks are noise"
)]
pub mod spec;
#[allow(
    clippy::doc_markdown,
    reason = "`kubectl explain` prints these texts, where backticks are noise"
)]
pub mod status;
mod stored;
#[allow(
    clippy::doc_markdown,
    reason = "`kubectl explain` prints these texts, where backticks are noise"
)]
pub mod study;
pub mod validate;
pub mod words;

pub use spec::{ViTTrainingJob, ViTTrainingJobSpec};
pub use status::{Phase, ViTTrainingJobStatus};
pub use stored::{SpecSchema, Stored, StoredJob, Unreadable};
pub use study::ViTScalingStudy;
pub use validate::{InvalidJob, ValidatedJob, out_of_bounds, validate};
