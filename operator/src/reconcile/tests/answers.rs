//! Rounds whose status is refused, stored late, or not answered.

use std::collections::{BTreeMap, VecDeque};
use std::iter;

use contract::{Activity, FailureClass, Heartbeat, Heartbeats, Progress};
use kube::runtime::reflector::ObjectRef;
use tokio::sync::mpsc::UnboundedReceiver;

use super::super::memory::Answer;
use super::*;

/// What becomes of a write of a status.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Answered,
    /// It is answered with this code.
    Refused(u16),
    /// It is stored, and the answer is lost.
    Lost,
    /// It never arrives.
    Vanishes,
    /// It arrives after its call has timed out.
    Late,
}

/// The API server's jobs by name, and the fates of the next writes.
struct Server {
    jobs: BTreeMap<String, ViTTrainingJob>,
    version: u64,
    fates: VecDeque<Fate>,
    /// Writes on their way: jobs and patches.
    late: Vec<(String, Value)>,
    /// The reasons of published Events.
    events: Vec<String>,
}

impl Server {
    /// Patches a status if the patch is based on the stored version. One that changes nothing leaves
    /// it.
    fn patch(&mut self, name: &str, patch: &Value) -> (u16, Value) {
        let stored = self.jobs.get_mut(name).expect("a job");
        if patch["metadata"]["resourceVersion"].as_str() != stored.metadata.resource_version.as_deref() {
            return (409, failure(409, "Conflict"));
        }
        let mut status = serde_json::to_value(&stored.status).expect("a status");
        json_patch::merge(&mut status, &patch["status"]);
        let status = serde_json::from_value(status).expect("a status");
        if stored.status != status {
            self.version += 1;
            stored.metadata.resource_version = Some(self.version.to_string());
            stored.status = status;
        }
        (200, serde_json::to_value(&*stored).expect("a job"))
    }
}

async fn serve(mut handle: ServerHandle, server: Arc<Mutex<Server>>) {
    let mut unanswered = Vec::new();
    while let Some((request, answer)) = handle.next_request().await {
        let path = request.uri().path().to_owned();
        if request.method() == Method::GET {
            let name = path.rsplit('/').next().expect("a name");
            let response = fixtures::response(200, &server.lock().expect("a server").jobs[name]);
            answer.send_response(response);
            continue;
        }
        let body = request.into_body().collect_bytes().await.expect("a body");
        let body: Value = serde_json::from_slice(&body).expect("an object");
        let Some(name) = path
            .strip_suffix("/status")
            .and_then(|path| path.rsplit('/').next())
        else {
            if path.ends_with("/events") {
                server
                    .lock()
                    .expect("a server")
                    .events
                    .push(text(&body["reason"]).into());
            }
            answer.send_response(fixtures::response(201, &body));
            continue;
        };
        let mut server = server.lock().expect("a server");
        let fate = server.fates.pop_front().unwrap_or(Fate::Answered);
        let (code, response) = match fate {
            Fate::Answered => server.patch(name, &body),
            Fate::Refused(code) => (code, failure(code, "Refused")),
            Fate::Lost | Fate::Vanishes => {
                if matches!(fate, Fate::Lost) {
                    server.patch(name, &body);
                }
                answer.send_error("the connection was closed");
                continue;
            }
            Fate::Late => {
                server.late.push((name.into(), body));
                unanswered.push(answer);
                continue;
            }
        };
        answer.send_response(fixtures::response(code, &response));
    }
}

/// Two nodes with a GPU each, jobs that need both, and their operator.
struct Cluster {
    server: Arc<Mutex<Server>>,
    context: Arc<Context>,
    triggered: UnboundedReceiver<Trigger>,
}

impl Cluster {
    /// A cluster with these jobs and pods; the operator's cache has only the first job.
    fn new(jobs: Vec<ViTTrainingJob>, pods: &[Pod], fates: impl IntoIterator<Item = Fate>) -> Self {
        let (service, handle) = mock::pair();
        let (triggers, triggered) = mpsc::unbounded_channel();
        let caches = Caches::holding(SharedPlanner::default(), &nodes(["a", "b"]), pods, &[]);
        let first = jobs[0].name_any();
        let server = Arc::new(Mutex::new(Server {
            jobs: jobs.into_iter().map(|job| (job.name_any(), job)).collect(),
            version: 100,
            fates: fates.into_iter().collect(),
            late: vec![],
            events: vec![],
        }));
        tokio::spawn(serve(handle, Arc::clone(&server)));
        let known: Vec<ViTTrainingJob> = server.lock().expect("a server").jobs.values().cloned().collect();
        let cluster = Self {
            server,
            context: context_with(service, caches, triggers, false),
            triggered,
        };
        for job in &known {
            cluster.context.dry_runs.keep(job, AdmittedPod::default());
        }
        cluster.watch(&first);
        cluster
    }

    /// Two waiting jobs; the second is ahead of the first in the queue.
    fn of_two_jobs(fates: impl IntoIterator<Item = Fate>) -> Self {
        let jobs = [("first", 1), ("second", 0)].map(|(name, created)| {
            let mut job = fixtures::job_in(Phase::Pending, 0);
            job.metadata.name = Some(name.into());
            job.metadata.uid = Some(format!("uid-of-{name}"));
            job.metadata.creation_timestamp = Some(Time(fixtures::at(created)));
            job
        });
        Self::new(jobs.into(), &[], fates)
    }

    /// The watch delivers the stored job.
    fn watch(&self, name: &str) {
        apply_event(&self.context, &self.stored(name).into());
    }

    fn stored(&self, name: &str) -> ViTTrainingJob {
        self.server.lock().expect("a server").jobs[name].clone()
    }

    /// A round of the cached job; the category of its error.
    async fn round(&mut self, name: &str) -> Result<(), &'static str> {
        let cached = self
            .context
            .jobs
            .store()
            .get(&ObjectRef::new(name).within("research"));
        let cached = cached.expect("a job");
        let result = Box::pin(reconcile(Arc::clone(&cached), Arc::clone(&self.context))).await;
        result.map(drop).map_err(|error| {
            error_policy(cached, &error, Arc::clone(&self.context));
            error.category()
        })
    }

    /// Runs a round of the first job; returns whether the GPUs are in use after it, and whether it
    /// triggered waiting jobs.
    async fn promised_after_round(&mut self) -> (bool, bool) {
        // Some rounds fail.
        let _ = self.round("first").await;
        let used =
            |node: &str| self.context.planner.lock().inventory().nodes[node].resources["nvidia.com/gpu"].used;
        assert_eq!(used("a"), used("b"));
        (used("a") == 1, self.triggered.try_recv() == Ok(Trigger::Capacity))
    }

    /// A poll of the agents of [`fixtures::job`] is answered.
    fn answered(&self, answer: Answer) {
        let memory = &self.context.memory;
        assert!(memory.begin_poll(fixtures::UID, 1, Duration::ZERO));
        memory.end_poll(fixtures::UID, Some(answer), &[], fixtures::at(100));
    }

    /// The jobs whose status says that they have GPUs.
    fn starting(&self) -> Vec<String> {
        let server = self.server.lock().expect("a server");
        let jobs = server.jobs.iter();
        let starting = jobs.filter(|(_, job)| phase(job) == Some(Phase::Starting));
        starting.map(|(name, _)| name.clone()).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn a_transition_that_was_stored_without_an_answer_is_published_once() {
    for fate in [Fate::Lost, Fate::Vanishes] {
        let mut cluster = Cluster::of_two_jobs([fate]);
        assert_eq!(cluster.round("first").await, Err("Network"));
        for _ in 0..3 {
            cluster.watch("first");
            assert_eq!(cluster.round("first").await, Ok(()));
            tokio::time::sleep(Duration::from_secs(60)).await;
        }
        let server = cluster.server.lock().expect("a server");
        let placed = server
            .events
            .iter()
            .filter(|reason| *reason == "GangFits")
            .count();
        assert_eq!(placed, 1, "{fate:?}: {:?}", server.events);
    }
}

/// Invariant G7.
#[tokio::test(start_paused = true)]
async fn gpus_whose_record_may_still_be_stored_go_to_no_other_job() {
    let mut cluster = Cluster::of_two_jobs([Fate::Late]);
    assert_eq!(cluster.round("first").await, Err("Network"));
    cluster.watch("second");
    assert_eq!(cluster.round("second").await, Ok(()));
    assert_eq!(cluster.starting(), [""; 0]);
    assert_eq!(cluster.round("first").await, Ok(()));
    let status = cluster.stored("first").status.expect("a status");
    let reconciled = status
        .condition(conditions::types::RECONCILED)
        .expect("a condition");
    let told = &reconciled.message;
    assert_contains(told, "failed to write the status of ViTTrainingJob first: ");
    assert_contains(told, "; it may still be stored, over version 100 of the job");
    assert_eq!(cluster.round("second").await, Ok(()));
    let code = {
        let mut server = cluster.server.lock().expect("a server");
        let (name, patch) = server.late.pop().expect("a write");
        server.patch(&name, &patch).0
    };
    assert_eq!((code, cluster.starting()), (409, vec!["second".into()]));
}

#[tokio::test(start_paused = true)]
async fn gpus_whose_record_was_stored_without_an_answer_stay_with_the_job() {
    let mut cluster = Cluster::of_two_jobs([Fate::Lost]);
    assert_eq!(cluster.promised_after_round().await, (true, false));
    assert_eq!(cluster.round("first").await, Err("Conflict"));
    cluster.watch("first");
    assert!(cluster.triggered.try_recv().is_err(), "nothing came free");
    cluster.watch("second");
    assert_eq!(cluster.round("second").await, Ok(()));
    assert_eq!(cluster.starting(), ["first"]);
}

#[tokio::test]
async fn a_promise_whose_record_is_refused_is_taken_back_and_others_are_told_the_first_time() {
    let mut cluster = Cluster::of_two_jobs([Fate::Refused(403), Fate::Refused(422)]);
    assert_eq!(cluster.promised_after_round().await, (false, true));
    assert_eq!(cluster.promised_after_round().await, (false, false));
}

#[tokio::test]
async fn a_promise_that_may_have_been_recorded_is_kept_until_the_server_takes_another_status() {
    let [kept, taken_back] = [(true, false), (false, true)];
    let [changed, denied] = [Fate::Refused(409), Fate::Refused(403)];
    // The call is repeated after a 504.
    let hidden = [Fate::Refused(504), changed];
    for first in [&[Fate::Vanishes][..], &[Fate::Refused(500)], &hidden, &[changed]] {
        // Later rounds write a status without the promise; after that the job is placed again.
        let expected = [
            (changed, kept),
            (Fate::Vanishes, kept),
            (denied, kept),
            (Fate::Answered, taken_back),
            (denied, taken_back),
            (Fate::Answered, kept),
        ];
        let later = expected.map(|(fate, _)| fate);
        let mut cluster = Cluster::of_two_jobs(first.iter().copied().chain(later));
        let rounds = iter::once(kept).chain(expected.map(|(_, promised)| promised));
        for (index, expected) in rounds.enumerate() {
            assert_eq!(
                cluster.promised_after_round().await,
                expected,
                "{first:?}, round {index}"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_stall_is_not_forgotten_if_its_record_conflicts_or_fails() {
    let beat = |rank| Heartbeat {
        rank,
        activity: Activity::Training,
        step: Some(7),
        moves: 7,
        idle_seconds: 90.0,
        ..Heartbeat::default()
    };
    let stands = Progress {
        attempt: 1,
        step: 7,
        heartbeat: Some(beat(0)),
        ..Progress::default()
    };
    let heartbeats = |rank| Heartbeats {
        attempt: 1,
        ranks: vec![beat(rank)],
    };
    let mut gang = fixtures::pod_objects(1, "Running");
    gang[0].status.as_mut().expect("a status").pod_ip = Some("127.0.0.1".into());
    let mut job = fixtures::job_in(Phase::Running, 1);
    job.spec.failure_policy.stall_timeout_seconds = Some(60);
    let fates = [409, 500].map(Fate::Refused);
    let mut cluster = Cluster::new(vec![job], &gang, fates);
    for _ in 0..2 {
        cluster.answered(Answer::Progress(stands.clone().into()));
        tokio::time::advance(Duration::from_secs(61)).await;
    }
    cluster.answered(Answer::Heartbeats(vec![(0, heartbeats(0)), (1, heartbeats(1))]));
    assert_eq!(cluster.round("digits").await, Err("Conflict"));
    assert_eq!(cluster.round("digits").await, Err("ApiServer"));
    assert_eq!(cluster.round("digits").await, Ok(()));
    let failure = cluster
        .stored("digits")
        .status
        .and_then(|status| status.last_failure);
    assert_eq!(failure.expect("a failure").class, FailureClass::Stalled.as_str());
}
