//! From a job's status to its explanation: a pure function.

use contract::FailureClass;
use crds::conditions::{reasons, types};
use crds::spec::CONTROLLER;
use crds::status::{RejectedGroup, ViTTrainingJobStatus};
use crds::{Phase, ViTTrainingJob};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt as _;
use planner::policy::node_fit::Refusal;

use super::advice::{self, Advice, Command};
use super::{Step, Why};
use crate::cluster::Place;
use crate::text::{self, age, counted};

/// A job that has not been looked at for that long is one that no operator looks at.
const UNSEEN_SECONDS: i64 = 10;
/// A job whose steps wait for synchronisation for more than that is told so; the alert `ViTSyncShareHigh` has the same bound.
pub(crate) const HIGH_SYNC_SHARE: f64 = 0.4;
/// Of refused groups, at most so many reasons are told what to do about.
const REFUSALS_ADVISED: usize = 6;

/// Names that stand in for those of advice.
struct Names<'a> {
    place: &'a Place,
    job: String,
    node: String,
    pod: String,
    class: String,
}

impl Names<'_> {
    fn step(&self, advice: Advice) -> Step {
        let fill = |command: &str| {
            command
                .replace("JOB", &self.job)
                .replace("NODE", &self.node)
                .replace("POD", &self.pod)
                .replace("CLASS", &self.class)
        };
        Step {
            words: advice.words.into(),
            command: match advice.command {
                Command::None => None,
                Command::Vit(command) => Some(self.place.vit(&fill(command))),
                Command::Kubectl(command) => Some(self.place.kubectl(&fill(command))),
                Command::KubectlCluster(command) => Some(self.place.kubectl_cluster(&fill(command))),
            },
        }
    }
}

/// The condition that says most about a job in its phase.
pub(crate) fn telling(status: &ViTTrainingJobStatus) -> Option<&Condition> {
    let type_ = match status.phase? {
        Phase::Pending => types::PLACED,
        Phase::Starting | Phase::Running | Phase::Restarting => types::RUNNING,
        Phase::Suspending | Phase::Suspended => types::SUSPENDED,
        Phase::Succeeded => types::COMPLETE,
        Phase::Failed => types::FAILED,
    };
    status.condition(type_)
}

/// Why a job is as it is.
pub(crate) fn explain(job: &ViTTrainingJob, place: &Place, now: Timestamp) -> Why {
    let status = job.status.clone().unwrap_or_default();
    let failure = status.last_failure.as_ref();
    let straggler = status.stragglers.first();
    let or = |name: Option<String>, placeholder: &str| name.unwrap_or_else(|| placeholder.into());
    let names = Names {
        place,
        job: job.name_any(),
        node: or(
            match status.phase {
                Some(Phase::Running) => straggler.and_then(|straggler| straggler.node.clone()),
                Some(Phase::Pending) => refused_node(&status),
                _ => failure.and_then(|failure| failure.node.clone()),
            },
            "NODE",
        ),
        pod: or(failure.and_then(|failure| failure.pod.clone()), "POD"),
        class: or(job.spec.workers.priority_class_name.clone(), "CLASS"),
    };
    let mut why = Why {
        job: format!("{}/{}", job.namespace().unwrap_or_default(), job.name_any()),
        phase: status.phase,
        since: None,
        reason: None,
        meaning: String::new(),
        message: None,
        findings: vec![],
        refused: vec![],
        next: vec![],
    };
    if !unattended(job, &status, &names, now, &mut why)
        && let Some(condition) = telling(&status)
    {
        told(condition, &names, now, &mut why);
    }
    match status.phase {
        Some(Phase::Pending) => waits(job, &status, &names, &mut why),
        Some(Phase::Failed | Phase::Restarting) => failed(&status, &names, &mut why),
        Some(Phase::Running) => trains(job, &status, &names, &mut why),
        _ => {}
    }
    hindered(&status, &mut why);
    saved(&status, now, &mut why);
    why
}

/// What keeps the operator from doing what is to be done. Of a gang that starts it is told before.
fn hindered(status: &ViTTrainingJobStatus, why: &mut Why) {
    if let Some(condition) = status.condition(types::RECONCILED)
        && condition.status == "False"
        && why.message.as_ref() != Some(&condition.message)
    {
        why.findings.push(format!(
            "the operator cannot do all that is to be done, and tries again: {}",
            condition.message
        ));
    }
}

/// Whether nobody has looked at the job as it is now; that is told first.
fn unattended(
    job: &ViTTrainingJob,
    status: &ViTTrainingJobStatus,
    names: &Names<'_>,
    now: Timestamp,
    why: &mut Why,
) -> bool {
    if let Some(deleted) = &job.metadata.deletion_timestamp {
        why.meaning = format!("It is being deleted, since {}.", age(deleted.0, now));
        if let Some(finalizers) = &job.metadata.finalizers {
            why.findings
                .push(format!("it waits for its finalizers: {}", finalizers.join(", ")));
        }
        return true;
    }
    if !job.is_for_vit_operator() {
        let other = job.spec.managed_by.clone().unwrap_or_default();
        why.meaning = format!("It is managed by {other}, and vit-operator leaves it alone.");
        why.next.push(Step {
            words: format!(
                "ask that controller; a job of this operator has managedBy: {CONTROLLER}, or none"
            ),
            command: None,
        });
        return true;
    }
    let seen = status.observed_generation;
    if seen.is_some() && seen >= job.metadata.generation {
        return false;
    }
    let created = job.creation_timestamp().map_or(now, |time| time.0);
    let is_new = now.duration_since(created).as_secs() < UNSEEN_SECONDS;
    if seen.is_none() && is_new {
        why.meaning = "It was just created; the operator has not looked at it yet.".into();
        return true;
    }
    let operator = Step {
        words: "see whether the operator runs, and what it says".into(),
        command: Some(
            names
                .place
                .kubectl_cluster("logs -l app.kubernetes.io/name=vit-operator -A --tail=20"),
        ),
    };
    if seen.is_none() {
        why.meaning =
            "No operator has looked at it: none runs, none leads, or it does not look at this namespace."
                .into();
        why.next.push(operator);
        return true;
    }
    why.findings.push(
        "its spec was changed, and the operator has not looked at the change yet: the rest is of before"
            .into(),
    );
    false
}

/// Takes over what a condition tells.
fn told(condition: &Condition, names: &Names<'_>, now: Timestamp, why: &mut Why) {
    why.reason = Some(condition.reason.clone());
    why.since = Some(age(condition.last_transition_time.0, now));
    match advice::of_reason(&condition.reason) {
        Some((meaning, advice)) => {
            why.meaning = meaning.into();
            why.next
                .extend(advice.into_iter().map(|advice| names.step(advice)));
        }
        None => {
            why.meaning = format!(
                "The operator says {}; this plugin is older than that.",
                condition.reason
            );
        }
    }
    let is_plain = matches!(
        condition.reason.as_str(),
        reasons::ALL_PODS_READY | reasons::ALL_EPOCHS_DONE
    );
    why.message = (!condition.message.is_empty() && !is_plain).then(|| condition.message.clone());
}

fn waits(job: &ViTTrainingJob, status: &ViTTrainingJobStatus, names: &Names<'_>, why: &mut Why) {
    let Some(placement) = &status.placement else {
        return;
    };
    why.refused.clone_from(&placement.rejected);
    if !why.refused.is_empty() {
        // The message has the same again, group by group; what it adds is the place in the queue.
        why.message = why.message.take().and_then(|message| beside_groups(&message));
    }
    let refusals = Refusal::ALL
        .into_iter()
        .filter(|refusal| is_among(*refusal, &placement.rejected))
        .take(REFUSALS_ADVISED);
    for refusal in refusals {
        if let Some(advice) = advice::of_refusal(refusal) {
            let step = names.step(advice);
            why.next.push(Step {
                words: format!("nodes {refusal}: {}", step.words),
                ..step
            });
        }
    }
    if placement.rejected.is_empty() && why.reason.as_deref() == Some(reasons::NO_FITTING_GROUP) {
        let resource = &job.spec.workers.gpu_resource;
        why.next.push(Step {
            words: format!(
                "no node has {resource}: install the device plugin of the GPUs' vendor, or name another resource in \
                 workers.gpuResource"
            ),
            command: Some(names.place.kubectl_cluster("describe nodes")),
        });
    }
}

/// Whether any group is refused for that reason.
fn is_among(refusal: Refusal, rejected: &[RejectedGroup]) -> bool {
    let words = refusal.to_string();
    rejected.iter().any(|group| group.reason.contains(&words))
}

/// Of the message of a job that waits, what it needs and what comes after the groups; the groups themselves are in
/// `status.placement.rejected`.
pub(super) fn beside_groups(message: &str) -> Option<String> {
    let (needs, rest) = message.split_once(": ")?;
    let reserved = rest.find(" nodes are reserved for it");
    let reserved = reserved.and_then(|end| rest[..end].rfind("; "));
    let parts = [
        reserved,
        rest.find("; held back for "),
        rest.find("; the GPUs of "),
        rest.rfind(" (").filter(|_| rest.ends_with(" waiting)")),
    ];
    let after = parts.into_iter().flatten().min();
    let after = after.map_or("", |start| &rest[start..]);
    Some(format!("{needs}{after}"))
}

/// The first node that is named for a group that does not fit and that someone can do something about.
fn refused_node(status: &ViTTrainingJobStatus) -> Option<String> {
    let rejected = &status.placement.as_ref()?.rejected;
    [Refusal::Cordoned, Refusal::NotReady].iter().find_map(|refusal| {
        let words = format!("{refusal} (");
        rejected.iter().find_map(|group| {
            let start = group.reason.find(&words)? + words.len();
            let end = group.reason[start..].find([',', ')'])?;
            Some(group.reason[start..start + end].to_owned())
        })
    })
}

fn failed(status: &ViTTrainingJobStatus, names: &Names<'_>, why: &mut Why) {
    let Some(failure) = &status.last_failure else {
        return;
    };
    // A job that was refused, or whose time is over, did not fail by its last failure.
    let is_cause = matches!(
        why.reason.as_deref(),
        Some(reasons::NOT_RETRYABLE | reasons::RESTARTS_EXHAUSTED | reasons::RESTARTING)
    );
    if !is_cause {
        return;
    }
    why.message = None;
    let class = FailureClass::ALL
        .into_iter()
        .find(|class| class.as_str() == failure.class);
    let (meaning, advice) = class.map_or(("", vec![]), advice::of_class);
    let words = format!("{} in {}: {meaning}", failure.class, text::failed_where(failure));
    why.findings.push(words.trim().to_owned());
    why.findings.push(format!("it said: {}", failure.message));
    if status.restarts_since_checkpoint > 0 {
        why.findings.push(format!(
            "{} since the last new checkpoint, {} in all",
            counted(status.restarts_since_checkpoint, "restart"),
            status.restarts
        ));
    }
    let steps = advice.into_iter().map(|advice| names.step(advice));
    // What the class says is nearer to the cause than what the reason does.
    why.next = steps.chain(std::mem::take(&mut why.next)).collect();
    let rank = failure
        .rank
        .map_or(String::new(), |rank| format!(" --rank {rank}"));
    let logs = names.place.vit(&format!("logs {}", names.job));
    for step in &mut why.next {
        if step.command.as_ref() == Some(&logs) {
            step.command = Some(names.place.vit(&format!("logs {}{rank}", names.job)));
        }
    }
    let mut seen = vec![];
    why.next.retain(|step| {
        let is_new = step.command.is_none() || !seen.contains(&step.command);
        seen.push(step.command.clone());
        is_new
    });
}

fn trains(job: &ViTTrainingJob, status: &ViTTrainingJobStatus, names: &Names<'_>, why: &mut Why) {
    // What can be done is told before what can be looked at.
    let follow = std::mem::take(&mut why.next);
    for straggler in &status.stragglers {
        let node = straggler.node.as_deref().unwrap_or("an unknown node");
        why.findings.push(format!(
            "rank {} on {node} computes {:.2} times as long as the others, which wait for it in every step",
            straggler.rank, straggler.slowdown
        ));
    }
    if !status.stragglers.is_empty()
        && let Some((_, advice)) = advice::of_reason(reasons::STRAGGLER_FOUND)
    {
        why.next
            .extend(advice.into_iter().map(|advice| names.step(advice)));
        if !job.spec.failure_policy.exclude_stragglers {
            why.next.push(Step {
                words: "let its next gang go without such nodes".into(),
                command: Some(names.place.kubectl(&format!(
                    "patch vtj {} --type=merge -p '{{\"spec\":{{\"failurePolicy\":{{\"excludeStragglers\":true}}}}}}'",
                    names.job
                ))),
            });
        }
    }
    let share = status.progress.as_ref().and_then(|progress| progress.sync_share);
    if let Some(share) = share.filter(|share| *share > HIGH_SYNC_SHARE) {
        why.findings.push(format!(
            "its steps wait for synchronisation in {} of their time",
            text::percent(share)
        ));
        why.next.push(Step {
            words: "see whether that is the network or slow ranks; against the network help more images a rank \
                    (microBatchSize, gradientAccumulationSteps), parallelism.compressGradients: bf16, placement.topology, \
                    or fewer nodes"
                .into(),
            command: Some(names.place.vit(&format!("status {}", names.job))),
        });
    }
    why.next.extend(follow);
}

/// What would be lost, or is not.
fn saved(status: &ViTTrainingJobStatus, now: Timestamp, why: &mut Why) {
    let is_asked = matches!(
        status.phase,
        Some(Phase::Failed | Phase::Restarting | Phase::Suspended | Phase::Suspending | Phase::Pending)
    );
    if !is_asked || status.attempt == 0 {
        return;
    }
    why.findings.push(match &status.last_checkpoint {
        Some(checkpoint) => {
            let when = checkpoint
                .time
                .as_ref()
                .map_or(String::new(), |time| format!(", {} ago", age(time.0, now)));
            format!(
                "saved up to step {}{when}, in {}",
                checkpoint.step, checkpoint.path
            )
        }
        None => "there is no checkpoint: it would begin anew".into(),
    });
}
