//! Labels and annotations on what the operator makes.

/// Name of the `ViTTrainingJob` a pod, Service or ConfigMap belongs to.
pub const JOB_NAME: &str = "vit-operator.dev/job-name";
/// Attempt a pod belongs to, from 1.
pub const ATTEMPT: &str = "vit-operator.dev/attempt";
/// Index of a pod in its gang, `0..nodes`.
pub const NODE_RANK: &str = "vit-operator.dev/node-rank";
/// Number of pods in the gang that a pod was made for.
pub const GANG_SIZE: &str = "vit-operator.dev/gang-size";
/// Name of the `ViTScalingStudy` that a job or a ConfigMap belongs to.
pub const STUDY_NAME: &str = "vit-operator.dev/study-name";
/// What a study's job measures, by a hash of its manifest.
pub const RUN: &str = "vit-operator.dev/run";
/// Which repetition of its run a study's job is, from 1.
pub const REPETITION: &str = "vit-operator.dev/repetition";
/// Which try of its repetition a study's job is, from 1.
pub const TRY: &str = "vit-operator.dev/try";
/// Annotation of a Workload: what it was made to ask for. Kueue may write its specification in other words.
pub const ASKS_FOR: &str = "vit-operator.dev/asks-for";
/// Standard label: the tool that manages an object.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Value of [`MANAGED_BY`], and the field manager of server-side apply.
pub const MANAGER: &str = "vit-operator";
