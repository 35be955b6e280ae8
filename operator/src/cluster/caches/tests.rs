use super::*;
use crate::fixtures;

#[test]
fn pods_of_others_tell_when_they_let_go_of_gpus() {
    let mut foreign = fixtures::pod_objects(1, "Running").remove(0);
    foreign.metadata.owner_references = None;
    assert_eq!(triggers_of(&Event::Apply(foreign.clone())), []);
    assert_eq!(triggers_of(&Event::Delete(foreign.clone())), [Trigger::Waiting]);
    foreign.spec.as_mut().expect("a spec").containers[0].resources = None;
    assert_eq!(triggers_of(&Event::Delete(foreign)), []);
}

#[test]
fn own_pods_ask_for_a_look_at_their_job() {
    let pod = fixtures::pod_objects(1, "Running").remove(0);
    let job = Trigger::Job {
        namespace: "research".into(),
        name: "digits".into(),
    };
    assert_eq!(triggers_of(&Event::Apply(pod)), std::slice::from_ref(&job));
    let ended = fixtures::pod_objects(1, "Succeeded").remove(0);
    assert_eq!(triggers_of(&Event::Apply(ended)), [job, Trigger::Waiting]);
}

#[test]
fn trimming_keeps_what_is_counted() {
    let mut pod = fixtures::pod_objects(1, "Running").remove(0);
    let before = (
        Membership::of(&pod),
        requests_of(pod.spec.as_ref().expect("a spec")),
        bound_node(&pod).map(str::to_owned),
    );
    trim(&mut pod);
    let after = (
        Membership::of(&pod),
        requests_of(pod.spec.as_ref().expect("a spec")),
        bound_node(&pod).map(str::to_owned),
    );
    assert_eq!(before, after);
    assert!(!has_ended(&pod));
    pod.spec.as_mut().expect("a spec").node_name = None;
    assert_eq!(super::super::inventory::pinned_node(&pod), Some("a"));
}

#[tokio::test]
async fn an_object_that_cannot_be_read_does_not_stop_the_watch() {
    let guarded = |json: serde_json::Value| -> DeserializeGuard<Node> {
        serde_json::from_value(json).expect("at least its metadata")
    };
    let good = guarded(serde_json::json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "good"}}));
    let bad = || {
        guarded(
            serde_json::json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "bad"}, "spec": 7}),
        )
    };
    let events = futures::stream::iter([
        Ok(Event::Init),
        Ok(Event::InitApply(bad())),
        Ok(Event::InitApply(good)),
        Ok(Event::InitDone),
        Ok(Event::Delete(bad())),
    ]);
    let read: Vec<Event<Node>> = readable(events)
        .map(|event| event.expect("an event"))
        .collect()
        .await;
    assert_eq!(read.len(), 4);
    assert!(matches!(&read[1], Event::InitApply(node) if node.name_any() == "good"));
    assert!(matches!(&read[3], Event::Delete(node) if node.name_any() == "bad"));
}
