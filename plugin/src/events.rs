//! `kubectl vit events`: the Events of a job and its pods.

use crds::ViTTrainingJob;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use kube::api::ListParams;
use kube::{Api, Resource as _};
use serde_json::json;

use crate::cluster::Cluster;
use crate::error::{Error, Exit};
use crate::kind::JobName;
use crate::output::{self, Format, report};
use crate::paint::Paint;
use crate::text::{age, or_dash, table};

/// List the Events of a job and its pods, oldest first
///
/// Events of deleted pods of earlier attempts are included. The API server keeps Events for an hour, unless configured
/// otherwise.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: kubectl vit events digits")]
pub(crate) struct Arguments {
    /// The job
    #[arg(value_name = "JOB", add = crate::completion::jobs())]
    job: JobName,
    /// Output format
    #[arg(short, long, value_enum)]
    output: Option<Format>,
}

const LIST_OF_PODS: &str = "list the pods' Events";

pub(crate) async fn run(cluster: &Cluster, arguments: &Arguments) -> Result<Exit, Error> {
    let name = &arguments.job;
    let events = find(cluster, name).await?;
    if let Some(format) = arguments.output.filter(|format| format.is_object()) {
        let names = events.iter().filter_map(|event| event.metadata.name.as_deref());
        let names: Vec<String> = names.map(|name| format!("event/{name}")).collect();
        let list = json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": events});
        output::object(&list, &names, format)?;
    } else if events.is_empty() {
        report(&format!("No Events found of job {name} and its pods."));
    } else {
        output::print(&render(&events, Timestamp::now(), Paint::of_stdout()))?;
    }
    Ok(Exit::Done)
}

/// The Events of the job and its pods, oldest first. A job that does not exist is an error only if it has none.
async fn find(cluster: &Cluster, name: &JobName) -> Result<Vec<Event>, Error> {
    let job = format!(
        "involvedObject.kind={},involvedObject.name={name}",
        ViTTrainingJob::kind(&())
    );
    let mut events = vec![];
    for (fields, doing) in [
        (job.as_str(), "list the job's Events"),
        ("involvedObject.kind=Pod", LIST_OF_PODS),
    ] {
        events.extend(list(cluster, fields, doing).await?);
    }
    events.retain(|event| {
        let object = &event.involved_object;
        let involved = object.name.as_deref().unwrap_or_default();
        object.kind.as_deref() != Some("Pod") || attempt_of(name, involved).is_some()
    });
    if events.is_empty() {
        cluster.get(name).await?;
    }
    events.sort_by_key(last_seen);
    Ok(events)
}

async fn list(cluster: &Cluster, fields: &str, doing: &str) -> Result<Vec<Event>, Error> {
    let api = Api::namespaced(cluster.client().clone(), cluster.namespace());
    cluster
        .list(api, ListParams::default().fields(fields), doing)
        .await
}

/// The message in one line.
fn message(event: &Event) -> String {
    let words = event.message.as_deref().unwrap_or_default().split_whitespace();
    words.collect::<Vec<_>>().join(" ")
}

/// The attempt of a pod with a name that the job's pods have: `JOB-ATTEMPT-NODERANK`.
fn attempt_of(job: &JobName, pod: &str) -> Option<i32> {
    let rest = pod.strip_prefix(job.as_str())?.strip_prefix('-')?;
    let (attempt, node_rank) = rest.split_once('-')?;
    node_rank.parse::<u32>().ok()?;
    attempt.parse().ok()
}

/// When the Event was seen last. Which field has the time depends on the API that made it.
fn last_seen(event: &Event) -> Option<Timestamp> {
    let series = event
        .series
        .as_ref()
        .and_then(|series| series.last_observed_time.as_ref());
    series
        .map(|time| time.0)
        .or(event.last_timestamp.as_ref().map(|time| time.0))
        .or(first_seen(event))
}

fn first_seen(event: &Event) -> Option<Timestamp> {
    let first = event.first_timestamp.as_ref().map(|time| time.0);
    first.or(event.event_time.as_ref().map(|time| time.0)).or(event
        .metadata
        .creation_timestamp
        .as_ref()
        .map(|time| time.0))
}

fn render(events: &[Event], now: Timestamp, paint: Paint) -> String {
    let row = |event: &Event| {
        let series = event.series.as_ref().and_then(|series| series.count);
        let count = series.or(event.count).unwrap_or(1);
        let mut seen = or_dash(last_seen(event).map(|time| age(time, now)));
        if let Some(first) = first_seen(event).filter(|_| count > 1) {
            seen += &format!(" (x{count} over {})", age(first, now));
        }
        let type_ = or_dash(event.type_.clone());
        let object = &event.involved_object;
        let (kind, name) = (object.kind.clone().unwrap_or_default(), object.name.clone());
        vec![
            seen,
            if type_ == "Normal" {
                type_
            } else {
                paint.warning(type_)
            },
            or_dash(event.reason.clone()),
            format!("{}/{}", kind.to_lowercase(), name.unwrap_or_default()),
            message(event),
        ]
    };
    let rows: Vec<Vec<String>> = events.iter().map(row).collect();
    table(&["LAST SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"], &rows)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::fixtures::now;
    use crate::mock::{Answer, server};

    fn event(kind: &str, name: &str, more: Value) -> Value {
        let mut event = json!({"apiVersion": "v1", "kind": "Event",
            "metadata": {"name": format!("{name}.1"), "namespace": "research",
                "creationTimestamp": "2026-11-22T11:00:00Z"},
            "involvedObject": {"kind": kind, "name": name}, "type": "Normal"});
        for (key, value) in more.as_object().expect("an object") {
            event[key] = value.clone();
        }
        event
    }

    fn cluster() -> Cluster {
        server(|request| {
            if !request.path.ends_with("/events") {
                return Answer::missing("digits");
            }
            if request
                .query
                .contains("involvedObject.kind=ViTTrainingJob,involvedObject.name=digits")
            {
                return Answer::list(&[event(
                    "ViTTrainingJob",
                    "digits",
                    json!({
                    "reason": "Restarting", "type": "Warning", "message": "attempt 1: Killed:\nrank 1",
                    "eventTime": "2026-11-22T11:30:00.000000Z", "lastTimestamp": null,
                    "series": {"count": 3, "lastObservedTime": "2026-11-22T11:50:00.000000Z"}}),
                )]);
            }
            if request.query.contains("involvedObject.kind=Pod") {
                let times = json!({"reason": "Started", "message": "Started container trainer", "count": 1,
                    "firstTimestamp": "2026-11-22T11:39:55Z", "lastTimestamp": "2026-11-22T11:39:55Z"});
                let pods = ["digits-2-0", "digits-large-1-0", "digits-1", "other-2-0"];
                return Answer::list(&pods.map(|pod| event("Pod", pod, times.clone())));
            }
            Answer::list(&[] as &[Value])
        })
    }

    #[tokio::test]
    async fn events_of_a_job_and_its_pods_are_in_order() {
        let name = "digits".parse().expect("a name");
        let events = find(&cluster(), &name).await.expect("are found");
        insta::assert_snapshot!(render(&events, now(), Paint::plain(120)));
    }

    #[tokio::test]
    async fn a_job_that_never_existed_is_an_error() {
        let name = "digts".parse().expect("a name");
        let error = find(&cluster(), &name).await.expect_err("no such job");
        assert_eq!(error.exit(), Exit::NotFound);
    }
}
