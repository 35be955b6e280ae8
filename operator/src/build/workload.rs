//! The Workload that requests quota from Kueue for a job that names a queue, and changes of its
//! status. Its pod template only has the parts that Kueue counts.

use crds::{ValidatedJob, ViTTrainingJob, labels};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, PodSpec, PodTemplateSpec};
use kube::ResourceExt as _;
use serde_json::json;

use super::{metadata, pod};
use crate::api::kueue::{POD_SET, PodSet, PriorityClassRef, Workload, WorkloadSpec, conditions};
use crate::policy::gang::{AGENT, CONTAINER};

/// Reasons of evictions after which Kueue requeues a Workload at once.
const REQUEUED_AT_ONCE: [&str; 2] = ["Preempted", "NodeFailures"];

/// The Workload, without quota, for the gang's largest and smallest size.
pub(crate) fn build(job: &ViTTrainingJob, valid: &ValidatedJob, priority: i32) -> Workload {
    let count = |nodes: Option<&u32>| i32::try_from(*nodes.unwrap_or(&0)).unwrap_or(i32::MAX);
    let (most, least) = (count(valid.sizes.first()), count(valid.sizes.last()));
    let class = valid.spec.workers.priority_class_name.as_ref();
    let mut workload = Workload::new(
        &job.name_any(),
        WorkloadSpec {
            queue_name: valid.spec.scheduling.queue_name.clone().unwrap_or_default(),
            pod_sets: vec![PodSet {
                name: POD_SET.into(),
                count: most,
                min_count: (least < most).then_some(least),
                template: PodTemplateSpec {
                    metadata: None,
                    spec: Some(pod_spec(valid)),
                },
            }],
            priority_class_ref: class.map(|name| PriorityClassRef {
                group: "scheduling.k8s.io".into(),
                kind: "PriorityClass".into(),
                name: name.clone(),
            }),
            priority: Some(priority),
        },
    );
    workload.metadata = metadata(job, job.name_any());
    let asks_for = asks_for(&workload.spec);
    workload
        .annotations_mut()
        .insert(labels::ASKS_FOR.into(), asks_for);
    workload
}

fn pod_spec(valid: &ValidatedJob) -> PodSpec {
    let workers = &valid.spec.workers;
    PodSpec {
        restart_policy: Some("Never".into()),
        node_selector: Some(workers.node_selector.clone()),
        tolerations: Some(valid.tolerations()),
        priority_class_name: workers.priority_class_name.clone(),
        containers: vec![Container {
            name: CONTAINER.into(),
            image: Some(valid.spec.image.clone()),
            resources: Some(pod::resources(valid)),
            ..Container::default()
        }],
        init_containers: valid.agent_resources().map(|resources| {
            vec![Container {
                name: AGENT.into(),
                restart_policy: Some("Always".into()),
                resources: Some(resources),
                ..Container::default()
            }]
        }),
        ..PodSpec::default()
    }
}

/// A Workload's request, in the operator's stable encoding.
fn asks_for(spec: &WorkloadSpec) -> String {
    let pods = |set: &PodSet| {
        let pod = set.template.spec.as_ref();
        let container = pod.and_then(|pod| pod.containers.first());
        let mut asks = json!({
            "count": set.count,
            "minCount": set.min_count,
            "resources": container.map(|container| &container.resources),
            "nodeSelector": pod.map(|pod| &pod.node_selector),
            "tolerations": pod.map(|pod| &pod.tolerations),
        });
        if let Some(beside) = pod.and_then(|pod| pod.init_containers.as_ref()) {
            asks["beside"] = json!(beside);
        }
        asks
    };
    let class = spec.priority_class_ref.as_ref().map(|class| &class.name);
    json!({
        "queue": spec.queue_name,
        "pods": spec.pod_sets.iter().map(pods).collect::<Vec<_>>(),
        "priorityClass": class,
    })
    .to_string()
}

/// Whether a Workload has the wanted request and is not finished. Otherwise it is recreated once
/// the job has no pods: Kueue accepts no changes of a Workload with quota.
pub(crate) fn is_current(workload: &Workload, wanted: &Workload) -> bool {
    let asks_for = |workload: &Workload| workload.annotations().get(labels::ASKS_FOR).cloned();
    workload.has(conditions::FINISHED).is_none() && asks_for(workload) == asks_for(wanted)
}

/// An evicted Workload without its quota, once the job has no pods.
pub(crate) fn released(workload: &Workload, now: Timestamp) -> Workload {
    let evicted = workload.has(conditions::EVICTED).cloned();
    let (reason, message) = evicted.map_or_else(
        || ("Pending".into(), String::new()),
        |evicted| (evicted.reason, evicted.message),
    );
    let mut next = workload.clone();
    let status = next.status.get_or_insert_default();
    status.admission = None;
    // Kueue times the pods' start or recovery by this condition; the next admission restarts it.
    status
        .conditions
        .retain(|condition| condition.type_ != conditions::PODS_READY);
    let is_requeued = REQUEUED_AT_ONCE.contains(&reason.as_str());
    let mut set = |type_, value, reason, message| set(&mut next, type_, value, reason, message, now);
    set(conditions::REQUEUED, is_requeued, &reason, &message);
    set(conditions::QUOTA_RESERVED, false, "Pending", &message);
    if workload.has(conditions::ADMITTED).is_some() {
        let message = "The workload has no reservation";
        set(conditions::ADMITTED, false, "NoReservation", message);
    }
    let message = "the job waits in its queue";
    set(conditions::PODS_READY, false, "WaitForStart", message);
    next
}

/// A Workload with this pod readiness; `None` if unchanged.
pub(crate) fn with_pods_ready(workload: &Workload, are_ready: bool, now: Timestamp) -> Option<Workload> {
    let known = workload.condition(conditions::PODS_READY);
    let have_been = known.is_some_and(|known| known.status == "True");
    if are_ready == have_been {
        return None;
    }
    let has_recovered = known.is_some_and(|known| known.reason == "WaitForRecovery");
    let (reason, message) = match (are_ready, has_recovered) {
        (true, false) => ("Started", "every pod of the gang runs"),
        (true, true) => ("Recovered", "every pod of the gang runs again"),
        (false, _) => ("WaitForRecovery", "the gang is being replaced"),
    };
    let mut next = workload.clone();
    set(&mut next, conditions::PODS_READY, are_ready, reason, message, now);
    Some(next)
}

/// The Workload of a finished job; `None` if unchanged.
pub(crate) fn finished(
    workload: &Workload,
    has_succeeded: bool,
    message: &str,
    now: Timestamp,
) -> Option<Workload> {
    if workload.has(conditions::FINISHED).is_some() {
        return None;
    }
    let reason = if has_succeeded { "Succeeded" } else { "Failed" };
    let mut next = workload.clone();
    set(&mut next, conditions::FINISHED, true, reason, message, now);
    Some(next)
}

fn set(workload: &mut Workload, type_: &str, value: bool, reason: &str, message: &str, now: Timestamp) {
    let generation = workload.metadata.generation;
    let condition = crds::conditions::condition(type_, value, (reason, message), generation, now);
    crds::conditions::set(&mut workload.status.get_or_insert_default().conditions, condition);
}
