//! Labels and annotations of the objects that the operator creates, and the name of a container.

/// Name of the `ViTTrainingJob` a pod, Service or ConfigMap belongs to.
pub const JOB_NAME: &str = "vit-operator.dev/job-name";
/// Attempt a pod belongs to, from 1.
pub const ATTEMPT: &str = "vit-operator.dev/attempt";
/// Index of a pod in its gang, `0..nodes`.
pub const NODE_RANK: &str = "vit-operator.dev/node-rank";
/// Number of pods in a pod's gang.
pub const GANG_SIZE: &str = "vit-operator.dev/gang-size";
/// Name of the `ViTScalingStudy` that a job or a ConfigMap belongs to.
pub const STUDY_NAME: &str = "vit-operator.dev/study-name";
/// Hash of the manifest of a study's job: the point that it measures.
pub const RUN: &str = "vit-operator.dev/run";
/// Number of a job's repetition within its study's run, from 1.
pub const REPETITION: &str = "vit-operator.dev/repetition";
/// Number of a job's try within its repetition, from 1.
pub const TRY: &str = "vit-operator.dev/try";
/// The trainer's container in a pod, which may have further ones.
pub const CONTAINER: &str = "trainer";
/// Annotation of a Workload with its original request, because Kueue may rewrite the specification.
pub const ASKS_FOR: &str = "vit-operator.dev/asks-for";
/// Annotation of a job: a checkpoint of a later step than this is wanted.
pub const SAVE_AFTER_STEP: &str = "vit-operator.dev/save-after-step";
/// Standard label: the tool that manages an object.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Value of [`MANAGED_BY`], and the field manager of all writes.
pub const MANAGER: &str = "vit-operator";
