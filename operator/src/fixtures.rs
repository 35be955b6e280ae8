//! Test fixtures: the planner's, and those of gangs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crds::status::{AdmittedPod, ViTTrainingJobStatus, WaitStatus};
use crds::{StoredJob, ViTTrainingJob};
use http::Response;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Client;
use kube::client::Body;
use planner::SharedPlanner;
use planner::policy::placement::{Gpus, Placement};
use serde::Serialize;
use serde_json::json;
use tokio::sync::mpsc::UnboundedSender;

use crate::build;
use crate::build::Member;
use crate::clock::Clock;
use crate::metrics::Metrics;
use crate::policy::admission::Queue;
use crate::policy::gang::{PodId, PodState, PodView};
use crate::reconcile::{Context, Isolation, Observation, Settings};
use crate::watch::cache::Cache;
use crate::watch::caches::Caches;
use crate::watch::pod_groups::PodGroups;
use crate::watch::trigger::Trigger;
pub(crate) use shared::*;

#[path = "../../planner/src/fixtures/common.rs"]
mod shared;

impl From<&str> for PodId {
    fn from(name: &str) -> Self {
        Self {
            name: name.into(),
            uid: uid_of(name),
        }
    }
}

/// A running pod of [`job`], on node `a` or `b`.
pub(crate) fn pod(attempt: i32, node_rank: usize) -> PodView {
    PodView {
        name: format!("digits-{attempt}-{node_rank}"),
        uid: uid_of(&format!("digits-{attempt}-{node_rank}")),
        attempt,
        node_rank,
        gang_size: 2,
        node: Some(["a", "b"][node_rank].into()),
        state: PodState::Running,
        ready: true,
        ..PodView::default()
    }
}

/// The running gang of an attempt of [`job`].
pub(crate) fn gang(attempt: i32) -> Vec<PodView> {
    vec![pod(attempt, 0), pod(attempt, 1)]
}

/// The same gang as API objects with this `phase` in their status.
pub(crate) fn pod_objects(attempt: i32, phase: &str) -> Vec<Pod> {
    let job = job();
    let valid = crds::validate(&job).expect("valid");
    ["a", "b"]
        .into_iter()
        .enumerate()
        .map(|(node_rank, node)| {
            let member = Member {
                attempt,
                node_rank,
                gang_size: 2,
                node,
                is_grouped: false,
                agent_image: None,
            };
            let mut pod = build::pod::build(&job, &valid, member);
            pod.metadata.uid = pod.metadata.name.as_deref().map(uid_of);
            pod.spec.as_mut().expect("a spec").node_name = Some(node.into());
            pod.status = serde_json::from_value(json!({"phase": phase})).expect("a status");
            pod
        })
        .collect()
}

/// The observation of a job with a healthy gang on ready nodes.
pub(crate) fn observation(job: ViTTrainingJob, pods: Vec<PodView>) -> Observation {
    Observation {
        job: job.into(),
        pods,
        departed: vec![],
        unready_nodes: std::collections::HashMap::new(),
        rejecting_nodes: std::collections::HashMap::new(),
        has_service: true,
        network_policy: Isolation::Present,
        pod_groups: None,
        agent_image: None,
        config_maps: BTreeSet::new(),
        progress: None,
        measured: None,
        stall_signs: None,
        silence: None,
        stragglers: None,
        is_stall_suspected: false,
        queue: Queue::default(),
        dry_run: Some(AdmittedPod::default()),
        start_pace: std::time::Duration::from_secs(5),
        now: at(100),
    }
}

/// A placement on nodes with identical GPUs.
pub(crate) fn placement<const NODES: usize>(nodes: [&str; NODES]) -> Placement {
    Placement {
        gpus: Gpus::Identical(tesla_t4()),
        nodes: nodes.map(Into::into).into(),
        topology: vec![],
        rejected: vec![],
    }
}

/// The wait of the only waiting job, for two nodes.
pub(crate) fn alone() -> WaitStatus {
    WaitStatus {
        nodes: 2,
        position: 1,
        waiting: 1,
        ..WaitStatus::default()
    }
}

/// All conditions by type, with status and reason.
pub(crate) fn conditions_of(status: &ViTTrainingJobStatus) -> BTreeMap<&str, (&str, &str)> {
    status
        .conditions
        .iter()
        .map(|condition| {
            (
                condition.type_.as_str(),
                (condition.status.as_str(), condition.reason.as_str()),
            )
        })
        .collect()
}

/// An API server's response.
pub(crate) fn response(code: u16, body: &impl Serialize) -> Response<Body> {
    let body = serde_json::to_vec(body).expect("serializes");
    let response = Response::builder().status(code).body(Body::from(body));
    response.expect("a response")
}

#[track_caller]
pub(crate) fn assert_contains(text: &str, part: &str) {
    assert!(text.contains(part), "{part:?} is not in: {text}");
}

/// A context with these objects and a clock at 100 s.
pub(crate) fn context(
    client: Client,
    jobs: Cache<StoredJob>,
    nodes: &[Node],
    pods: &[Pod],
    triggers: UnboundedSender<Trigger>,
) -> Arc<Context> {
    Arc::new(Context::new(
        client,
        jobs,
        Caches::holding(SharedPlanner::default(), nodes, pods, &[]),
        triggers,
        Arc::new(Metrics::new().expect("registers")),
        Settings {
            network_policies: false,
            pod_groups: PodGroups::new(false),
            agent_image: None,
            clock: Clock::starting_at(at(100)),
        },
        "test".into(),
    ))
}
