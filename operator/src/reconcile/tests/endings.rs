//! Gangs that end: deleted jobs, large gangs and nodes that stay silent.

use super::*;

fn deleted(finalizer: &str) -> ViTTrainingJob {
    let mut job = fixtures::job_in(Phase::Running, 1);
    job.metadata.deletion_timestamp = job.metadata.creation_timestamp.clone();
    job.metadata.finalizers = Some(vec![finalizer.into()]);
    job
}

#[tokio::test]
async fn the_gang_of_a_job_whose_deletion_someone_holds_up_is_stopped() {
    let running = || Rounds::with_gang(pods([("Running", None); 2]));
    for finalizer in ["example.com/hold", "foregroundDeletion"] {
        let (calls, _, result) = running().run(deleted(finalizer), 1).await;
        assert_eq!(
            sorted(calls),
            ["DELETE pods digits-1-0", "DELETE pods digits-1-1"]
        );
        assert_eq!(result.expect("reconciled"), Action::requeue(IN_MOTION));
    }
    // The rest is left to the garbage collector, and all of it where the pods are to stay.
    let gone = Rounds::with_gang(vec![]).run(deleted("example.com/hold"), 1);
    for rounds in [gone, running().run(deleted("orphan"), 1)] {
        let (calls, _, result) = rounds.await;
        assert_eq!(calls, Vec::<String>::new());
        assert_eq!(result.expect("reconciled"), Action::await_change());
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_is_lost_by_the_time_that_this_process_sees_it_unready() {
    let hour = SignedDuration::from_hours(1);
    let since = |time: jiff::Timestamp| json!([{"type": "Ready", "status": "Unknown", "lastTransitionTime": time.to_string()}]);
    let now = fixtures::at(100);
    for conditions in [since(now - hour), since(now + hour), json!([])] {
        let mut all = nodes(["a", "b"]);
        let status = all[1].status.as_mut().expect("a status");
        status.conditions = serde_json::from_value(conditions.clone()).expect("conditions");
        let (service, _server) = mock::pair();
        let context = context(service, &all, &fixtures::pod_objects(1, "Running"), &[]);
        let job = Arc::new(fixtures::job_in(Phase::Running, 1));
        let lost = || {
            let seen = observe::observe(&context, Arc::clone(&job));
            let lost = seen.pods.iter();
            let lost = lost.filter_map(|pod| seen.node_lost_for(pod, Duration::from_secs(30)));
            lost.map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(lost(), Vec::<String>::new(), "{conditions}");
        tokio::time::advance(Duration::from_secs(29)).await;
        assert_eq!(lost(), Vec::<String>::new(), "{conditions}");
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(lost(), ["b"], "{conditions}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_large_gang_is_deleted_in_turns() {
    let one = fixtures::pod_objects(1, "Running").remove(0);
    let pods = (0..60).map(|node_rank| {
        let mut pod = one.clone();
        let name = format!("digits-1-{node_rank}");
        (pod.metadata.uid, pod.metadata.name) = (Some(uid_of(&name)), Some(name));
        pod
    });
    let rounds = Rounds {
        pods: pods.collect(),
        takes: Duration::from_millis(100),
        ..Rounds::fresh()
    };
    let (calls, _, result) = rounds.run(fixtures::job_in(Phase::Restarting, 1), 1).await;
    assert_eq!(result.expect("reconciled"), Action::requeue(NEXT_TURN));
    let deleted = calls
        .iter()
        .filter(|call| call.starts_with("DELETE pods"))
        .count();
    assert!((10..40).contains(&deleted), "{deleted} in a second");
}
