use crds::spec::Homogeneity;
use crds::status::SlowNodeStatus;
use crds::{Phase, ViTTrainingJob, ViTTrainingJobStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::core::DeserializeGuard;

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

fn event(job: &ViTTrainingJob) -> Event<GuardedJob> {
    Event::Apply(DeserializeGuard(Ok(job.clone())))
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

    fn ask(&mut self, name: &str) -> Decision {
        self.place(&uid(name), 1, at(100))
    }

    /// The nodes that a job gets; none if it waits.
    fn nodes_for(&mut self, name: &str) -> Vec<String> {
        match self.ask(name) {
            Decision::Placed(placement) => placement.nodes,
            Decision::Waits(_) => vec![],
            Decision::Outdated => panic!("{name} is not known"),
        }
    }

    pub(crate) fn used(&self, node: &str) -> i64 {
        let node = self.cluster.fleet.node(node).expect("a node");
        node.resources[GPU].used
    }
}

#[test]
fn a_promise_lasts_until_the_cached_status_shows_it() {
    let mut planner = planner(&["a", "b"]);
    let waiting = job("first", 2, 0);
    planner.send(&[&waiting]);
    assert_eq!(planner.nodes_for("first"), ["a", "b"]);
    planner.send(&[&in_phase(waiting.clone(), Phase::Pending, 0)]);
    assert!(planner.is_open(&uid("first"), 0));
    assert_eq!(planner.used("a"), 1);
    // From here on the status counts, with or without pods.
    planner.send(&[&in_phase(waiting.clone(), Phase::Starting, 1)]);
    assert!(!planner.is_open(&uid("first"), 0));
    assert_eq!(planner.used("a"), 1);
    planner.send(&[&in_phase(waiting, Phase::Succeeded, 1)]);
    assert_eq!(planner.used("a"), 0);
}

#[test]
fn a_promise_to_a_job_that_is_gone_is_forgotten() {
    let mut planner = planner(&["a", "b"]);
    let gone = job("gone", 2, 0);
    planner.send(&[&gone]);
    assert_eq!(planner.nodes_for("gone").len(), 2);
    planner.follow_jobs(&Event::Delete(DeserializeGuard(Ok(gone))));
    assert_eq!(planner.used("a"), 0);
    assert_eq!(planner.ask("gone"), Decision::Outdated);
}

#[test]
fn a_promise_that_could_not_be_recorded_is_taken_back_and_no_newer_one() {
    let mut planner = planner(&["a", "b"]);
    planner.send(&[&job("first", 2, 0)]);
    assert!(matches!(
        planner.place(&uid("first"), 2, at(100)),
        Decision::Placed(_)
    ));
    planner.release(&uid("first"), 1);
    assert_eq!(planner.used("a"), 1);
    planner.release(&uid("first"), 2);
    assert_eq!(planner.used("a"), 0);
    assert_eq!(planner.nodes_for("first"), ["a", "b"]);
}

#[test]
fn a_job_whose_last_promise_may_have_been_recorded_is_promised_nothing_else() {
    let mut planner = planner(&["a", "b"]);
    planner.send(&[&job("first", 2, 0)]);
    assert_eq!(planner.nodes_for("first"), ["a", "b"]);
    // The status that records it may arrive late, after the job would be placed elsewhere.
    for name in ["a", "b"] {
        let mut node = fixtures::node(name, "Tesla-T4", 1);
        node.spec.get_or_insert_default().unschedulable = Some(true);
        planner.follow_nodes(&Event::Apply(node));
    }
    planner.add_nodes(&["c", "d"], "Tesla-T4");
    assert_eq!(planner.ask("first"), Decision::Outdated);
    assert!(planner.is_open(&uid("first"), 0));
    assert_eq!(["a", "b", "c", "d"].map(|node| planner.used(node)), [1, 1, 0, 0]);
    planner.release_open(&uid("first"), 0);
    assert_eq!(planner.nodes_for("first"), ["c", "d"]);
    assert_eq!(["a", "b", "c", "d"].map(|node| planner.used(node)), [0, 0, 1, 1]);
}

#[test]
fn a_promise_without_pods_that_ends_is_news_to_jobs_that_wait() {
    let starting = in_phase(fixtures::job(), Phase::Starting, 1);
    let ends: [fn(ViTTrainingJob) -> Event<GuardedJob>; 2] = [
        |job| event(&in_phase(job, Phase::Failed, 1)),
        |job| Event::Delete(DeserializeGuard(Ok(job))),
    ];
    for end in ends {
        let mut planner = planner(&["a", "b"]);
        assert!(!planner.follow_jobs(&event(&starting)));
        assert!(planner.follow_jobs(&end(starting.clone())));
        assert_eq!(planner.used("a"), 0);
    }
    // Its pods' own events release their GPUs.
    for end in ends {
        let mut planner = planner(&["a", "b"]);
        planner.send(&[&starting]);
        for pod in fixtures::pod_objects(1, "Running") {
            planner.follow_pods(&Event::Apply(pod));
        }
        assert!(!planner.follow_jobs(&end(starting.clone())));
        assert_eq!(planner.used("a"), 1);
    }
}

#[test]
fn a_younger_job_does_not_take_what_an_older_one_fits_in() {
    let mut planner = planner(&["a", "b"]);
    planner.send(&[&job("younger", 2, 2), &job("older", 2, 1)]);
    assert_eq!(planner.nodes_for("younger"), [""; 0]);
    assert_eq!(planner.nodes_for("older"), ["a", "b"]);
    assert_eq!(planner.nodes_for("younger"), [""; 0]);
}

#[test]
fn a_younger_job_does_not_take_the_gpus_of_an_older_one_that_restarts_or_resumes() {
    for phase in [Phase::Restarting, Phase::Suspended] {
        let mut planner = planner(&["a", "b"]);
        planner.send(&[&in_phase(job("older", 2, 1), phase, 1), &job("younger", 1, 2)]);
        assert_eq!(planner.nodes_for("younger"), [""; 0], "{phase:?}");
    }
}

#[test]
fn a_gpu_that_one_pod_of_a_stopping_gang_has_left_stays_with_its_job() {
    let mut planner = planner(&["a", "b"]);
    planner.send(&[&job("younger", 1, 2)]);
    // The other pod of the gang is still stopping.
    let pod = fixtures::pod_objects(1, "Running").remove(1);
    planner.follow_pods(&Event::Apply(pod));
    planner.send(&[&in_phase(job("older", 2, 1), Phase::Restarting, 1)]);
    assert_eq!(planner.nodes_for("younger"), [""; 0]);
    planner.follow_jobs(&Event::Delete(DeserializeGuard(Ok(job("older", 2, 1)))));
    assert_eq!(planner.nodes_for("younger"), ["a"]);
}

#[test]
fn nodes_that_a_gang_leaves_when_it_shrinks_go_to_the_next_job() {
    let mut planner = planner(&["a", "b"]);
    planner.send(&[
        &in_phase(job("shrinks", 1, 1), Phase::Restarting, 1),
        &job("younger", 1, 2),
    ]);
    assert_eq!(planner.nodes_for("younger"), [""; 0]);
    assert_eq!(planner.nodes_for("shrinks"), ["a"]);
    assert_eq!(planner.nodes_for("younger"), ["b"]);
}

#[test]
fn jobs_that_wait_are_told_when_a_gang_shrinks() {
    for (nodes, is_news) in [(1, true), (2, false)] {
        let mut planner = planner(&["a", "b"]);
        planner.send(&[&in_phase(job("restarts", nodes, 1), Phase::Restarting, 1)]);
        let Decision::Placed(placed) = planner.place(&uid("restarts"), 2, at(100)) else {
            panic!("it fits")
        };
        let placed: Vec<&str> = placed.nodes.iter().map(String::as_str).collect();
        let starting = on_nodes(job("restarts", nodes, 1), Phase::Starting, 2, &placed);
        assert_eq!(planner.follow_jobs(&event(&starting)), is_news, "{nodes} nodes");
    }
}

#[test]
fn a_job_that_fits_nowhere_or_does_not_want_to_start_holds_nothing_back() {
    let changes: [fn(&mut ViTTrainingJob); 4] = [
        |job| job.spec.workers.nodes = 3,
        |job| job.spec.suspend = true,
        |job| job.spec.workers.priority_class_name = Some("unknown".into()),
        |job| job.status = Some(fixtures::status(Phase::Succeeded, 1)),
    ];
    for change in changes {
        let mut planner = planner(&["a", "b"]);
        let mut older = job("older", 2, -1_000_000);
        change(&mut older);
        planner.send(&[&older, &job("younger", 2, 2)]);
        assert_eq!(planner.nodes_for("younger"), ["a", "b"]);
    }
}

fn of_class(mut job: ViTTrainingJob, class: &str) -> ViTTrainingJob {
    job.spec.workers.priority_class_name = Some(class.into());
    job
}

#[test]
fn a_job_of_higher_priority_comes_first_once_its_class_exists() {
    let mut planner = planner(&["a", "b"]);
    planner.send(&[&job("older", 2, 1), &of_class(job("urgent", 2, 2), "high")]);
    let missing = Waiting::NoPriorityClass("high".into());
    assert_eq!(planner.ask("urgent"), Decision::Waits(missing));
    let class = fixtures::priority_class("high", 1000, false);
    assert!(planner.follow_classes(&Event::Apply(class)));
    assert_eq!(planner.nodes_for("older"), [""; 0]);
    assert_eq!(planner.nodes_for("urgent"), ["a", "b"]);
}

#[test]
fn the_default_class_holds_where_none_is_named() {
    let mut planner = planner(&["a", "b"]);
    planner.follow_classes(&Event::Apply(fixtures::priority_class("low", -1, false)));
    planner.follow_classes(&Event::Apply(fixtures::priority_class("usual", -2, true)));
    planner.send(&[&job("older", 2, 1), &of_class(job("low", 2, 2), "low")]);
    assert_eq!(planner.nodes_for("older"), [""; 0]);
}

#[test]
fn a_refused_job_that_was_mended_waits_like_any_other() {
    let mut planner = planner(&["a", "b"]);
    let mut mended = job("mended", 2, 1);
    mended.status = fixtures::refused().status;
    planner.send(&[&mended]);
    assert_eq!(planner.nodes_for("mended"), ["a", "b"]);
}

#[test]
fn a_large_job_lets_others_go_ahead_for_a_while_and_then_gets_nodes_as_they_come_free() {
    let mut planner = planner(&["a", "b"]);
    let running = running_on(job("running", 1, -5), &["b"]);
    planner.send(&[&running, &job("large", 2, 0), &job("small", 1, 1)]);
    let late = at(0) + PATIENCE;
    let early = late - jiff::SignedDuration::from_secs(1);
    let place = |planner: &mut Planner, name: &str, now| planner.place(&uid(name), 1, now);
    assert!(matches!(place(&mut planner, "large", early), Decision::Waits(_)));
    assert!(matches!(place(&mut planner, "small", early), Decision::Placed(_)));
    planner.release(&uid("small"), 1);
    // From here on only time passes.
    assert!(matches!(place(&mut planner, "large", early), Decision::Waits(_)));
    let queue = |planner: &mut Planner, name: &str| match place(planner, name, late) {
        Decision::Waits(Waiting::NoFit { queue, .. }) => queue,
        other => panic!("{name} does not wait: {other:?}"),
    };
    let small = queue(&mut planner, "small");
    assert_eq!((small.position, small.waiting), (2, 2));
    assert_eq!(small.held_back_for.as_deref(), Some("research/large"));
    assert_eq!(queue(&mut planner, "large").reserved_nodes, 2);
    let over = in_phase(running, Phase::Succeeded, 1);
    planner.send(&[&over]);
    assert!(
        matches!(place(&mut planner, "large", late), Decision::Placed(placed) if placed.nodes == ["a", "b"])
    );
    // Nobody waits for nodes that do not exist.
    planner.release(&uid("large"), 1);
    planner.follow_nodes(&Event::Delete(fixtures::node("b", "Tesla-T4", 1)));
    assert!(matches!(place(&mut planner, "small", late), Decision::Placed(_)));
}

#[test]
fn one_pass_serves_all_rounds_until_something_changes() {
    let mut planner = planner(&["a", "b", "c"]);
    planner.send(&[&job("first", 1, 1), &job("second", 1, 2), &job("large", 4, 3)]);
    assert_eq!(planner.nodes_for("second"), ["b"]);
    let first = planner.pass.last().cloned();
    planner.send(&[&job("third", 1, 4)]);
    assert!(!planner.is_stale, "a job at the end continues the pass");
    assert_eq!(planner.nodes_for("third"), ["c"]);
    assert_ne!(planner.pass.last().cloned(), first);
    // Its pods appear on the promised nodes: nothing has changed for others.
    assert_eq!(planner.nodes_for("first"), ["a"]);
    planner.send(&[&on_nodes(job("first", 1, 1), Phase::Starting, 1, &["a"])]);
    assert!(!planner.is_stale);
    assert!(!planner.cluster.catch_up());
    planner.add_nodes(&["d"], "Tesla-T4");
    assert!(planner.cluster.catch_up());
}

#[test]
fn an_elastic_job_takes_the_greatest_of_its_sizes_that_fits() {
    let mut planner = planner(&["a", "b", "c"]);
    planner.send(&[&elastic("elastic", 1, 2, 4)]);
    // Three nodes cannot share its 32 images evenly.
    assert_eq!(planner.nodes_for("elastic"), ["a", "b"]);
    planner.release_open(&uid("elastic"), 0);
    planner.add_nodes(&["d"], "Tesla-T4");
    assert_eq!(planner.nodes_for("elastic").len(), 4);
    planner.send(&[&job("fixed", 1, 1)]);
    let Decision::Waits(Waiting::NoFit { why, .. }) = planner.ask("fixed") else {
        panic!("a node was given twice");
    };
    assert!(
        why.message.starts_with("needs 1 x 1 identical nvidia.com/gpu"),
        "{why:?}"
    );
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
    for (is_avoided, expected) in [(true, &["a", "c"][..]), (false, &nodes)] {
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
    planner.send(&[&failed_on("h1", Homogeneity::Preferred)]);
    assert_eq!(
        planner.nodes_for("picky"),
        ["t1", "t2"],
        "identical GPUs without that node"
    );
    let busy = running_on(job("busy", 1, 0), &["t1"]);
    planner.send(&[&busy, &failed_on("h1", Homogeneity::Preferred)]);
    let nodes = planner.place(&uid("picky"), 2, at(100));
    let Decision::Placed(placement) = nodes else {
        panic!("{nodes:?}")
    };
    assert_eq!(placement.nodes, ["h1", "h2"], "rather than h2 and t2");
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
    planner.follow_jobs(&Event::Delete(DeserializeGuard(Ok(waiting))));
    planner.send(&[&job("hopeless", 5, 1)]);
    assert_eq!(
        growth(&mut planner),
        Some(4),
        "whatever ends, that one never fits"
    );
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
    assert!(planner.nodes_for("waits").is_empty());
    let unreadable = |job: &ViTTrainingJob| {
        let error = serde_json::json!({"metadata": job.metadata, "spec": "of another version"});
        let guarded: GuardedJob = serde_json::from_value(error).expect("it has metadata");
        assert!(guarded.0.is_err());
        Event::Apply(guarded)
    };
    assert!(!planner.follow_jobs(&unreadable(&starts)), "it waits for nothing");
    assert!(planner.follow_jobs(&unreadable(&waits)), "others may go ahead");
    assert_eq!(planner.nodes_for("later"), ["b", "c"]);
    planner.follow_jobs(&event(&in_phase(job("starts", 1, 0), Phase::Succeeded, 1)));
    planner.send(&[&job("last", 1, 3)]);
    assert_eq!(planner.nodes_for("last"), ["a"]);
}

/// A job that has failed on a node, and waits for more nodes than exist.
fn failed_on(name: &str, node: &str) -> ViTTrainingJob {
    let mut job = in_phase(job(name, 100, 0), Phase::Pending, 1);
    status(&mut job).failed_nodes = vec![fixtures::failed_node(node, Some(3600))];
    job
}

#[test]
fn jobs_that_avoid_different_nodes_share_a_view() {
    let nodes = ["a", "b", "c", "d"];
    let mut planner = planner(&nodes);
    for node in nodes {
        planner.send(&[&failed_on(&format!("failed-on-{node}"), node)]);
    }
    for node in nodes {
        let Decision::Waits(Waiting::NoFit { .. }) = planner.ask(&format!("failed-on-{node}")) else {
            panic!("a hundred nodes of four");
        };
    }
    assert_eq!(planner.cluster.views_made, 1);
}

#[test]
fn a_shape_that_many_jobs_have_keeps_its_view() {
    let mut planner = planner(&["a"]);
    for index in 0..40 {
        let mut other = job(&format!("other-{index}"), 100, 2 * index);
        other.spec.placement.exclude_nodes = vec![format!("unknown-{index}")];
        let common = job(&format!("common-{index}"), 100, 2 * index + 1);
        planner.send(&[&other, &common]);
    }
    assert_eq!(planner.nodes_for("common-39"), [""; 0]);
    assert_eq!(planner.cluster.views_made, 41);
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
    assert_eq!(planner.place("unknown", 1, at(0)), Decision::Outdated);
    assert_eq!(planner.growth("unknown", at(0)), None);
}
