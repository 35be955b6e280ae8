//! Where a run begins: at random weights or at a checkpoint, and the same on every rank.

use std::path::PathBuf;

use contract::{Precision, RunConfig, TrainingConfig};
use tch::Tensor;

use crate::checkpoint::{
    CheckpointFolder, Loaded, Part, Position, Run, SavedAverage, State, has_checkpoints,
};
use crate::distributed::World;
use crate::error::TrainError;
use crate::loss_scale::LossScale;
use crate::model::{Fit, VisionTransformer, Weights};
use crate::optim::{Average, Optimizer};
use crate::precision::TrainedWeights;

type Named = Vec<(String, Tensor)>;

/// Handles to every tensor that training goes on from, under its name.
#[derive(Debug)]
pub(crate) struct Tensors {
    /// In 32 bits.
    weights: Named,
    optimizer: Named,
    average: Option<Named>,
}

impl Tensors {
    pub(crate) fn of(weights: &TrainedWeights, optimizer: &Optimizer, average: Option<&Average>) -> Self {
        Self {
            weights: weights.named(),
            optimizer: optimizer.state(),
            average: average.map(Average::named),
        }
    }

    /// The files of a checkpoint.
    pub(crate) fn parts(&self) -> Vec<Part<'_>> {
        let always = [Part::model(&self.weights), Part::optimizer(&self.optimizer)];
        let average = self.average.as_deref().map(Part::average);
        always.into_iter().chain(average).collect()
    }

    /// What ranks need of rank 0 after that many updates. Before the first one, state and average hold nothing yet.
    fn shared(&self, updates: u64) -> Vec<Tensor> {
        let grown = [Some(&self.optimizer), self.average.as_ref()];
        let grown = grown.into_iter().flatten().filter(|_| updates > 0);
        let named = std::iter::once(&self.weights).chain(grown).flatten();
        named.map(|(_, tensor)| tensor.shallow_clone()).collect()
    }

    /// Gives the average the values of the weights, as timm does with a checkpoint that has none.
    fn start_average_from_weights(&self) {
        let Some(average) = &self.average else { return };
        tch::no_grad(|| {
            for ((_, average), (_, weight)) in average.iter().zip(&self.weights) {
                average.shallow_clone().copy_(weight);
            }
        });
    }
}

/// Puts pretrained weights, if the configuration names some, in the place of random ones. Not where a checkpoint will
/// replace them: the file may be gone by then.
pub(crate) fn start_from_pretrained(config: &RunConfig, model: &VisionTransformer) -> Result<(), TrainError> {
    let Some(file) = &config.model.pretrained else {
        return Ok(());
    };
    if has_checkpoints(&config.checkpoint.path) {
        return Ok(());
    }
    Weights::read(file)?.load_into(model, Fit::Adapted)?;
    tracing::info!("starting from the weights of {}", file.display());
    Ok(())
}

/// What rank 0 finds to continue from.
pub(crate) fn restore(
    folder: &CheckpointFolder,
    config: &RunConfig,
    tensors: &Tensors,
) -> Result<Option<(State, PathBuf)>, TrainError> {
    let run = Run {
        job: &config.job,
        model: &config.model,
        resume: config.checkpoint.resume,
    };
    let Some(Loaded { state, path, average }) = folder.load_newest(run, &tensors.parts())? else {
        return Ok(None);
    };
    tracing::info!(
        "continuing after step {} from {}",
        state.position.step,
        path.display()
    );
    match average {
        SavedAverage::Fits => {}
        SavedAverage::Missing => {
            tensors.start_average_from_weights();
            tracing::info!(
                "training.ema is set and the checkpoint has no average of the weights: it starts from the weights"
            );
        }
        SavedAverage::Unused => {
            tracing::info!(
                "training.ema is not set: the checkpoint's average of the weights is left out, and new checkpoints have none"
            );
        }
    }
    Ok(Some((state, path)))
}

/// Gives every rank rank 0's position and tensors.
pub(crate) fn share_start(
    world: &World,
    restored: Option<&(State, PathBuf)>,
    training: &TrainingConfig,
    weights: &TrainedWeights,
    tensors: &Tensors,
) -> Result<Position, TrainError> {
    let start = restored.map(|(state, _)| state.position).unwrap_or_default();
    let mut position = from_numbers(world.broadcast_numbers(to_numbers(start))?);
    position.loss_scale = match training.precision {
        Precision::Fp16 => position
            .loss_scale
            .or_else(|| Some(LossScale::new(&training.loss_scale))),
        Precision::Fp32 | Precision::Bf16 => None,
    };
    tch::no_grad(|| world.broadcast(&tensors.shared(position.updates)))?;
    weights.publish()?;
    Ok(position)
}

/// A position as the numbers that ranks exchange.
const POSITION_NUMBERS: usize = 11;

fn to_numbers(position: Position) -> [i64; POSITION_NUMBERS] {
    let Position {
        epoch,
        images_into_epoch,
        step,
        updates,
        correct,
        counted,
        loss_scale,
    } = position;
    // A scale is above 0, so that 0 stands for none.
    let LossScale {
        scale,
        iterations,
        since,
        hysteresis,
        skipped,
    } = loss_scale.unwrap_or_default();
    [
        u64::from(epoch),
        images_into_epoch,
        step,
        updates,
        correct,
        counted,
        scale.to_bits(),
        iterations,
        since,
        u64::from(hysteresis),
        skipped,
    ]
    .map(u64::cast_signed)
}

fn from_numbers(numbers: [i64; POSITION_NUMBERS]) -> Position {
    let [
        epoch,
        images_into_epoch,
        step,
        updates,
        correct,
        counted,
        scale,
        iterations,
        since,
        hysteresis,
        skipped,
    ] = numbers.map(i64::cast_unsigned);
    let scale = LossScale {
        scale: f64::from_bits(scale),
        iterations,
        since,
        hysteresis: hysteresis as u32,
        skipped,
    };
    Position {
        epoch: epoch as u32,
        images_into_epoch,
        step,
        updates,
        correct,
        counted,
        loss_scale: (scale.scale > 0.0).then_some(scale),
    }
}

/// Steps of the whole run, given where it stands.
pub(crate) fn total_steps(position: Position, epochs: u32, images: u64, batch: u64) -> u64 {
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
    fn a_position_is_the_same_on_the_rank_that_gets_it_as_numbers() {
        let mut position = Position {
            epoch: 1,
            images_into_epoch: 2,
            step: 3,
            updates: 4,
            correct: 5,
            counted: 6,
            loss_scale: None,
        };
        assert_eq!(from_numbers(to_numbers(position)), position);
        position.loss_scale = Some(LossScale {
            scale: 0.5,
            iterations: 7,
            since: 8,
            hysteresis: 9,
            skipped: 10,
        });
        assert_eq!(from_numbers(to_numbers(position)), position);
    }

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
