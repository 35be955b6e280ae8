//! The whole operator while the GPUs in use change.

use std::collections::BTreeMap;

use serde_json::json;
use tokio::time::Instant;

use super::faults::{Running, answer, list, watched};
use super::*;

/// Jobs of two nodes each.
const WAITING: usize = 20;

/// A pod of others that holds the GPU of a node.
fn foreign_pod(node: &str, version: u32) -> Value {
    let mut pod = fixtures::pod_objects(1, "Running").remove(0);
    pod.metadata.owner_references = None;
    pod.metadata.name = Some(format!("on-{node}"));
    pod.metadata.uid = Some(format!("{node}-{version}"));
    pod.metadata.resource_version = Some(version.to_string());
    pod.spec.as_mut().expect("a spec").node_name = Some(node.into());
    json!(pod)
}

fn waiting_job(index: usize) -> Value {
    let mut job = fixtures::job();
    let name = format!("job-{index:02}");
    job.metadata.uid = Some(format!("uid-of-{name}"));
    job.metadata.name = Some(name);
    json!(job)
}

#[tokio::test(start_paused = true)]
async fn of_many_waiting_jobs_only_the_one_that_now_fits_hears_of_free_gpus() {
    let mut running = Running::start();
    let mut jobs: BTreeMap<String, Value> = (0..WAITING)
        .map(waiting_job)
        .map(|job| (job["metadata"]["name"].as_str().expect("a name").to_owned(), job))
        .collect();
    let nodes = ["a", "b"].map(|name| json!(fixtures::node(name, "Tesla-T4", 1)));
    let pods = ["a", "b"].map(|node| foreign_pod(node, 1));
    let mut pod_events = futures::channel::mpsc::unbounded().0;
    let started = Instant::now();
    let settled = started + Duration::from_secs(5);
    // Before the jobs look again by themselves.
    let last = started + Duration::from_secs(25);
    let (mut next, mut version, mut before, mut freed) = (settled, 1, 0, None);
    let mut starting = Vec::new();
    loop {
        let Some(call) = running.call_before(next).await else {
            if next == settled {
                before = running.rounds();
            }
            if freed.is_some() {
                break;
            }
            version += 2;
            let mut change = |kind: &str, node: &str| {
                let event = json!({"type": kind, "object": foreign_pod(node, version)});
                pod_events.unbounded_send(event).expect("watched");
                version += 1;
            };
            change("DELETED", "a");
            if next < last {
                // Until it is replaced, the planner decides.
                tokio::time::sleep(2 * WAITING_ROUNDS).await;
                change("ADDED", "a");
                next += Duration::from_secs(1);
            } else {
                let rounds = running.rounds() - before;
                assert!(
                    rounds <= 2,
                    "{rounds} rounds of jobs whose reasons did not change"
                );
                change("DELETED", "b");
                freed = Some(Instant::now());
                next += Duration::from_secs(2);
            }
            continue;
        };
        let path = call.path.clone();
        let parts: Vec<&str> = path.rsplit('/').collect();
        match (parts[0], call.is_watch) {
            ("nodes", false) => call.answer.send_response(list(&nodes)),
            ("pods", false) if !call.body.is_object() => call.answer.send_response(list(&pods)),
            ("pods", true) => {
                let (events, changes) = futures::channel::mpsc::unbounded();
                pod_events = events;
                call.answer.send_response(watched(changes));
            }
            ("vittrainingjobs", false) => {
                let all: Vec<Value> = jobs.values().cloned().collect();
                call.answer.send_response(list(&all));
            }
            ("status", _) => {
                if call.body["status"]["phase"] == "Starting" {
                    starting.push((parts[1].to_owned(), freed.expect("no GPU is free").elapsed()));
                }
                let job = jobs.get_mut(parts[1]).expect("a job");
                json_patch::merge(job, &call.body);
                job["metadata"]["resourceVersion"] = "101".into();
                call.answer.send_response(answer(200, job));
            }
            (name, false) if jobs.contains_key(name) => call.answer.send_response(answer(200, &jobs[name])),
            _ => call.answer_as_usual(),
        }
    }
    let [(name, after)] = &starting[..] else {
        panic!("{starting:?}")
    };
    assert_eq!(name, "job-00");
    assert!(*after < Duration::from_secs(1), "{after:?}");
}
