use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::fixtures;

const GPU: &str = "nvidia.com/gpu";
const NODES: [&str; 3] = ["a", "b", "c"];
const JOBS: [&str; 2] = ["first", "second"];

fn node(name: &str, gpus: i64, is_ready: bool) -> Node {
    let mut node = fixtures::node(name, "Tesla-T4", gpus);
    if !is_ready {
        node.status.as_mut().expect("a status").conditions = None;
    }
    node
}

fn key_of(job: usize) -> JobKey {
    JobKey {
        namespace: "research".into(),
        uid: JOBS[job].into(),
    }
}

/// A foreign pod, or a gang's: of a job's attempt, with a node rank. Without a node, a gang's is
/// only pinned.
fn pod(name: usize, of: Option<(usize, i32, usize)>, node: Option<usize>, phase: &str) -> Pod {
    let bound = node.map(|node| NODES[node].to_owned());
    let pinned = bound.as_deref().unwrap_or("a");
    let (job, attempt, node_rank) = of.unwrap_or_default();
    let mut pod = fixtures::member(&key_of(job), attempt, node_rank, pinned, phase);
    pod.metadata.name = Some(format!("pod-{name}"));
    pod.metadata.owner_references = pod.metadata.owner_references.filter(|_| of.is_some());
    pod.spec.as_mut().expect("a spec").node_name = bound;
    pod
}

fn promise(job: JobKey, attempt: i32, nodes: &[usize]) -> Promise {
    Promise {
        job,
        attempt,
        nodes: nodes.iter().map(|node| NODES[*node].into()).collect(),
        requests: [(GPU.to_owned(), 1)].into(),
    }
}

#[derive(Clone, Debug)]
enum Step {
    Node(usize, i64, bool),
    NodeGone(usize),
    Pod(usize, Box<Pod>),
    PodGone(usize),
    Promise(usize, Option<Promise>),
    /// Watches break and list again; this node and this pod disappeared meanwhile.
    Relist(usize, usize),
}

fn step() -> impl Strategy<Value = Step> {
    let phases = prop::sample::select(vec!["Pending", "Running", "Succeeded"]);
    let member = prop::option::of((0_usize..2, 1_i32..3, 0_usize..2));
    let attempt = (1_i32..3, prop::collection::vec(0_usize..3, 2));
    prop_oneof![
        (0_usize..3, 0_i64..4, any::<bool>()).prop_map(|(name, gpus, ready)| Step::Node(name, gpus, ready)),
        (0_usize..3).prop_map(Step::NodeGone),
        (0_usize..4, member, prop::option::of(0_usize..3), phases)
            .prop_map(|(name, of, node, phase)| Step::Pod(name, pod(name, of, node, phase).into())),
        (0_usize..4).prop_map(Step::PodGone),
        (0_usize..2, prop::option::of(attempt)).prop_map(|(job, what)| {
            Step::Promise(
                job,
                what.map(|(attempt, nodes)| promise(key_of(job), attempt, &nodes)),
            )
        }),
        (0_usize..3, 0_usize..4).prop_map(|(node, pod)| Step::Relist(node, pod)),
    ]
}

/// The objects of a cluster, and the promises.
#[derive(Default)]
struct Objects {
    nodes: BTreeMap<usize, Node>,
    pods: BTreeMap<usize, Pod>,
    promises: HashMap<String, Promise>,
}

impl Objects {
    fn take(&mut self, step: Step, fleet: &mut Fleet) {
        match step {
            Step::Node(name, gpus, is_ready) => {
                let node = node(NODES[name], gpus, is_ready);
                fleet.follow_nodes(&Event::Apply(node.clone()));
                self.nodes.insert(name, node);
            }
            Step::NodeGone(name) => {
                if let Some(node) = self.nodes.remove(&name) {
                    fleet.follow_nodes(&Event::Delete(node));
                }
            }
            Step::Pod(name, pod) => {
                fleet.follow_pods(&Event::Apply((*pod).clone()));
                self.pods.insert(name, *pod);
            }
            Step::PodGone(name) => {
                if let Some(pod) = self.pods.remove(&name) {
                    fleet.follow_pods(&Event::Delete(pod));
                }
            }
            Step::Promise(job, promise) => {
                fleet.promise(JOBS[job], promise.clone());
                match promise {
                    Some(promise) => self.promises.insert(JOBS[job].into(), promise),
                    None => self.promises.remove(JOBS[job]),
                };
            }
            Step::Relist(node, pod) => {
                self.nodes.remove(&node);
                self.pods.remove(&pod);
                fleet.follow_nodes(&Event::Init);
                for node in self.nodes.values() {
                    fleet.follow_nodes(&Event::InitApply(node.clone()));
                }
                fleet.follow_nodes(&Event::InitDone);
                fleet.follow_pods(&Event::Init);
                for pod in self.pods.values() {
                    fleet.follow_pods(&Event::InitApply(pod.clone()));
                }
                fleet.follow_pods(&Event::InitDone);
            }
        }
    }

    fn counted_afresh(&self) -> Inventory {
        Inventory::new(self.nodes.values(), self.pods.values(), &self.promises)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn a_fleet_that_follows_events_equals_one_counted_afresh(steps in prop::collection::vec(step(), 1..40)) {
        let mut fleet = Fleet::default();
        let mut objects = Objects::default();
        let mut known = Inventory::default();
        for step in steps {
            objects.take(step, &mut fleet);
            let counted = objects.counted_afresh();
            prop_assert_eq!(fleet.inventory(), &counted);
            let mut changed = fleet.take_changes();
            changed.sort_unstable();
            let names = NODES.iter().map(|name| Arc::from(*name));
            let differs = |name: &Arc<str>| {
                let (before, now) = (known.nodes.get(name), counted.nodes.get(name));
                before != now && before.into_iter().chain(now).any(has_devices)
            };
            prop_assert_eq!(changed, names.filter(differs).collect::<Vec<Arc<str>>>());
            known = counted;
        }
        for name in 0..4 {
            objects.take(Step::PodGone(name), &mut fleet);
        }
        for job in 0..2 {
            objects.take(Step::Promise(job, None), &mut fleet);
        }
        prop_assert!(fleet.strays.is_empty() && fleet.pods.is_empty() && fleet.members.is_empty());
    }
}

/// GPUs in use on two nodes, promised to an attempt, after these pods have appeared.
fn used(pods: &[Pod]) -> [i64; 2] {
    let mut fleet = Fleet::default();
    for name in ["a", "b"] {
        fleet.follow_nodes(&Event::Apply(node(name, 1, true)));
    }
    let job = JobKey::of(&fixtures::job());
    fleet.promise(fixtures::UID, Some(promise(job, 1, &[0, 1])));
    for pod in pods {
        fleet.follow_pods(&Event::Apply(pod.clone()));
    }
    ["a", "b"].map(|name| fleet.node(name).expect("a node").resources[GPU].used)
}

#[test]
fn what_is_promised_is_not_free_and_is_counted_once() {
    let pods = fixtures::pod_objects;
    let mut forged = pods(1, "Succeeded").remove(0);
    forged.metadata.namespace = Some("elsewhere".into());
    let mut unbound = pods(2, "Pending").remove(0);
    unbound.spec.as_mut().expect("a spec").node_name = None;
    for (appeared, expected, what) in [
        (&[][..], [1, 1], "no pod"),
        (&pods(1, "Running")[..1], [1, 1], "one of the gang"),
        (&pods(1, "Running"), [1, 1], "the gang"),
        (&pods(1, "Failed"), [0, 0], "an ended pod fulfills its promise"),
        (&pods(2, "Running")[..1], [2, 1], "another attempt"),
        (&[forged], [1, 1], "a job of another namespace"),
        (&[unbound], [2, 1], "a pod that is pinned to its node"),
    ] {
        assert_eq!(used(appeared), expected, "{what}");
    }
}

#[test]
fn only_what_gangs_hold_is_expected_to_come_free() {
    let mut fleet = Fleet::default();
    fleet.follow_nodes(&Event::Apply(node("a", 4, true)));
    fleet.follow_pods(&Event::Apply(pod(0, None, Some(0), "Running")));
    fleet.follow_pods(&Event::Apply(pod(1, Some((0, 1, 0)), Some(0), "Running")));
    let gpus = fleet.node("a").expect("a node").resources[GPU];
    assert_eq!((gpus.free(), gpus.free_in_time()), (2, 3));
}
