//! Leader election by a Lease: of several replicas, one works.
//!
//! The rules are those of client-go: a Lease is free once its holder has not renewed it for its duration, as measured
//! by the observer's own clock; the holder gives up when it could not renew for a while that is shorter than the
//! duration. [`decide`] is the rule; the rest is reading and writing.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use tokio::time::Instant;
use tracing::{debug, warn};

/// A Lease that was not renewed for this long is free.
pub(crate) const DURATION: Duration = Duration::from_secs(15);
/// Time between two tries.
const RETRY: Duration = Duration::from_secs(2);
/// A holder that could not renew for this long, after the pause between two tries, gives up: 10 s together.
const RENEW_DEADLINE: Duration = Duration::from_secs(8);
/// Longest that one call may take.
const CALL: Duration = Duration::from_secs(5);

/// Name of the Lease.
pub(crate) const NAME: &str = "vit-operator";

/// What to do about a Lease.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Decision {
    /// Write it with oneself as its holder.
    Take,
    /// It is one's own: renew it.
    Renew,
    /// Another holds it.
    Stand,
}

/// `unchanged_for` is how long this observer has seen the Lease as it is.
fn decide(lease: Option<&LeaseSpec>, identity: &str, unchanged_for: Duration) -> Decision {
    let holder = lease
        .and_then(|lease| lease.holder_identity.as_deref())
        .filter(|holder| !holder.is_empty());
    match holder {
        None => Decision::Take,
        Some(holder) if holder == identity => Decision::Renew,
        Some(_) => {
            let seconds = lease
                .and_then(|lease| lease.lease_duration_seconds)
                .and_then(|seconds| u64::try_from(seconds).ok());
            let duration = seconds.map_or(DURATION, Duration::from_secs);
            if unchanged_for >= duration {
                Decision::Take
            } else {
                Decision::Stand
            }
        }
    }
}

/// The Lease after `identity` has taken or renewed it.
fn held(last: Option<&LeaseSpec>, identity: &str, decision: Decision, now: Timestamp) -> LeaseSpec {
    let is_new = decision == Decision::Take;
    let transitions = last.and_then(|lease| lease.lease_transitions).unwrap_or(0);
    LeaseSpec {
        holder_identity: Some(identity.into()),
        lease_duration_seconds: i32::try_from(DURATION.as_secs()).ok(),
        acquire_time: if is_new {
            Some(MicroTime(now))
        } else {
            last.and_then(|lease| lease.acquire_time.clone())
        },
        renew_time: Some(MicroTime(now)),
        lease_transitions: Some(transitions + i32::from(is_new && last.is_some())),
        ..LeaseSpec::default()
    }
}

/// A candidate for the lead.
#[derive(Debug)]
pub(crate) struct Candidate {
    api: Api<Lease>,
    identity: String,
    /// The Lease as last seen, and since when it has been so.
    seen: Option<(Option<Lease>, Instant)>,
}

impl Candidate {
    pub(crate) fn new(client: Client, namespace: &str, identity: String) -> Self {
        Self {
            api: Api::namespaced(client, namespace),
            identity,
            seen: None,
        }
    }

    /// Waits until the Lease is held.
    pub(crate) async fn acquire(&mut self) {
        loop {
            match self.try_once().await {
                Ok(true) => return,
                Ok(false) => debug!("another replica leads"),
                Err(error) => warn!(%error, "failed to reach for the lease"),
            }
            tokio::time::sleep(RETRY).await;
        }
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

    /// Tries until there is an answer; whether the Lease is still held.
    async fn renew(&mut self) -> bool {
        loop {
            match self.try_once().await {
                Ok(is_held) => return is_held,
                Err(error) => warn!(%error, "failed to renew the lease"),
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Gives the Lease back, so that another replica need not wait for its end.
    pub(crate) async fn release(&mut self) -> Result<(), kube::Error> {
        let Some((Some(lease), _)) = self.seen.take() else {
            return Ok(());
        };
        let spec = lease.spec.clone().unwrap_or_default();
        if spec.holder_identity.as_deref() != Some(&self.identity) {
            return Ok(());
        }
        let released = Lease {
            spec: Some(LeaseSpec {
                holder_identity: Some(String::new()),
                renew_time: Some(MicroTime(Timestamp::now())),
                ..spec
            }),
            ..lease
        };
        self.api
            .replace(NAME, &PostParams::default(), &released)
            .await
            .map(drop)
    }

    /// One try; whether the Lease is held now.
    async fn try_once(&mut self) -> Result<bool, kube::Error> {
        tokio::time::timeout(CALL, self.read_and_write())
            .await
            .unwrap_or_else(|_| {
                Err(kube::Error::Service(
                    "the API server did not answer in time".into(),
                ))
            })
    }

    async fn read_and_write(&mut self) -> Result<bool, kube::Error> {
        let lease = self.api.get_opt(NAME).await?;
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
        let decision = decide(spec, &self.identity, since.elapsed());
        if decision == Decision::Stand {
            return Ok(false);
        }
        let spec = Some(held(spec, &self.identity, decision, Timestamp::now()));
        let written = if let Some(lease) = lease {
            // The resource version in it makes the server refuse the write if another replica was faster.
            let lease = Lease { spec, ..lease };
            self.api.replace(NAME, &PostParams::default(), &lease).await
        } else {
            let lease = Lease {
                metadata: ObjectMeta {
                    name: Some(NAME.into()),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(holder: &str) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(holder.into()),
            lease_duration_seconds: Some(15),
            lease_transitions: Some(3),
            ..LeaseSpec::default()
        }
    }

    #[test]
    fn a_lease_is_taken_only_when_it_is_free() {
        let seconds = Duration::from_secs;
        for (spec, unchanged, expected) in [
            (None, 0, Decision::Take),
            (Some(lease("")), 0, Decision::Take),
            (Some(lease("other")), 14, Decision::Stand),
            (Some(lease("other")), 15, Decision::Take),
            (Some(lease("self")), 100, Decision::Renew),
        ] {
            assert_eq!(
                decide(spec.as_ref(), "self", seconds(unchanged)),
                expected,
                "{spec:?} after {unchanged} s"
            );
        }
    }

    #[test]
    fn transitions_count_changes_of_the_holder() {
        let now = Timestamp::now();
        let taken = held(Some(&lease("other")), "self", Decision::Take, now);
        assert_eq!(taken.lease_transitions, Some(4));
        assert_eq!(taken.acquire_time, Some(MicroTime(now)));
        let renewed = held(Some(&taken), "self", Decision::Renew, now);
        assert_eq!(renewed.lease_transitions, Some(4));
        assert_eq!(renewed.acquire_time, taken.acquire_time);
        assert_eq!(held(None, "self", Decision::Take, now).lease_transitions, Some(0));
    }
}
