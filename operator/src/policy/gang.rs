//! The pods of a gang, as seen by decisions.

use contract::TerminationRecord;
use contract::exit::ExitCode;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    ContainerState, ContainerStateTerminated, ContainerStateWaiting, ContainerStatus, Pod, PodCondition,
};
use kube::ResourceExt as _;
use planner::facts::pods::{Membership, bound_node, phase, pinned_node};
use planner::facts::resources::{Requests, requests_of};

pub(crate) use crds::labels::CONTAINER;
/// Name of the sidecar of another trainer.
pub(crate) const AGENT: &str = "vit-agent";
/// Name of the container that fetches the data set before the trainer starts.
pub(crate) const FETCH: &str = "fetch";
/// Name of the container that fetches pretrained weights, which runs first.
pub(crate) const FETCH_WEIGHTS: &str = "fetch-weights";
const FETCHES: [&str; 2] = [FETCH_WEIGHTS, FETCH];
/// Name of the port with `/metrics`, `/progress`, `/heartbeats` and `/healthz`.
pub(crate) const METRICS_PORT: &str = "metrics";

/// Longest log tail in bytes, to keep the status readable.
const LOG_BYTES: usize = 1200;

/// Identifies a pod, because names are reused.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct PodId {
    pub(crate) name: String,
    pub(crate) uid: String,
}

/// A pod of a job.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct PodView {
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) attempt: i32,
    pub(crate) node_rank: usize,
    pub(crate) gang_size: usize,
    /// The node it is bound to, or else pinned to.
    pub(crate) node: Option<String>,
    pub(crate) state: PodState,
    pub(crate) ready: bool,
    pub(crate) is_grouped: bool,
    pub(crate) trainer: Trainer,
    /// `metadata.deletionTimestamp`, which includes the grace period.
    pub(crate) deletion_timestamp: Option<Timestamp>,
    /// It or its node no longer exists.
    pub(crate) lost: bool,
    /// `http://address:port` of its agent.
    pub(crate) agent: Option<String>,
    /// What keeps it from starting, as scheduler or kubelet report it.
    pub(crate) stuck: Option<String>,
    /// Since when it is bound and its volumes or its network are not ready.
    pub(crate) waits_for_sandbox: Option<Timestamp>,
    /// Set if waiting will not make it start.
    pub(crate) cannot_start: Option<CannotStart>,
    /// Set if kube-scheduler or the kubelet rejects it.
    pub(crate) rejected: Option<Box<Rejected>>,
    /// The state of the containers that fetch weights and data, if there are any.
    pub(crate) fetch: Option<Fetch>,
    /// Why it was disrupted, as reported.
    pub(crate) disruption: Option<String>,
    /// How a container that is not the operator's failed, in words.
    pub(crate) failed_other: Option<String>,
    /// How its container ended. Boxed, because it is large and most pods have none.
    pub(crate) end: Option<Box<End>>,
}

/// The trainer of a pod.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum Trainer {
    /// This project's, which reports its own state.
    #[default]
    Own,
    /// Another one, whose state a sidecar reports.
    External,
}

/// The state of a pod.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum PodState {
    /// Not all containers have started.
    #[default]
    Pending,
    Running,
    Succeeded,
    Failed,
}

/// The state of fetching weights and data.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Fetch {
    /// In progress, here or in another pod for all.
    Runs,
    Done(Timestamp),
}

/// Start errors that waiting does not fix.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum CannotStart {
    /// The pod is misconfigured, such as an invalid image name: another pod would fail, too.
    Misconfigured,
    /// The manifest names an image, a Secret or a ConfigMap that does not exist, perhaps not yet.
    Absent,
    /// An image cannot be pulled now, such as from a registry that is down; no node is at fault.
    Unavailable,
    /// The kubelet failed repeatedly; another node or a later try may succeed.
    Refused,
}

/// A pod that its node does not get.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Rejected {
    /// What it requests on its node; a pod that has failed holds nothing.
    pub(crate) requests: Requests,
    /// Since when kube-scheduler finds no node for it; `None` if the kubelet did not admit it.
    pub(crate) unschedulable_since: Option<Timestamp>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct End {
    pub(crate) exit: ExitCode,
    /// The kubelet's reason, such as `OOMKilled`.
    pub(crate) reason: String,
    pub(crate) finished_at: Option<Timestamp>,
    /// The trainer's termination record.
    pub(crate) record: Option<TerminationRecord>,
    /// The termination message if it is not a record.
    pub(crate) message: Option<String>,
}

impl PodView {
    /// `None` for pods of no job.
    pub(crate) fn of(pod: &Pod) -> Option<Self> {
        let member = Membership::of(pod)?;
        let mut fetched = FETCHES.iter().filter_map(|name| terminated(pod, name));
        let ended = terminated(pod, CONTAINER).or_else(|| fetched.find(|fetched| fetched.exit_code != 0));
        let trainer = trainer(pod);
        // Wait for the last report of rank 0's sidecar while it may still come.
        let may_report =
            trainer == Trainer::External && member.node_rank == 0 && is_alone(pod) && !has_reported(pod);
        let is_done = ended.is_some_and(|ended| ended.exit_code == 0);
        let ended = ended.filter(|_| !may_report);
        Some(Self {
            name: pod.name_any(),
            uid: pod.uid().unwrap_or_default(),
            attempt: member.attempt,
            node_rank: member.node_rank,
            gang_size: member.gang_size,
            node: bound_node(pod).or(pinned_node(pod)).map(Into::into),
            state: match phase(pod) {
                "Running" => PodState::Running,
                "Succeeded" => PodState::Succeeded,
                "Failed" => PodState::Failed,
                _ => PodState::Pending,
            },
            // A pod that is done and about to report it is healthy.
            ready: condition(pod, "Ready").is_some_and(|(value, _)| value == "True")
                || (may_report && is_done),
            is_grouped: is_grouped(pod),
            trainer,
            deletion_timestamp: pod.metadata.deletion_timestamp.as_ref().map(|time| time.0),
            lost: false,
            agent: agent(pod),
            stuck: stuck(pod),
            waits_for_sandbox: waits_for_sandbox(pod),
            cannot_start: cannot_start(pod),
            rejected: rejected(pod).filter(|_| ended.is_none()).map(Box::new),
            fetch: fetch(pod),
            disruption: disruption(pod),
            failed_other: failed_other(pod),
            end: ended
                .map(|ended| end(ended, trainer, terminated(pod, AGENT)))
                .map(Box::new),
        })
    }

    pub(crate) fn id(&self) -> PodId {
        PodId {
            name: self.name.clone(),
            uid: self.uid.clone(),
        }
    }

    /// Whether it no longer holds GPUs.
    pub(crate) fn has_ended(&self) -> bool {
        matches!(self.state, PodState::Succeeded | PodState::Failed)
    }

    /// Whether its trainer ended well, even if other containers run on. One that was evicted may only
    /// have stopped.
    pub(crate) fn is_done(&self) -> bool {
        let is_evicted = self.state == PodState::Failed && self.disruption.is_some();
        let end = self.end.as_deref();
        end.map_or(self.state == PodState::Succeeded, |end| {
            end.exit == ExitCode::Done
        }) && !is_evicted
    }

    /// Whether its container failed.
    pub(crate) fn has_failed(&self) -> bool {
        !self.is_done() && (self.state == PodState::Failed || self.end.is_some())
    }
}

pub(crate) fn is_grouped(pod: &Pod) -> bool {
    pod.spec
        .as_ref()
        .is_some_and(|spec| spec.scheduling_group.is_some())
}

/// The statuses of all containers, init containers first, with the kind before "container".
fn statuses(pod: &Pod) -> impl Iterator<Item = (&'static str, &ContainerStatus)> {
    pod.status.iter().flat_map(|status| {
        let init = status.init_container_statuses.iter().flatten();
        let others = status.container_statuses.iter().flatten();
        let init = init.map(|container| ("init ", container));
        init.chain(others.map(|container| ("", container)))
    })
}

/// Whether the operator put this container into the pod. Webhooks add others.
fn is_own(name: &str) -> bool {
    FETCHES.contains(&name) || [AGENT, CONTAINER].contains(&name)
}

fn state_of<'a>(pod: &'a Pod, name: &str) -> Option<&'a ContainerState> {
    let (_, container) = statuses(pod).find(|(_, container)| container.name == name)?;
    container.state.as_ref()
}

/// Of the last container that fetches and has started.
fn fetch(pod: &Pod) -> Option<Fetch> {
    let states = FETCHES.iter().rev().filter_map(|name| state_of(pod, name));
    let mut fetches = states.filter_map(|state| match (&state.running, &state.terminated) {
        (Some(_), _) => Some(Fetch::Runs),
        (None, Some(ended)) => Some(Fetch::Done(ended.finished_at.as_ref()?.0)),
        (None, None) => None,
    });
    fetches.next()
}

/// How a container ended.
fn terminated<'a>(pod: &'a Pod, name: &str) -> Option<&'a ContainerStateTerminated> {
    state_of(pod, name)?.terminated.as_ref()
}

fn trainer(pod: &Pod) -> Trainer {
    let spec = pod.spec.as_ref();
    let mut containers = spec
        .and_then(|spec| spec.init_containers.as_ref())
        .into_iter()
        .flatten();
    if containers.any(|container| container.name == AGENT) {
        Trainer::External
    } else {
        Trainer::Own
    }
}

/// Whether the trainer is its only container beside sidecars, which the kubelet ends after all others.
fn is_alone(pod: &Pod) -> bool {
    let mut containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    containers.all(|container| container.name == CONTAINER)
}

/// Whether the sidecar, which ends after the trainer, has left its last report, or never will.
fn has_reported(pod: &Pod) -> bool {
    terminated(pod, AGENT).is_some() || matches!(phase(pod), "Succeeded" | "Failed")
}

fn condition_of<'a>(pod: &'a Pod, type_: &str) -> Option<&'a PodCondition> {
    let mut conditions = pod.status.as_ref()?.conditions.iter().flatten();
    conditions.find(|condition| condition.type_ == type_)
}

/// Since when a condition is what it is; for ever if it does not say.
fn since(condition: &PodCondition) -> Timestamp {
    let time = condition.last_transition_time.as_ref();
    time.map_or(Timestamp::UNIX_EPOCH, |time| time.0)
}

/// The status of a condition, and its reason with its message.
fn condition<'a>(pod: &'a Pod, type_: &str) -> Option<(&'a str, String)> {
    let condition = condition_of(pod, type_)?;
    let words = words(condition.reason.as_deref(), condition.message.as_deref());
    Some((condition.status.as_str(), words))
}

/// A reason with its message.
fn words(reason: Option<&str>, message: Option<&str>) -> String {
    let words = [reason, message].into_iter().flatten();
    words
        .filter(|word| !word.is_empty())
        .collect::<Vec<_>>()
        .join(": ")
}

fn agent(pod: &Pod) -> Option<String> {
    let address = pod.status.as_ref()?.pod_ip.as_ref()?;
    let spec = pod.spec.as_ref()?;
    let port = spec
        .init_containers
        .iter()
        .flatten()
        .chain(&spec.containers)
        .filter(|container| [AGENT, CONTAINER].contains(&container.name.as_str()))
        .flat_map(|container| container.ports.iter().flatten())
        .find(|port| port.name.as_deref() == Some(METRICS_PORT))?
        .container_port;
    Some(if address.contains(':') {
        format!("http://[{address}]:{port}")
    } else {
        format!("http://{address}:{port}")
    })
}

fn stuck(pod: &Pod) -> Option<String> {
    if let Some(("False", words)) = condition(pod, "PodScheduled") {
        return Some(words);
    }
    let (kind, name, waiting) = hindered(pod)?;
    let words = words(waiting.reason.as_deref(), waiting.message.as_deref());
    Some(if is_own(name) {
        words
    } else {
        format!("{kind}container {name}: {words}")
    })
}

/// The first container that waits for more than its turn, with its kind and name; the operator's come
/// before others.
fn hindered(pod: &Pod) -> Option<(&'static str, &str, &ContainerStateWaiting)> {
    let all = statuses(pod).filter_map(|(kind, container)| {
        let waiting = container.state.as_ref()?.waiting.as_ref()?;
        let reason = waiting.reason.as_deref();
        let is_starting = matches!(reason, None | Some("" | "ContainerCreating" | "PodInitializing"));
        (!is_starting).then_some((kind, container.name.as_str(), waiting))
    });
    all.min_by_key(|(_, name, _)| !is_own(name))
}

/// The failure of the first container that is not the operator's.
fn failed_other(pod: &Pod) -> Option<String> {
    let mut others = statuses(pod).filter(|(_, container)| !is_own(&container.name));
    others.find_map(|(kind, container)| {
        let ended = container.state.as_ref()?.terminated.as_ref()?;
        let what = format!(
            "{kind}container {} exited with code {}",
            container.name, ended.exit_code
        );
        let message = last_of(ended.message.clone().unwrap_or_default());
        (ended.exit_code != 0).then(|| words(Some(&what), Some(&message)))
    })
}

/// Messages of `CreateContainerConfigError` for a missing ConfigMap, Secret or key
/// (`pkg/kubelet/kubelet_pods.go`).
const NO_SUCH_OBJECT: [&str; 2] = ["not found", "couldn't find key"];

/// Its message for a user that is not allowed (`pkg/kubelet/kuberuntime/security_context_others.go`).
const NO_SUCH_USER: [&str; 1] = ["runAsNonRoot"];

/// Messages of the container runtime if an image does not exist, or access is denied.
const NO_SUCH_IMAGE: [&str; 2] = ["code = NotFound", "pull access denied"];

/// Classifies the kubelet's reason (`pkg/kubelet/images/types.go`, `pkg/kubelet/kuberuntime`). A
/// first `ErrImagePull` may be a transient network error; the kubelet backs off only after it
/// recurs. Other `CreateContainerConfigError`s may be transient, too; the kubelet retries them.
fn cannot_start(pod: &Pod) -> Option<CannotStart> {
    let (_, name, waiting) = hindered(pod)?;
    let has_begun = || state_of(pod, CONTAINER).is_some_and(|state| state.waiting.is_none());
    if !is_own(name) && has_begun() {
        return None;
    }
    let message = waiting.message.as_deref().unwrap_or_default();
    let mentions = |words: &[&str]| words.iter().any(|words| message.contains(words));
    // What the manifest does not name is never its fault.
    let (misconfigured, absent) = match name {
        FETCH_WEIGHTS | FETCH | CONTAINER => (CannotStart::Misconfigured, CannotStart::Absent),
        _ => (CannotStart::Refused, CannotStart::Unavailable),
    };
    Some(match waiting.reason.as_deref()? {
        "InvalidImageName" | "ErrImageNeverPull" => misconfigured,
        "CreateContainerConfigError" if mentions(&NO_SUCH_USER) => misconfigured,
        "CreateContainerConfigError" if mentions(&NO_SUCH_OBJECT) => absent,
        "ImagePullBackOff" if mentions(&NO_SUCH_IMAGE) => absent,
        "ImagePullBackOff" => CannotStart::Unavailable,
        "ImageInspectError" | "CreateContainerError" | "RunContainerError" => CannotStart::Refused,
        _ => return None,
    })
}

/// KEP-3085.
fn waits_for_sandbox(pod: &Pod) -> Option<Timestamp> {
    let condition = condition_of(pod, "PodReadyToStartContainers")?;
    (condition.status == "False" && phase(pod) == "Pending").then(|| since(condition))
}

/// A pod that the kubelet did not admit has failed with a reason.
fn rejected(pod: &Pod) -> Option<Rejected> {
    let (spec, status) = (pod.spec.as_ref()?, pod.status.as_ref()?);
    // A scheduler that nominated a node preempts pods there.
    let is_nominated = status.nominated_node_name.is_some();
    let unschedulable = || {
        condition_of(pod, "PodScheduled").filter(|condition| {
            condition.status == "False" && condition.reason.as_deref() == Some("Unschedulable")
        })
    };
    match phase(pod) {
        "Pending" if spec.node_name.is_none() && !is_nominated => {
            let unschedulable_since = Some(since(unschedulable()?));
            Some(Rejected {
                requests: requests_of(spec),
                unschedulable_since,
            })
        }
        "Failed" if status.reason.is_some() && condition(pod, "DisruptionTarget").is_none() => {
            Some(Rejected::default())
        }
        _ => None,
    }
}

fn disruption(pod: &Pod) -> Option<String> {
    if let Some(("True", words)) = condition(pod, "DisruptionTarget") {
        return Some(words);
    }
    let status = pod.status.as_ref()?;
    let reason = status.reason.as_deref().filter(|reason| !reason.is_empty())?;
    Some(words(Some(reason), status.message.as_deref()))
}

/// `agent` is the end of another trainer's sidecar, if it has ended: it leaves the record.
fn end(
    terminated: &ContainerStateTerminated,
    trainer: Trainer,
    agent: Option<&ContainerStateTerminated>,
) -> End {
    let message_of = |terminated: &ContainerStateTerminated| {
        let message = terminated.message.clone();
        message.filter(|message| !message.trim().is_empty())
    };
    let message = message_of(terminated);
    let record = match trainer {
        Trainer::Own => message.clone(),
        Trainer::External => agent.and_then(message_of),
    };
    let record: Option<TerminationRecord> = record.and_then(|record| serde_json::from_str(&record).ok());
    End {
        // Linux exit codes fit a byte; a runtime that reports a larger one did not run the trainer.
        exit: ExitCode::from_code(u8::try_from(terminated.exit_code).unwrap_or(u8::MAX)),
        reason: terminated.reason.clone().unwrap_or_default(),
        finished_at: terminated.finished_at.as_ref().map(|time| time.0),
        message: match trainer {
            Trainer::Own => message.filter(|_| record.is_none()),
            Trainer::External => message.map(last_of),
        },
        record,
    }
}

/// The tail of a log, where the error is.
fn last_of(message: String) -> String {
    let start = message.len().saturating_sub(LOG_BYTES);
    message[message.ceil_char_boundary(start)..].trim().to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::fixtures;

    /// A pod with this status in YAML, with the states of containers by their names, and `node`.
    fn view(status: &str) -> PodView {
        let mut pod = fixtures::pod_objects(1, "Pending").remove(0);
        let mut status: Value = serde_saphyr::from_str(status).expect("YAML");
        let spec = pod.spec.as_mut().expect("a spec");
        let mut take = |name: &str| status.as_object_mut().expect("fields").remove(name);
        spec.node_name = take("node").map(|node| node.as_str().expect("a name").into());
        let mut state_of = |name: &str| {
            let state = take(name)?;
            Some(json!({
                "name": name, "state": state, "image": "", "imageID": "", "ready": false, "restartCount": 0,
            }))
        };
        let init = ["gpu-check", FETCH_WEIGHTS, FETCH, AGENT].map(&mut state_of);
        let [trainer, mesh] = [CONTAINER, "mesh"].map(&mut state_of);
        if init[3].is_some() {
            let agent = json!([{"name": AGENT, "ports": [{"name": METRICS_PORT, "containerPort": 9402}]}]);
            spec.init_containers = serde_json::from_value(agent).expect("a container");
            spec.containers[0].ports = None;
        }
        if mesh.is_some() {
            let mesh = json!({"name": "mesh"});
            spec.containers
                .push(serde_json::from_value(mesh).expect("a container"));
        }
        status["initContainerStatuses"] = init.into_iter().flatten().collect();
        status["containerStatuses"] = [trainer, mesh].into_iter().flatten().collect();
        pod.status = serde_json::from_value(status).expect("a status");
        PodView::of(&pod).expect("ours")
    }

    /// What is special about a pod.
    fn shown(pod: &PodView) -> String {
        let end = pod.end.as_ref().map(|end| {
            let record = end.record.as_ref();
            let failure = record.and_then(|record| record.failure.as_ref());
            let step = record
                .and_then(|record| record.progress.as_ref())
                .map(|progress| progress.step);
            format!(
                "{:?} {:?} {:?} {step:?}",
                end.exit,
                failure.map(|failure| &*failure.message),
                end.message.as_deref().unwrap_or_default()
            )
        });
        let fetch = pod.fetch.map(|fetch| {
            if fetch == Fetch::Runs {
                "fetches"
            } else {
                "has fetched"
            }
        });
        let gpus = |own: &Rejected| {
            let since = own.unschedulable_since.map(|time| format!(" since {time}"));
            let gpus = own.requests.get("nvidia.com/gpu");
            format!("rejected with {gpus:?}{}", since.unwrap_or_default())
        };
        let words = [
            pod.ready.then(|| "ready".into()),
            pod.agent.clone(),
            fetch.map(Into::into),
            pod.stuck.as_ref().map(|words| format!("stuck: {words}")),
            pod.waits_for_sandbox
                .map(|time| format!("waits for its sandbox since {time}")),
            pod.cannot_start.map(|why| format!("{why:?}")),
            pod.rejected.as_deref().map(gpus),
            pod.disruption.as_ref().map(|words| format!("disrupted: {words}")),
            pod.failed_other.clone(),
            end,
        ];
        words.into_iter().flatten().collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn a_pod_is_seen_in_the_words_of_whoever_knows() {
        for case in r#"
{trainer: {waiting: {reason: ContainerCreating}}} ->
{trainer: {waiting: {reason: ImagePullBackOff}}} -> stuck: ImagePullBackOff; Unavailable
{phase: Failed, trainer: {terminated: {exitCode: 3, message: FAILURE}}} -> BadData Some("no answer") "" None
{phase: Failed, trainer: {terminated: {exitCode: 3, message: "exec: no such file"}}} -> BadData None "exec: no such file" None
{phase: Failed, trainer: {terminated: {exitCode: 3, message: "  "}}} -> BadData None "" None
{fetch: {running: {}}, trainer: {waiting: {reason: PodInitializing}}} -> fetches
{fetch: {terminated: {exitCode: 0, finishedAt: TIME}}, trainer: {waiting: {reason: PodInitializing}}} -> has fetched
{fetch: {terminated: {exitCode: 79, finishedAt: TIME, message: FAILURE}}} -> has fetched; Storage Some("no answer") "" None
{fetch: {waiting: {reason: ErrImageNeverPull}}, trainer: {waiting: {reason: PodInitializing}}} -> stuck: ErrImageNeverPull; Misconfigured
{fetch-weights: {running: {}}, fetch: {waiting: {reason: PodInitializing}}, trainer: {waiting: {reason: PodInitializing}}} -> fetches
{fetch-weights: {terminated: {exitCode: 0, finishedAt: TIME}}, fetch: {running: {}}, trainer: {waiting: {reason: PodInitializing}}} -> fetches
{fetch-weights: {terminated: {exitCode: 79, finishedAt: TIME, message: FAILURE}}} -> has fetched; Storage Some("no answer") "" None
{phase: Running, podIP: "fd00::7", conditions: [{type: Ready, status: "True"}]} -> ready; http://[fd00::7]:9402
{phase: Running, vit-agent: {running: {}}, trainer: {terminated: {exitCode: 0}}} -> ready
{phase: Running, vit-agent: {running: {}}, trainer: {terminated: {exitCode: 1, message: Traceback}}} ->
{phase: Running, vit-agent: {running: {}}, mesh: {running: {}}, trainer: {terminated: {exitCode: 0}}} -> Done None "" None
{phase: Running, mesh: {running: {}}, trainer: {terminated: {exitCode: 0}}} -> Done None "" None
{phase: Running, podIP: 10.0.0.7, vit-agent: {terminated: {exitCode: 0, message: STEP}}, trainer: {terminated: {exitCode: 1, message: Traceback}}} -> http://10.0.0.7:9402; Other(1) None "Traceback" Some(7)
{phase: Failed, vit-agent: {running: {}}, trainer: {terminated: {exitCode: 1, message: Traceback}}} -> Other(1) None "Traceback" None
{vit-agent: {waiting: {reason: ErrImageNeverPull, message: absent}}, trainer: {waiting: {reason: PodInitializing}}} -> stuck: ErrImageNeverPull: absent; Refused
{phase: Failed, gpu-check: {terminated: {exitCode: 3, message: bad GPU}}, trainer: {waiting: {reason: PodInitializing}}} -> init container gpu-check exited with code 3: bad GPU
{phase: Running, gpu-check: {terminated: {exitCode: 0}}, mesh: {terminated: {exitCode: 1}}, trainer: {running: {}}} -> container mesh exited with code 1
{gpu-check: {waiting: {reason: ImagePullBackOff, message: absent}}, trainer: {waiting: {reason: PodInitializing}}} -> stuck: init container gpu-check: ImagePullBackOff: absent; Unavailable
{gpu-check: {waiting: {reason: CrashLoopBackOff}}, trainer: {waiting: {reason: PodInitializing}}} -> stuck: init container gpu-check: CrashLoopBackOff
{mesh: {waiting: {reason: ImagePullBackOff}}, trainer: {running: {}}} -> stuck: container mesh: ImagePullBackOff
{gpu-check: {waiting: {reason: CrashLoopBackOff}}, trainer: {waiting: {reason: ErrImageNeverPull}}} -> stuck: ErrImageNeverPull; Misconfigured
{conditions: [{type: PodReadyToStartContainers, status: "False", lastTransitionTime: TIME}]} -> waits for its sandbox since 2026-01-01T00:00:00Z
{conditions: [{type: PodReadyToStartContainers, status: "True"}]} ->
{conditions: [{type: PodScheduled, status: "False", reason: Unschedulable, message: no node, lastTransitionTime: TIME}]} -> stuck: Unschedulable: no node; rejected with Some(1) since 2026-01-01T00:00:00Z
{conditions: [{type: PodScheduled, status: "False", reason: SchedulingGated}]} -> stuck: SchedulingGated
{nominatedNodeName: a, conditions: [{type: PodScheduled, status: "False", reason: Unschedulable}]} -> stuck: Unschedulable
{node: a, conditions: [{type: PodScheduled, status: "False", reason: Unschedulable}]} -> stuck: Unschedulable
{node: a, phase: Failed, reason: Unexpected} -> rejected with None; disrupted: Unexpected
{node: a, phase: Failed, reason: Unexpected, trainer: {terminated: {exitCode: 137}}} -> disrupted: Unexpected; Signal(9) None "" None
{node: a, phase: Failed, reason: Unexpected, conditions: [{type: DisruptionTarget, status: "True", reason: Evicted}]} -> disrupted: Evicted
"#
        .trim()
        .lines()
        {
            let failure = r#"'{"failure": {"exitCode": 3, "class": "BadData", "message": "no answer"}}'"#;
            let step = r#"'{"progress": {"attempt": 1, "epoch": 1, "totalEpochs": 2, "step": 7, "totalSteps": 8, "updatedAt": ""}}'"#;
            let (status, expected) = case.split_once(" ->").expect("a case");
            let status = status.replace("TIME", "'2026-01-01T00:00:00Z'");
            let status = status.replace("FAILURE", failure).replace("STEP", step);
            assert_eq!(shown(&view(&status)), expected.trim(), "{status}");
        }
    }

    #[test]
    fn an_error_is_the_manifest_s_fault_only_if_the_kubelet_or_the_runtime_says_so() {
        for case in r#"
ErrImagePull: code = NotFound -> None
ImagePullBackOff: rpc error: code = Unknown desc = dial tcp 10.0.0.1:443: connect: connection refused -> Some(Unavailable)
ImagePullBackOff: rpc error: code = NotFound desc = failed to resolve reference "ghcr.io/a/b:1" -> Some(Absent)
ImagePullBackOff: rpc error: code = Unknown desc = pull access denied, repository does not exist -> Some(Absent)
ErrImageNeverPull: absent -> Some(Misconfigured)
CreateContainerConfigError: secret "token" not found -> Some(Absent)
CreateContainerConfigError: couldn't find key a in ConfigMap research/settings -> Some(Absent)
CreateContainerConfigError: container has runAsNonRoot and image will run as root -> Some(Misconfigured)
CreateContainerConfigError: failed to sync configmap cache: timed out waiting for the condition -> None
"#
        .trim()
        .lines()
        {
            let (stuck, expected) = case.split_once(" -> ").expect("a case");
            let (reason, message) = stuck.split_once(": ").expect("a reason");
            let state = json!({"trainer": {"waiting": {"reason": reason, "message": message}}});
            let pod = view(&state.to_string());
            assert_eq!(format!("{:?}", pod.cannot_start), expected, "{stuck}");
            assert_eq!(pod.stuck.as_deref(), Some(stuck));
        }
    }

    #[test]
    fn of_another_trainer_s_output_the_end_is_the_error() {
        let message = last_of(format!("{}\nno such file\n", "é".repeat(LOG_BYTES)));
        assert!(
            message.len() <= LOG_BYTES && message.ends_with("é\nno such file"),
            "{message}"
        );
    }

    #[test]
    fn pods_of_others_have_no_view() {
        let mut pod = fixtures::pod_objects(3, "Running").remove(1);
        let view = PodView::of(&pod).expect("ours");
        assert_eq!((view.attempt, view.node_rank, view.gang_size), (3, 1, 2));
        assert_eq!(view.node.as_deref(), Some("b"));
        pod.metadata.owner_references = None;
        assert_eq!(PodView::of(&pod), None);
    }
}
