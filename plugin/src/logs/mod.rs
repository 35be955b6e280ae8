//! `kubectl vit logs`: the log of the pod that holds a rank, or those of all ranks.

mod lines;
mod pods;
mod stream;

use std::time::Duration;

use crds::{Phase, ViTTrainingJob};
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;

use crate::cluster::Cluster;
use crate::error::{Error, Exit};
use crate::gang::{Member, members};
use crate::kind::{JobName, Kind as _};
use crate::outcomes::Outcomes;
use crate::output::{print_bytes, report};
use crate::text::ranks;
use crate::wait::{Timeout, wait};
use pods::{Ranks, attempt_of, check_rank, find, is_incomplete, previous};
use stream::{Wanted, copy};

/// Delay before looking again for pods being created.
const RETRY: Duration = Duration::from_secs(1);

/// Print the log of the pod that holds a rank, or the logs of all ranks
///
/// The ranks of one pod share its log. Pods of a failed attempt are deleted before the next attempt starts, and their logs
/// with them; status.lastFailure keeps the message of the failed rank. With -f, an interrupted log continues
/// after its last line.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  kubectl vit logs digits --rank 3 -f\n  kubectl vit logs digits --all-ranks --since 5m"
)]
pub(crate) struct Arguments {
    /// The job
    #[arg(value_name = "JOB", add = crate::completion::jobs())]
    job: JobName,
    /// The rank
    #[arg(
        short,
        long,
        value_name = "RANK",
        default_value_t = 0,
        allow_negative_numbers = true
    )]
    rank: u32,
    /// All pods of the attempt; each line begins with the ranks of its pod
    #[arg(long, conflicts_with = "rank")]
    all_ranks: bool,
    /// Attempt to show instead of the current one, if its pods still exist
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(1..), allow_negative_numbers = true)]
    attempt: Option<i32>,
    /// The attempt before the current one, if its pods still exist
    #[arg(short, long, conflicts_with = "attempt")]
    previous: bool,
    #[command(flatten)]
    wanted: Wanted,
}

pub(crate) async fn run(cluster: &Cluster, arguments: &Arguments) -> Result<Exit, Error> {
    let name = &arguments.job;
    let mut job = cluster.get(name).await?;
    let ranks = if arguments.all_ranks {
        Ranks::All
    } else {
        check_rank(&job, arguments.rank)?;
        Ranks::One(arguments.rank)
    };
    let previous = arguments.previous.then(|| previous(&job)).transpose()?;
    let mut wanted = arguments.wanted;
    let mut shown: Option<i32> = None;
    let mut outcomes = Outcomes::new();
    loop {
        let attempt = arguments.attempt.or(previous).unwrap_or_else(|| attempt_of(&job));
        let found = members(cluster, &job).await;
        match found.and_then(|members| find(&job, &members, ranks, attempt)) {
            Ok((pods, _)) if wanted.follow && arguments.all_ranks && is_incomplete(&job, pods.len()) => {
                tokio::time::sleep(RETRY).await;
            }
            Ok((pods, note)) => {
                match (shown, note) {
                    (None, Some(note)) => report(&note),
                    (Some(before), _) => report(&announced(before, attempt, &pods)),
                    (None, None) => {}
                }
                Box::pin(copy_all(cluster, &job, &pods, ranks, wanted, &mut outcomes)).await?;
                shown = Some(attempt);
                // All lines of a later attempt are new.
                (wanted.tail, wanted.since) = (None, None);
            }
            // The pods may not exist yet, or the API server may be restarting.
            Err(error)
                if wanted.follow && !job.is_over() && (shown.is_some() || error.exit() == Exit::NotFound) =>
            {
                tokio::time::sleep(RETRY).await;
            }
            Err(error) => return Err(error),
        }
        if !wanted.follow {
            return Ok(outcomes.exit());
        }
        job = match next(cluster, name, shown, ranks).await? {
            Some(job) => job,
            None => return Ok(outcomes.exit()),
        };
    }
}

fn announced(before: i32, attempt: i32, pods: &[Member]) -> String {
    let pods = match pods {
        [one] => format!("pod {}", one.pod),
        several => format!("{} pods", several.len()),
    };
    format!("--- attempt {before} is over; attempt {attempt}, {pods} ---")
}

/// Copies the logs of these pods to standard output: concurrently if followed, otherwise in turn.
async fn copy_all(
    cluster: &Cluster,
    job: &ViTTrainingJob,
    pods: &[Member],
    wanted_ranks: Ranks,
    wanted: Wanted,
    outcomes: &mut Outcomes,
) -> Result<(), Error> {
    if let (Ranks::One(_), [pod]) = (wanted_ranks, pods) {
        return copy(cluster, pod, "", wanted, &print_bytes).await;
    }
    let gpus = job.spec.workers.gpus_per_node.max(1);
    let copied = pods.iter().map(async |pod| {
        let prefix = format!("[{}] ", ranks(pod.node_rank, gpus));
        copy(cluster, pod, &prefix, wanted, &print_bytes).await
    });
    if !wanted.follow {
        for copied in copied {
            outcomes.keep(copied.await)?;
        }
        return Ok(());
    }
    let mut copied: FuturesUnordered<_> = copied.collect();
    while let Some(copied) = copied.next().await {
        outcomes.keep(copied)?;
    }
    Ok(())
}

/// Waits for the attempt after `shown`, or for the first; `None` if the job ends before.
async fn next(
    cluster: &Cluster,
    name: &JobName,
    shown: Option<i32>,
    ranks: Ranks,
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
            let has_rank = match ranks {
                Ranks::One(rank) => i64::from(rank) < i64::from(size),
                Ranks::All => size > 0,
            };
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
