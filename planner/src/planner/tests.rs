use std::sync::atomic::{AtomicU64, Ordering};

use crds::conditions::{reasons, types};
use crds::spec::Homogeneity;
use crds::status::SlowNodeStatus;
use crds::{Phase, ViTTrainingJob, ViTTrainingJobStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::*;
use crate::fixtures::{self, at};
use crate::policy::queue::PATIENCE;

const GPU: &str = "nvidia.com/gpu";

/// A planner of a cluster with these one-GPU nodes.
fn planner(nodes: &[&str]) -> Planner {
    let mut planner = Planner::default();
    planner.add_nodes(nodes, "Tesla-T4");
    planner
}

/// Another version of the job.
fn event(job: &ViTTrainingJob) -> Event<StoredJob> {
    static VERSION: AtomicU64 = AtomicU64::new(101);
    let mut job = job.clone();
    job.metadata.resource_version = Some(VERSION.fetch_add(1, Ordering::Relaxed).to_string());
    Event::Apply(job.into())
}

fn deleted(job: &ViTTrainingJob) -> Event<StoredJob> {
    Event::Delete(job.clone().into())
}

/// A job of this many nodes, created at this second.
fn job(name: &str, nodes: i32, second: i64) -> ViTTrainingJob {
    let mut job = fixtures::job();
    job.metadata.name = Some(name.into());
    job.metadata.uid = Some(uid(name));
    job.metadata.creation_timestamp = Some(Time(at(second)));
    job.spec.workers.nodes = nodes;
    job
}

/// A job of `workers.nodes` nodes that also trains on fewer or more.
fn elastic(name: &str, min_nodes: i32, nodes: i32, max_nodes: i32) -> ViTTrainingJob {
    let mut job = job(name, nodes, 0);
    job.spec.elastic = Some(crds::spec::Elastic {
        min_nodes,
        max_nodes: Some(max_nodes),
    });
    job
}

fn in_phase(mut job: ViTTrainingJob, phase: Phase, attempt: i32) -> ViTTrainingJob {
    job.status = Some(fixtures::status(phase, attempt));
    job
}

fn status(job: &mut ViTTrainingJob) -> &mut ViTTrainingJobStatus {
    job.status.as_mut().expect("a status")
}

/// A job in a phase, with an attempt on these nodes.
fn on_nodes(job: ViTTrainingJob, phase: Phase, attempt: i32, nodes: &[&str]) -> ViTTrainingJob {
    let mut job = in_phase(job, phase, attempt);
    let placement = status(&mut job).placement.as_mut().expect("a place");
    placement.nodes = nodes.iter().map(ToString::to_string).collect();
    job
}

fn running_on(job: ViTTrainingJob, nodes: &[&str]) -> ViTTrainingJob {
    on_nodes(job, Phase::Running, 1, nodes)
}

fn uid(name: &str) -> String {
    format!("uid-of-{name}")
}

impl Planner {
    fn add_nodes(&mut self, names: &[&str], product: &str) {
        for name in names {
            self.follow_nodes(&Event::Apply(fixtures::node(name, product, 1)));
        }
    }

    fn send(&mut self, jobs: &[&ViTTrainingJob]) {
        for job in jobs {
            self.follow_jobs(&event(job));
        }
    }

    fn version(&self, name: &str) -> Option<String> {
        self.jobs[&uid(name)].version.clone()
    }

    /// The decision about the known version of a job.
    fn decide(&mut self, name: &str, attempt: i32, now: Timestamp) -> Decision {
        let version = self.version(name);
        let decision = self.place(&uid(name), version.as_deref(), attempt, now);
        decision.expect("it is current")
    }

    fn ask(&mut self, name: &str) -> Decision {
        self.decide(name, 1, at(100))
    }

    /// The nodes that a job gets, with spaces between; none if it waits.
    fn nodes_for(&mut self, name: &str) -> String {
        match self.ask(name) {
            Decision::Placed(placement) => placement.nodes.join(" "),
            Decision::Waits(_) => String::new(),
        }
    }

    pub(crate) fn used(&self, node: &str) -> i64 {
        let node = self.cluster.fleet.node(node).expect("a node");
        node.resources[GPU].used
    }
}

#[test]
fn a_promise_without_pods_that_ends_is_news_to_jobs_that_wait() {
    let starting = in_phase(fixtures::job(), Phase::Starting, 1);
    let ends = [
        event(&in_phase(fixtures::job(), Phase::Failed, 1)),
        deleted(&starting),
    ];
    for (end, pods, used) in ends.iter().flat_map(|end| [(end, 0, 0), (end, 2, 1)]) {
        let mut planner = planner(&["a", "b"]);
        assert!(!planner.follow_jobs(&event(&starting)));
        for pod in &fixtures::pod_objects(1, "Running")[..pods] {
            planner.follow_pods(&Event::Apply(pod.clone()));
        }
        // Its pods' own events release their GPUs.
        assert_eq!(planner.follow_jobs(end), pods == 0);
        assert_eq!(planner.used("a"), used);
    }
}

/// Invariant G7.
#[test]
fn a_promise_lasts_while_its_job_is_known_at_the_version_to_which_it_was_made() {
    let waits = job("job", 2, 1);
    let unreadable = |job: &ViTTrainingJob| {
        let mut object = serde_json::json!({"metadata": job.metadata, "spec": "of another version"});
        object["metadata"]["resourceVersion"] = "101".into();
        Event::Apply(serde_json::from_value(object).expect("it has metadata"))
    };
    let lists = [
        Event::Init,
        Event::InitApply(waits.clone().into()),
        Event::InitDone,
    ];
    let known = |planner: &mut Planner| {
        assert!(lists.iter().all(|event| !planner.follow_jobs(event)));
    };
    let starting = on_nodes(job("job", 2, 1), Phase::Starting, 1, &["a", "b"]);
    let cases = vec![
        (event(&waits), true, 0),
        (event(&starting), false, 1),
        // Its status may have the promise.
        (unreadable(&waits), true, 1),
        (deleted(&waits), true, 0),
    ];
    for (next, is_news, used) in cases {
        let mut planner = planner(&["a", "b"]);
        known(&mut planner);
        let (uid, version) = (uid("job"), waits.metadata.resource_version.as_deref());
        assert_eq!(planner.place(&uid, Some("another"), 1, at(100)), None);
        assert!(matches!(
            planner.place(&uid, version, 1, at(100)),
            Some(Decision::Placed(_))
        ));
        known(&mut planner);
        assert_eq!(
            planner.place(&uid, version, 2, at(100)),
            None,
            "it may get the first"
        );
        assert!(!planner.release(&uid, 2), "another attempt's");
        assert_eq!(planner.used("a"), 1);
        assert_eq!(
            (planner.follow_jobs(&next), planner.used("a")),
            (is_news, used),
            "{next:?}"
        );
    }
}

#[test]
fn a_younger_job_does_not_take_what_an_older_one_fits_in() {
    for phase in [Phase::Pending, Phase::Restarting, Phase::Suspended] {
        let mut planner = planner(&["a", "b"]);
        planner.send(&[&job("younger", 1, 2), &in_phase(job("older", 2, 1), phase, 1)]);
        assert_eq!(planner.nodes_for("younger"), "", "{phase:?}");
        assert_eq!(planner.nodes_for("older"), "a b");
        assert_eq!(planner.nodes_for("younger"), "");
    }
}

#[test]
fn a_gpu_that_one_pod_of_a_stopping_gang_has_left_stays_with_its_job() {
    let mut planner = planner(&["a", "b"]);
    // The other pod of the gang is still stopping.
    let pod = fixtures::pod_objects(1, "Running").remove(1);
    planner.follow_pods(&Event::Apply(pod));
    let older = in_phase(job("older", 2, 1), Phase::Restarting, 1);
    planner.send(&[&job("younger", 1, 2), &older]);
    assert_eq!(planner.nodes_for("younger"), "");
    planner.follow_jobs(&deleted(&older));
    assert_eq!(planner.nodes_for("younger"), "a");
}

#[test]
fn nodes_that_a_gang_leaves_when_it_shrinks_go_to_the_next_job_which_is_told() {
    for (nodes, own, left) in [(1, "a", "b"), (2, "a b", "")] {
        let mut planner = planner(&["a", "b"]);
        let restarting = in_phase(job("restarts", nodes, 1), Phase::Restarting, 1);
        planner.send(&[&restarting, &job("younger", 1, 2)]);
        assert_eq!(planner.nodes_for("younger"), "");
        let placed = planner.decide("restarts", 2, at(100));
        assert!(matches!(&placed, Decision::Placed(placed) if placed.nodes.join(" ") == own));
        let own: Vec<&str> = own.split(' ').collect();
        let starting = on_nodes(job("restarts", nodes, 1), Phase::Starting, 2, &own);
        assert_eq!(planner.follow_jobs(&event(&starting)), !left.is_empty());
        assert_eq!(planner.nodes_for("younger"), left);
    }
}

#[test]
fn a_job_that_fits_nowhere_or_does_not_want_to_start_holds_nothing_back() {
    let changes: [(fn(&mut ViTTrainingJob), _); 5] = [
        (|job| job.spec.workers.nodes = 3, "a b"),
        (|job| job.spec.suspend = true, "a b"),
        (
            |job| job.status = Some(fixtures::status(Phase::Succeeded, 1)),
            "a b",
        ),
        (|job| *job = of_class(job.clone(), "unknown"), "a b"),
        // A refused job that was corrected waits like any other.
        (|job| job.status = fixtures::refused().status, ""),
    ];
    for (change, nodes) in changes {
        let mut planner = planner(&["a", "b"]);
        let mut older = job("older", 2, -1_000_000);
        change(&mut older);
        planner.send(&[&older, &job("younger", 2, 2)]);
        assert_eq!(planner.nodes_for("younger"), nodes);
    }
}

#[test]
fn a_job_that_pauses_holds_nothing_until_it_asks_again() {
    for reason in [reasons::QUOTA_EXCEEDED, reasons::START_FAILING] {
        let mut planner = planner(&["a", "b"]);
        let starting = on_nodes(job("first", 2, 0), Phase::Starting, 1, &["a", "b"]);
        let mut pauses = in_phase(job("first", 2, 0), Phase::Pending, 1);
        status(&mut pauses).conditions = vec![fixtures::condition(types::PLACED, false, reason)];
        planner.send(&[&starting, &job("second", 1, 10)]);
        assert_eq!(planner.nodes_for("second"), "");
        assert!(planner.follow_jobs(&event(&pauses)), "its nodes are free");
        assert_eq!(planner.nodes_for("second"), "a");
        // Once it has asked, it comes before younger ones.
        planner.send(&[&job("second", 1, 10), &job("third", 2, 20)]);
        assert_eq!(planner.nodes_for("first"), "a b");
        assert_eq!(planner.nodes_for("third"), "");
    }
}

#[test]
fn an_elastic_gang_over_quota_is_tried_again_in_its_smallest_size() {
    for (reason, expected) in [(reasons::QUOTA_EXCEEDED, "a"), (reasons::START_FAILING, "a b")] {
        let mut planner = planner(&["a", "b"]);
        let mut elastic = in_phase(job("elastic", 2, 0), Phase::Pending, 1);
        elastic.spec.elastic = serde_json::from_value(serde_json::json!({"minNodes": 1})).expect("sizes");
        status(&mut elastic).conditions = vec![fixtures::condition(types::PLACED, false, reason)];
        planner.send(&[&elastic]);
        assert_eq!(planner.nodes_for("elastic"), expected, "{reason}");
    }
}

fn of_class(mut job: ViTTrainingJob, class: &str) -> ViTTrainingJob {
    job.spec.workers.priority_class_name = Some(class.into());
    job
}

#[test]
fn a_job_of_higher_priority_comes_first_once_its_class_exists() {
    let mut planner = planner(&["a", "b"]);
    let urgent = of_class(job("urgent", 2, 2), "high");
    planner.send(&[&job("older", 2, 1), &urgent]);
    let missing = Waiting::NoPriorityClass("high".into());
    assert_eq!(planner.ask("urgent"), Decision::Waits(missing));
    let class = fixtures::priority_class("high", 1000, false);
    assert!(planner.follow_classes(&Event::Apply(class)));
    assert_eq!(planner.nodes_for("older"), "");
    // The default class holds where none is named.
    planner.follow_classes(&Event::Apply(fixtures::priority_class("usual", 1001, true)));
    assert_eq!(planner.nodes_for("older"), "a b");
}

#[test]
fn a_large_job_lets_others_go_ahead_for_a_while_and_then_gets_nodes_as_they_come_free() {
    let mut planner = planner(&["a", "b"]);
    let running = running_on(job("running", 1, -5), &["b"]);
    planner.send(&[&running, &job("large", 2, 0), &job("small", 1, 1)]);
    let late = at(0) + PATIENCE;
    let early = late - jiff::SignedDuration::from_secs(1);
    let place = |planner: &mut Planner, name: &str, now| match planner.decide(name, 1, now) {
        Decision::Placed(placement) => Ok(placement.nodes.join(" ")),
        Decision::Waits(Waiting::NoFit { wait, .. }) => Err(wait),
        Decision::Waits(other) => panic!("{name}: {other:?}"),
    };
    assert!(place(&mut planner, "large", early).is_err());
    assert_eq!(place(&mut planner, "small", early), Ok("a".into()));
    planner.release(&uid("small"), 1);
    // From here on only time passes.
    assert!(place(&mut planner, "large", early).is_err());
    let small = place(&mut planner, "small", late).expect_err("waits");
    assert_eq!((small.position, small.waiting), (2, 2));
    assert_eq!(small.held_back_for.as_deref(), Some("research/large"));
    let large = place(&mut planner, "large", late).expect_err("waits");
    assert_eq!(large.reserved_nodes, 2);
    planner.send(&[&in_phase(running, Phase::Succeeded, 1)]);
    assert_eq!(place(&mut planner, "large", late), Ok("a b".into()));
    // Nobody waits for nodes that do not exist.
    planner.release(&uid("large"), 1);
    planner.follow_nodes(&Event::Delete(fixtures::node("b", "Tesla-T4", 1)));
    assert_eq!(place(&mut planner, "small", late), Ok("a".into()));
}

#[test]
fn one_pass_serves_all_rounds_until_something_changes() {
    let mut planner = planner(&["a", "b", "c"]);
    planner.send(&[&job("first", 1, 1), &job("second", 1, 2), &job("large", 4, 3)]);
    assert_eq!(planner.nodes_for("second"), "b");
    let first = planner.pass.last().cloned();
    planner.send(&[&job("third", 1, 4)]);
    assert!(!planner.is_stale, "a job at the end continues the pass");
    assert_eq!(planner.nodes_for("third"), "c");
    assert_ne!(planner.pass.last().cloned(), first);
    // Its pods appear on the promised nodes: nothing has changed for others.
    assert_eq!(planner.nodes_for("first"), "a");
    planner.send(&[&on_nodes(job("first", 1, 1), Phase::Starting, 1, &["a"])]);
    assert!(!planner.is_stale);
    assert!(!planner.cluster.catch_up());
    planner.add_nodes(&["d"], "Tesla-T4");
    assert!(planner.cluster.catch_up());
}

#[test]
fn what_happens_on_nodes_without_gpus_or_to_resources_that_nobody_asks_for_starts_no_new_pass() {
    let mut planner = planner(&["a", "b", "c"]);
    let web = |node: &str, port: Option<i32>| {
        let mut pod = fixtures::pod_objects(1, "Running").remove(0);
        pod.metadata.owner_references = None;
        pod.metadata.name = Some(format!("web-{node}"));
        let spec = pod.spec.as_mut().expect("a spec");
        spec.node_name = Some(node.into());
        let resources = serde_json::json!({"requests": {"cpu": "1"}});
        spec.containers[0].resources = serde_json::from_value(resources).ok();
        spec.containers[0].ports = port.map(|port| {
            vec![k8s_openapi::api::core::v1::ContainerPort {
                host_port: Some(port),
                ..Default::default()
            }]
        });
        Event::Apply(pod)
    };
    let without = |cpu: &str| {
        let mut node = fixtures::node("cpus", "", 0);
        let status = node.status.as_mut().expect("a status");
        let amounts = serde_json::json!({"cpu": cpu});
        status.capacity = serde_json::from_value(amounts).ok();
        status.allocatable.clone_from(&status.capacity);
        Event::Apply(node)
    };
    planner.send(&[&job("small", 1, 1), &job("large", 4, 2)]);
    planner.ask("large");
    for (event, matters) in [
        (web("cpus", Some(80)), false),
        (web("c", None), false),
        // The pass holds it, and its cpu may be too little now.
        (web("a", None), true),
    ] {
        planner.follow_pods(&event);
        assert_eq!(planner.cluster.catch_up(), matters);
    }
    assert!(!planner.follow_nodes(&without("8")));
    assert!(!planner.follow_nodes(&without("9")));
    planner.follow_nodes(&Event::Delete(fixtures::node("cpus", "", 0)));
    assert!(!planner.cluster.catch_up());
}

fn cordoned(node: &str) -> Event<Node> {
    let mut node = fixtures::node(node, "Tesla-T4", 1);
    node.spec.get_or_insert_default().unschedulable = Some(true);
    Event::Apply(node)
}

#[test]
fn a_change_may_matter_to_a_shape_whose_view_is_gone_or_shows_another_avoided_node() {
    let mut planner = planner(&["a", "b"]);
    let mut avoids_b = in_phase(job("avoids-b", 1, 2), Phase::Pending, 1);
    status(&mut avoids_b).failed_nodes = vec![fixtures::failed_node("b", Some(3600))];
    planner.send(&[&job("large", 3, 1), &avoids_b]);
    planner.ask("large");
    planner.follow_nodes(&cordoned("b"));
    assert!(planner.cluster.catch_up());

    let mut planner = Planner::default();
    let nodes: Vec<String> = (0..34).map(|index| format!("node-{index}")).collect();
    for node in &nodes {
        planner.add_nodes(&[node], "Tesla-T4");
        let mut named = job(&format!("on-{node}"), 2, 1);
        named.spec.placement.nodes = vec![node.clone()];
        planner.send(&[&named]);
    }
    planner.ask("on-node-0");
    for node in &nodes {
        planner.follow_nodes(&cordoned(node));
        assert!(planner.cluster.catch_up(), "{node}");
    }
}

#[test]
fn the_taints_of_the_named_nodes_are_given() {
    let mut planner = planner(&["a"]);
    let tainted = |name: &str, taints: serde_json::Value| {
        let mut node = fixtures::node(name, "Tesla-T4", 1);
        node.spec.get_or_insert_default().taints = serde_json::from_value(taints).expect("taints");
        Event::Apply(node)
    };
    let gpu = serde_json::json!({"key": GPU, "value": "present", "effect": "NoSchedule"});
    let team = serde_json::json!({"key": "team", "value": "a", "effect": "NoSchedule"});
    let soft = serde_json::json!({"key": "soft", "effect": "PreferNoSchedule"});
    let dead = serde_json::json!({"key": "dead", "effect": "NoExecute"});
    planner.follow_nodes(&tainted("b", serde_json::json!([soft, gpu, team, dead])));
    planner.follow_nodes(&tainted("c", serde_json::json!([dead])));
    planner.follow_nodes(&tainted("d", serde_json::json!([team])));
    planner.send(&[&job("large", 4, 1), &job("small", 1, 2)]);
    let Decision::Waits(Waiting::NoFit { rejected, wait }) = planner.ask("large") else {
        panic!("it fits")
    };
    let spec = job("large", 4, 1).spec;
    assert_eq!(
        crds::words::waits(&spec, &wait, Some(&rejected)),
        "needs 4 x 1 identical nvidia.com/gpu: Tesla-T4 has 1 node with 1 free, 3 nodes with a taint that is \
         not tolerated (b, c, d: dead:NoExecute, team=a:NoSchedule)"
    );
}

#[test]
fn jobs_hear_when_they_fit_or_wait_for_other_reasons_than_they_know() {
    let mut planner = planner(&["a", "b", "c"]);
    let small = job("small", 1, 1);
    planner.send(&[
        &running_on(job("busy", 1, 0), &["a"]),
        &small,
        &job("large", 4, 2),
    ]);
    let news = |planner: &mut Planner| planner.news(at(100)).join(" ");
    assert_eq!(news(&mut planner), "research/small research/large");
    assert_eq!(news(&mut planner), "");
    // More nodes in use, or fewer, are the same reason.
    let other = running_on(job("other", 1, 3), &["b"]);
    planner.send(&[&other]);
    assert_eq!(news(&mut planner), "");
    planner.follow_jobs(&deleted(&other));
    assert_eq!(news(&mut planner), "");
    planner.follow_nodes(&cordoned("c"));
    assert_eq!(news(&mut planner), "research/large");
    // It knows what its own round found.
    planner.follow_nodes(&Event::Apply(fixtures::node("c", "Tesla-T4", 1)));
    planner.ask("large");
    assert_eq!(news(&mut planner), "");
    assert_eq!(planner.nodes_for("small"), "b");
    planner.release(&uid("small"), 1);
    planner.add_nodes(&["d"], "Tesla-T4");
    planner.follow_jobs(&deleted(&small));
    planner.follow_jobs(&deleted(&running_on(job("busy", 1, 0), &["a"])));
    assert_eq!(news(&mut planner), "research/large");
}

#[test]
fn an_elastic_gang_leaves_a_slow_node_out_and_does_not_grow_back_onto_it() {
    let nodes = ["a", "b", "c", "d"];
    let slow_on_b = |is_avoided| {
        let mut job = on_nodes(elastic("elastic", 1, 2, 4), Phase::Restarting, 1, &nodes);
        job.spec.failure_policy.exclude_stragglers = is_avoided;
        status(&mut job).stragglers = vec![fixtures::straggler(1, "b", 1.5)];
        job
    };
    for (is_avoided, expected) in [(true, "a c"), (false, "a b c d")] {
        let mut planner = planner(&nodes);
        planner.send(&[&slow_on_b(is_avoided)]);
        assert_eq!(planner.nodes_for("elastic"), expected);
    }

    let mut small = running_on(slow_on_b(true), &["a", "c"]);
    status(&mut small).slow_nodes = vec![SlowNodeStatus {
        node: "b".into(),
        slowdown: 1.5,
        avoided_until: Time(at(3600)),
    }];
    let mut planner = planner(&nodes);
    planner.send(&[&small]);
    assert_eq!(planner.growth(&uid("elastic"), at(100)), None);
    planner.add_nodes(&["e"], "Tesla-T4");
    assert_eq!(planner.growth(&uid("elastic"), at(100)), Some(4));
}

#[test]
fn like_gpus_with_a_node_where_the_job_failed_are_better_than_a_mix_without() {
    let mut planner = planner(&["t1", "t2"]);
    planner.add_nodes(&["h1", "h2"], "NVIDIA-H200");
    let failed_on = |node: &str, homogeneity| {
        let mut job = in_phase(job("picky", 2, 0), Phase::Restarting, 1);
        job.spec.placement.homogeneity = homogeneity;
        job.spec.placement.gpu.products = vec![];
        status(&mut job).failed_nodes = vec![fixtures::failed_node(node, Some(3600))];
        job
    };
    let picky = failed_on("h1", Homogeneity::Preferred);
    planner.send(&[&picky]);
    // Identical GPUs without that node.
    assert_eq!(planner.nodes_for("picky"), "t1 t2");
    planner.release(&uid("picky"), 1);
    let busy = running_on(job("busy", 1, 0), &["t1"]);
    planner.send(&[&busy, &picky]);
    // Rather than h2 and t2.
    assert_eq!(planner.nodes_for("picky"), "h1 h2");
}

#[test]
fn an_elastic_gang_may_grow_onto_free_nodes_that_no_waiting_job_could_use() {
    let mut planner = planner(&["a", "b", "c"]);
    let small = running_on(elastic("elastic", 1, 2, 4), &["a"]);
    planner.send(&[&small]);
    let growth = |planner: &mut Planner| planner.growth(&uid("elastic"), at(100));
    assert_eq!(growth(&mut planner), Some(2));
    // A query promises nothing, and can be repeated.
    assert_eq!((planner.used("a"), planner.used("b")), (1, 0));
    planner.add_nodes(&["d"], "Tesla-T4");
    assert_eq!(growth(&mut planner), Some(4));
    // It waits for all four nodes, which it will get after the gang has ended.
    let waiting = job("waiting", 4, 1);
    planner.send(&[&waiting]);
    assert_eq!(growth(&mut planner), None);
    planner.follow_jobs(&deleted(&waiting));
    planner.send(&[&job("hopeless", 5, 1)]);
    // Whatever ends, that one never fits.
    assert_eq!(growth(&mut planner), Some(4));
    planner.send(&[&running_on(elastic("elastic", 1, 2, 4), &["a", "b", "c", "d"])]);
    assert_eq!(growth(&mut planner), None);
}

#[test]
fn only_an_elastic_gang_that_runs_may_grow() {
    let mut planner = planner(&["a", "b", "c"]);
    let starting = on_nodes(elastic("starting", 1, 2, 2), Phase::Starting, 1, &["a"]);
    planner.send(&[&starting, &running_on(job("fixed", 1, 0), &["b"])]);
    for name in ["starting", "fixed", "unknown"] {
        assert_eq!(planner.growth(&uid(name), at(100)), None, "{name}");
    }
}

#[test]
fn a_job_that_cannot_be_read_any_more_keeps_its_nodes_and_waits_no_longer() {
    let mut planner = planner(&["a", "b", "c"]);
    let starts = running_on(job("starts", 1, 0), &["a"]);
    let (waits, later) = (job("waits", 3, 1), job("later", 2, 2));
    planner.send(&[&starts, &waits, &later]);
    assert_eq!(planner.nodes_for("waits"), "");
    let unreadable = |job: &ViTTrainingJob| {
        let error = serde_json::json!({"metadata": job.metadata, "spec": "of another version"});
        let stored: StoredJob = serde_json::from_value(error).expect("it has metadata");
        assert!(stored.readable().is_none());
        Event::Apply(stored)
    };
    assert!(!planner.follow_jobs(&unreadable(&starts)), "it waits for nothing");
    assert!(planner.follow_jobs(&unreadable(&waits)), "others may go ahead");
    assert_eq!(planner.nodes_for("later"), "b c");
    let over = in_phase(job("starts", 1, 0), Phase::Succeeded, 1);
    planner.send(&[&over, &job("last", 1, 3)]);
    assert_eq!(planner.nodes_for("last"), "a");
}

#[test]
fn a_shape_that_many_jobs_have_keeps_its_view_and_jobs_that_avoid_different_nodes_share_one() {
    let mut planner = planner(&["a"]);
    for index in 0..40 {
        let mut other = job(&format!("other-{index}"), 100, 2 * index);
        other.spec.placement.exclude_nodes = vec![format!("unknown-{index}")];
        let common = job(&format!("common-{index}"), 100, 2 * index + 1);
        let mut common = in_phase(common, Phase::Pending, 1);
        status(&mut common).failed_nodes = vec![fixtures::failed_node(&format!("node-{index}"), Some(3600))];
        planner.send(&[&other, &common]);
    }
    assert_eq!(planner.nodes_for("common-39"), "");
    assert_eq!(planner.cluster.views_made, 41);
}

#[test]
fn more_shapes_than_views_cost_each_pass_only_the_excess_and_old_shapes_make_room() {
    let mut planner = planner(&["a"]);
    let send = |planner: &mut Planner, name: &str| {
        for index in 0..40 {
            let mut job = job(&format!("{name}-{index:02}"), 100, index);
            job.spec.placement.exclude_nodes = vec![format!("{name}-{index}")];
            planner.send(&[&job]);
        }
    };
    let pass = |planner: &mut Planner, nodes: &[&str]| {
        let before = planner.cluster.views_made;
        planner.add_nodes(nodes, "Tesla-T4");
        planner.news(at(100));
        planner.cluster.views_made - before
    };
    send(&mut planner, "old");
    let made = ["b", "c", "d"].map(|node| pass(&mut planner, &[node]));
    assert_eq!(made, [40, 9, 9]);
    for index in 0..40 {
        planner.follow_jobs(&deleted(&job(&format!("old-{index:02}"), 100, index)));
    }
    send(&mut planner, "new");
    let made = ["e", "f", "g"].map(|node| pass(&mut planner, &[node]));
    assert_eq!(made, [40, 39, 9]);
}

/// Whether other tasks run on the only thread of a runtime during this.
async fn leaves_the_thread(work: impl FnOnce() + Send + 'static) -> bool {
    let (begins, has_begun) = tokio::sync::oneshot::channel();
    let working = tokio::spawn(async move {
        begins.send(()).expect("heard");
        work();
    });
    has_begun.await.expect("it begins");
    let (runs, is_running) = std::sync::mpsc::channel();
    tokio::spawn(async move { runs.send(()) });
    let is_free = is_running
        .recv_timeout(std::time::Duration::from_secs(10))
        .is_ok();
    working.abort();
    is_free
}

/// The lease is renewed by the same threads.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn whoever_waits_for_the_planner_or_has_a_pass_made_leaves_the_thread_to_others() {
    let planner = SharedPlanner::default();
    let (release, released) = std::sync::mpsc::channel::<()>();
    let (locked, is_locked) = std::sync::mpsc::channel();
    let holder = planner.clone();
    std::thread::spawn(move || {
        let _guard = holder.lock();
        locked.send(()).expect("heard");
        // Until the test releases it, or fails.
        released.recv().unwrap_or_default();
    });
    is_locked.recv().expect("locked");
    let waiting = planner.clone();
    assert!(leaves_the_thread(move || drop(waiting.lock())).await);
    drop(release);
    let (release, released) = std::sync::mpsc::channel::<()>();
    assert!(leaves_the_thread(move || blocking(|| released.recv().unwrap_or_default())).await);
    drop(release);
}

#[tokio::test]
async fn a_runtime_of_one_thread_plans_as_well() {
    let planner = SharedPlanner::default();
    assert_eq!(planner.place("unknown", None, 1, at(0)), None);
    assert_eq!(planner.growth("unknown", at(0)), None);
}
