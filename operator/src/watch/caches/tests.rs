use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::*;
use crate::fixtures;
use crate::metrics::gpu_counts::GpuCounts;

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
fn an_object_belongs_to_a_job_of_its_own_namespace_only() {
    let job = fixtures::job();
    let mut metadata = fixtures::pod_objects(1, "Running").remove(0).metadata;
    assert!(is_owned_by(&metadata, &job));
    metadata.namespace = Some("elsewhere".into());
    assert!(!is_owned_by(&metadata, &job));
}

/// An object whose metadata alone can be decoded.
fn unreadable<K: Resource + DeserializeOwned>(kind: &str, metadata: &ObjectMeta) -> DeserializeGuard<K> {
    let object = serde_json::json!({"apiVersion": "v1", "kind": kind, "metadata": metadata, "spec": 7});
    serde_json::from_value(object).expect("at least its metadata")
}

fn subscribers() -> (Subscribers, mpsc::UnboundedReceiver<Trigger>) {
    let (triggers, triggered) = mpsc::unbounded_channel();
    let subscribers = Subscribers {
        planner: SharedPlanner::default(),
        triggers,
        metrics: Arc::new(Metrics::new().expect("metrics")),
    };
    (subscribers, triggered)
}

#[tokio::test]
async fn a_node_that_cannot_be_read_is_as_it_was_and_others_follow() {
    let node = |name: &str| fixtures::node(name, "Tesla-T4", 1);
    let guarded = |name: &str| DeserializeGuard(Ok(node(name)));
    let bad = || unreadable("Node", &node("bad").metadata);
    let (subscribers, _triggered) = subscribers();
    let planner = subscribers.planner.clone();
    let metrics = Arc::clone(&subscribers.metrics);
    let events = vec![
        Event::Apply(guarded("bad")),
        Event::Apply(guarded("gone")),
        Event::Apply(bad()),
        Event::Init,
        Event::InitApply(bad()),
        Event::InitApply(guarded("good")),
        Event::InitDone,
    ];
    let follow = async |events: Vec<Event<DeserializeGuard<Node>>>| {
        watch_planned(
            futures::stream::iter(events.into_iter().map(Ok)),
            subscribers.clone(),
            Planner::follow_nodes,
            Planner::retain_node,
            latest::Sender::new(false),
        )
        .await;
        let planner = planner.lock();
        ["bad", "gone", "good"].map(|name| planner.node_health(name).is_some())
    };
    let series = r#"vit_operator_unreadable_objects{kind="Node"} 1"#;
    assert_eq!(follow(events).await, [true, false, true]);
    let is_counted = || {
        metrics
            .render([], &GpuCounts::default(), crate::fixtures::at(100))
            .expect("renders")
            .contains(series)
    };
    assert!(is_counted());
    assert_eq!(follow(vec![Event::Delete(bad())]).await, [false, false, true]);
    assert!(!is_counted());
}

#[tokio::test]
async fn a_pod_that_cannot_be_read_holds_its_gpus_and_its_place_in_the_gang() {
    let pod = fixtures::pod_objects(1, "Running").remove(0);
    let (subscribers, _triggered) = subscribers();
    let planner = subscribers.planner.clone();
    planner
        .lock()
        .follow_nodes(&Event::Apply(fixtures::node("a", "Tesla-T4", 1)));
    let gangs: Arc<Mutex<Gangs>> = Arc::default();
    let events = [
        Event::Apply(DeserializeGuard(Ok(pod.clone()))),
        Event::Init,
        Event::InitApply(unreadable("Pod", &pod.metadata)),
        Event::InitDone,
    ];
    // Boxed, because pods are large.
    Box::pin(watch_pods(
        futures::stream::iter(events.into_iter().map(Ok)),
        subscribers,
        Arc::clone(&gangs),
        latest::Sender::new(false),
    ))
    .await;
    let (present, departed) = lock(&gangs).pods_of(&JobKey::of(&fixtures::job()), 1);
    assert_eq!((present.len(), departed.len()), (1, 0));
    assert_eq!(
        planner.lock().inventory().nodes["a"].resources["nvidia.com/gpu"].used,
        1
    );
}
