//! Why volumes or the network of a pod are not ready: only the kubelet's and the attach controller's
//! Events tell.

use std::sync::Arc;

use crds::Phase;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::events::v1::Event;
use kube::api::ListParams;
use kube::{Api, ResourceExt as _};
use tracing::debug;

use super::context::Context;
use super::observation::Observation;
use crate::policy::gang::PodView;
use crate::watch::trigger::Trigger;

/// Pods that start within this time need no explanation.
const SLOW: SignedDuration = SignedDuration::from_secs(20);
/// The API server keeps an Event for an hour, but a pod has few.
const MOST: u32 = 100;

/// Reads in the background why a pod of a starting gang waits for volumes or network, if that is due. An
/// answer triggers a reconcile.
pub(super) fn read(context: &Context, seen: &Observation) {
    let status = seen.status();
    let placed = status.placed_at();
    let is_slow = placed.is_some_and(|time| seen.now.duration_since(time.0) >= SLOW);
    if status.phase != Some(Phase::Starting) || !is_slow {
        return;
    }
    let is_waiting = |pod: &&PodView| pod.waits_for_sandbox.is_some() && pod.deletion_timestamp.is_none();
    let mut waiting: Vec<&PodView> = seen.gang(status.attempt).filter(is_waiting).collect();
    waiting.sort_by_key(|pod| pod.node_rank);
    let pods: Vec<&str> = waiting.iter().map(|pod| &*pod.uid).collect();
    let uid = seen.job.uid().unwrap_or_default();
    let Some(pod) = context.memory.asks_about(&uid, &pods).map(str::to_owned) else {
        return;
    };
    let (namespace, name) = (seen.job.namespace().unwrap_or_default(), seen.job.name_any());
    let events: Api<Event> = Api::namespaced(context.client.clone(), &namespace);
    let (memory, triggers) = (Arc::clone(&context.memory), context.triggers.clone());
    tokio::spawn(async move {
        let of_pod = format!("regarding.uid={pod},type=Warning");
        let listed = events
            .list(&ListParams::default().fields(&of_pod).limit(MOST))
            .await;
        let listed = listed.inspect_err(|error| debug!(%error, "failed to list the Events of a pod"));
        if let Some(words) = listed.ok().and_then(|events| newest(events.items)) {
            memory.learned_about(&uid, &pod, words);
            // The receiver lives as long as the process.
            let _ = triggers.send(Trigger::Job { namespace, name });
        }
    });
}

/// Reason and note of the newest Event about a pod that is bound.
fn newest(events: Vec<Event>) -> Option<String> {
    let is_of_scheduler = |event: &Event| event.reason.as_deref() == Some("FailedScheduling");
    let events = events.into_iter().filter(|event| !is_of_scheduler(event));
    let event = events.max_by_key(last_seen)?;
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
