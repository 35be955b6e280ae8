//! One rank: a worker process that the agent starts with `torchrun`'s environment. Reports go out
//! on a socket, its standard input; if that closes, the agent is gone.

use std::mem::ManuallyDrop;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use contract::environment::{self, torchrun};
use contract::{ExitCode, FailureRecord, RunConfig};
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::config;
use crate::distributed::{LostPeer, Place};
use crate::error::{TrainError, catching};
use crate::metrics::{Report, Reporter};
use crate::train::{Outcome, Plan, Trainer};
use crate::watchdog::{Records, Watchdog};

/// How long the number of the lost rank may arrive after a connection ended.
const NEWS_OF_LOSS: Duration = Duration::from_secs(5);

/// Trains, reports the result to the agent, and ends the process.
pub(crate) fn main() -> ! {
    let reporter = match Reporter::on_standard_input() {
        Ok(reporter) => reporter,
        Err(error) => {
            tracing::error!("{error}");
            torch_ext::exit_now(error.exit_code().code());
        }
    };
    let rank = variable(torchrun::RANK).ok();
    let lost = LostPeer::default();
    let code = match catching(|| train(reporter.clone(), &lost)) {
        Ok(Outcome::Done) => ExitCode::Done,
        Ok(Outcome::Stopped) => ExitCode::Stopped,
        Err(error) => {
            let error = name_lost_peer(error, &lost);
            let code = error.exit_code();
            reporter.send(&Report::Failed(FailureRecord {
                rank,
                exit_code: code.code(),
                class: error.class(),
                memory: error.memory(),
                message: error.to_string(),
            }));
            code
        }
    };
    torch_ext::exit_now(code.code())
}

/// Blames a lost peer for failures in libtorch, and for what a device computed after an abort.
fn name_lost_peer(error: TrainError, lost: &LostPeer) -> TrainError {
    let is_of_computation = matches!(
        error,
        TrainError::Torch(_)
            | TrainError::Panic(_)
            | TrainError::LossNotFinite { .. }
            | TrainError::GradientNotFinite { .. }
            | TrainError::LossScaleAtMinimum { .. }
    );
    if !is_of_computation {
        return error;
    }
    let rank = match error.exit_code() {
        ExitCode::PeerLost => lost.within(NEWS_OF_LOSS),
        _ => lost.get(),
    };
    match rank {
        Some(rank) => TrainError::PeerLost {
            rank,
            error: error.to_string(),
        },
        None => error,
    }
}

fn train(reporter: Reporter, lost: &LostPeer) -> Result<Outcome, TrainError> {
    let stop = stop_on_signal()?;
    let config = config::read_run_config()?;
    let place = place(&config)?;
    let records = Records::new(&config.checkpoint.path, place.attempt, place.rank);
    let requested = Arc::clone(&stop.requested);
    let trainer = Trainer::new(config, &place, reporter.clone(), requested, lost)?;
    // Never dropped: the destructors of process groups wait for peers that may be gone.
    let mut trainer = ManuallyDrop::new(trainer);
    // From here on, a signal leads to a checkpoint.
    stop.at_once.store(false, Ordering::SeqCst);
    Watchdog {
        reporter,
        stop: stop.requested,
        recorder: trainer.flight_recorder(),
        records,
    }
    .start();
    if let Some(plan) = Plan::from_environment()? {
        let result = trainer.bench(&plan)?;
        result.as_ref().map_or(Ok(()), |result| plan.report(result))?;
        trainer.leave();
        return Ok(result.map_or(Outcome::Stopped, |_| Outcome::Done));
    }
    let outcome = trainer.train()?;
    trainer.leave();
    Ok(outcome)
}

struct StopSignal {
    /// While true, a signal ends the process at once: there is nothing to save yet.
    at_once: Arc<AtomicBool>,
    requested: Arc<AtomicBool>,
}

fn stop_on_signal() -> Result<StopSignal, TrainError> {
    let stop = StopSignal {
        at_once: Arc::new(AtomicBool::new(true)),
        requested: Arc::new(AtomicBool::new(false)),
    };
    let code = i32::from(ExitCode::Stopped.code());
    for signal in [SIGTERM, SIGINT] {
        signal_hook::flag::register_conditional_shutdown(signal, code, Arc::clone(&stop.at_once))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&stop.requested)))
            .map_err(TrainError::system("failed to listen for signals"))?;
    }
    Ok(stop)
}

fn place(config: &RunConfig) -> Result<Place, TrainError> {
    let place = Place {
        rank: variable(torchrun::RANK)?,
        local_rank: variable(torchrun::LOCAL_RANK)?,
        world_size: variable(torchrun::WORLD_SIZE)?,
        coordinator_host: variable(torchrun::MASTER_ADDR)?,
        coordinator_port: variable(torchrun::MASTER_PORT)?,
        address: variable::<IpAddr>(environment::POD_ADDRESS)?,
        job: config.job.uid.clone(),
        attempt: variable(environment::ATTEMPT)?,
    };
    if place.world_size != config.world_size() || place.rank >= place.world_size {
        return Err(TrainError::Config(format!(
            "{} is {} and {} is {}, but the run configuration has {} nodes x {} ranks",
            torchrun::RANK,
            place.rank,
            torchrun::WORLD_SIZE,
            place.world_size,
            config.nodes,
            config.ranks_per_node
        )));
    }
    Ok(place)
}

fn variable<T: FromStr>(name: &'static str) -> Result<T, TrainError> {
    config::required_variable(name)
}
