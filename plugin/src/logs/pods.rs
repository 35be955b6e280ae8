//! Finds the pods whose logs are wanted.

use crds::{Phase, ViTTrainingJob};
use kube::ResourceExt as _;

use crate::error::Error;
use crate::gang::Member;
use crate::summary::phase;
use crate::text::{counted, ranks};

/// The ranks whose logs are wanted.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ranks {
    One(u32),
    All,
}

/// The pods of an attempt that hold the ranks, and a note for the reader of their logs.
pub(super) fn find(
    job: &ViTTrainingJob,
    members: &[Member],
    wanted: Ranks,
    attempt: i32,
) -> Result<(Vec<Member>, Option<String>), Error> {
    let members = of_attempt(job, members, attempt)?;
    let Ranks::One(rank) = wanted else {
        return Ok((members, None));
    };
    let gpus = job.spec.workers.gpus_per_node.max(1);
    let member = holder(job, &members, rank, attempt)?;
    let shared = ranks(member.node_rank, gpus);
    let note = (gpus > 1).then(|| format!("{shared} share the log of pod {}", member.pod));
    Ok((vec![member.clone()], note))
}

/// Whether pods are still being created.
pub(super) fn is_incomplete(job: &ViTTrainingJob, found: usize) -> bool {
    let workers = job.status.as_ref().and_then(|status| status.workers);
    let desired = workers.map_or(0, |workers| workers.desired);
    phase(job) == Some(Phase::Starting) && usize::try_from(desired).is_ok_and(|desired| found < desired)
}

/// The attempt before the current one.
pub(super) fn previous(job: &ViTTrainingJob) -> Result<i32, Error> {
    match attempt_of(job) {
        attempt @ ..=1 => Err(Error::NotFound(format!(
            "job {} has no previous attempt: it has had {attempt}",
            job.name_any()
        ))),
        attempt => Ok(attempt - 1),
    }
}

/// Rejects a rank that the job can never have instead of waiting for it.
pub(super) fn check_rank(job: &ViTTrainingJob, rank: u32) -> Result<(), Error> {
    let spec = &job.spec;
    let most = spec.elastic.as_ref().and_then(|elastic| elastic.max_nodes);
    let placed = job.status.as_ref().and_then(|status| status.placement.as_ref());
    let placed = placed.map_or(0, |placement| placement.nodes.len() as i64);
    let nodes = i64::from(most.unwrap_or(spec.workers.nodes).max(spec.workers.nodes)).max(placed);
    let gpus = spec.workers.gpus_per_node;
    if i64::from(rank) < nodes * i64::from(gpus) {
        return Ok(());
    }
    let who = format!("job {}", job.name_any());
    Err(no_rank(&who, rank, &counted(nodes, "node"), nodes, gpus))
}

fn no_rank(who: &str, rank: u32, pods: &str, count: i64, gpus: i32) -> Error {
    let (last, gpus) = (count * i64::from(gpus) - 1, counted(gpus, "GPU"));
    Error::NotFound(format!(
        "{who} has no rank {rank}: {pods} of {gpus} have ranks 0 to {last}"
    ))
}

pub(super) fn attempt_of(job: &ViTTrainingJob) -> i32 {
    job.status.as_ref().map_or(0, |status| status.attempt)
}

/// The pods of an attempt.
fn of_attempt(job: &ViTTrainingJob, members: &[Member], attempt: i32) -> Result<Vec<Member>, Error> {
    let name = job.name_any();
    let status = job.status.clone().unwrap_or_default();
    if status.attempt == 0 {
        return Err(Error::NotFound(format!(
            "job {name} has had no pods yet: kubectl vit why {name} shows what it waits for"
        )));
    }
    let found = members.iter().filter(|member| member.attempt == attempt);
    let found: Vec<Member> = found.cloned().collect();
    if !found.is_empty() {
        return Ok(found);
    }
    let mut words = format!("the pods of attempt {attempt} of job {name} are gone, and their logs with them");
    if let Some(other) = members.last() {
        words += &format!("; there are pods of attempt {}", other.attempt);
    }
    if let Some(failure) = status.last_failure.filter(|failure| failure.attempt == attempt) {
        words += &format!("; it failed as {}: {}", failure.class, failure.message);
    }
    Err(Error::NotFound(words))
}

/// The pod of an attempt that holds a rank.
fn holder<'a>(
    job: &ViTTrainingJob,
    members: &'a [Member],
    rank: u32,
    attempt: i32,
) -> Result<&'a Member, Error> {
    let name = job.name_any();
    let gpus = job.spec.workers.gpus_per_node.max(1);
    let node_rank = i32::try_from(rank).unwrap_or(i32::MAX) / gpus;
    if let Some(member) = members.iter().find(|member| member.node_rank == node_rank) {
        return Ok(member);
    }
    let placement = job.status.as_ref().and_then(|status| status.placement.as_ref());
    let placed = placement.map_or(0, |placement| placement.nodes.len());
    let pods = placed.max(members.len()) as i64;
    if i64::from(rank) >= pods * i64::from(gpus) {
        let who = format!("attempt {attempt} of job {name}");
        return Err(no_rank(&who, rank, &counted(pods, "pod"), pods, gpus));
    }
    Err(Error::NotFound(format!(
        "the pod of rank {rank} in attempt {attempt} of job {name} is gone, and its log with it"
    )))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::error::Exit;
    use crate::fixtures::job;

    fn member(attempt: i32, node_rank: i32) -> Member {
        Member {
            attempt,
            node_rank,
            pod: format!("digits-{attempt}-{node_rank}"),
            uid: None,
            state: "ready".into(),
            is_ready: true,
            is_running: true,
            has_run: true,
        }
    }

    fn two_gpus_a_node() -> ViTTrainingJob {
        let mut job = job(
            json!({"phase": "Running", "attempt": 2, "placement": {"nodes": ["node1", "node2"]},
            "lastFailure": {"attempt": 1, "class": "Killed", "message": "signal 9"}}),
        );
        job.spec.workers.gpus_per_node = 2;
        job
    }

    #[test]
    fn ranks_are_found_in_their_pods() {
        let members = [member(2, 0), member(2, 1)];
        let pod = |rank| {
            let (found, note) = find(&two_gpus_a_node(), &members, Ranks::One(rank), 2).expect("exists");
            (found[0].pod.clone(), note.expect("two ranks share a pod"))
        };
        assert_eq!(pod(1).0, "digits-2-0");
        assert_eq!(
            pod(2),
            (
                "digits-2-1".into(),
                "ranks 2-3 share the log of pod digits-2-1".into()
            )
        );
    }

    #[test]
    fn a_rank_that_can_never_be_is_not_waited_for() {
        let mut job = two_gpus_a_node();
        check_rank(&job, 3).expect("two nodes of two GPUs");
        let error = check_rank(&job, 4).expect_err("refused");
        assert_eq!(
            error.to_string(),
            "job digits has no rank 4: 2 nodes of 2 GPUs have ranks 0 to 3"
        );
        job.spec.elastic = serde_json::from_value(json!({"maxNodes": 4})).ok();
        check_rank(&job, 7).expect("it may grow");
    }

    #[test]
    fn pods_that_are_gone_or_never_were_are_refused() {
        let job = two_gpus_a_node();
        let members = [member(2, 0), member(2, 1)];
        let refused = |members: &[Member], rank, attempt| {
            let error = find(&job, members, Ranks::One(rank), attempt).expect_err("not there");
            assert_eq!(error.exit(), Exit::NotFound);
            error.to_string()
        };
        assert_eq!(
            refused(&members, 4, 2),
            "attempt 2 of job digits has no rank 4: 2 pods of 2 GPUs have ranks 0 to 3"
        );
        assert_eq!(
            refused(&members[..1], 3, 2),
            "the pod of rank 3 in attempt 2 of job digits is gone, and its log with it"
        );
        assert_eq!(
            refused(&members, 0, 1),
            "the pods of attempt 1 of job digits are gone, and their logs with them; there are pods of attempt 2; it \
             failed as Killed: signal 9"
        );
        let new = crate::fixtures::job(json!({"phase": "Pending", "attempt": 0}));
        let words = find(&new, &[], Ranks::One(0), 0)
            .expect_err("no pods")
            .to_string();
        assert!(words.starts_with("job digits has had no pods yet"), "{words}");
    }

    #[test]
    fn all_ranks_are_those_of_the_attempt() {
        let members = [member(1, 0), member(2, 0), member(2, 1)];
        let (found, note) = find(&two_gpus_a_node(), &members, Ranks::All, 2).expect("exist");
        let pods: Vec<&str> = found.iter().map(|member| member.pod.as_str()).collect();
        assert_eq!((pods, note), (vec!["digits-2-0", "digits-2-1"], None));
    }

    #[test]
    fn pods_are_waited_for_only_while_a_gang_starts() {
        let incomplete = |phase: &str| {
            let workers = json!({"desired": 2, "ready": 0, "failed": 0});
            is_incomplete(&job(json!({"phase": phase, "attempt": 1, "workers": workers})), 1)
        };
        assert!(incomplete("Starting"));
        assert!(
            !incomplete("Running"),
            "a pod that was deleted would be waited for"
        );
    }

    #[test]
    fn the_previous_attempt_is_one_before_the_present() {
        assert_eq!(previous(&two_gpus_a_node()).expect("exists"), 1);
        let error = previous(&job(json!({"phase": "Running", "attempt": 1}))).expect_err("none");
        assert_eq!(
            error.to_string(),
            "job digits has no previous attempt: it has had 1"
        );
    }
}
