//! Leader election by a Lease, by client-go's rules.
//!
//! A Lease is free once its holder has not renewed it for its duration, by the observer's clock.
//! The holder gives up earlier, after failing to renew. [`next`] is the rule; the rest is I/O.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::clock::Clock;

/// A Lease not renewed for this long is free.
pub(crate) const DURATION: Duration = Duration::from_secs(15);
const RETRY: Duration = Duration::from_secs(2);
/// A holder that fails to renew for this long, after [`RETRY`], gives up: 10 s in total.
const RENEW_DEADLINE: Duration = Duration::from_secs(8);
/// Timeout of one try: several fit into [`RENEW_DEADLINE`].
pub(crate) const CALL: Duration = Duration::from_secs(3);

/// The Lease as `identity` takes or renews it; `None` while another replica holds it.
/// `unchanged_for` is how long this observer has seen the Lease unchanged.
fn next(
    last: Option<&LeaseSpec>,
    identity: &str,
    unchanged_for: Duration,
    now: Timestamp,
) -> Option<LeaseSpec> {
    let holder = last.and_then(|lease| lease.holder_identity.as_deref());
    let is_held = holder == Some(identity);
    let is_free = holder.is_none_or(str::is_empty) || {
        let seconds = last.and_then(|lease| lease.lease_duration_seconds);
        let seconds = seconds.and_then(|seconds| u64::try_from(seconds).ok());
        unchanged_for >= seconds.map_or(DURATION, Duration::from_secs)
    };
    if !is_held && !is_free {
        return None;
    }
    let acquired = last.and_then(|lease| lease.acquire_time.clone());
    let transitions = last.and_then(|lease| lease.lease_transitions).unwrap_or(0);
    Some(LeaseSpec {
        holder_identity: Some(identity.into()),
        lease_duration_seconds: i32::try_from(DURATION.as_secs()).ok(),
        acquire_time: if is_held { acquired } else { Some(MicroTime(now)) },
        renew_time: Some(MicroTime(now)),
        lease_transitions: Some(transitions + i32::from(!is_held && last.is_some())),
        ..LeaseSpec::default()
    })
}

#[derive(Debug)]
pub(crate) struct Candidate {
    api: Api<Lease>,
    name: String,
    identity: String,
    clock: Clock,
    /// The Lease as last seen, and since when it is unchanged.
    seen: Option<(Option<Lease>, Instant)>,
}

impl Candidate {
    pub(crate) fn new(client: Client, namespace: &str, name: String, identity: String, clock: Clock) -> Self {
        Self {
            api: Api::namespaced(client, namespace),
            name,
            identity,
            clock,
            seen: None,
        }
    }

    /// Waits until the Lease is held or `stop` is cancelled; returns whether it is held. A started
    /// try is finished, because its outcome would be unknown otherwise.
    pub(crate) async fn acquire(&mut self, stop: &CancellationToken) -> bool {
        while !stop.is_cancelled() {
            match self.try_once().await {
                Ok(true) => return true,
                Ok(false) => debug!("another replica leads"),
                Err(error) => warn!(%error, "failed to acquire the lease"),
            }
            tokio::select! {
                () = tokio::time::sleep(RETRY) => {}
                () = stop.cancelled() => {}
            }
        }
        false
    }

    /// Renews the Lease for as long as that works; ends once it is lost, or could not be renewed in time.
    pub(crate) async fn hold(&mut self) {
        loop {
            tokio::time::sleep(RETRY).await;
            match tokio::time::timeout(RENEW_DEADLINE, self.renew()).await {
                Ok(true) => {}
                Ok(false) | Err(_) => return,
            }
        }
    }

    /// Tries until the server answers; returns whether the Lease is still held.
    async fn renew(&mut self) -> bool {
        loop {
            let again = Instant::now() + RETRY;
            match self.try_once().await {
                Ok(is_held) => return is_held,
                Err(error) => warn!(%error, "failed to renew the lease"),
            }
            tokio::time::sleep_until(again).await;
        }
    }

    /// Releases the Lease, so that another replica need not wait until it expires.
    pub(crate) async fn release(&mut self) -> Result<(), kube::Error> {
        let Some((Some(lease), _)) = self.seen.take() else {
            return Ok(());
        };
        match in_time(self.release_over(lease)).await {
            // The answer to a renewal was no longer awaited.
            Err(kube::Error::Api(status)) if status.code == 409 => {
                let Some(lease) = in_time(self.api.get_opt(&self.name)).await? else {
                    return Ok(());
                };
                in_time(self.release_over(lease)).await
            }
            released => released,
        }
    }

    /// Releases the Lease if this is its stored version and still held.
    async fn release_over(&self, lease: Lease) -> Result<(), kube::Error> {
        let spec = lease.spec.clone().unwrap_or_default();
        if spec.holder_identity.as_deref() != Some(&self.identity) {
            return Ok(());
        }
        let released = Lease {
            spec: Some(LeaseSpec {
                holder_identity: Some(String::new()),
                renew_time: Some(MicroTime(self.clock.now())),
                ..spec
            }),
            ..lease
        };
        self.api
            .replace(&self.name, &PostParams::default(), &released)
            .await
            .map(drop)
    }

    /// One try; returns whether the Lease is held now.
    async fn try_once(&mut self) -> Result<bool, kube::Error> {
        in_time(self.read_and_write()).await
    }

    async fn read_and_write(&mut self) -> Result<bool, kube::Error> {
        let lease = self.api.get_opt(&self.name).await?;
        let version = |lease: &Option<Lease>| {
            lease
                .as_ref()
                .and_then(|lease| lease.metadata.resource_version.clone())
        };
        let since = match &self.seen {
            Some((last, since)) if version(last) == version(&lease) => *since,
            _ => Instant::now(),
        };
        self.seen = Some((lease.clone(), since));
        let spec = lease.as_ref().and_then(|lease| lease.spec.as_ref());
        let spec = next(spec, &self.identity, since.elapsed(), self.clock.now());
        if spec.is_none() {
            return Ok(false);
        }
        let written = if let Some(lease) = lease {
            // Its resource version makes the server refuse the write if another replica was faster.
            let lease = Lease { spec, ..lease };
            self.api.replace(&self.name, &PostParams::default(), &lease).await
        } else {
            let lease = Lease {
                metadata: ObjectMeta {
                    name: Some(self.name.clone()),
                    ..ObjectMeta::default()
                },
                spec,
            };
            self.api.create(&PostParams::default(), &lease).await
        };
        match written {
            Ok(lease) => {
                self.seen = Some((Some(lease), Instant::now()));
                Ok(true)
            }
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Gives a call up after [`CALL`].
async fn in_time<T>(call: impl Future<Output = Result<T, kube::Error>>) -> Result<T, kube::Error> {
    let late = || kube::Error::Service("the API server did not answer in time".into());
    tokio::time::timeout(CALL, call)
        .await
        .unwrap_or_else(|_| Err(late()))
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use http::{Method, Request, Response};
    use kube::client::Body;
    use tower_test::mock;

    use super::*;
    use crate::fixtures;

    #[test]
    fn a_lease_is_taken_only_when_it_is_free() {
        let lease = |holder: &str| LeaseSpec {
            holder_identity: Some(holder.into()),
            acquire_time: Some(MicroTime(Timestamp::UNIX_EPOCH)),
            lease_duration_seconds: Some(12),
            lease_transitions: Some(3),
            ..LeaseSpec::default()
        };
        // Transitions count changes of the holder.
        for (last, unchanged_for, transitions) in [
            (None, 0, Some(0)),
            (Some(lease("")), 0, Some(4)),
            (Some(lease("other")), 11, None),
            (Some(lease("other")), 12, Some(4)),
            (Some(lease("self")), 100, Some(3)),
        ] {
            let now = fixtures::at(100);
            let next = next(last.as_ref(), "self", Duration::from_secs(unchanged_for), now);
            let found = next.as_ref().and_then(|lease| lease.lease_transitions);
            assert_eq!(found, transitions, "{last:?} after {unchanged_for} s");
            if let Some(next) = next {
                let acquired = if transitions == Some(3) {
                    Timestamp::UNIX_EPOCH
                } else {
                    now
                };
                assert_eq!(next.acquire_time, Some(MicroTime(acquired)));
            }
        }
    }

    type Stored = Arc<Mutex<Option<Lease>>>;

    /// An API server with one Lease that refuses writes based on an older version.
    fn server() -> (Client, Stored) {
        server_that(|_| true)
    }

    /// The same, if it does not answer all that it does.
    fn server_that(mut answers: impl FnMut(&Method) -> bool + Send + 'static) -> (Client, Stored) {
        let (service, mut handle) = mock::pair::<Request<Body>, Response<Body>>();
        let stored = Stored::default();
        let kept = Arc::clone(&stored);
        tokio::spawn(async move {
            let mut unanswered = Vec::new();
            while let Some((request, answer)) = handle.next_request().await {
                let (parts, body) = request.into_parts();
                let body = body.collect_bytes().await.expect("a body");
                let response = respond(&mut kept.lock().expect("a lease"), &parts.method, &body);
                if answers(&parts.method) {
                    answer.send_response(response);
                } else {
                    unanswered.push(answer);
                }
            }
        });
        (Client::new(service, "default"), stored)
    }

    fn respond(stored: &mut Option<Lease>, method: &Method, body: &[u8]) -> Response<Body> {
        let failure = |code: u16, reason: &str| {
            fixtures::response(code, &kube::core::Status::failure(reason, reason).with_code(code))
        };
        let version = |lease: &Lease| {
            let version = lease.metadata.resource_version.as_deref();
            version.map_or(0, |version| version.parse::<u64>().expect("a number"))
        };
        match (method, stored.as_mut()) {
            (&Method::GET, None) => failure(404, "NotFound"),
            (&Method::GET, Some(lease)) => fixtures::response(200, lease),
            (&Method::POST, Some(_)) => failure(409, "AlreadyExists"),
            (_, last) => {
                let mut written: Lease = serde_json::from_slice(body).expect("a lease");
                let last = last.as_deref().map_or(0, version);
                if version(&written) != last {
                    return failure(409, "Conflict");
                }
                written.metadata.resource_version = Some((last + 1).to_string());
                let response = fixtures::response(200, &written);
                *stored = Some(written);
                response
            }
        }
    }

    fn candidate(client: &Client, identity: &str) -> Candidate {
        candidate_at(client, identity, 0)
    }

    /// A candidate whose clock is ahead by hours.
    fn candidate_at(client: &Client, identity: &str, hours: i64) -> Candidate {
        let clock = Clock::starting_at(fixtures::at(3600 * hours));
        Candidate::new(
            client.clone(),
            "default",
            "vit-operator".into(),
            identity.into(),
            clock,
        )
    }

    fn holder(stored: &Stored) -> Option<String> {
        let lease = stored.lock().expect("a lease").clone();
        lease?.spec?.holder_identity
    }

    #[tokio::test(start_paused = true)]
    async fn of_two_replicas_one_leads_and_the_other_follows_once_it_gives_up_the_lease() {
        let (client, stored) = server();
        let mut first = candidate(&client, "first");
        let mut second = candidate(&client, "second");
        first.acquire(&CancellationToken::new()).await;
        assert_eq!(holder(&stored).as_deref(), Some("first"));
        assert!(!second.try_once().await.expect("answered"));
        first.release().await.expect("released");
        let started = Instant::now();
        second.acquire(&CancellationToken::new()).await;
        assert!(started.elapsed() < RETRY, "an empty lease is taken at once");
        assert_eq!(holder(&stored).as_deref(), Some("second"));
        // The first may not take it back.
        assert!(!first.try_once().await.expect("answered"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_replica_that_is_told_to_stop_while_it_waits_ends_and_leaves_the_lease_alone() {
        let (client, stored) = server();
        let stop = CancellationToken::new();
        let mut first = candidate(&client, "first");
        assert!(first.acquire(&stop).await);
        let mut second = candidate(&client, "second");
        let waiting = second.acquire(&stop);
        let stopping = async {
            tokio::time::sleep(RETRY / 2).await;
            stop.cancel();
        };
        let (is_held, ()) = tokio::time::timeout(RETRY, futures::future::join(waiting, stopping))
            .await
            .expect("it ends before its next try");
        assert!(!is_held);
        assert_eq!(holder(&stored).as_deref(), Some("first"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_replica_that_is_dead_is_followed_after_the_duration_of_its_lease() {
        // Their clocks do not matter.
        for hours in [-1, 0, 1] {
            let (client, stored) = server();
            candidate_at(&client, "dead", hours)
                .acquire(&CancellationToken::new())
                .await;
            let mut heir = candidate(&client, "heir");
            let started = Instant::now();
            heir.acquire(&CancellationToken::new()).await;
            assert!(started.elapsed() >= DURATION && started.elapsed() <= DURATION + 2 * RETRY);
            assert_eq!(holder(&stored).as_deref(), Some("heir"));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_is_released_even_if_the_stop_meets_a_renewal() {
        let mut writes = 0;
        let (client, stored) = server_that(move |method| {
            writes += usize::from(method != Method::GET);
            method == Method::GET || writes != 2
        });
        let mut first = candidate(&client, "first");
        first.acquire(&CancellationToken::new()).await;
        let renewing = tokio::time::timeout(RETRY + CALL / 2, first.hold());
        renewing
            .await
            .expect_err("the renewal is stored and not answered");
        first.release().await.expect("released");
        assert_eq!(holder(&stored).as_deref(), Some(""));
    }

    #[tokio::test(start_paused = true)]
    async fn a_holder_keeps_its_lease_if_one_of_its_tries_is_answered_in_time() {
        let mut reads = 0;
        let (client, _) = server_that(move |method| {
            reads += usize::from(method == Method::GET);
            method != Method::GET || !(2..4).contains(&reads)
        });
        let mut first = candidate(&client, "first");
        first.acquire(&CancellationToken::new()).await;
        tokio::time::timeout(2 * DURATION, first.hold())
            .await
            .expect_err("it is held");
    }

    #[tokio::test(start_paused = true)]
    async fn a_holder_whose_lease_was_taken_or_cannot_be_renewed_gives_up() {
        let (client, stored) = server();
        let mut first = candidate(&client, "first");
        first.acquire(&CancellationToken::new()).await;
        if let Some(lease) = stored.lock().expect("a lease").as_mut() {
            lease.spec.get_or_insert_default().holder_identity = Some("second".into());
            lease.metadata.resource_version = Some("9".into());
        }
        tokio::time::timeout(2 * RETRY, first.hold())
            .await
            .expect("it gives up");

        let (service, handle) = mock::pair::<Request<Body>, Response<Body>>();
        drop(handle);
        let mut cut_off = candidate(&Client::new(service, "default"), "first");
        let started = Instant::now();
        cut_off.hold().await;
        assert!(started.elapsed() < DURATION, "others may lead already");
    }
}
