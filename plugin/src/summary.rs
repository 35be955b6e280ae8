//! A job in a few words, for the column NOTE of `list` and for commands that wait.

use crds::conditions::{reasons, types};
use crds::status::ViTTrainingJobStatus;
use crds::{Phase, ViTTrainingJob};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{Resource as _, ResourceExt as _};

use crate::paint::Paint;
use crate::text::counted;

/// Larger shares of step time waiting for synchronization are highlighted, as by the alert `ViTSyncShareHigh`.
pub(crate) const HIGH_SYNC_SHARE: f64 = 0.4;

/// Smaller slowdowns by slow ranks are not shown, because ranks always differ a little.
pub(crate) const NOTABLE_SLOWDOWN: f64 = 1.1;

/// The phase; `None` before the operator has processed the job.
pub(crate) fn phase(job: &ViTTrainingJob) -> Option<Phase> {
    job.status.as_ref()?.phase
}

/// The most informative condition in the job's phase.
pub(crate) fn main_condition(status: &ViTTrainingJobStatus) -> Option<&Condition> {
    let type_ = match status.phase? {
        Phase::Pending => types::PLACED,
        Phase::Starting | Phase::Running | Phase::Restarting => types::RUNNING,
        Phase::Suspending | Phase::Suspended => types::SUSPENDED,
        Phase::Succeeded => types::COMPLETE,
        Phase::Failed => types::FAILED,
    };
    status.condition(type_)
}

/// Phase, step and note, without colors.
pub(crate) fn summary(job: &ViTTrainingJob) -> String {
    let mut words = phase(job).map_or("New", Phase::as_str).to_owned();
    let progress = job.status.as_ref().and_then(|status| status.progress.as_ref());
    if let Some(progress) = progress.filter(|progress| progress.total_steps > 0) {
        words += &format!(", step {} of {}", progress.step, progress.total_steps);
    }
    let note = note(job, Paint::plain(usize::MAX));
    if !note.is_empty() {
        words += &format!(", {note}");
    }
    words
}

/// A note beyond the phase; often empty.
pub(crate) fn note(job: &ViTTrainingJob, paint: Paint) -> String {
    let Some(status) = &job.status else {
        return String::new();
    };
    if job.meta().deletion_timestamp.is_some() {
        let finalizers = job.finalizers().join(", ");
        return match finalizers.as_str() {
            "" => "is being deleted".into(),
            _ => format!("is being deleted, waits for {finalizers}"),
        };
    }
    let reason = main_condition(status).map(|condition| condition.reason.as_str());
    let failure = status.last_failure.as_ref().map(|failure| failure.class.as_str());
    match status.phase {
        Some(Phase::Pending) => match reason {
            Some(reasons::IN_QUEUE) => "waits for quota".into(),
            Some(reasons::ADMITTED) => "has quota, waits for GPUs".into(),
            Some(reasons::QUOTA_EXCEEDED) => paint.warning("over the namespace's quota"),
            Some(reasons::START_FAILING) => paint.warning("its starts fail"),
            Some(reasons::NO_PRIORITY_CLASS) => paint.bad("no such PriorityClass"),
            _ => "waits for GPUs".into(),
        },
        Some(Phase::Starting) if reason == Some(reasons::RECONCILE_FAILED) => paint.bad("a call fails"),
        Some(Phase::Starting) => {
            let workers = status.workers.unwrap_or_default();
            format!("{} of {} pods ready", workers.ready, workers.desired)
        }
        Some(Phase::Running) => {
            let ranks = status
                .stragglers
                .iter()
                .map(|straggler| straggler.rank.to_string());
            match ranks.collect::<Vec<_>>().as_slice() {
                [] => String::new(),
                [rank] => paint.warning(format!("rank {rank} is slow")),
                ranks => paint.warning(format!("ranks {} are slow", ranks.join(", "))),
            }
        }
        Some(Phase::Restarting) => match reason {
            Some(reasons::RESIZING) => "changes its size".into(),
            Some(reasons::NODE_UNFIT) => "a node no longer fits".into(),
            Some(reasons::EVICTED) => "loses its quota".into(),
            _ => paint.warning(format!("after {}", failure.unwrap_or("a failure"))),
        },
        Some(Phase::Failed) => {
            let word = match reason {
                Some(reasons::INVALID_SPEC | reasons::DEADLINE_EXCEEDED | reasons::PENDING_TIMEOUT) => reason,
                _ => failure.or(reason),
            };
            paint.bad(word.unwrap_or_default())
        }
        Some(Phase::Suspended) => match &status.last_checkpoint {
            Some(checkpoint) => format!("saved at step {}", checkpoint.step),
            None => String::new(),
        },
        Some(Phase::Succeeded) if status.restarts > 0 => counted(status.restarts, "restart"),
        _ => String::new(),
    }
}

/// What a deletion waits for; `None` without finalizers.
pub(crate) fn held(job: &ViTTrainingJob) -> Option<String> {
    let finalizers = job.finalizers().join(", ");
    (!finalizers.is_empty())
        .then(|| format!("it waits for its finalizers: {finalizers}; its pods are being stopped"))
}
