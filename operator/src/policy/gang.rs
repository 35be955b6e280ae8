//! The pods of a gang, as seen by decisions.

use contract::TerminationRecord;
use contract::exit::ExitCode;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStateWaiting, ContainerStatus, Pod};
use kube::ResourceExt as _;
use planner::facts::pods::{Membership, bound_node, phase, pinned_node};
use planner::facts::resources::{Requests, requests_of};

pub(crate) const CONTAINER: &str = "trainer";
/// Name of the sidecar of another trainer.
pub(crate) const AGENT: &str = "vit-agent";
/// Name of the container that fetches the data set before the trainer starts.
pub(crate) const FETCH: &str = "fetch";
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
    /// Set if waiting will not make it start.
    pub(crate) cannot_start: Option<CannotStart>,
    /// Its requests on its node, if kube-scheduler or the kubelet rejects it.
    pub(crate) rejected: Option<Box<Requests>>,
    /// The state of the container that fetches the data set, if there is one.
    pub(crate) fetch: Option<Fetch>,
    /// Why it was disrupted, as reported.
    pub(crate) disruption: Option<String>,
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

/// The state of fetching the data set.
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
    /// The kubelet failed repeatedly; another node or a later try may succeed.
    Refused,
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
        let fetched = terminated(pod, FETCH);
        let ended = terminated(pod, CONTAINER).or(fetched.filter(|fetched| fetched.exit_code != 0));
        let trainer = trainer(pod);
        // Wait for the last report of rank 0's sidecar while it may still come.
        let may_report = trainer == Trainer::External && member.node_rank == 0 && !has_reported(pod);
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
            cannot_start: waiting(pod).and_then(cannot_start).map(|why| match why {
                CannotStart::Misconfigured if agent_waits(pod) => CannotStart::Refused,
                why => why,
            }),
            rejected: rejected(pod).filter(|_| ended.is_none()).map(Box::new),
            fetch: fetch(pod),
            disruption: disruption(pod),
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

    /// Whether its container failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.state == PodState::Failed || self.end.as_ref().is_some_and(|end| end.exit != ExitCode::Done)
    }
}

pub(crate) fn is_grouped(pod: &Pod) -> bool {
    pod.spec
        .as_ref()
        .is_some_and(|spec| spec.scheduling_group.is_some())
}

/// The statuses of the operator's containers, init containers first.
fn statuses(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    let lists = pod.status.iter().flat_map(|status| {
        [
            status.init_container_statuses.as_ref(),
            status.container_statuses.as_ref(),
        ]
    });
    let all = lists.flatten().flatten();
    all.filter(|container| [FETCH, AGENT, CONTAINER].contains(&container.name.as_str()))
}

fn fetch(pod: &Pod) -> Option<Fetch> {
    let container = statuses(pod).find(|container| container.name == FETCH)?;
    let state = container.state.as_ref()?;
    match (&state.running, &state.terminated) {
        (Some(_), _) => Some(Fetch::Runs),
        (None, Some(ended)) => Some(Fetch::Done(ended.finished_at.as_ref()?.0)),
        (None, None) => None,
    }
}

/// How a container ended.
fn terminated<'a>(pod: &'a Pod, name: &str) -> Option<&'a ContainerStateTerminated> {
    let container = statuses(pod).find(|container| container.name == name)?;
    container.state.as_ref()?.terminated.as_ref()
}

fn trainer(pod: &Pod) -> Trainer {
    let mut containers = pod
        .spec
        .iter()
        .flat_map(|spec| spec.init_containers.iter().flatten());
    if containers.any(|container| container.name == AGENT) {
        Trainer::External
    } else {
        Trainer::Own
    }
}

/// Whether the sidecar, which ends after the trainer, has left its last report, or never will.
fn has_reported(pod: &Pod) -> bool {
    terminated(pod, AGENT).is_some() || matches!(phase(pod), "Succeeded" | "Failed")
}

fn condition<'a>(pod: &'a Pod, type_: &str) -> Option<(&'a str, String)> {
    let condition = pod
        .status
        .as_ref()?
        .conditions
        .iter()
        .flatten()
        .find(|condition| condition.type_ == type_)?;
    let words = [condition.reason.as_deref(), condition.message.as_deref()];
    let words = words
        .into_iter()
        .flatten()
        .filter(|word| !word.is_empty())
        .collect::<Vec<_>>();
    Some((condition.status.as_str(), words.join(": ")))
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
    let waiting = waiting(pod)?;
    let reason = waiting.reason.as_deref().unwrap_or_default();
    if matches!(reason, "" | "ContainerCreating" | "PodInitializing") {
        return None;
    }
    let message = waiting.message.as_deref().unwrap_or_default();
    Some(if message.is_empty() {
        reason.into()
    } else {
        format!("{reason}: {message}")
    })
}

fn waiting(pod: &Pod) -> Option<&ContainerStateWaiting> {
    statuses(pod).find_map(|container| container.state.as_ref()?.waiting.as_ref())
}

/// Whether the sidecar of another trainer waits, which is never the manifest's fault.
fn agent_waits(pod: &Pod) -> bool {
    let waits = |container: &ContainerStatus| {
        container
            .state
            .as_ref()
            .is_some_and(|state| state.waiting.is_some())
    };
    statuses(pod).any(|container| container.name == AGENT && waits(container))
}

/// Messages of `CreateContainerConfigError` that are the manifest's fault: a missing ConfigMap,
/// Secret or key, and a user that is not allowed (`pkg/kubelet/kubelet_pods.go`,
/// `pkg/kubelet/kuberuntime/security_context_others.go`).
const MISCONFIGURATIONS: [&str; 3] = ["not found", "couldn't find key", "runAsNonRoot"];

/// Messages of the container runtime for which a failed pull is the manifest's fault: the image
/// does not exist, or access is denied.
const NO_SUCH_IMAGE: [&str; 2] = ["code = NotFound", "pull access denied"];

/// Classifies the kubelet's reason (`pkg/kubelet/images/types.go`, `pkg/kubelet/kuberuntime`). A
/// first `ErrImagePull` may be a transient network error; the kubelet backs off only after it
/// recurs. Other `CreateContainerConfigError`s may be transient, too; the kubelet retries them.
fn cannot_start(waiting: &ContainerStateWaiting) -> Option<CannotStart> {
    let message = waiting.message.as_deref().unwrap_or_default();
    let mentions = |words: &[&str]| words.iter().any(|words| message.contains(words));
    match waiting.reason.as_deref()? {
        "InvalidImageName" | "ErrImageNeverPull" => Some(CannotStart::Misconfigured),
        "CreateContainerConfigError" => mentions(&MISCONFIGURATIONS).then_some(CannotStart::Misconfigured),
        "ImagePullBackOff" if mentions(&NO_SUCH_IMAGE) => Some(CannotStart::Misconfigured),
        "ImagePullBackOff" | "ImageInspectError" | "CreateContainerError" | "RunContainerError" => {
            Some(CannotStart::Refused)
        }
        _ => None,
    }
}

/// The requests of a rejected pod on its node. A pod that the kubelet did not admit has failed with
/// a reason, and holds nothing.
fn rejected(pod: &Pod) -> Option<Requests> {
    let (spec, status) = (pod.spec.as_ref()?, pod.status.as_ref()?);
    // A scheduler that nominated a node preempts pods there.
    let is_nominated = status.nominated_node_name.is_some();
    let is_unschedulable = || {
        status.conditions.iter().flatten().any(|condition| {
            let reason = condition.reason.as_deref();
            (condition.type_.as_str(), condition.status.as_str(), reason)
                == ("PodScheduled", "False", Some("Unschedulable"))
        })
    };
    match phase(pod) {
        "Pending" if spec.node_name.is_none() && !is_nominated && is_unschedulable() => {
            Some(requests_of(spec))
        }
        "Failed" if status.reason.is_some() && condition(pod, "DisruptionTarget").is_none() => {
            Some(Requests::new())
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
    Some(match status.message.as_deref() {
        Some(message) => format!("{reason}: {message}"),
        None => reason.into(),
    })
}

/// `agent` is the end of another trainer's sidecar, if it has ended: it leaves the record.
fn end(
    terminated: &ContainerStateTerminated,
    trainer: Trainer,
    agent: Option<&ContainerStateTerminated>,
) -> End {
    let words = |terminated: &ContainerStateTerminated| {
        let message = terminated.message.clone();
        message.filter(|message| !message.trim().is_empty())
    };
    let message = words(terminated);
    let record = match trainer {
        Trainer::Own => message.clone(),
        Trainer::External => agent.and_then(words),
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
    use serde_json::json;

    use super::*;
    use crate::fixtures;

    fn view(status: serde_json::Value) -> PodView {
        let mut pod = fixtures::pod_objects(1, "Pending").remove(0);
        pod.status = serde_json::from_value(status).expect("a status");
        PodView::of(&pod).expect("ours")
    }

    fn container(state: serde_json::Value) -> serde_json::Value {
        json!([{
            "name": "trainer", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state,
        }])
    }

    /// A pod of another trainer with a sidecar, in these container states.
    fn beside_another(phase: &str, agent: &serde_json::Value, trainer: &serde_json::Value) -> PodView {
        let status = |name: &str, state: &serde_json::Value| json!([{"name": name, "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state}]);
        let mut pod = fixtures::pod_objects(1, phase).remove(0);
        let spec = pod.spec.as_mut().expect("a spec");
        let container = json!([{"name": "vit-agent", "ports": [{"name": "metrics", "containerPort": 9402}]}]);
        spec.init_containers = serde_json::from_value(container).expect("a container");
        spec.containers[0].ports = None;
        pod.status = serde_json::from_value(json!({
            "phase": phase, "podIP": "10.0.0.7",
            "initContainerStatuses": status("vit-agent", agent), "containerStatuses": status("trainer", trainer),
        }))
        .expect("a status");
        PodView::of(&pod).expect("ours")
    }

    #[test]
    fn another_trainer_has_ended_once_the_agent_beside_it_has_told_what_it_knew() {
        let running = json!({"running": {}});
        let ended = |code: i32, message: &str| json!({"terminated": {"exitCode": code, "message": message}});
        let record = r#"{"progress": {"attempt": 1, "epoch": 1, "totalEpochs": 2, "step": 7, "totalSteps": 8, "updatedAt": ""}}"#;
        let failed = ended(1, "Traceback: no such file");
        let done = ended(0, "");
        let pod = beside_another("Running", &running, &done);
        assert_eq!((pod.end, pod.ready), (None, true));
        let pod = beside_another("Running", &running, &failed);
        assert_eq!((pod.end, pod.ready), (None, false));
        let pod = beside_another("Running", &ended(0, record), &failed);
        assert_eq!(pod.agent.as_deref(), Some("http://10.0.0.7:9402"));
        let end = pod.end.expect("it has ended");
        assert_eq!(
            (end.exit, end.message.as_deref()),
            (ExitCode::Other(1), Some("Traceback: no such file"))
        );
        let progress = end.record.and_then(|record| record.progress);
        assert_eq!(progress.map(|progress| progress.step), Some(7));
        // Its node may be lost before the sidecar reports.
        let end = beside_another("Failed", &running, &failed)
            .end
            .expect("it has ended");
        assert_eq!((end.record, end.message.is_some()), (None, true));
        // The end of its output is the error.
        let long = ended(1, &format!("{}\nno such file\n", "é".repeat(LOG_BYTES)));
        let end = beside_another("Failed", &running, &long)
            .end
            .expect("it has ended");
        let message = end.message.expect("its words");
        assert!(
            message.len() <= LOG_BYTES && message.ends_with("é\nno such file"),
            "{message}"
        );
    }

    #[test]
    fn a_fetch_that_fails_is_the_end_of_its_pod_and_one_that_runs_is_none() {
        let fetching = |state: serde_json::Value| {
            let mut fetch = container(state);
            fetch[0]["name"] = FETCH.into();
            let trainer = container(json!({"waiting": {"reason": "PodInitializing"}}));
            view(json!({"phase": "Pending", "initContainerStatuses": fetch, "containerStatuses": trainer}))
        };
        let ended = |code: i32, message: &str| json!({"terminated": {"exitCode": code, "message": message, "finishedAt": "2026-01-01T00:00:00Z"}});
        let runs = fetching(json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}}));
        assert_eq!(
            (runs.fetch, runs.stuck, runs.end),
            (Some(Fetch::Runs), None, None)
        );
        let done = fetching(ended(0, ""));
        assert!(matches!(done.fetch, Some(Fetch::Done(_))) && done.end.is_none());
        let record = json!({"failure": {"exitCode": 79, "class": "Storage", "message": "no answer"}});
        let end = fetching(ended(79, &record.to_string()))
            .end
            .expect("it has ended");
        let failure = end.record.and_then(|record| record.failure).expect("a failure");
        assert_eq!(
            (end.exit, failure.message.as_str()),
            (ExitCode::Storage, "no answer")
        );
        let unknown = json!({"waiting": {"reason": "CreateContainerConfigError", "message": r#"secret "keys" not found"#}});
        let stuck = fetching(unknown);
        assert_eq!(stuck.cannot_start, Some(CannotStart::Misconfigured));
        assert_eq!(
            stuck.stuck.as_deref(),
            Some(r#"CreateContainerConfigError: secret "keys" not found"#)
        );
    }

    #[test]
    fn an_agent_that_cannot_start_keeps_its_pod_from_starting() {
        let pulling = json!({"waiting": {"reason": "ErrImageNeverPull", "message": "absent"}});
        let waiting = json!({"waiting": {"reason": "PodInitializing"}});
        let pod = beside_another("Pending", &pulling, &waiting);
        assert_eq!(pod.stuck.as_deref(), Some("ErrImageNeverPull: absent"));
        // It is not the manifest's fault.
        assert_eq!(pod.cannot_start, Some(CannotStart::Refused));
    }

    #[test]
    fn what_keeps_a_pod_from_starting_is_reported_in_the_words_of_whoever_knows() {
        let waiting = |reason: &str, message: &str| {
            let state = json!({"waiting": {"reason": reason, "message": message}});
            view(json!({"containerStatuses": container(state)})).stuck
        };
        assert_eq!(
            waiting("ErrImagePull", "not found").as_deref(),
            Some("ErrImagePull: not found")
        );
        assert_eq!(
            waiting("ImagePullBackOff", "").as_deref(),
            Some("ImagePullBackOff")
        );
        assert_eq!(waiting("ContainerCreating", ""), None);
        let config_error = "CreateContainerConfigError";
        for (reason, message, expected) in [
            ("ErrImagePull", "", None),
            ("ImagePullBackOff", "", Some(CannotStart::Refused)),
            (
                "ImagePullBackOff",
                r#"Back-off pulling image "ghcr.io/a/b:1": ErrImagePull: rpc error: code = Unknown desc = failed to pull and unpack image "ghcr.io/a/b:1": dial tcp 10.0.0.1:443: connect: connection refused"#,
                Some(CannotStart::Refused),
            ),
            (
                "ImagePullBackOff",
                r#"Back-off pulling image "ghcr.io/a/b:1": ErrImagePull: rpc error: code = NotFound desc = failed to pull and unpack image "ghcr.io/a/b:1": failed to resolve reference "ghcr.io/a/b:1": ghcr.io/a/b:1: not found"#,
                Some(CannotStart::Misconfigured),
            ),
            (
                "ImagePullBackOff",
                r#"Back-off pulling image "a/b:1": ErrImagePull: rpc error: code = Unknown desc = failed to pull and unpack image "docker.io/a/b:1": pull access denied, repository does not exist or may require authorization"#,
                Some(CannotStart::Misconfigured),
            ),
            ("ErrImageNeverPull", "", Some(CannotStart::Misconfigured)),
            (
                config_error,
                r#"secret "token" not found"#,
                Some(CannotStart::Misconfigured),
            ),
            (
                config_error,
                "couldn't find key a in ConfigMap research/settings",
                Some(CannotStart::Misconfigured),
            ),
            (
                config_error,
                "container has runAsNonRoot and image will run as root",
                Some(CannotStart::Misconfigured),
            ),
            (
                config_error,
                "failed to sync configmap cache: timed out waiting for the condition",
                None,
            ),
        ] {
            let state = json!({"waiting": {"reason": reason, "message": message}});
            let pod = view(json!({"containerStatuses": container(state)}));
            assert_eq!(pod.cannot_start, expected, "{reason}");
        }
        let unschedulable = view(json!({"conditions": [{
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/4 nodes are available",
        }]}));
        assert_eq!(
            unschedulable.stuck.as_deref(),
            Some("Unschedulable: 0/4 nodes are available")
        );
    }

    #[test]
    fn the_trainer_s_record_is_read_and_other_last_words_are_kept() {
        let ended = |message: &str| {
            let state = json!({"terminated": {
                "exitCode": 3, "reason": "Error", "finishedAt": "2026-09-21T00:00:00Z", "message": message,
            }});
            let view = view(json!({"phase": "Failed", "containerStatuses": container(state)}));
            assert!(view.has_ended() && view.has_failed());
            *view.end.expect("ended")
        };
        let record = TerminationRecord {
            failure: Some(contract::FailureRecord {
                rank: Some(1),
                exit_code: 3,
                class: contract::FailureClass::BadData,
                memory: None,
                message: "truncated".into(),
            }),
            ..TerminationRecord::default()
        };
        let end = ended(&serde_json::to_string(&record).expect("serializes"));
        assert_eq!(
            (end.exit, end.record, end.message),
            (ExitCode::BadData, Some(record), None)
        );
        let end = ended("exec: no such file");
        assert_eq!(
            (end.record, end.message.as_deref()),
            (None, Some("exec: no such file"))
        );
        assert_eq!(ended("  ").message, None);
    }

    #[test]
    fn a_pod_is_rejected_by_kube_scheduler_or_by_a_kubelet_that_ran_nothing_of_it() {
        let rejected = |node: Option<&str>, status: serde_json::Value| {
            let mut pod = fixtures::pod_objects(1, "Pending").remove(0);
            pod.spec.as_mut().expect("a spec").node_name = node.map(Into::into);
            pod.status = serde_json::from_value(status).expect("a status");
            let rejected = PodView::of(&pod).expect("ours").rejected;
            rejected.map(|holds| holds.get("nvidia.com/gpu").copied())
        };
        let scheduled = |reason: &str| json!([{"type": "PodScheduled", "status": "False", "reason": reason}]);
        let unschedulable = scheduled("Unschedulable");
        assert_eq!(
            rejected(None, json!({"conditions": unschedulable})),
            Some(Some(1))
        );
        for (node, status) in [
            (None, json!({"conditions": scheduled("SchedulingGated")})),
            (
                None,
                json!({"conditions": unschedulable, "nominatedNodeName": "a"}),
            ),
            (Some("a"), json!({"conditions": unschedulable})),
        ] {
            assert_eq!(rejected(node, status.clone()), None, "{status}");
        }
        let failed = |mut status: serde_json::Value| {
            status["phase"] = "Failed".into();
            status["reason"] = "UnexpectedAdmissionError".into();
            rejected(Some("a"), status)
        };
        assert_eq!(failed(json!({})), Some(None));
        let ran = container(json!({"terminated": {"exitCode": 137}}));
        assert_eq!(failed(json!({"containerStatuses": ran})), None);
        let disrupted = json!([{"type": "DisruptionTarget", "status": "True"}]);
        assert_eq!(failed(json!({"conditions": disrupted})), None);
    }

    #[test]
    fn pods_of_others_have_no_view() {
        let mut pod = fixtures::pod_objects(1, "Running").remove(0);
        pod.metadata.owner_references = None;
        assert_eq!(PodView::of(&pod), None);
    }
}
