//! `kubectl vit logs`: the log of the pod that holds a rank.

use std::io::Write as _;
use std::time::Duration;

use crds::{Phase, ViTTrainingJob};
use futures::AsyncReadExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::LogParams;

use crate::cluster::Cluster;
use crate::error::{Error, Exit};
use crate::gang::{Member, members};
use crate::kind::JobName;
use crate::output::report;
use crate::span::{self, whole_seconds};
use crate::summary::phase;
use crate::text::counted;
use crate::wait::{Timeout, wait};

/// Until pods that are being created are looked for again.
const RETRY: Duration = Duration::from_secs(1);

/// Print the log of the pod that holds a rank
///
/// The ranks of one pod share its log. Pods of an attempt that failed are deleted before the next one starts, and their logs
/// with them: of those, status.lastFailure keeps the words of the rank that failed.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: kubectl vit logs digits --rank 3 -f")]
pub(crate) struct Arguments {
    /// The job
    #[arg(value_name = "JOB", add = crate::completion::jobs())]
    job: JobName,
    /// The rank
    #[arg(short, long, value_name = "RANK", default_value_t = 0)]
    rank: u32,
    /// Attempt, in place of the present one, if its pods are still there
    #[arg(long, value_name = "N")]
    attempt: Option<i32>,
    /// Follow the log, from one attempt to the next, until the job is over
    #[arg(short, long, conflicts_with = "attempt")]
    follow: bool,
    /// Only so many lines from the end
    #[arg(long, value_name = "LINES")]
    tail: Option<u32>,
    /// Only lines of this last period, such as 90s, 5m or 1h30m; a bare number counts seconds
    #[arg(long, value_name = "DURATION", value_parser = span::parse)]
    since: Option<Duration>,
    /// Each line with its time
    #[arg(long)]
    timestamps: bool,
}

pub(crate) async fn run(cluster: &Cluster, arguments: &Arguments) -> Result<Exit, Error> {
    let name = &arguments.job;
    let mut job = cluster.get(name).await?;
    check_rank(&job, arguments.rank)?;
    let mut shown: Option<i32> = None;
    loop {
        let attempt = arguments.attempt.unwrap_or_else(|| attempt_of(&job));
        match find(&job, &members(cluster, &job).await?, arguments.rank, attempt) {
            Ok((member, note)) => {
                match (shown, note) {
                    (None, Some(note)) => report(&note),
                    (Some(before), _) => report(&format!(
                        "--- attempt {before} is over; attempt {attempt}, pod {} ---",
                        member.pod
                    )),
                    (None, None) => {}
                }
                stream(cluster, &member, arguments, shown.is_some()).await?;
                shown = Some(attempt);
            }
            // What is followed may not have begun yet.
            Err(_) if arguments.follow && !phase(&job).is_some_and(Phase::is_terminal) => {
                tokio::time::sleep(RETRY).await;
            }
            Err(error) => return Err(error),
        }
        if !arguments.follow {
            return Ok(Exit::Done);
        }
        job = match next(cluster, name, shown, arguments.rank).await? {
            Some(job) => job,
            None => return Ok(Exit::Done),
        };
    }
}

/// Refuses a rank that the job can never have, rather than wait for it.
fn check_rank(job: &ViTTrainingJob, rank: u32) -> Result<(), Error> {
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

fn attempt_of(job: &ViTTrainingJob) -> i32 {
    job.status.as_ref().map_or(0, |status| status.attempt)
}

/// The pod that holds a rank in an attempt, and what whoever reads its log should know.
fn find(
    job: &ViTTrainingJob,
    members: &[Member],
    rank: u32,
    attempt: i32,
) -> Result<(Member, Option<String>), Error> {
    let name = job.name_any();
    let status = job.status.clone().unwrap_or_default();
    if status.attempt == 0 {
        return Err(Error::NotFound(format!(
            "job {name} has had no pods yet: kubectl vit why {name} tells what it waits for"
        )));
    }
    let gpus = job.spec.workers.gpus_per_node.max(1);
    let of_attempt = members.iter().filter(|member| member.attempt == attempt);
    let of_attempt: Vec<&Member> = of_attempt.collect();
    if of_attempt.is_empty() {
        let mut words =
            format!("the pods of attempt {attempt} of job {name} are gone, and their logs with them");
        if let Some(other) = members.last() {
            words += &format!("; there are pods of attempt {}", other.attempt);
        }
        if let Some(failure) = status.last_failure.filter(|failure| failure.attempt == attempt) {
            words += &format!("; it failed as {}: {}", failure.class, failure.message);
        }
        return Err(Error::NotFound(words));
    }
    let node_rank = i32::try_from(rank).unwrap_or(i32::MAX) / gpus;
    let Some(member) = of_attempt.iter().find(|member| member.node_rank == node_rank) else {
        let placed = status.placement.map_or(0, |placement| placement.nodes.len());
        let pods = placed.max(of_attempt.len()) as i64;
        if i64::from(rank) >= pods * i64::from(gpus) {
            let who = format!("attempt {attempt} of job {name}");
            return Err(no_rank(&who, rank, &counted(pods, "pod"), pods, gpus));
        }
        let who = format!("rank {rank} in attempt {attempt} of job {name}");
        return Err(Error::NotFound(format!(
            "the pod of {who} is gone, and its log with it"
        )));
    };
    let first = node_rank * gpus;
    let last = first + gpus - 1;
    let note = (gpus > 1).then(|| format!("ranks {first} to {last} share the log of pod {}", member.pod));
    Ok(((*member).clone(), note))
}

/// Waits for the attempt after one that was shown, or for the first; `None` where the job ends without.
async fn next(
    cluster: &Cluster,
    name: &JobName,
    shown: Option<i32>,
    rank: u32,
) -> Result<Option<ViTTrainingJob>, Error> {
    wait(
        cluster,
        name,
        "the next attempt",
        Timeout::NEVER,
        |job: Option<&ViTTrainingJob>| {
            let Some(job) = job else {
                return Some(Ok(None));
            };
            let status = job.status.clone().unwrap_or_default();
            let size = status.workers.unwrap_or_default().desired * job.spec.workers.gpus_per_node;
            let has_rank = i64::from(rank) < i64::from(size);
            match status.phase? {
                phase if phase.is_terminal() => Some(Ok(None)),
                Phase::Starting | Phase::Running if Some(status.attempt) > shown && has_rank => {
                    Some(Ok(Some(job.clone())))
                }
                _ => None,
            }
        },
    )
    .await
}

/// Copies the log to standard output, as it comes.
async fn stream(
    cluster: &Cluster,
    member: &Member,
    arguments: &Arguments,
    is_next: bool,
) -> Result<(), Error> {
    let pods = cluster.pods();
    let doing = format!("read the log of pod {}", member.pod);
    if arguments.follow && !member.has_run {
        let started = kube::runtime::wait::await_condition(pods.clone(), &member.pod, |pod: Option<&Pod>| {
            pod.is_none_or(|pod| Member::of(pod).is_some_and(|member| member.has_run))
        });
        started.await.map_err(|error| Error::refused(&doing, &error))?;
    } else if !member.has_run {
        return Err(Error::NotFound(format!(
            "pod {} has not started yet ({}): there is no log",
            member.pod, member.state
        )));
    }
    let params = LogParams {
        follow: arguments.follow,
        // Of a later attempt everything is new.
        tail_lines: arguments.tail.map(i64::from).filter(|_| !is_next),
        since_seconds: arguments.since.map(whole_seconds).filter(|_| !is_next),
        timestamps: arguments.timestamps,
        ..LogParams::default()
    };
    let log = pods.log_stream(&member.pod, &params).await;
    let mut log = std::pin::pin!(log.map_err(|error| cluster.error(&doing, error))?);
    let mut buffer = vec![0; 16 * 1024];
    loop {
        let read = log
            .read(&mut buffer)
            .await
            .map_err(|error| Error::refused(&doing, &error))?;
        if read == 0 {
            return Ok(());
        }
        let mut stdout = std::io::stdout().lock();
        stdout.write_all(&buffer[..read])?;
        stdout.flush()?;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fixtures::job;

    fn member(attempt: i32, node_rank: i32) -> Member {
        Member {
            attempt,
            node_rank,
            pod: format!("digits-{attempt}-{node_rank}"),
            state: "ready".into(),
            is_ready: true,
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
            let (member, note) = find(&two_gpus_a_node(), &members, rank, 2).expect("is there");
            (member.pod, note.expect("two ranks share a pod"))
        };
        assert_eq!(pod(1).0, "digits-2-0");
        assert_eq!(
            pod(2),
            (
                "digits-2-1".into(),
                "ranks 2 to 3 share the log of pod digits-2-1".into()
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
            let error = find(&job, members, rank, attempt).expect_err("not there");
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
        let words = find(&new, &[], 0, 0).expect_err("no pods").to_string();
        assert!(words.starts_with("job digits has had no pods yet"), "{words}");
    }
}
