use super::*;
use crate::fixtures;

#[test]
fn pods_of_others_tell_when_they_let_go_of_gpus() {
    let mut foreign = fixtures::pod_objects(1, "Running").remove(0);
    foreign.metadata.owner_references = None;
    assert_eq!(triggers_of(&Event::Apply(foreign.clone())), []);
    assert_eq!(triggers_of(&Event::Delete(foreign.clone())), [Trigger::Capacity]);
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
    assert_eq!(triggers_of(&Event::Apply(ended)), [job, Trigger::Capacity]);
}

#[test]
fn an_object_belongs_to_a_job_of_its_own_namespace_only() {
    let job = fixtures::job();
    let mut metadata = fixtures::pod_objects(1, "Running").remove(0).metadata;
    assert!(is_owned_by(&metadata, &job));
    metadata.namespace = Some("elsewhere".into());
    assert!(!is_owned_by(&metadata, &job));
}
