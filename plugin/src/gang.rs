//! The pods of a job's gang: their ranks, agents' metrics and logs.

use std::time::Duration;

use contract::environment::DEFAULT_AGENT_PORT;
use crds::{ViTTrainingJob, labels};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{ContainerState, Pod};
use kube::ResourceExt as _;
use kube::api::{ListParams, LogParams};

use crate::cluster::Cluster;
use crate::error::Error;
use crate::losses::Losses;

/// Maximum number of agents queried; in larger gangs, the first ones represent all.
pub(crate) const AGENTS_ASKED: usize = 64;
/// Concurrent queries.
pub(crate) const AT_ONCE: usize = 16;
/// How long to wait for an agent's answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Lines of rank 0's log read for losses: one every five seconds, so almost three hours.
const LOG_LINES: i64 = 2000;

/// A value, or why it is missing.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Found<T> {
    Yes(T),
    /// None exists, as expected.
    None,
    /// The reason it cannot be shown.
    No(String),
}

impl<T> Found<T> {
    pub(crate) fn yes(&self) -> Option<&T> {
        match self {
            Self::Yes(value) => Some(value),
            Self::None | Self::No(_) => None,
        }
    }

    pub(crate) fn map<U>(self, convert: impl FnOnce(T) -> U) -> Found<U> {
        match self {
            Self::Yes(value) => Found::Yes(convert(value)),
            Self::None => Found::None,
            Self::No(reason) => Found::No(reason),
        }
    }

    /// Why it cannot be shown.
    pub(crate) fn no(&self) -> Option<&str> {
        match self {
            Self::No(reason) => Some(reason),
            Self::None | Self::Yes(_) => None,
        }
    }
}

/// A pod of a gang.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Member {
    pub(crate) attempt: i32,
    pub(crate) node_rank: i32,
    pub(crate) pod: String,
    pub(crate) uid: Option<String>,
    /// Its state in one word, or the kubelet's reason.
    pub(crate) state: String,
    pub(crate) is_ready: bool,
    /// Whether its container is running.
    pub(crate) is_running: bool,
    /// Whether it has a log.
    pub(crate) has_run: bool,
}

impl Member {
    /// `None` for a pod outside gangs.
    pub(crate) fn of(pod: &Pod) -> Option<Self> {
        let label = |key: &str| pod.labels().get(key)?.parse().ok();
        let status = pod.status.as_ref();
        let phase = status
            .and_then(|status| status.phase.as_deref())
            .unwrap_or("Pending");
        // A mesh may have added others.
        let container = status.and_then(|status| {
            let mut all = status.container_statuses.iter().flatten();
            all.find(|container| container.name == labels::CONTAINER)
        });
        // Init containers, such as the agent beside another trainer, start before the trainer.
        let beside = status.and_then(|status| {
            let mut before = status.init_container_statuses.iter().flatten();
            before.find(|container| {
                container
                    .state
                    .as_ref()
                    .is_some_and(|state| state.waiting.is_some())
            })
        });
        let is_ready = container.is_some_and(|container| container.ready);
        let state = beside
            .or(container)
            .and_then(|container| container.state.as_ref());
        let has_run = state.is_some_and(|state| state.running.is_some() || state.terminated.is_some());
        let words = if pod.metadata.deletion_timestamp.is_some() {
            "ending".into()
        } else {
            state.map_or_else(|| phase.to_lowercase(), |state| words(state, is_ready))
        };
        Some(Self {
            attempt: label(labels::ATTEMPT)?,
            node_rank: label(labels::NODE_RANK)?,
            pod: pod.name_any(),
            uid: pod.metadata.uid.clone(),
            state: words,
            is_ready,
            is_running: container
                .and_then(|container| container.state.as_ref())
                .is_some_and(|state| state.running.is_some()),
            has_run,
        })
    }
}

fn words(state: &ContainerState, is_ready: bool) -> String {
    match (&state.waiting, &state.terminated) {
        (Some(waiting), _) => waiting.reason.clone().unwrap_or_else(|| "waiting".into()),
        (_, Some(ended)) if ended.exit_code == 0 => "done".into(),
        (_, Some(ended)) => format!("ended with exit code {}", ended.exit_code),
        _ if is_ready => "ready".into(),
        _ => "starting".into(),
    }
}

/// The pods of all attempts of a job, ordered by attempt and node rank.
pub(crate) async fn members(cluster: &Cluster, job: &ViTTrainingJob) -> Result<Vec<Member>, Error> {
    let params = ListParams::default().labels(&format!("{}={}", labels::JOB_NAME, job.name_any()));
    let pods = cluster
        .list(cluster.pods(), params, "list the job's pods")
        .await?;
    let mut members: Vec<Member> = pods.iter().filter_map(Member::of).collect();
    members.sort_unstable_by_key(|member| (member.attempt, member.node_rank));
    Ok(members)
}

/// The metrics of these pods' agents, through the API server; queries at most `most` agents.
pub(crate) async fn expositions(cluster: &Cluster, members: &[Member], most: usize) -> Found<Vec<String>> {
    let ready = members.iter().filter(|member| member.is_ready);
    let answers: Vec<Result<String, Error>> = futures::stream::iter(ready.take(most))
        .map(|member| metrics(cluster, &member.pod))
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    let (mut texts, mut last_error) = (vec![], None);
    for answer in answers {
        match answer {
            Ok(text) => texts.push(text),
            Err(error) => last_error = Some(error),
        }
    }
    match last_error {
        _ if !texts.is_empty() => Found::Yes(texts),
        Some(error) => Found::No(error.to_string()),
        None => Found::None,
    }
}

async fn metrics(cluster: &Cluster, pod: &str) -> Result<String, Error> {
    let path = format!(
        "/api/v1/namespaces/{}/pods/{pod}:{DEFAULT_AGENT_PORT}/proxy/metrics",
        cluster.namespace()
    );
    let doing = format!("query the agent of pod {pod}");
    let request = http::Request::get(path).body(vec![]);
    let request = request.map_err(|error| Error::refused(&doing, &error))?;
    let seconds = ANSWER_TIMEOUT.as_secs();
    let answer = tokio::time::timeout(ANSWER_TIMEOUT, cluster.client().request_text(request)).await;
    match answer {
        Ok(answer) => answer.map_err(|error| cluster.error(&doing, error)),
        Err(_) => Err(Error::Refused {
            doing,
            message: format!("no answer within {seconds} s"),
        }),
    }
}

/// The course of the loss, from the log of the pod that holds rank 0.
pub(crate) async fn losses(cluster: &Cluster, member: &Member) -> Found<Losses> {
    if !member.has_run {
        return Found::None;
    }
    let params = LogParams {
        container: Some(labels::CONTAINER.into()),
        tail_lines: Some(LOG_LINES),
        timestamps: true,
        ..LogParams::default()
    };
    let (pods, pod, seconds) = (cluster.pods(), &member.pod, ANSWER_TIMEOUT.as_secs());
    match tokio::time::timeout(ANSWER_TIMEOUT, pods.logs(pod, &params)).await {
        Ok(Ok(log)) => Found::Yes(Losses::read(&log)),
        Ok(Err(error)) => {
            let error = cluster.error(&format!("read the log of pod {pod}"), error);
            Found::No(error.to_string())
        }
        Err(_) => Found::No(format!("no log of pod {pod} within {seconds} s")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn state(state: Value, ready: bool) -> (String, bool, bool) {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "digits-2-1", "labels": {
                "vit-operator.dev/attempt": "2", "vit-operator.dev/node-rank": "1"}},
            "status": {"phase": "Running", "containerStatuses": [{
                "name": "trainer", "image": "", "imageID": "", "restartCount": 0, "ready": ready, "state": state}]},
        }))
        .expect("a pod");
        let member = Member::of(&pod).expect("of a gang");
        assert_eq!((member.attempt, member.node_rank), (2, 1));
        (member.state, member.is_ready, member.has_run)
    }

    #[test]
    fn a_pods_state_is_a_word() {
        for (container, ready, expected, has_run) in [
            (json!({"running": {}}), true, "ready", true),
            (json!({"running": {}}), false, "starting", true),
            (
                json!({"waiting": {"reason": "ImagePullBackOff"}}),
                false,
                "ImagePullBackOff",
                false,
            ),
            (json!({"terminated": {"exitCode": 0}}), false, "done", true),
            (
                json!({"terminated": {"exitCode": 77}}),
                false,
                "ended with exit code 77",
                true,
            ),
        ] {
            assert_eq!(state(container, ready), (expected.into(), ready, has_run));
        }
    }

    #[tokio::test]
    async fn a_container_that_others_add_is_not_the_trainer() {
        let container = |name: &str, state: Value| json!({"name": name, "image": "", "imageID": "", "restartCount": 0, "ready": false, "state": state});
        // The kubelet orders them by name.
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "digits-2-0", "labels": {
                "vit-operator.dev/attempt": "2", "vit-operator.dev/node-rank": "0"}},
            "status": {"phase": "Running", "containerStatuses": [
                container("mesh", json!({"running": {}})), container("trainer", json!({"terminated": {"exitCode": 0}}))]},
        }))
        .expect("a pod");
        let member = Member::of(&pod).expect("of a gang");
        assert_eq!((member.state.as_str(), member.is_running), ("done", false));
        let cluster = crate::mock::server(|request| {
            assert!(
                request.query.starts_with("container=trainer&"),
                "{}",
                request.query
            );
            crate::mock::Answer::text("")
        });
        assert!(matches!(losses(&cluster, &member).await, Found::Yes(_)));
    }

    #[test]
    fn other_pods_are_of_no_gang() {
        assert_eq!(Member::of(&Pod::default()), None);
    }
}
