//! From a job's status to its explanation: a pure function.

use contract::FailureClass;
use crds::conditions::{reasons, types};
use crds::spec::{CONTROLLER, Homogeneity};
use crds::status::{Refusal, RejectedGroup, RejectedNodes, ViTTrainingJobStatus};
use crds::{Phase, ViTTrainingJob, words};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt as _;

use super::advice::{self, Advice};
use super::{Step, Why};
use crate::cluster::Place;
use crate::summary::{HIGH_SYNC_SHARE, held, main_condition};
use crate::text::{self, age, ago, counted};

/// A job not processed within this time is reported as one that no operator watches.
const UNSEEN_SECONDS: i64 = 10;
/// A running job's progress is doubted from this age on.
const STALE: SignedDuration = SignedDuration::from_secs(120);
const CHECK_OPERATOR: Advice = Advice::KubectlCluster(
    "check that the operator runs, and read its log",
    "logs -l app.kubernetes.io/name=vit-operator -A --tail=20",
);
const UNANSWERED: &str = "the API server did not answer, and the operator tries again: if that lasts, check the API \
                          server's load and the network";
/// Maximum number of refusal reasons with advice.
const REFUSALS_ADVISED: usize = 6;

/// The values of advice's placeholders.
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
            let command = command.replace("JOB", &self.job).replace("NODE", &self.node);
            command.replace("POD", &self.pod).replace("CLASS", &self.class)
        };
        Step {
            words: advice.words().into(),
            command: match advice {
                Advice::Words(_) => None,
                Advice::Vit(_, command) => Some(self.place.vit(&fill(command))),
                Advice::Kubectl(_, command) => Some(self.place.kubectl(&fill(command))),
                Advice::KubectlCluster(_, command) => Some(self.place.kubectl_cluster(&fill(command))),
            },
        }
    }

    fn steps(&self, advice: Vec<Advice>) -> impl Iterator<Item = Step> {
        advice.into_iter().map(|advice| self.step(advice))
    }
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
        ..Why::default()
    };
    if !is_unobserved(job, &status, &names, now, &mut why)
        && let Some(condition) = main_condition(&status)
    {
        explain_condition(condition, &names, now, &mut why);
    }
    match status.phase {
        Some(Phase::Pending) => explain_pending(job, &status, &names, &mut why),
        Some(Phase::Failed | Phase::Restarting) => {
            explain_failure(&status, job.spec.external.is_some(), &names, &mut why);
        }
        Some(Phase::Starting) if status.restarts_since_checkpoint + status.failed_starts > 0 => {
            why.findings.extend(failure.map(|failure| {
                let place = text::failed_where(failure);
                format!("last failure: {} in {place}: {}", failure.class, failure.message)
            }));
        }
        Some(Phase::Running) => explain_running(job, &status, &names, now, &mut why),
        _ => {}
    }
    add_reconcile_error(&status, &names, &mut why);
    add_checkpoint(&status, now, &mut why);
    why
}

/// Adds the operator's last error, unless the message has it already.
fn add_reconcile_error(status: &ViTTrainingJobStatus, names: &Names<'_>, why: &mut Why) {
    if let Some(condition) = status.condition(types::RECONCILED)
        && condition.status == "False"
        && why.message.as_ref() != Some(&condition.message)
    {
        if condition.reason == reasons::NOT_RESTARTABLE {
            why.findings.push(condition.message.clone());
            let (_, advice) = advice::of_reason(&condition.reason).unwrap_or_default();
            why.next.extend(names.steps(advice));
            return;
        }
        let words = "the operator cannot complete all its work and retries";
        why.findings.push(format!("{words}: {}", condition.message));
    }
}

/// Whether no operator has processed the job; if so, explains that in `why`.
fn is_unobserved(
    job: &ViTTrainingJob,
    status: &ViTTrainingJobStatus,
    names: &Names<'_>,
    now: Timestamp,
    why: &mut Why,
) -> bool {
    if let Some(deleted) = &job.metadata.deletion_timestamp {
        why.meaning = format!("It is being deleted, since {}.", age(deleted.0, now));
        why.message = held(job);
        return true;
    }
    if !job.is_for_vit_operator() {
        let other = job.spec.managed_by.clone().unwrap_or_default();
        why.meaning = format!("It is managed by {other}; vit-operator ignores it.");
        let words =
            format!("check that controller; jobs of this operator have managedBy: {CONTROLLER}, or none");
        why.next.push(Step { words, command: None });
        return true;
    }
    let seen = status.observed_generation;
    if seen.is_some() && seen >= job.metadata.generation {
        return false;
    }
    let created = job.creation_timestamp().map_or(now, |time| time.0);
    let is_new = now.duration_since(created).as_secs() < UNSEEN_SECONDS;
    if seen.is_none() && is_new {
        why.meaning = "It was just created; the operator has not processed it yet.".into();
        return true;
    }
    if seen.is_none() {
        let meaning = "No operator has processed it: none runs, none leads, or none watches this namespace.";
        why.meaning = meaning.into();
        why.next.push(names.step(CHECK_OPERATOR));
        return true;
    }
    let words =
        "its spec was changed, and the operator has not processed it yet: the rest describes the old spec";
    why.findings.push(words.into());
    false
}

/// Whether an API call failed without an answer. An API server that cannot reach a webhook does answer.
fn is_unanswered(message: &str) -> bool {
    let signs = [
        "did not answer",
        "HyperError",
        "timed out",
        "connection",
        "Connection",
    ];
    !message.contains("webhook") && signs.iter().any(|sign| message.contains(sign))
}

/// Explains a condition.
fn explain_condition(condition: &Condition, names: &Names<'_>, now: Timestamp, why: &mut Why) {
    why.reason = Some(condition.reason.clone());
    why.since = Some(age(condition.last_transition_time.0, now));
    match advice::of_reason(&condition.reason) {
        Some((meaning, advice)) => {
            why.meaning = meaning.into();
            if condition.reason == reasons::RECONCILE_FAILED && is_unanswered(&condition.message) {
                why.next.push(names.step(Advice::Words(UNANSWERED)));
            } else {
                why.next.extend(names.steps(advice));
            }
        }
        None => {
            why.meaning = format!(
                "The operator reports {}, a reason that is newer than this plugin.",
                condition.reason
            );
        }
    }
    let is_plain = condition.message.starts_with("every pod ");
    why.message = (!condition.message.is_empty() && !is_plain).then(|| condition.message.clone());
}

fn explain_pending(job: &ViTTrainingJob, status: &ViTTrainingJobStatus, names: &Names<'_>, why: &mut Why) {
    let Some(placement) = &status.placement else {
        return;
    };
    let rejected = &placement.rejected_groups;
    why.refused.clone_from(rejected);
    if let Some(wait) = &placement.wait {
        // The groups are shown separately.
        let none = rejected.is_empty().then_some(&rejected[..]);
        let admitted = words::admitted(status.admitted_pod.as_ref());
        why.message = Some(words::waits(&job.spec, wait, none) + &admitted);
    }
    let is_among = |refusal: &Refusal| nodes_refused(status).any(|nodes| nodes.code == *refusal);
    for refusal in Refusal::ALL.into_iter().filter(is_among).take(REFUSALS_ADVISED) {
        if let Some(advice) = advice::of_refusal(refusal) {
            let step = names.step(advice);
            why.next.push(Step {
                words: format!("nodes {refusal}: {}", step.words),
                ..step
            });
        }
    }
    if lacks_driver(rejected) {
        why.next.push(names.step(Advice::Vit(
            "nodes for which no label names the driver (- in column DRIVER) are a separate group: run GPU feature \
             discovery there",
            "nodes",
        )));
    }
    let nodes = rejected.iter().map(|group| group.nodes);
    let most = match job.spec.placement.homogeneity {
        Homogeneity::Required => nodes.max().unwrap_or(0),
        Homogeneity::Preferred | Homogeneity::Off => nodes.sum(),
    };
    if placement.wait.as_ref().is_some_and(|wait| wait.nodes > most) {
        let words = "add nodes: the cluster has too few, and no autoscaler adds any for a job without pods \
                     (docs/how-to/autoscaling.md)";
        why.next.push(names.step(Advice::Words(words)));
    }
    if rejected.is_empty() && placement.wait.is_some() {
        let words = format!(
            "no node has {}: install the device plugin of the GPUs' vendor, or name another resource in \
             workers.gpuResource",
            job.spec.workers.gpu_resource
        );
        let command = Some(names.place.kubectl_cluster("describe nodes"));
        why.next.push(Step { words, command });
    }
}

/// Whether nodes of the same product are two groups, one with a driver in its name and one without.
fn lacks_driver(groups: &[RejectedGroup]) -> bool {
    let named = groups.iter().filter_map(|group| group.group.split_once(" ("));
    let (known, unknown): (Vec<_>, Vec<_>) =
        named.partition(|(_, parts)| parts.contains("driver ") && !parts.contains("driver unknown"));
    let products: Vec<&str> = known.iter().map(|(product, _)| *product).collect();
    unknown.iter().any(|(product, _)| products.contains(product))
}

/// The nodes that do not fit, by reason, of all groups.
fn nodes_refused(status: &ViTTrainingJobStatus) -> impl Iterator<Item = &RejectedNodes> {
    let groups = status
        .placement
        .iter()
        .flat_map(|placement| &placement.rejected_groups);
    groups.flat_map(|group| &group.reasons)
}

/// The first cordoned or unready node named for a rejected group.
fn refused_node(status: &ViTTrainingJobStatus) -> Option<String> {
    [Refusal::Cordoned, Refusal::NotReady].iter().find_map(|code| {
        let nodes = nodes_refused(status).find(|nodes| nodes.code == *code)?;
        nodes.names.first().cloned()
    })
}

fn explain_failure(status: &ViTTrainingJobStatus, is_external: bool, names: &Names<'_>, why: &mut Why) {
    let Some(failure) = &status.last_failure else {
        return;
    };
    // An invalid job, or one past its deadline, did not fail because of its last failure.
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
    let (meaning, advice) = class.map_or(("", vec![]), |class| {
        let of_script = is_external.then(|| advice::of_script(class)).flatten();
        of_script.unwrap_or_else(|| advice::of_class(class, failure.memory))
    });
    let words = format!("{} in {}: {meaning}", failure.class, text::failed_where(failure));
    why.findings.push(words.trim().to_owned());
    why.findings.push(format!("message: {}", failure.message));
    if status.failed_starts > 0 {
        let starts = counted(status.failed_starts, "failed start");
        why.findings.push(format!("{starts} since the gang last ran"));
    }
    if status.restarts_since_checkpoint > 0 {
        why.findings.push(format!(
            "{} since the last new checkpoint, {} in all",
            counted(status.restarts_since_checkpoint, "restart"),
            status.restarts
        ));
    }
    // The class is closer to the cause than the reason.
    why.next = names.steps(advice).chain(std::mem::take(&mut why.next)).collect();
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

fn explain_running(
    job: &ViTTrainingJob,
    status: &ViTTrainingJobStatus,
    names: &Names<'_>,
    now: Timestamp,
    why: &mut Why,
) {
    // Remedies come before commands that only show something.
    let follow = std::mem::take(&mut why.next);
    let updated = status
        .progress
        .as_ref()
        .and_then(|progress| progress.updated_at.as_ref());
    let age = updated.map(|time| now.duration_since(time.0));
    if let Some(age) = age.filter(|age| *age > STALE) {
        why.findings.push(text::last_report(age));
        why.next.push(names.step(CHECK_OPERATOR));
    }
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
        why.next.extend(names.steps(advice));
        if !job.spec.failure_policy.exclude_stragglers {
            why.next.push(Step {
                words: "exclude such nodes from its next gang".into(),
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
            "its steps spend {} of their time waiting for synchronization",
            text::percent(share)
        ));
        why.next.push(Step {
            words: "check whether the network or slow ranks cause it; if the network, use more images per rank \
                    (microBatchSize, gradientAccumulationSteps), parallelism.compressGradients: bf16, placement.topology, \
                    or fewer nodes"
                .into(),
            command: Some(names.place.vit(&format!("status {}", names.job))),
        });
    }
    why.next.extend(follow);
}

/// Adds the last checkpoint, or that none exists.
fn add_checkpoint(status: &ViTTrainingJobStatus, now: Timestamp, why: &mut Why) {
    let is_asked = matches!(
        status.phase,
        Some(Phase::Failed | Phase::Restarting | Phase::Suspended | Phase::Suspending | Phase::Pending)
    );
    if !is_asked || status.attempt == 0 {
        return;
    }
    why.findings.push(match &status.last_checkpoint {
        Some(checkpoint) => {
            let (step, when) = (checkpoint.step, ago(checkpoint.time.as_ref(), now));
            format!("saved up to step {step}{when}, in {}", checkpoint.path)
        }
        None => "no checkpoint exists: training would start from the beginning".into(),
    });
}
