//! Gangs that end.

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
