//! Wires the operator: caches and endpoints always, controllers while this replica leads.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crds::{Phase, Stored, StoredJob, ViTScalingStudy, labels};
use futures::future::{self, BoxFuture};
use futures::{FutureExt as _, Stream, StreamExt as _, TryStreamExt as _, stream};
use jiff::Timestamp;
use kube::client::ClientBuilder;
use kube::runtime::controller::{self, Controller};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, Config, ResourceExt as _};
use planner::SharedPlanner;
use tokio::net::TcpListener;
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::{debug, info, warn};

use crate::api_calls::CountCalls;
use crate::arguments::RunArguments;
use crate::clock::Clock;
use crate::http::{self, Endpoints};
use crate::lease::{self, Candidate};
use crate::metrics::Metrics;
use crate::reconcile::{CALL_TIMEOUT, Context, Memory, Settings, error_policy, reconcile};
use crate::studies::{self, Studies};
use crate::watch::cache::Cache;
use crate::watch::caches::Caches;
use crate::watch::pod_groups::PodGroups;
use crate::watch::stores;
use crate::watch::trigger::{Trigger, own_api};

/// Least time between looks at waiting jobs for new capacity: a starting node changes often.
const WAITING_ROUNDS: Duration = Duration::from_millis(200);
/// How long exit records are kept for a new leader: much longer than a lease lasts.
const UNRECORDED: Duration = Duration::from_secs(600);
/// Concurrent reconciles of jobs. Each needs little memory and at times an API connection.
const ROUNDS_AT_ONCE: u16 = 64;
/// Least time between reconciles of studies for changes.
const STUDY_ROUNDS: Duration = Duration::from_millis(500);
/// Time after which a silent connection for watches is closed. Watches are silent for less.
const SILENCE: Duration = Duration::from_secs(90);
/// Concurrent reconciles of studies.
const STUDIES_AT_ONCE: u16 = 8;

/// Why the operator exits. It has to be restarted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunError {
    #[error("failed to find a cluster: run in one, or set KUBECONFIG")]
    NoCluster(#[source] kube::Error),
    #[error("failed to listen for SIGTERM")]
    Signal(#[source] std::io::Error),
    #[error("failed to register metrics")]
    Metrics(#[from] prometheus::Error),
    #[error("failed to listen on {address}; choose another with --metrics-address")]
    Listen {
        address: SocketAddr,
        source: std::io::Error,
    },
    #[error("the HTTP server stopped: {0}")]
    Endpoints(String),
    /// A watch ended, so decisions would rest on outdated state.
    #[error("a watch ended: {0}")]
    Watch(String),
    #[error("a reconciler panicked")]
    Work(#[source] tokio::task::JoinError),
    #[error("the lease was lost; another replica may lead now")]
    LeaseLost,
}

/// Runs until SIGTERM or SIGINT.
pub(crate) async fn run(arguments: RunArguments) -> Result<(), RunError> {
    let config = Config::infer()
        .await
        .map_err(|error| RunError::NoCluster(kube::Error::InferConfig(error)))?;
    let metrics = Arc::new(Metrics::new()?);
    let clients = Clients::new(&config, &metrics).map_err(RunError::NoCluster)?;
    let stop = CancellationToken::new();
    tokio::spawn(stop_on_signal(stop.clone()).map_err(RunError::Signal)?);
    // Boxed, because it is large.
    Box::pin(run_on(clients, metrics, arguments, stop)).await
}

/// Clients with a pool of connections each. After a failover of the API server all connections of a
/// pool may be dead, and each costs a call its time limit unless it was idle for as long before.
struct Clients {
    watches: Client,
    calls: Client,
    /// Several dead connections would cost the lease.
    lease: Client,
}

impl Clients {
    fn new(config: &Config, metrics: &Arc<Metrics>) -> Result<Self, kube::Error> {
        let client = |silence| client(config.clone(), silence, metrics);
        Ok(Self {
            watches: client(SILENCE)?,
            calls: client(CALL_TIMEOUT)?,
            lease: client(lease::CALL)?,
        })
    }
}

/// A client that counts calls, and closes a connection after this time without a byte: before an answer,
/// within one, and between calls.
fn client(mut config: Config, silence: Duration, metrics: &Arc<Metrics>) -> Result<Client, kube::Error> {
    config.read_timeout = Some(silence);
    // Otherwise the time before a request counts.
    config.reset_reader_on_write = true;
    // It would try for minutes, and hide that the server is busy. Rounds have their own.
    config.default_retry = false;
    let builder = ClientBuilder::try_from(config)?;
    Ok(builder.with_layer(&CountCalls(Arc::clone(metrics))).build())
}

async fn listen(address: SocketAddr) -> Result<TcpListener, RunError> {
    let listener = agent::http::listen(address).await;
    listener.map_err(|source| RunError::Listen { address, source })
}

async fn run_on(
    clients: Clients,
    metrics: Arc<Metrics>,
    arguments: RunArguments,
    stop: CancellationToken,
) -> Result<(), RunError> {
    let RunArguments {
        namespace,
        leader_election_namespace,
        lease_name,
        replica,
        network_policies,
        pod_groups,
        kueue,
        agent_image,
        metrics_address,
        log_filter: _,
    } = arguments;
    let clock = Clock::system();
    let identity = identity(replica, clock.now());
    let (triggers, mut triggered) = mpsc::unbounded_channel();
    let planner = SharedPlanner::default();
    let (caches, watches) = Caches::start(
        &clients.watches,
        namespace.as_deref(),
        kueue,
        planner.clone(),
        triggers.clone(),
    );
    let jobs: Api<StoredJob> = own_api(&clients.watches, namespace.as_deref());
    let capacity = triggers.clone();
    // The planner sees a change before any round does.
    let known: Cache<StoredJob> = Cache::new(move |event| {
        if planner.lock().follow_jobs(event) {
            // The receiver lives as long as the process.
            let _ = capacity.send(Trigger::Capacity);
        }
    });
    let followed = known.clone();
    let study_changes = Arc::new(Notify::new());
    let jobs_of_studies = Arc::clone(&study_changes);
    let job_events = watcher(jobs, stores::watching())
        .default_backoff()
        .map_ok(move |event| stream::iter(followed.watched(event)).map(Ok))
        .try_flatten()
        .inspect_ok(move |event| {
            if is_of_study(event) {
                jobs_of_studies.notify_one();
            }
        })
        .applied_objects()
        // After an error the controller would also hold back the triggers of all other watches.
        .filter_map(|event| {
            let event = event.inspect_err(|error| warn!(%error, "a watch was interrupted and starts again"));
            future::ready(event.ok().map(Ok))
        });
    let controller = Controller::for_stream(job_events, known.store().clone());
    let context = Arc::new(Context::new(
        clients.calls.clone(),
        known.clone(),
        caches.clone(),
        triggers,
        Arc::clone(&metrics),
        Settings {
            network_policies,
            pod_groups: PodGroups::new(pod_groups),
            agent_image,
            clock: clock.clone(),
        },
        identity.clone(),
    ));
    let is_ready = Arc::new(AtomicBool::new(false));
    let listener = listen(metrics_address).await?;
    let endpoints = Endpoints {
        metrics: Arc::clone(&metrics),
        jobs: known.store().clone(),
        planner: caches.planner().clone(),
        is_ready: Arc::clone(&is_ready),
        clock: clock.clone(),
    };
    let (studies, study_watch) =
        watch_studies(&clients.watches, namespace.as_deref(), Arc::clone(&study_changes));
    let studies = Arc::new(Studies {
        context: Arc::clone(&context),
        known: studies,
        memory: Memory::default(),
    });
    // Metrics and probes are served until the very end.
    let serving = CancellationToken::new();
    let mut server = tokio::spawn(http::serve(
        listener,
        endpoints,
        serving.clone().cancelled_owned(),
    ));
    let watches = [watches, study_watch, known.confirm(clients.calls).boxed()];
    let mut watches = tokio::spawn(future::select_all(watches).map(drop));
    info!(identity, namespace, %metrics_address, "the operator has started");

    let lead = async {
        tokio::select! {
            synced = caches.synced() => synced.map_err(|error| RunError::Watch(error.to_string()))?,
            () = stop.cancelled() => return Ok(()),
        }
        is_ready.store(true, Ordering::Relaxed);
        let lease_namespace =
            leader_election_namespace.unwrap_or_else(|| clients.lease.default_namespace().to_owned());
        let mut candidate = Candidate::new(clients.lease, &lease_namespace, lease_name, identity, clock);
        let leads = tokio::select! {
            leads = candidate.acquire(&stop) => leads,
            never = stand_by(&mut triggered, &caches) => match never {},
        };
        if !leads {
            return Ok(());
        }
        info!("this replica leads");
        metrics.leads();
        work_while(
            candidate.hold(),
            future::join(
                // Boxed, because it is large.
                Box::pin(control(controller, context, triggered, stop.clone())),
                control_studies(studies, study_changes, stop.clone()),
            )
            .map(drop),
        )
        .await?;
        info!("all reconciles have finished");
        if let Err(error) = candidate.release().await {
            warn!(%error, "failed to release the lease; other replicas wait until it expires");
        }
        Ok(())
    };
    let result = tokio::select! {
        result = lead => result,
        // Without a watch the operator would decide on outdated state.
        result = &mut watches => Err(RunError::Watch(format!("{result:?}"))),
        result = &mut server => Err(RunError::Endpoints(format!("{result:?}"))),
    };
    serving.cancel();
    watches.abort();
    result
}

/// Runs `work` while the lease is held. It has its own task, so that the lease is renewed even
/// while `work` waits for the planner.
async fn work_while(
    hold: impl Future<Output = ()>,
    work: impl Future<Output = ()> + Send + 'static,
) -> Result<(), RunError> {
    tokio::select! {
        ended = AbortOnDropHandle::new(tokio::spawn(work)) => ended.map_err(RunError::Work),
        () = hold => Err(RunError::LeaseLost),
    }
}

/// Discards triggers, because a new leader reconciles every job anyway. Keeps deleted pods only
/// while the old leader may not have recorded how they ended.
async fn stand_by(triggered: &mut mpsc::UnboundedReceiver<Trigger>, caches: &Caches) -> Infallible {
    let mut passing = tokio::time::interval(UNRECORDED);
    loop {
        tokio::select! {
            Some(_) = triggered.recv() => {}
            _ = passing.tick() => caches.forget_departed(UNRECORDED),
        }
    }
}

/// Reconciles until `stop` is cancelled, then finishes the rounds in progress.
async fn control(
    controller: Controller<StoredJob>,
    context: Arc<Context>,
    triggered: mpsc::UnboundedReceiver<Trigger>,
    stop: CancellationToken,
) {
    tokio::select! {
        () = context.settings.pod_groups.discover(&context.client) => {}
        () = stop.cancelled() => return,
    }
    controller
        .with_config(controller::Config::default().concurrency(ROUNDS_AT_ONCE))
        .reconcile_on(rounds(triggered, Arc::clone(&context)))
        .graceful_shutdown_on(stop.cancelled_owned())
        .run(reconcile, error_policy, Arc::clone(&context))
        .for_each(|result| {
            // Other errors are already logged.
            if let Err(controller::Error::ObjectNotFound(job)) = result {
                debug!(%job, "the job is gone");
                context.forget_gone();
            }
            std::future::ready(())
        })
        .await;
}

/// The cache of studies, and the task that updates it, which never ends.
fn watch_studies(
    client: &Client,
    namespace: Option<&str>,
    changes: Arc<Notify>,
) -> (Cache<Stored<ViTScalingStudy>>, BoxFuture<'static, ()>) {
    let api: Api<Stored<ViTScalingStudy>> = own_api(client, namespace);
    stores::store(api, stores::watching(), move |_| changes.notify_one())
}

/// Whether an event is about a job that a study may have created.
fn is_of_study(event: &watcher::Event<StoredJob>) -> bool {
    match event {
        watcher::Event::Apply(job) | watcher::Event::InitApply(job) | watcher::Event::Delete(job) => {
            job.labels().contains_key(labels::STUDY_NAME)
        }
        watcher::Event::Init | watcher::Event::InitDone => true,
    }
}

/// Reconciles studies until `stop` is cancelled. They are few, so a change of any study, or of any
/// study's job, triggers all. Changes within [`STUDY_ROUNDS`] are batched.
async fn control_studies(context: Arc<Studies>, changes: Arc<Notify>, stop: CancellationToken) {
    // Without its jobs a study would create them again or finish too early.
    tokio::select! {
        ready = context.context.jobs.store().wait_until_ready() => if ready.is_err() { return },
        () = stop.cancelled() => return,
    }
    let store = context.known.store().clone();
    let looked_at = stream::unfold((store.clone(), changes), |(store, changes)| async move {
        changes.notified().await;
        tokio::time::sleep(STUDY_ROUNDS).await;
        let all: Vec<ObjectRef<Stored<ViTScalingStudy>>> = store
            .state()
            .iter()
            .map(|study| ObjectRef::from_obj(&**study))
            .collect();
        Some((stream::iter(all), (store, changes)))
    });
    Controller::for_stream(stream::pending(), store)
        .with_config(controller::Config::default().concurrency(STUDIES_AT_ONCE))
        .reconcile_on(looked_at.flatten())
        .graceful_shutdown_on(stop.cancelled_owned())
        .run(studies::reconcile, studies::error_policy, context)
        .for_each(|_| std::future::ready(()))
        .await;
}

/// Maps triggers to jobs to reconcile. Changes for waiting jobs within [`WAITING_ROUNDS`] are batched, and
/// so are those of jobs that do not exist: the round of one of them forgets all that are gone.
fn rounds(
    triggered: mpsc::UnboundedReceiver<Trigger>,
    context: Arc<Context>,
) -> impl Stream<Item = ObjectRef<StoredJob>> + Send + 'static {
    let state = (triggered, context, Batch::default());
    stream::unfold(state, |(mut triggered, context, mut batch)| async move {
        let at = batch.due;
        let pause = async move {
            match at {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        let looked_at = tokio::select! {
            () = pause => {
                let batch = std::mem::take(&mut batch);
                let waiting = match batch.waiting {
                    None => vec![],
                    Some(Waiters::WithNews) => news(&context),
                    Some(Waiters::All) => waiting(context.jobs.store()),
                };
                waiting.into_iter().chain(batch.gone).collect()
            }
            trigger = triggered.recv() => match trigger? {
                Trigger::Job { namespace, name } => {
                    let job = ObjectRef::new(&name).within(&namespace);
                    if context.jobs.store().get(&job).is_some() {
                        vec![job]
                    } else {
                        batch.gone = Some(job);
                        batch.is_due_soon()
                    }
                }
                Trigger::Capacity => batch.look_at(Waiters::WithNews),
                Trigger::Waiting => batch.look_at(Waiters::All),
            },
        };
        Some((stream::iter(looked_at), (triggered, context, batch)))
    })
    .flatten()
}

/// Changes that [`rounds`] gathers.
#[derive(Default)]
struct Batch {
    due: Option<tokio::time::Instant>,
    waiting: Option<Waiters>,
    /// A job that does not exist.
    gone: Option<ObjectRef<StoredJob>>,
}

/// Waiting jobs to look at.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Waiters {
    /// Those whose decision of the planner changed.
    WithNews,
    All,
}

impl Batch {
    fn look_at(&mut self, waiters: Waiters) -> Vec<ObjectRef<StoredJob>> {
        self.waiting = self.waiting.max(Some(waiters));
        self.is_due_soon()
    }

    /// Nothing to reconcile now.
    fn is_due_soon(&mut self) -> Vec<ObjectRef<StoredJob>> {
        self.due
            .get_or_insert_with(|| tokio::time::Instant::now() + WAITING_ROUNDS);
        vec![]
    }
}

/// The waiting jobs whose decision of the planner changed.
fn news(context: &Context) -> Vec<ObjectRef<StoredJob>> {
    let changed = context.caches.planner().news(context.settings.clock.now());
    let names = changed.iter().filter_map(|job| job.split_once('/'));
    names
        .map(|(namespace, name)| ObjectRef::new(name).within(namespace))
        .collect()
}

fn waiting(jobs: &Store<StoredJob>) -> Vec<ObjectRef<StoredJob>> {
    jobs.state_filter(|job| {
        job.readable().is_some_and(|job| {
            let phase = job.status.as_ref().and_then(|status| status.phase);
            phase == Some(Phase::Pending)
        })
    })
    .iter()
    .map(|job| ObjectRef::from_obj(&**job))
    .collect()
}

/// The unique name of this replica: a restarted container is another candidate.
fn identity(replica: Option<String>, now: Timestamp) -> String {
    let replica = replica
        .or_else(|| std::env::var("HOSTNAME").ok())
        .unwrap_or_else(|| "vit-operator".into());
    format!("{replica}_{:x}-{}", now.as_nanosecond(), std::process::id())
}

fn stop_on_signal(stop: CancellationToken) -> std::io::Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        }
        info!("stopping: finishing reconciles in progress");
        stop.cancel();
    }
    .boxed())
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use ::http::{Method, Request, Response};
    use jiff::SignedDuration;
    use kube::client::Body;
    use serde_json::Value;

    use super::*;
    use crate::fixtures;

    mod capacity;
    mod faults;

    fn all(client: &Client) -> Clients {
        Clients {
            watches: client.clone(),
            calls: client.clone(),
            lease: client.clone(),
        }
    }

    fn arguments() -> RunArguments {
        RunArguments {
            namespace: None,
            leader_election_namespace: None,
            lease_name: "vit-operator".into(),
            replica: None,
            network_policies: true,
            pod_groups: true,
            kueue: true,
            agent_image: None,
            metrics_address: ([127, 0, 0, 1], 0).into(),
            log_filter: "info".into(),
        }
    }

    #[tokio::test]
    async fn an_operator_whose_api_server_never_answers_can_be_stopped() {
        let (service, silent) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
        let stop = CancellationToken::new();
        stop.cancel();
        let client = Client::new(service, "default");
        let metrics = Arc::new(Metrics::new().expect("registers"));
        let running = Box::pin(run_on(all(&client), metrics, arguments(), stop));
        tokio::time::timeout(Duration::from_secs(10), running)
            .await
            .expect("it ends")
            .expect("it ends well");
        drop(silent);
    }

    #[tokio::test(start_paused = true)]
    async fn changes_for_all_waiting_jobs_are_gathered_and_told_to_them_only() {
        let jobs = Cache::new(|_| ());
        for (name, phase) in [("waiting", Phase::Pending), ("running", Phase::Running)] {
            let mut job = fixtures::job_in(phase, 1);
            job.metadata.name = Some(name.into());
            jobs.watched(watcher::Event::Apply(job.into()));
        }
        let (triggers, triggered) = mpsc::unbounded_channel();
        for _ in 0..100 {
            triggers.send(Trigger::Waiting).expect("sent");
        }
        let pods = Trigger::Job {
            namespace: "research".into(),
            name: "running".into(),
        };
        triggers.send(pods).expect("sent");
        let (service, _server) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
        let context = fixtures::context(Client::new(service, "default"), jobs, &[], &[], triggers);
        let mut rounds = Box::pin(rounds(triggered, context));
        let mut names = Vec::new();
        while let Ok(Some(job)) = tokio::time::timeout(2 * WAITING_ROUNDS, rounds.next()).await {
            names.push(job.name);
        }
        assert_eq!(names, ["running", "waiting"]);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn the_lease_is_renewed_while_work_holds_its_thread() {
        let (renewed, is_renewed) = std::sync::mpsc::channel();
        let hold = async move {
            tokio::task::yield_now().await;
            renewed.send(()).expect("heard");
            std::future::pending::<()>().await;
        };
        let work = async move {
            is_renewed.recv_timeout(Duration::from_secs(10)).expect("renewed");
        };
        work_while(hold, work).await.expect("the work ends well");
    }

    /// Gangs created while another is to be deleted: more than concurrent rounds.
    const GANGS: usize = 70;
    const PODS: usize = 100;

    /// A job whose large gang is placed and has no pods yet.
    fn large_gang(index: usize) -> StoredJob {
        let mut job = fixtures::job_in(Phase::Starting, 1);
        job.metadata.name = Some(format!("large-{index}"));
        job.metadata.uid = Some(format!("uid-of-large-{index}"));
        job.spec.workers.nodes = i32::try_from(PODS).expect("few");
        let placement = job.status.as_mut().and_then(|status| status.placement.as_mut());
        placement.expect("a place").nodes = (0..PODS).map(|node| format!("node-{node}")).collect();
        job.into()
    }

    #[tokio::test(start_paused = true)]
    async fn a_gang_is_deleted_while_many_large_ones_are_created() {
        let (service, mut server) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
        let (triggers, triggered) = mpsc::unbounded_channel();
        let known = Cache::new(|_| ());
        known.watched(watcher::Event::Init);
        known.watched(watcher::Event::InitDone);
        let (store, watched) = (known.store().clone(), known.clone());
        let nodes: Vec<_> = (0..PODS)
            .map(|node| fixtures::node(&format!("node-{node}"), "Tesla-T4", 1))
            .collect();
        let (jobs, changes) = futures::channel::mpsc::unbounded();
        let changes = changes.inspect_ok(move |job: &StoredJob| {
            watched.watched(watcher::Event::Apply(job.clone()));
        });
        let client = Client::new(service, "default");
        let pods = fixtures::pod_objects(1, "Running");
        let context = fixtures::context(client, known, &nodes, &pods, triggers);
        let stop = CancellationToken::new();
        let controller = Controller::for_stream(changes, store);
        let working = tokio::spawn(control(controller, context, triggered, stop.clone()));
        for index in 0..GANGS {
            jobs.unbounded_send(Ok(large_gang(index))).expect("watched");
        }
        let mut created: HashMap<String, usize> = HashMap::new();
        let mut is_suspended = false;
        let mut version = 1000;
        let mut whole_before_deletion = None;
        while created.values().sum::<usize>() < GANGS * PODS {
            let (request, answer) = server.next_request().await.expect("a call");
            let path = request.uri().path().to_owned();
            if request.method() == Method::DELETE && path.ends_with("/pods/digits-1-0") {
                let whole = created.values().filter(|pods| **pods == PODS).count();
                whole_before_deletion.get_or_insert(whole);
            }
            let body = request.into_body().collect_bytes().await.expect("a body");
            let mut answered = body.to_vec();
            if path.ends_with("/pods") {
                version += 1;
                let mut pod: Value = serde_json::from_slice(&body).expect("a pod");
                pod["metadata"]["uid"] = format!("uid-{version}").into();
                pod["metadata"]["resourceVersion"] = version.to_string().into();
                answered = serde_json::to_vec(&pod).expect("a pod");
                let owner = pod["metadata"]["ownerReferences"][0]["name"].as_str();
                *created.entry(owner.expect("an owner").into()).or_default() += 1;
            }
            // By now all rounds are in use.
            if !is_suspended && created.values().sum::<usize>() > PODS {
                let mut job = fixtures::job_in(Phase::Suspending, 1);
                job.spec.suspend = true;
                jobs.unbounded_send(Ok(job.into())).expect("watched");
                is_suspended = true;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
            answer.send_response(Response::new(Body::from(answered)));
        }
        assert_eq!(whole_before_deletion, Some(0));
        assert!(created.values().all(|pods| *pods == PODS), "{created:?}");
        stop.cancel();
        drop(server);
        working.await.expect("ended");
    }

    #[test]
    fn a_replica_that_starts_again_is_another_candidate() {
        let mut now = fixtures::at(1);
        let mut name = || {
            now += SignedDuration::from_nanos(1);
            identity(Some("vit-operator-0".into()), now)
        };
        assert!(name().starts_with("vit-operator-0_"));
        assert_ne!(name(), name());
    }
}
