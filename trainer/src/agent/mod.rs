//! The agent, which a pod runs. It waits until the coordinator's name resolves, starts this pod's
//! ranks, forwards signals, serves the ranks' reports, and writes a termination record.
//!
//! ```text
//!   ranks --(reports, a socket each)--> agent --> GET /metrics /progress /heartbeats /healthz, progress on standard output
//!   SIGTERM --> agent --> ranks (which save and stop)
//!   GET /progress?saveAfter=STEP --> agent --> SIGUSR1 --> rank 0 (which saves)
//!   a rank fails --> the others are ended --> termination record, exit code of the first that failed
//! ```

mod gang;
mod heartbeats;

use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

use ::agent::{coordinator, http};
use contract::{ExitCode, Heartbeats, Measurement, Progress, RunConfig, TerminationRecord, environment};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::config;
use crate::error::TrainError;
use crate::machine::this_machine;
use crate::metrics::LOG_NAME;
use crate::metrics::prometheus::Metrics;
use crate::output::Output;
use crate::signals::stop_on_signal;
use crate::termination;
use heartbeats::Pulses;

#[derive(Clone, Debug)]
struct Pod {
    node_rank: u32,
    attempt: u32,
    coordinator_host: String,
    coordinator_port: u16,
    http_port: u16,
}

/// A request for a checkpoint is repeated until it is written, which takes some time.
const ASKED_AGAIN_AFTER: Duration = Duration::from_secs(60);
/// Least time between requests for different checkpoints: whoever reaches the port can ask for one.
const BETWEEN_REQUESTS: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct Shown {
    metrics: Metrics,
    /// From rank 0, if it is in this pod.
    progress: RwLock<Option<Progress>>,
    pulses: Pulses,
    /// When a checkpoint of a later step than this was last asked for.
    wanted: watch::Sender<Option<(u64, Instant)>>,
}

impl http::Shown for Shown {
    fn metrics(&self) -> prometheus::Result<Vec<u8>> {
        self.metrics.render()
    }

    fn progress(&self) -> Option<Progress> {
        let progress = self.progress.read().ok()?.clone()?;
        Some(Progress {
            // Only the pod of rank 0 has a record, and rank 0 is the first of its pod.
            heartbeat: self.pulses.heartbeat(0),
            ..progress
        })
    }

    fn heartbeats(&self) -> Heartbeats {
        self.pulses.heartbeats()
    }

    fn save_after(&self, step: u64) {
        self.wanted.send_if_modified(|wanted| {
            let is_due = wanted.is_none_or(|(last, at)| is_due(step, last, at.elapsed()));
            if is_due {
                *wanted = Some((step, Instant::now()));
            }
            is_due
        });
    }
}

/// Whether a checkpoint after `step` is asked for, so long after one after `last` was.
fn is_due(step: u64, last: u64, elapsed: Duration) -> bool {
    elapsed
        >= if step == last {
            ASKED_AGAIN_AFTER
        } else {
            BETWEEN_REQUESTS
        }
}

/// Runs this pod's part of the attempt, with progress as `output` says, and writes the termination
/// record. Returns the exit code. With `stop_with_parent`, a closed standard input acts as SIGTERM.
pub(crate) fn main(output: Output, stop_with_parent: bool) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return finish(Ended::failed(&TrainError::system("failed to start")(error))),
    };
    let ended = runtime.block_on(async {
        attempt(output, stop_with_parent).await.unwrap_or_else(|error| {
            tracing::error!("{error}");
            Ended::failed(&error)
        })
    });
    finish(ended)
}

/// How this pod's part of an attempt ended.
#[derive(Debug)]
struct Ended {
    code: ExitCode,
    record: TerminationRecord,
}

impl Ended {
    fn failed(error: &TrainError) -> Self {
        Self {
            code: error.exit_code(),
            record: termination::from_error(error),
        }
    }
}

async fn attempt(output: Output, stop_with_parent: bool) -> Result<Ended, TrainError> {
    let stop = told_to_stop(stop_with_parent)?;
    let config = config::read_run_config()?;
    let pod = pod(&config)?;
    let first_rank = pod.node_rank * config.ranks_per_node;
    let node = std::env::var(environment::NODE_NAME).ok();
    let metrics = Metrics::new(&config, pod.node_rank, node.as_deref())
        .map_err(|error| TrainError::Config(format!("failed to name metrics after the job: {error}")))?;
    let shown = Arc::new(Shown {
        metrics,
        progress: RwLock::new(None),
        pulses: Pulses::new(pod.attempt, first_rank, config.ranks_per_node),
        wanted: watch::Sender::new(None),
    });
    http::serve(pod.http_port, Arc::clone(&shown))
        .await
        .map_err(TrainError::system("failed to listen for HTTP (VIT_AGENT_PORT)"))?;

    let Some(address) = coordinator::resolve(&pod.coordinator_host, pod.coordinator_port, &stop)
        .await
        .map_err(|error| TrainError::Rendezvous(error.to_string()))?
    else {
        return Ok(Ended {
            code: ExitCode::Stopped,
            record: TerminationRecord::default(),
        });
    };
    tracing::debug!("the coordinator {} is {address}", pod.coordinator_host);

    let is_first = pod.node_rank == 0;
    let gang = gang::Gang::start(&config, &pod, &shown.pulses)?;
    let end = gang.run(&shown, output, stop).await;
    let progress = shown.progress.read().ok().and_then(|progress| progress.clone());
    output.end(progress.as_ref());
    let measured = (is_first && end.code == ExitCode::Done)
        .then(|| measured(&config))
        .flatten();
    let (measurement, unmeasured) = match measured.transpose() {
        Ok(measurement) => (measurement.map(Box::new), None),
        Err(error) => (None, Some(error)),
    };
    Ok(Ended {
        code: end.code,
        record: TerminationRecord {
            progress,
            failure: end.failure,
            measurement,
            unmeasured,
        },
    })
}

/// The measurement of a run that is to be measured, or why there is none.
fn measured(config: &RunConfig) -> Option<Result<Measurement, String>> {
    let measure = config.measure?;
    let log =
        fs_err::read_to_string(config.checkpoint.path.join(LOG_NAME)).map_err(|error| error.to_string());
    let measured = log.and_then(|log| {
        contract::log::read_log(&log, measure.warmup_steps).map_err(|error| error.to_string())
    });
    Some(measured.map(|measurement| {
        Measurement {
            machine: Some(this_machine()),
            ..measurement
        }
        .rounded()
    }))
}

/// A token that SIGTERM and SIGINT cancel, and if asked for, the end of standard input.
fn told_to_stop(stop_with_parent: bool) -> Result<CancellationToken, TrainError> {
    let stop = stop_on_signal()?;
    if stop_with_parent {
        let stop = stop.clone();
        std::thread::spawn(move || {
            // Nothing is written to it: this returns when the parent is gone.
            let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
            stop.cancel();
        });
    }
    Ok(stop)
}

fn pod(config: &RunConfig) -> Result<Pod, TrainError> {
    let pod = Pod {
        node_rank: config::required_variable(environment::NODE_RANK)?,
        attempt: config::required_variable(environment::ATTEMPT)?,
        coordinator_host: config::required_variable(environment::COORDINATOR_HOST)?,
        coordinator_port: config::variable_or(
            environment::COORDINATOR_PORT,
            environment::DEFAULT_COORDINATOR_PORT,
        )?,
        http_port: config::variable_or(environment::AGENT_PORT, environment::DEFAULT_AGENT_PORT)?,
    };
    // Checked here, although only ranks use it: one message instead of one per rank.
    config::required_variable::<std::net::IpAddr>(environment::POD_ADDRESS)?;
    if pod.node_rank >= config.nodes {
        return Err(TrainError::Config(format!(
            "{} is {}, but the run configuration has {} nodes",
            environment::NODE_RANK,
            pod.node_rank,
            config.nodes
        )));
    }
    Ok(pod)
}

fn finish(ended: Ended) -> ExitCode {
    termination::leave(ended.record);
    ended.code
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checkpoints_are_asked_for_now_and_then() {
        for (step, seconds, expected) in [(8, 9, false), (8, 10, true), (7, 59, false), (7, 60, true)] {
            let found = is_due(step, 7, Duration::from_secs(seconds));
            assert_eq!(
                found, expected,
                "after step {step}, {seconds} s after one after step 7"
            );
        }
    }
}
