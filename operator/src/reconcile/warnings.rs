//! Why volumes or the network of a pod are not ready: only the kubelet's and the attach controller's
//! Events tell.

use crds::Phase;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::events::v1::Event;
use kube::api::ListParams;
use kube::{Api, ResourceExt as _};
use tracing::debug;

use super::context::Context;
use super::observation::Observation;
use crate::policy::gang::PodView;

/// Pods that start within this time need no explanation.
const SLOW: SignedDuration = SignedDuration::from_secs(20);
/// The API server keeps an Event for an hour, but a pod has few.
const MOST: u32 = 100;

/// Adds the newest Warnings to pods of a starting gang that wait for volumes or network. Reads those of at
/// most one pod.
pub(super) async fn read(context: &Context, seen: &mut Observation) {
    let status = seen.status();
    let placed = status.placement.as_ref().and_then(|placed| placed.time.as_ref());
    let is_slow = placed.is_some_and(|time| seen.now.duration_since(time.0) >= SLOW);
    if status.phase != Some(Phase::Starting) || !is_slow {
        return;
    }
    let (uid, namespace) = (seen.job.uid().unwrap_or_default(), seen.job.namespace());
    let is_waiting = |pod: &&mut PodView| {
        pod.attempt == status.attempt && pod.waits_for_sandbox && pod.deletion_timestamp.is_none()
    };
    let mut waiting: Vec<&mut PodView> = seen.pods.iter_mut().filter(is_waiting).collect();
    waiting.sort_by_key(|pod| pod.node_rank);
    let uids: Vec<&str> = waiting.iter().map(|pod| &*pod.uid).collect();
    if let Some(pod) = context.memory.asks_about(&uid, &uids) {
        let api = Api::namespaced(context.client.clone(), &namespace.unwrap_or_default());
        let of_pod = format!("regarding.uid={pod},type=Warning");
        let listed = api.list(&ListParams::default().fields(&of_pod).limit(MOST)).await;
        let listed = listed.inspect_err(|error| debug!(%error, "failed to list the Events of a pod"));
        let newest = listed.ok().and_then(|events| newest(events.items));
        context.memory.learned_about(&uid, pod, newest);
    }
    for pod in &mut waiting {
        pod.stuck = context.memory.warning_of(&uid, &pod.uid).or(pod.stuck.take());
    }
}

/// Reason and note of the newest Event.
fn newest(events: Vec<Event>) -> Option<String> {
    let event = events.into_iter().max_by_key(last_seen)?;
    let note = event.note.unwrap_or_default();
    let words: Vec<&str> = note.split_whitespace().collect();
    Some(format!(
        "{}: {}",
        event.reason.unwrap_or_default(),
        words.join(" ")
    ))
}

/// Which field has the time depends on the API that made the Event.
fn last_seen(event: &Event) -> Option<Timestamp> {
    let series = event.series.as_ref().map(|series| series.last_observed_time.0);
    let last = event.deprecated_last_timestamp.as_ref().map(|time| time.0);
    series.or(last).or(event.event_time.as_ref().map(|time| time.0))
}
