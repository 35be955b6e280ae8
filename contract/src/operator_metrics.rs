//! Names of the operator's Prometheus metrics and their labels. Base units; counters end in
//! `_total`. [`crate::metrics`] has the trainer's.

/// Namespace of a job, on metrics about single jobs.
pub const LABEL_NAMESPACE: &str = crate::metrics::LABEL_NAMESPACE;
/// Name of a job.
pub const LABEL_JOB_NAME: &str = crate::metrics::LABEL_JOB_NAME;
/// Global rank.
pub const LABEL_RANK: &str = crate::metrics::LABEL_RANK;
/// Node.
pub const LABEL_NODE: &str = crate::metrics::LABEL_NODE;
/// Phase of jobs, on [`JOBS`].
pub const LABEL_PHASE: &str = "phase";
/// Class of failures, on [`RESTARTS_TOTAL`].
pub const LABEL_CLASS: &str = "class";
/// Category of errors, on [`RECONCILE_ERRORS_TOTAL`].
pub const LABEL_CATEGORY: &str = "category";
/// Why jobs wait, on [`WAITING_JOBS`].
pub const LABEL_REASON: &str = "reason";
/// GPU product, on [`GPUS`].
pub const LABEL_PRODUCT: &str = "product";
/// Extended resource of GPUs, on [`GPUS`].
pub const LABEL_RESOURCE: &str = "resource";
/// State of GPUs, on [`GPUS`]: one of [`GPU_STATES`].
pub const LABEL_STATE: &str = "state";
/// Used by, or promised to, a gang of this operator; used by another pod; free for a gang; unused
/// but unavailable. Each GPU is in one state.
pub const GPU_STATES: [&str; 4] = ["gangs", "others", "free", "unavailable"];
/// Value of [`LABEL_REASON`] while the job is being placed.
pub const REASON_UNDECIDED: &str = "Undecided";
/// Activity of a job, on [`JOB_TIME_SPENT_SECONDS`]: one of [`TIME_PARTS`].
pub const LABEL_PART: &str = "part";
/// Optimizer steps; steps that repeat an earlier attempt's; waiting for GPUs after the first ones;
/// start of a gang; its end after a failure; evaluation; pauses for checkpoints; the rest. Each
/// second is in one part.
pub const TIME_PARTS: [&str; 8] = [
    "useful",
    "repeated",
    "queue",
    "start",
    "restart",
    "evaluation",
    "checkpoint",
    "other",
];
/// HTTP method of calls to the API server.
pub const LABEL_METHOD: &str = "method";
/// HTTP status of the response, or `none` without one; on [`API_REQUESTS_TOTAL`].
pub const LABEL_CODE: &str = "code";

/// Counter: reconciles, successful or not.
pub const RECONCILES_TOTAL: &str = "vit_operator_reconciles_total";
/// Histogram: seconds of a reconcile.
pub const RECONCILE_SECONDS: &str = "vit_operator_reconcile_seconds";
/// Counter: reconciles that failed, by category.
pub const RECONCILE_ERRORS_TOTAL: &str = "vit_operator_reconcile_errors_total";
/// Gauge: jobs, by phase.
pub const JOBS: &str = "vit_operator_jobs";
/// Gauge: jobs that wait, by the reason of their condition `Placed`.
pub const WAITING_JOBS: &str = "vit_operator_waiting_jobs";
/// Gauge: seconds that a job in phase Pending has waited to be placed.
pub const JOB_WAITING_SECONDS: &str = "vit_operator_job_waiting_seconds";
/// Gauge: number of a job's latest gang.
pub const JOB_ATTEMPT: &str = "vit_operator_job_attempt";
/// Gauge: how often a job's gang was replaced after a failure.
pub const JOB_RESTARTS: &str = "vit_operator_job_restarts";
/// Gauge: share of useful steps in a job's time since its first GPUs.
pub const JOB_EFFECTIVE_TIME_RATIO: &str = "vit_operator_job_effective_time_ratio";
/// Gauge: seconds of a job since its first GPUs, by part.
pub const JOB_TIME_SPENT_SECONDS: &str = "vit_operator_job_time_spent_seconds";
/// Gauge: compute time of a rank that stays slow over the median of the other ranks of its job.
pub const STRAGGLER_SLOWDOWN_RATIO: &str = "vit_operator_straggler_slowdown_ratio";
/// Gauge: GPUs of the cluster, by product, resource and state.
pub const GPUS: &str = "vit_operator_gpus";
/// Histogram: seconds until a gang is placed or found not to fit.
pub const PLACEMENT_SECONDS: &str = "vit_operator_placement_seconds";
/// Counter: gangs restarted after a failure, by its class.
pub const RESTARTS_TOTAL: &str = "vit_operator_restarts_total";
/// Histogram: seconds from the creation of a job until every pod of its first gang is ready.
pub const TIME_TO_RUNNING_SECONDS: &str = "vit_operator_time_to_running_seconds";
/// Gauge: 1 if this replica leads, otherwise 0.
pub const LEADER: &str = "vit_operator_leader";
/// Counter: calls to the API server, by method and status code.
pub const API_REQUESTS_TOTAL: &str = "vit_operator_api_requests_total";
/// Histogram: seconds until the API server responds, by method; for a watch, until it starts.
pub const API_REQUEST_SECONDS: &str = "vit_operator_api_request_seconds";
