use super::*;
use crate::fixtures::{self, at};

fn inventory() -> Inventory {
    let nodes = [
        fixtures::node("a", "Tesla-T4", 1),
        fixtures::node("b", "Tesla-T4", 1),
    ];
    Inventory::new(&nodes, [], &HashMap::new())
}

fn promise(attempt: i32) -> Reservation {
    Reservation {
        job: fixtures::UID.into(),
        attempt,
        nodes: vec!["a".into(), "b".into()],
        requests: [("nvidia.com/gpu".to_owned(), 1)].into(),
    }
}

#[test]
fn a_promise_lasts_until_the_cached_status_shows_it() {
    let mut ledger = Ledger::default();
    ledger.reserve(promise(1));
    let waiting = fixtures::job_in(Phase::Pending, 0);
    assert_eq!(ledger.reservations([&waiting])[fixtures::UID], promise(1));
    // From here on the status stands for it, pods or no pods.
    let starting = fixtures::job_in(Phase::Starting, 1);
    assert_eq!(ledger.reservations([&starting])[fixtures::UID].nodes, ["a", "b"]);
    let restarting = fixtures::job_in(Phase::Restarting, 1);
    assert!(ledger.reservations([&restarting]).is_empty());
}

#[test]
fn a_promise_to_a_job_that_is_gone_is_forgotten() {
    let mut ledger = Ledger::default();
    ledger.reserve(promise(1));
    assert!(ledger.reservations([]).is_empty());
}

#[test]
fn a_promise_that_could_not_be_recorded_is_taken_back_and_no_newer_one() {
    let mut ledger = Ledger::default();
    let waiting = fixtures::job_in(Phase::Pending, 0);
    ledger.reserve(promise(2));
    ledger.release(fixtures::UID, 1);
    assert_eq!(ledger.reservations([&waiting]).len(), 1);
    ledger.release(fixtures::UID, 2);
    assert!(ledger.reservations([&waiting]).is_empty());
}

#[test]
fn what_is_promised_is_not_free_and_is_counted_once() {
    let nodes = [
        fixtures::node("a", "Tesla-T4", 1),
        fixtures::node("b", "Tesla-T4", 1),
    ];
    let reservations = HashMap::from([(fixtures::UID.to_owned(), promise(1))]);
    let used = |pods: &[k8s_openapi::api::core::v1::Pod]| {
        let inventory = Inventory::new(&nodes, pods, &reservations);
        ["a", "b"].map(|name| inventory.nodes[name].resources["nvidia.com/gpu"].used)
    };
    let pods = fixtures::pod_objects(1, "Running");
    assert_eq!(used(&[]), [1, 1]);
    assert_eq!(used(&pods[..1]), [1, 1]);
    assert_eq!(used(&pods), [1, 1]);
    // A pod that ended holds nothing, and its promise is fulfilled; one of another attempt holds what it has.
    assert_eq!(used(&fixtures::pod_objects(1, "Failed")), [0, 0]);
    assert_eq!(used(&fixtures::pod_objects(2, "Running")[..1]), [2, 1]);
}

#[test]
fn pods_that_are_planned_but_not_bound_hold_their_gpus() {
    let nodes = [fixtures::node("a", "Tesla-T4", 1)];
    let mut pods = fixtures::pod_objects(1, "Pending");
    pods.truncate(1);
    pods[0].spec.as_mut().expect("a spec").node_name = None;
    let inventory = Inventory::new(&nodes, &pods, &HashMap::new());
    assert_eq!(inventory.nodes["a"].resources["nvidia.com/gpu"].free(), 0);
}

fn other(name: &str, second: i64) -> ViTTrainingJob {
    let mut job = fixtures::job();
    job.metadata.name = Some(name.into());
    job.metadata.uid = Some(format!("uid-of-{name}"));
    job.metadata.creation_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(second)));
    job
}

#[test]
fn a_younger_job_does_not_take_what_an_older_one_fits_in() {
    let (older, younger) = (other("older", 1), other("younger", 2));
    let jobs = [&older, &younger];
    let free = |job: &ViTTrainingJob, promised: bool| {
        let mut inventory = inventory();
        give_way_to_older(&mut inventory, job, jobs, |_| promised);
        inventory
            .nodes
            .values()
            .map(|node| node.resources["nvidia.com/gpu"].free())
            .sum::<i64>()
    };
    assert_eq!(free(&older, false), 2);
    assert_eq!(free(&younger, false), 0);
    // What was promised is counted elsewhere.
    assert_eq!(free(&younger, true), 2);
}

#[test]
fn a_younger_job_does_not_take_the_gpus_of_an_older_one_that_restarts_or_resumes() {
    let younger = other("younger", 2);
    for phase in [Phase::Restarting, Phase::Suspended] {
        let mut older = other("older", 1);
        older.status = Some(fixtures::status(phase, 1));
        let mut inventory = inventory();
        give_way_to_older(&mut inventory, &younger, [&older, &younger], |_| false);
        assert!(place(&one_node(&younger), &inventory).is_err(), "{phase:?}");
    }
}

#[test]
fn a_gpu_that_one_pod_of_a_stopping_gang_has_left_stays_with_its_job() {
    let (mut older, younger) = (other("older", 1), other("younger", 2));
    older.status = Some(fixtures::status(Phase::Restarting, 1));
    let mut inventory = inventory();
    // The other pod of the gang still stops.
    inventory.hold("b", &[("nvidia.com/gpu".to_owned(), 1)].into());
    assert!(place(&one_node(&younger), &inventory).is_ok());
    give_way_to_older(&mut inventory, &younger, [&older, &younger], |_| false);
    assert!(place(&one_node(&younger), &inventory).is_err());
}

fn one_node(job: &ViTTrainingJob) -> GangRequest {
    let mut job = job.clone();
    job.spec.workers.nodes = 1;
    GangRequest::from(&validate(&job).expect("valid"))
}

#[test]
fn an_older_job_that_fits_nowhere_or_does_not_want_to_start_holds_nothing_back() {
    let younger = other("younger", 2);
    let changes: [fn(&mut ViTTrainingJob); 3] = [
        |job| job.spec.workers.nodes = 3,
        |job| job.spec.suspend = true,
        |job| job.status = Some(fixtures::status(Phase::Succeeded, 1)),
    ];
    for change in changes {
        let mut older = other("older", 1);
        change(&mut older);
        let mut inventory = inventory();
        give_way_to_older(&mut inventory, &younger, [&older, &younger], |_| false);
        assert!(
            inventory
                .nodes
                .values()
                .all(|node| node.resources["nvidia.com/gpu"].free() == 1)
        );
    }
}
