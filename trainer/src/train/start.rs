//! Where a run begins: at initial weights or at a checkpoint, the same on every rank.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use contract::{Precision, RunConfig};
use signal_hook::consts::SIGUSR1;
use torch_ext::Member;

use super::saving::Saver;
use super::trained::{Trained, TrainingState};
use crate::checkpoint::{
    Cadence, CheckpointFolder, Loaded, Lost, Owner, Part, Position, Run, SavedAverage, State, Stored,
    Validation,
};
use crate::data::DataIdentity;
use crate::distributed::{LostPeer, World};
use crate::error::TrainError;
use crate::loss_scale::LossScale;

const ANNOUNCE_EVERY: Duration = Duration::from_secs(1);

/// Where a run begins.
#[derive(Debug)]
pub(super) struct Start {
    pub(super) position: Position,
    /// Whether it comes from a checkpoint.
    pub(super) is_restored: bool,
    /// How many ranks write checkpoints, the first ones; the saver of this rank if it is one.
    pub(super) writers: u32,
    pub(super) saver: Option<Saver>,
    /// From the checkpoint that rank 0 continues from, like its folder.
    pub(super) validation: Validation,
    pub(super) resumed_from: Option<PathBuf>,
}

impl Start {
    /// Rank 0 opens the checkpoint folder and reads the newest checkpoint, if any. Every rank gets
    /// its position and its part of the tensors.
    pub(super) fn find(
        world: &World,
        config: &RunConfig,
        attempt: u32,
        (trained, data): (&Trained, &DataIdentity),
        lost: &LostPeer,
    ) -> Result<Self, TrainError> {
        let training_state = trained.state();
        let (mut folder, mut restored) = (None, None);
        if world.is_first() {
            let run = Run {
                job: &config.job,
                model: &config.model,
                resume: config.checkpoint.resume,
            };
            let opened =
                CheckpointFolder::open(&config.checkpoint.path, config.checkpoint.keep, run, attempt)?;
            restored = restore(&opened, run, &training_state, &mut still_reading(world))?;
            if let Some(restored) = &restored {
                compare_data(&restored.state, data);
            }
            folder = Some(opened);
        }
        let found = restored.as_ref().map(|restored| restored.state.position);
        let told = folder.as_ref().map(|folder| (found, folder.owner().clone()));
        let (found, owner) = loop {
            if let Some(found) = world.broadcast_value::<Option<ResumePoint>>(&told)? {
                break found;
            }
        };
        if let Some(found) = found.filter(|found| world.is_first() && found.epoch > config.training.epochs) {
            tracing::warn!(
                "the checkpoint has {} epochs, and training.epochs is {}: nothing is left to train",
                found.epoch,
                config.training.epochs
            );
        }
        let writers = training_state.writers(config.checkpoint.writers, world.size);
        let folder = share(world, config, lost, writers, (folder, owner))?;
        let asked = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(SIGUSR1, Arc::clone(&asked))
            .map_err(TrainError::system("failed to listen for SIGUSR1"))?;
        if found.is_some() {
            let values = restored.as_ref().map(|restored| &restored.values[..]);
            training_state.spread(world, values)?;
        }
        trained.weights.publish()?;
        let (state, resumed_from) = restored.map(|restored| (restored.state, restored.path)).unzip();
        Ok(Self {
            position: with_loss_scale(found.unwrap_or_default(), config),
            is_restored: found.is_some(),
            writers,
            saver: folder.map(|folder| {
                let step = found.unwrap_or_default().step;
                let cadence = world
                    .is_first()
                    .then(|| Cadence::new(&config.checkpoint, step, asked));
                Saver::new(folder, cadence)
            }),
            validation: state.map(|state| state.validation()).unwrap_or_default(),
            resumed_from,
        })
    }
}

/// Sent by rank 0: its starting position, and its identity in the checkpoint folder.
type ResumePoint = (Option<Position>, Owner);

/// Tells the other ranks now and then that rank 0 is still reading. They time out after ten
/// minutes, and reading a large checkpoint from slow storage takes longer.
fn still_reading(world: &World) -> impl FnMut() {
    let mut told = Instant::now();
    move || {
        if told.elapsed() >= ANNOUNCE_EVERY {
            told = Instant::now();
            // An error here recurs when rank 0 has finished reading.
            let _ = world.broadcast_value(&None::<ResumePoint>);
        }
    }
}

/// The checkpoint folder of a rank that writes. All ranks see the same content.
fn share(
    world: &World,
    config: &RunConfig,
    lost: &LostPeer,
    writers: u32,
    (first, owner): (Option<CheckpointFolder>, Owner),
) -> Result<Option<CheckpointFolder>, TrainError> {
    if let Some(folder) = first {
        let lost = lost.clone();
        return Ok(Some(
            folder.shared_by(writers, Lost(Arc::new(move || lost.get()))),
        ));
    }
    let member = Member {
        rank: world.rank,
        size: writers,
    };
    let joined = (world.rank < writers)
        .then(|| CheckpointFolder::join(&config.checkpoint.path, owner, member))
        .transpose()?;
    Ok(joined)
}

/// The checkpoint that rank 0 continues from.
struct Restored {
    state: State,
    path: PathBuf,
    /// By part.
    values: Vec<(Part, Vec<Stored>)>,
}

/// Finds the checkpoint to continue from, on rank 0.
fn restore(
    folder: &CheckpointFolder,
    run: Run<'_>,
    training_state: &TrainingState,
    is_reading: &mut dyn FnMut(),
) -> Result<Option<Restored>, TrainError> {
    let Some(loaded) = folder.load_newest(run, &training_state.expected(), is_reading)? else {
        return Ok(None);
    };
    let Loaded {
        state,
        path,
        mut values,
        average,
    } = loaded;
    tracing::info!(
        "continuing after step {} from {}",
        state.position.step,
        path.display()
    );
    match average {
        SavedAverage::Fits => {}
        SavedAverage::Missing => {
            // As timm does.
            let weights = values.iter().find(|(part, _)| *part == Part::Model);
            let (_, weights) = weights.expect("every checkpoint has weights");
            values.push((Part::Average, weights.clone()));
            tracing::info!(
                "training.ema is set but the checkpoint has no averaged weights: the average starts from the weights"
            );
        }
        SavedAverage::Unused => {
            tracing::info!(
                "training.ema is not set: the averaged weights of the checkpoint are ignored, and new checkpoints have none"
            );
        }
    }
    Ok(Some(Restored { state, path, values }))
}

/// Warns if a run continues on other data. A user may choose to add images, but within an epoch
/// some images are then used twice and others not at all.
fn compare_data(state: &State, now: &DataIdentity) {
    let Some(before) = state.data.as_ref().filter(|before| *before != now) else {
        return;
    };
    let what = if before.seed != now.seed {
        format!("training.seed was {} and is {}", before.seed, now.seed)
    } else if before.images != now.images {
        format!(
            "the number of training images was {} and is {}",
            before.images, now.images
        )
    } else {
        "the names or labels of images have changed".to_owned()
    };
    let consequence = if state.position.images_into_epoch > 0 {
        "; in the rest of this epoch some images are repeated and others skipped"
    } else {
        ""
    };
    tracing::warn!("the checkpoint was made with different data: {what}{consequence}");
}

/// Adds the loss scale if the run uses fp16.
fn with_loss_scale(position: Position, config: &RunConfig) -> Position {
    let loss_scale = match config.training.precision {
        Precision::Fp16 => position
            .loss_scale
            .or_else(|| Some(LossScale::new(&config.training.loss_scale.unwrap_or_default()))),
        Precision::Fp32 | Precision::Bf16 => None,
    };
    Position {
        loss_scale,
        ..position
    }
}

/// Steps of the whole run, given its position.
pub(super) fn total_steps(position: Position, epochs: u32, images: u64, batch: u64) -> u64 {
    if position.epoch >= epochs {
        return position.step;
    }
    let rest_of_epoch = images.saturating_sub(position.images_into_epoch) / batch;
    position.step + rest_of_epoch + u64::from(epochs - position.epoch - 1) * (images / batch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_steps_counts_whole_batches_and_what_is_done_already() {
        let start = Position::default();
        assert_eq!(total_steps(start, 3, 100, 30), 9);
        let middle = Position {
            epoch: 1,
            images_into_epoch: 60,
            step: 5,
            ..start
        };
        assert_eq!(total_steps(middle, 3, 100, 30), 5 + 1 + 3);
        assert_eq!(
            total_steps(middle, 3, 100, 50),
            5 + 2,
            "the rest of an epoch may hold no step of a larger batch"
        );
        assert_eq!(
            total_steps(
                Position {
                    epoch: 3,
                    step: 9,
                    ..start
                },
                3,
                100,
                30
            ),
            9
        );
    }
}
