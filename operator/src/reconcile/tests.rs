//! Whole rounds against a mocked API server: the calls and their order.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crds::status::{AdmittedPod, FailedNodeStatus};
use crds::{Phase, StoredJob, ViTTrainingJob, conditions};
use futures::future::LocalBoxFuture;
use http::{Method, Request, Response};
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::{Node, Pod, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::client::Body;
use kube::runtime::controller::Action;
use kube::runtime::watcher::Event as WatchEvent;
use kube::{Api, Client, ResourceExt as _};
use planner::{Planner, SharedPlanner};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tower_test::mock::{self, Handle};

use super::context::{CALL_TIMEOUT, CALLS_AT_ONCE};
use super::observation::Observation;
use super::pace::{
    IN_MOTION, NEXT_TURN, PROGRESS_WRITES, START_WRITTEN_EVERY, WAITING, pace, pace_of_starts,
};
use super::poll::PROGRESS_INTERVAL;
use super::round::{decide_and_promise, restarted_after};
use super::*;
use crate::api::pod_group::Version;
use crate::clock::Clock;
use crate::error::Error;
use crate::fixtures::{self, assert_contains, uid_of};
use crate::metrics::Metrics;
use crate::watch::cache::Cache;
use crate::watch::caches::Caches;
use crate::watch::pod_groups::PodGroups;
use crate::watch::trigger::Trigger;

mod answers;
mod endings;
mod faults;
mod later;

type MockService = mock::Mock<Request<Body>, Response<Body>>;
type ServerHandle = Handle<Request<Body>, Response<Body>>;

/// Acts as an API server, stores the job, and returns its calls: Events last, because they are
/// published in the background. Pods are deleted by uid unless the call says otherwise.
async fn serve(mut handle: ServerHandle, stored: Arc<Mutex<Value>>, server: Rounds) -> Vec<String> {
    let (mut calls, mut events) = (Vec::new(), Vec::new());
    while let Some((request, answer)) = handle.next_request().await {
        let (parts, body) = request.into_parts();
        let body = body.collect_bytes().await.expect("a body");
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let path: Vec<&str> = parts.uri.path().trim_matches('/').split('/').collect();
        let (code, response, object) = match (&parts.method, &path[..]) {
            (&Method::PATCH, [.., "status"]) => match server.denied {
                Some(("status", code, _)) => (code, failure(code, "Denied"), "status".into()),
                _ => write_status(&stored, &body),
            },
            // A repeated Event becomes a series.
            (&Method::PATCH, [.., "events", _]) => {
                (200, body.clone(), format!("event {}", text(&body["reason"])))
            }
            (&Method::POST, [.., "events"]) => {
                (201, body.clone(), format!("event {}", text(&body["reason"])))
            }
            (&Method::POST, [.., resource]) => {
                let object = format!("{resource} {}", text(&body["metadata"]["name"]));
                let denied = server
                    .denied
                    .filter(|(denied, ..)| denied == resource || *denied == object);
                if let Some((_, code, message)) = denied {
                    let mut answer = failure(code, "Denied");
                    answer["message"] = message.into();
                    (code, answer, object)
                } else if server.foreign.contains(resource) || server.of_last_job.contains(resource) {
                    (409, failure(409, "AlreadyExists"), object)
                } else {
                    let mut created = body.clone();
                    if *resource == "pods" {
                        created["metadata"]["uid"] = uid_of(text(&body["metadata"]["name"])).into();
                        created["metadata"]["resourceVersion"] = "200".into();
                    }
                    (201, created, object)
                }
            }
            (&Method::GET, [.., "pods"]) => {
                let mut pods = fixtures::pod_objects(1, "Running");
                pods.retain(|pod| server.unseen.contains(&&*pod.name_any()));
                for pod in &mut pods {
                    pod.metadata.resource_version = Some("200".into());
                }
                let list = json!({"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": pods});
                (200, list, "pods".into())
            }
            (&Method::GET, [.., "events"]) => {
                let of_pod = format!("events {}", parts.uri.query().unwrap_or_default());
                let (code, body) = match server.denied {
                    Some(("events", code, _)) => (code, failure(code, "Forbidden")),
                    _ => (200, json!({"metadata": {}, "items": server.events})),
                };
                (code, body, of_pod)
            }
            (&Method::GET, [.., resource, name]) => {
                let kind = if *resource == "pods" { "Pod" } else { "Service" };
                let mut of_another = json!({
                    "apiVersion": "v1", "kind": kind, "metadata": {"name": name, "uid": "of-another"},
                });
                if server.of_last_job.contains(resource) {
                    of_another["metadata"]["ownerReferences"] = json!([{
                        "apiVersion": "vit-operator.dev/v1alpha1", "kind": "ViTTrainingJob",
                        "name": "digits", "uid": "of-the-last-job",
                    }]);
                }
                (200, of_another, format!("{resource} {name}"))
            }
            (&Method::DELETE, [.., resource, name]) if server.undeletable.contains(name) => (
                500,
                failure(500, "InternalError"),
                format!("{resource} {name} fails"),
            ),
            (&Method::DELETE, ["api", "v1", "namespaces", _, "pods", name])
                if server.recreated.contains(name) && body["preconditions"]["uid"] == uid_of(name) =>
            {
                (
                    409,
                    failure(409, "Conflict"),
                    format!("pods {name} that is another"),
                )
            }
            (&Method::DELETE, [.., resource, name]) => {
                let done = json!({"kind": "Status", "status": "Success"});
                let mut object = format!("{resource} {name}");
                if *resource == "pods" && body["preconditions"]["uid"] != uid_of(name) {
                    object.push_str(" of any uid");
                }
                if let Some(seconds) = body["gracePeriodSeconds"].as_u64() {
                    let _ = write!(object, " within {seconds} s");
                }
                (200, done, object)
            }
            other => panic!("an unexpected call: {other:?}"),
        };
        let log = if path.contains(&"events") {
            &mut events
        } else {
            &mut calls
        };
        log.push(format!("{} {object}", parts.method));
        tokio::time::sleep(server.takes).await;
        answer.send_response(fixtures::response(code, &response));
    }
    calls.append(&mut events);
    calls
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

pub(super) fn failure(code: u16, reason: &str) -> Value {
    json!({"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": reason})
}

fn write_status(stored: &Mutex<Value>, body: &Value) -> (u16, Value, String) {
    let mut job = stored.lock().expect("a job");
    let version = text(&job["metadata"]["resourceVersion"]).to_owned();
    let fits = body["metadata"]["resourceVersion"] == version;
    if fits {
        json_patch::merge(&mut job["status"], &body["status"]);
        let version: u64 = version.parse().expect("a number");
        job["metadata"]["resourceVersion"] = (version + 1).to_string().into();
    }
    let object = format!("status {}", text(&job["status"]["phase"]));
    if fits {
        (200, job.clone(), object)
    } else {
        (409, failure(409, "Conflict"), object)
    }
}

fn nodes<const NODES: usize>(names: [&str; NODES]) -> Vec<Node> {
    names.map(|name| fixtures::node(name, "Tesla-T4", 1)).into()
}

/// A cluster in which a job goes through rounds, and its API server's errors.
#[derive(Default)]
struct Rounds {
    nodes: Vec<Node>,
    pods: Vec<Pod>,
    services: Vec<Service>,
    pod_groups: bool,
    /// Resources whose names belong to someone else.
    foreign: &'static [&'static str],
    /// Resources whose names belong to a deleted job of the same name.
    of_last_job: &'static [&'static str],
    /// The Events of each pod.
    events: Vec<Value>,
    /// Names whose deletion fails.
    undeletable: &'static [&'static str],
    /// A resource, or one object of it, that it rejects, with this code and message.
    denied: Option<(&'static str, u16, &'static str)>,
    /// Existing pods of the job that no watch has reported.
    unseen: &'static [&'static str],
    /// Names of the job's pods that pods with another uid have reused.
    recreated: &'static [&'static str],
    /// How long it takes for each call.
    takes: Duration,
    /// What happens before each round, a second after the last.
    happens: Option<fn(&SharedPlanner, usize)>,
}

impl Rounds {
    /// Two free nodes, and no objects of the job.
    fn fresh() -> Self {
        Self {
            nodes: nodes(["a", "b"]),
            ..Self::default()
        }
    }

    /// [`Self::fresh`] with these pods and the Service.
    fn with_gang(pods: Vec<Pod>) -> Self {
        Self {
            pods,
            services: vec![crate::build::service::build(&fixtures::job())],
            ..Self::fresh()
        }
    }

    /// Runs `rounds` rounds, each with the job of the last; returns calls, job and last result.
    fn run(
        self,
        job: ViTTrainingJob,
        rounds: usize,
    ) -> LocalBoxFuture<'static, (Vec<String>, ViTTrainingJob, Result<Action, Error>)> {
        // Boxed, because jobs are large.
        Box::pin(async move {
            let job = serde_json::to_value(job).expect("a job");
            let (calls, job, mut results) = self.run_stored(job, rounds).await;
            let job = serde_json::from_value(job).expect("a job");
            (calls, job, results.pop().expect("a round"))
        })
    }

    /// The same for a job that any version may have written, with all results.
    async fn run_stored(self, job: Value, rounds: usize) -> (Vec<String>, Value, Vec<Result<Action, Error>>) {
        let (service, handle) = mock::pair();
        let caches = Caches::holding(SharedPlanner::default(), &self.nodes, &self.pods, &self.services);
        let context = context_with(service, caches, mpsc::unbounded_channel().0, self.pod_groups);
        if let Ok(job) = serde_json::from_value(job.clone()) {
            context.dry_runs.keep(&job, AdmittedPod::default());
        }
        let stored = Arc::new(Mutex::new(job));
        let happens = self.happens;
        let server = tokio::spawn(serve(handle, Arc::clone(&stored), self));
        let mut results = Vec::new();
        for round in 0..rounds {
            if let Some(happens) = happens {
                happens(&context.planner, round);
                tokio::time::advance(Duration::from_secs(1)).await;
            }
            let job = read(&stored);
            apply_event(&context, &job);
            results.push(reconcile(Arc::new(job), Arc::clone(&context)).await);
        }
        // The server ends with its last client.
        drop(context);
        let calls = tokio::time::timeout(Duration::from_secs(10), server)
            .await
            .expect("all clients are gone")
            .expect("served");
        let job = stored.lock().expect("a job").clone();
        (calls, job, results)
    }
}

/// The job as a watch delivers it.
fn read(stored: &Mutex<Value>) -> StoredJob {
    let stored = stored.lock().expect("a job").clone();
    serde_json::from_value(stored).expect("it has metadata")
}

/// The context of rounds in a cluster with these objects.
pub(super) fn context(
    service: MockService,
    nodes: &[Node],
    pods: &[Pod],
    services: &[Service],
) -> Arc<Context> {
    let caches = Caches::holding(SharedPlanner::default(), nodes, pods, services);
    context_with(service, caches, mpsc::unbounded_channel().0, false)
}

/// A context without objects, and its API server.
pub(super) fn idle_context() -> (Arc<Context>, ServerHandle) {
    let (service, server) = mock::pair();
    (context(service, &[], &[], &[]), server)
}

fn context_with(
    service: MockService,
    caches: Caches,
    triggers: mpsc::UnboundedSender<Trigger>,
    pod_groups: bool,
) -> Arc<Context> {
    let (planner, capacity) = (caches.planner().clone(), triggers.clone());
    let jobs = Cache::new(move |event| {
        if planner.lock().follow_jobs(event) {
            let _ = capacity.send(Trigger::Capacity);
        }
    });
    Arc::new(Context::new(
        Client::new(service, "default"),
        jobs,
        caches,
        triggers,
        Arc::new(Metrics::new().expect("metrics")),
        Settings {
            network_policies: true,
            pod_groups: PodGroups::known(pod_groups.then_some(Version("v1beta1"))),
            agent_image: None,
            clock: Clock::starting_at(fixtures::at(100)),
        },
        "test".into(),
    ))
}

/// Applies a changed job as the watch of jobs does.
fn apply_event(context: &Context, job: &StoredJob) {
    context.jobs.watched(WatchEvent::Apply(job.clone()));
}

/// The gang of attempt 1 with pods in these phases, and the exit codes of ended containers.
fn pods(states: [(&str, Option<i32>); 2]) -> Vec<Pod> {
    let mut pods = fixtures::pod_objects(1, "Running");
    for (pod, (phase, code)) in pods.iter_mut().zip(states) {
        let state = match code {
            None => json!({"running": {}}),
            Some(code) => {
                json!({"terminated": {"exitCode": code, "finishedAt": fixtures::at(90).to_string()}})
            }
        };
        pod.status = serde_json::from_value(json!({
            "phase": phase,
            "containerStatuses": [{
                "name": "trainer", "image": "", "imageID": "", "ready": code.is_none(), "restartCount": 0,
                "state": state,
            }],
        }))
        .ok();
    }
    pods
}

fn phase(job: &ViTTrainingJob) -> Option<Phase> {
    job.status.as_ref().and_then(|status| status.phase)
}

#[tokio::test]
async fn a_gang_is_placed_then_created_once() {
    let (calls, job, result) = Rounds::fresh().run(fixtures::job(), 2).await;
    result.expect("reconciled");
    let mut calls = calls;
    // A gang's pods are created concurrently.
    calls[4..6].sort();
    assert_eq!(
        calls,
        [
            "PATCH status Starting",
            "POST configmaps digits-1",
            "POST services digits",
            "POST networkpolicies digits",
            "POST pods digits-1-0",
            "POST pods digits-1-1",
            "POST event GangFits",
        ]
    );
    let status = job.status.expect("a status");
    assert_eq!(status.placement.expect("a placement").nodes, ["a", "b"]);
    assert_eq!((status.attempt, status.observed_generation), (1, Some(1)));
}

#[tokio::test]
async fn the_pod_group_of_a_gang_is_created_before_all_else() {
    let rounds = Rounds {
        pod_groups: true,
        ..Rounds::fresh()
    };
    let (calls, _, result) = rounds.run(fixtures::job(), 2).await;
    result.expect("reconciled");
    assert_eq!(
        calls[1..3],
        ["POST podgroups digits-1", "POST configmaps digits-1"]
    );
}

#[tokio::test]
async fn a_gang_of_one_pod_needs_no_service() {
    let mut job = fixtures::job();
    job.spec.workers.nodes = 1;
    let (calls, _, result) = Rounds::fresh().run(job, 2).await;
    result.expect("reconciled");
    let made: Vec<&String> = calls
        .iter()
        .filter(|call| call.starts_with("POST") && !call.contains("event"))
        .collect();
    assert_eq!(
        made,
        [
            "POST configmaps digits-1",
            "POST networkpolicies digits",
            "POST pods digits-1-0"
        ]
    );
}

#[test]
fn progress_of_many_jobs_is_written_less_often() {
    let paces =
        [0, 50, 51, 1000].map(|running| pace(PROGRESS_INTERVAL, running, PROGRESS_WRITES).as_millis());
    assert_eq!(paces, [2000, 2000, 2040, 40_000]);
}

#[tokio::test(start_paused = true)]
async fn all_rounds_together_have_only_so_many_calls_under_way_and_what_frees_gpus_has_its_own() {
    let (context, mut server) = idle_context();
    for index in 0..CALLS_AT_ONCE + 2 {
        let client = context.client_for(false);
        let pods: Api<Pod> = Api::namespaced(client.clone(), "research");
        tokio::spawn(async move { pods.get_opt(&format!("digits-1-{index}")).await });
    }
    let mut under_way = Vec::new();
    while let Ok(Some((_, answer))) = tokio::time::timeout(IN_MOTION, server.next_request()).await {
        under_way.push(answer);
    }
    assert_eq!(under_way.len(), CALLS_AT_ONCE);

    let pods: Api<Pod> = Api::namespaced(context.client_for(true).clone(), "research");
    tokio::spawn(async move { pods.get_opt("suspended-1-0").await });
    let next = tokio::time::timeout(IN_MOTION, server.next_request()).await;
    let (request, _unanswered) = next.expect("it is let through").expect("a call");
    assert!(
        request.uri().path().ends_with("/suspended-1-0"),
        "{}",
        request.uri()
    );

    let answer = under_way.pop().expect("a call");
    answer.send_error("the connection is gone");
    let next = tokio::time::timeout(IN_MOTION, server.next_request()).await;
    assert!(next.expect("it is let through").is_some());
}

#[tokio::test]
async fn a_failure_is_recorded_before_its_pods_are_deleted() {
    let rounds = Rounds::with_gang(pods([("Running", None), ("Failed", Some(137))]));
    let (calls, job, _) = rounds.run(fixtures::job_in(Phase::Running, 1), 2).await;
    assert_eq!(
        sorted(calls),
        sorted([
            "PATCH status Restarting",
            "DELETE pods digits-1-0 within 30 s",
            "DELETE pods digits-1-1 within 30 s",
            "POST event AttemptFailed",
        ])
    );
    let failure = job.status.expect("a status").last_failure.expect("a failure");
    assert_eq!((failure.class.as_str(), failure.exit_code), ("Killed", Some(137)));
}

#[tokio::test]
async fn a_job_that_fits_nowhere_waits_and_tells_so_once() {
    let rounds = Rounds {
        nodes: nodes(["a"]),
        ..Rounds::fresh()
    };
    let (calls, job, result) = rounds.run(fixtures::job(), 3).await;
    assert_eq!(calls, ["PATCH status Pending", "POST event NoFittingGroup"]);
    assert_eq!(result.expect("reconciled"), Action::requeue(WAITING));
    let status = job.status.expect("a status");
    let placed = status.condition(conditions::types::PLACED).expect("a condition");
    assert_eq!(
        placed.message,
        "needs 2 x 1 identical nvidia.com/gpu: Tesla-T4 has 1 node with 1 free"
    );
}

/// Pods of nobody on a, and now and then on b.
fn use_changes(planner: &mut Planner, round: usize) {
    for (node_rank, phase) in ["Running", ["Running", "Succeeded"][round / 2 % 2]]
        .iter()
        .enumerate()
    {
        let mut pod = fixtures::pod_objects(1, phase).swap_remove(node_rank);
        pod.metadata.owner_references = None;
        planner.follow_pods(&WatchEvent::Apply(pod));
    }
}

#[tokio::test(start_paused = true)]
async fn the_counts_of_many_waiting_jobs_are_written_twice_a_second_in_all_and_not_all_at_once() {
    let happens = |planner: &SharedPlanner, round| {
        let mut planner = planner.lock();
        for other in 1..120 {
            let mut job = fixtures::job();
            job.spec.workers.nodes = 3;
            job.metadata.name = Some(format!("other-{other}"));
            job.metadata.uid = job.metadata.name.clone();
            planner.follow_jobs(&WatchEvent::Apply(job.into()));
        }
        use_changes(&mut planner, round);
    };
    let mut job = fixtures::job();
    job.spec.workers.nodes = 3;
    // The first of 120 jobs, and the last.
    for (created, seconds, writes) in [(0, 59, 1), (0, 63, 2), (1, 119, 1), (1, 123, 2)] {
        job.metadata.creation_timestamp = Some(Time(fixtures::at(created)));
        let rounds = Rounds {
            happens: Some(happens),
            ..Rounds::fresh()
        };
        let (calls, _, _) = rounds.run(job.clone(), seconds).await;
        assert_eq!(calls.len(), writes + 1, "{seconds} s: {calls:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn reasons_of_a_job_that_waits_are_written_at_once_and_their_counts_and_names_every_half_minute() {
    let happens = |planner: &SharedPlanner, round| {
        let mut planner = planner.lock();
        use_changes(&mut planner, round);
        let mut node = fixtures::node("c", "Tesla-T4", 1);
        node.spec.get_or_insert_default().unschedulable = Some(round >= 70);
        planner.follow_nodes(&WatchEvent::Apply(node));
    };
    let mut job = fixtures::job();
    job.spec.workers.nodes = 3;
    for (seconds, writes) in [(30, 1), (31, 2), (60, 2), (70, 3), (71, 4), (101, 5)] {
        let rounds = Rounds {
            happens: Some(happens),
            ..Rounds::fresh()
        };
        let (calls, job, _) = rounds.run(job.clone(), seconds).await;
        let puts = calls
            .iter()
            .filter(|call| *call == "PATCH status Pending")
            .count();
        assert_eq!(
            (puts, calls.len()),
            (writes, writes + 1),
            "{seconds} s: {calls:?}"
        );
        let status = job.status.expect("a status");
        let placed = status.condition(conditions::types::PLACED).expect("a condition");
        assert_eq!(placed.message.contains("cordoned"), seconds > 70);
    }
}

#[tokio::test]
async fn a_job_of_another_controller_is_left_alone() {
    let mut job = fixtures::job();
    job.spec.managed_by = Some("kueue.x-k8s.io/multikueue".into());
    let (calls, job, result) = Rounds::fresh().run(job, 2).await;
    assert_eq!(calls, [""; 0]);
    assert_eq!(job.status, None);
    assert_eq!(result.expect("reconciled"), Action::await_change());

    let mut job = fixtures::job();
    job.spec.managed_by = Some(crds::spec::CONTROLLER.into());
    let (_, job, _) = Rounds::fresh().run(job, 1).await;
    assert_eq!(phase(&job), Some(Phase::Starting));
}

#[tokio::test]
async fn a_gang_is_placed_without_the_node_whose_gpu_failed_which_stays_in_the_status() {
    let now = fixtures::at(100);
    let failed = FailedNodeStatus {
        node: "b".into(),
        failures: 1,
        class: "DeviceFault".into(),
        time: Time(now),
        avoided_until: Some(Time(now + SignedDuration::from_hours(1))),
    };
    let mut job = fixtures::job_in(Phase::Restarting, 1);
    job.status.as_mut().expect("a status").failed_nodes = vec![failed.clone()];
    let rounds = Rounds {
        nodes: nodes(["a", "b", "c"]),
        ..Rounds::fresh()
    };
    let (calls, job, result) = rounds.run(job, 1).await;
    result.expect("reconciled");
    assert_eq!(calls, ["PATCH status Starting", "POST event GangFits"]);
    let status = job.status.expect("a status");
    assert_eq!(status.placement.expect("a placement").nodes, ["a", "c"]);
    assert_eq!(status.failed_nodes, [failed]);
}

#[tokio::test]
async fn a_job_that_succeeds_gives_back_its_service_and_keeps_its_pods() {
    let rounds = Rounds::with_gang(pods([("Succeeded", Some(0)), ("Succeeded", Some(0))]));
    let (calls, job, _) = rounds.run(fixtures::job_in(Phase::Running, 1), 2).await;
    assert_eq!(
        calls,
        [
            "PATCH status Succeeded",
            "DELETE services digits",
            "DELETE networkpolicies digits",
            "POST event AllEpochsDone",
        ]
    );
    assert_eq!(phase(&job), Some(Phase::Succeeded));
}

#[tokio::test]
async fn a_job_whose_time_is_over_is_deleted() {
    let mut job = fixtures::job_in(Phase::Succeeded, 1);
    job.spec.ttl_seconds_after_finished = Some(0);
    let status = job.status.as_mut().expect("a status");
    status.completion_time = Some(Time(fixtures::at(0)));
    let (calls, _, _) = Rounds::fresh().run(job, 1).await;
    assert_eq!(
        calls,
        ["DELETE vittrainingjobs digits", "POST event TimeToLiveExpired"]
    );
}

#[tokio::test]
async fn an_object_of_someone_else_is_left_alone() {
    let rounds = Rounds {
        foreign: &["services"],
        ..Rounds::fresh()
    };
    let (calls, job, result) = rounds.run(fixtures::job_in(Phase::Starting, 1), 1).await;
    assert_eq!(
        calls,
        [
            "POST configmaps digits-1",
            "POST services digits",
            "GET services digits",
            "PATCH status Starting",
            "POST event ReconcileFailed",
        ]
    );
    let error = result.expect_err("refused");
    assert_eq!(error.category(), "NameTaken");
    assert_eq!(
        error.to_string(),
        "failed to create Service digits: an object with this name does not belong to this job; delete it or rename the job"
    );
    let status = job.status.expect("a status");
    for type_ in [conditions::types::RUNNING, conditions::types::RECONCILED] {
        let condition = status.condition(type_).expect("a condition");
        assert_eq!(
            (
                condition.status.as_str(),
                condition.reason.as_str(),
                &condition.message
            ),
            ("False", conditions::reasons::RECONCILE_FAILED, &error.to_string())
        );
    }
}

#[tokio::test]
async fn what_the_last_job_of_the_name_has_left_is_waited_for() {
    let rounds = Rounds {
        of_last_job: &["pods"],
        ..Rounds::fresh()
    };
    let (_, job, result) = rounds.run(fixtures::job_in(Phase::Starting, 1), 1).await;
    let error = result.expect_err("refused");
    assert_eq!(
        error.to_string(),
        "failed to create Pod digits-1-0: the object of a deleted job with the same name still exists; retrying until it is gone"
    );
    assert!(error.is_refusal());
    let (context, _server) = idle_context();
    for _ in 0..9 {
        context.memory.failed(fixtures::UID);
    }
    let next = error_policy(Arc::new(job.into()), &error, context);
    assert_eq!(next, Action::requeue(IN_MOTION), "however often");
}

#[tokio::test]
async fn a_pod_that_cannot_be_deleted_keeps_no_other_from_it() {
    let rounds = Rounds {
        undeletable: &["digits-1-0"],
        ..Rounds::with_gang(pods([("Running", None); 2]))
    };
    let (deleted, result) = deletions(rounds).await;
    assert_eq!(
        deleted,
        ["DELETE pods digits-1-0 fails", "DELETE pods digits-1-1"]
    );
    assert!(result.is_err());
}

/// The sorted deletions of a round that suspends the job, and its result.
async fn deletions(rounds: Rounds) -> (Vec<String>, Result<Action, Error>) {
    let mut job = fixtures::job_in(Phase::Suspending, 1);
    job.spec.suspend = true;
    let (calls, _, result) = rounds.run(job, 1).await;
    let calls = calls.into_iter();
    let deleted: Vec<String> = calls.filter(|call| call.starts_with("DELETE")).collect();
    (sorted(deleted), result)
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_answer_holds_no_round_for_good() {
    let (service, mut handle) = mock::pair();
    let context = context(service, &Rounds::fresh().nodes, &[], &[]);
    let stored = StoredJob::from(fixtures::job());
    apply_event(&context, &stored);
    let round = tokio::spawn(reconcile(Arc::new(stored), Arc::clone(&context)));
    let mut unanswered = Vec::new();
    while !round.is_finished() {
        let patience = tokio::time::timeout(CALL_TIMEOUT, handle.next_request()).await;
        unanswered.extend(patience.ok().flatten());
    }
    let error = round.await.expect("ended").expect_err("not answered");
    assert_eq!((error.category(), error.is_refusal()), ("Network", false));
    assert!(!unanswered.is_empty());
}

#[tokio::test]
async fn a_gang_that_starts_is_looked_at_when_its_time_is_over_however_many_others_start() {
    let (context, _server) = idle_context();
    let mut job = fixtures::job_in(Phase::Starting, 1);
    let status = job.status.as_mut().expect("a status");
    status.placement.as_mut().expect("placed").time = Some(Time(fixtures::at(100)));
    let unready = fixtures::gang(1)
        .into_iter()
        .map(|pod| crate::policy::gang::PodView { ready: false, ..pod });
    let mut observation = fixtures::observation(job, unready.collect());
    let next = |observation: &Observation| {
        let observation = Observation {
            start_pace: pace_of_starts(&context),
            ..observation.clone()
        };
        decide_and_promise(&context, &observation, &crds::validate(&observation.job)).look_again
    };
    // Jobs that train do not slow down those that start.
    for job in 0..1000 {
        let uid = format!("job-{job}");
        context.memory.wrote(&uid, Some(Phase::Running));
    }
    assert_eq!(next(&observation), IN_MOTION);
    for job in 0..1000 {
        let uid = format!("job-{job}");
        context.memory.wrote(&uid, Some(Phase::Starting));
    }
    assert_eq!(next(&observation), START_WRITTEN_EVERY);
    let timeout = SignedDuration::from_secs(observation.job.spec.scheduling.start_timeout_seconds.into());
    observation.now += timeout - SignedDuration::from_secs(7);
    assert_eq!(next(&observation), Duration::from_secs(7));
    observation.now -= SignedDuration::from_secs(100);
    observation.unready_nodes = [("a".to_owned(), observation.now)].into();
    assert_eq!(next(&observation), IN_MOTION);
}

#[test]
fn a_restart_is_counted_by_its_cause_when_the_next_gang_is_placed() {
    let failed_in = |phase, attempt| {
        let mut status = fixtures::status(phase, attempt);
        status.last_failure = Some(crds::status::FailureStatus {
            attempt: 1,
            class: "Killed".into(),
            ..crds::status::FailureStatus::default()
        });
        status
    };
    let starting = failed_in(Phase::Starting, 2);
    for phase in [Phase::Restarting, Phase::Pending] {
        assert_eq!(restarted_after(&failed_in(phase, 1), &starting), Some("Killed"));
    }
    // Not when it fails, while the gang starts, or when another size replaces the second attempt.
    let running = fixtures::status(Phase::Running, 1);
    assert_eq!(restarted_after(&running, &failed_in(Phase::Restarting, 1)), None);
    assert_eq!(restarted_after(&starting, &starting), None);
    let resized = failed_in(Phase::Restarting, 2);
    assert_eq!(restarted_after(&resized, &failed_in(Phase::Starting, 3)), None);
    // A job that never failed.
    let never = fixtures::status(Phase::Starting, 1);
    assert_eq!(
        restarted_after(&fixtures::status(Phase::Pending, 0), &never),
        None
    );
}

#[tokio::test]
async fn what_is_in_the_way_of_a_gang_is_written_once() {
    let rounds = Rounds {
        foreign: &["pods"],
        ..Rounds::fresh()
    };
    let (calls, job, result) = rounds.run(fixtures::job_in(Phase::Starting, 1), 3).await;
    assert_eq!(result.expect_err("refused").category(), "NameTaken");
    let written = calls.iter().filter(|call| call.starts_with("PATCH status"));
    assert_eq!(written.count(), 1, "{calls:?}");
    let status = job.status.expect("a status");
    let running = status.condition(conditions::types::RUNNING).expect("a condition");
    assert_contains(&running.message, "failed to create Pod digits-1-0: ");
}

/// Invariant G7.
#[tokio::test]
async fn two_jobs_applied_at_once_never_share_a_gpu() {
    let (service, handle) = mock::pair();
    let nodes = nodes(["a", "b", "c"]);
    let context = context(service, &nodes, &[], &[]);
    let jobs = ["first", "second"].map(|name| {
        let mut job = fixtures::job();
        job.metadata.name = Some(name.into());
        job.metadata.uid = Some(format!("uid-of-{name}"));
        apply_event(&context, &job.clone().into());
        context.dry_runs.keep(&job, AdmittedPod::default());
        job
    });
    let mut plans = Vec::new();
    for job in &jobs {
        let observation = observe::observe(&context, Arc::new(job.clone()));
        plans.push(decide_and_promise(&context, &observation, &crds::validate(job)));
    }
    let phases: Vec<Option<Phase>> = plans.iter().map(|step| step.status.phase).collect();
    assert_eq!(phases, [Some(Phase::Starting), Some(Phase::Pending)]);
    drop(handle);
}

fn sorted<S: Into<String> + Clone>(calls: impl AsRef<[S]>) -> Vec<String> {
    let mut calls: Vec<String> = calls.as_ref().iter().cloned().map(Into::into).collect();
    calls.sort();
    calls
}
