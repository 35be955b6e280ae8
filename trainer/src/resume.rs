//! Where a run begins: at random weights or at a checkpoint, and the same on every rank.

use std::path::PathBuf;

use contract::{Resume, RunConfig};
use tch::Tensor;

use crate::checkpoint::{CheckpointFolder, Position, State};
use crate::distributed::World;
use crate::error::TrainError;
use crate::model::VisionTransformer;
use crate::optim::AdamW;

/// Handles to the model's parameters with their names.
pub(crate) fn named(model: &VisionTransformer) -> Vec<(String, Tensor)> {
    model
        .parameters()
        .iter()
        .map(|parameter| (parameter.name.clone(), parameter.tensor.shallow_clone()))
        .collect()
}

/// What rank 0 finds to continue from. Under [`Resume::Never`] only a later attempt of the same job continues.
pub(crate) fn restore(
    folder: &CheckpointFolder,
    config: &RunConfig,
    attempt: u32,
    model: &VisionTransformer,
    optimizer: &AdamW,
) -> Result<Option<(State, PathBuf)>, TrainError> {
    if config.checkpoint.resume == Resume::Never && attempt <= 1 {
        folder.require_empty()?;
        return Ok(None);
    }
    let restored = folder.load_newest(&config.model, &named(model), &optimizer.state())?;
    if let Some((state, path)) = &restored {
        tracing::info!(
            "continuing after step {} from {}",
            state.position.step,
            path.display()
        );
    }
    Ok(restored)
}

/// Gives every rank rank 0's position, weights and moments.
pub(crate) fn share_start(
    world: &World,
    restored: Option<&(State, PathBuf)>,
    parameters: &[Tensor],
    optimizer: &AdamW,
) -> Result<Position, TrainError> {
    let Position {
        epoch,
        images_into_epoch,
        step,
        correct,
        counted,
    } = restored.map(|(state, _)| state.position).unwrap_or_default();
    let numbers = [u64::from(epoch), images_into_epoch, step, correct, counted].map(u64::cast_signed);
    let [epoch, images_into_epoch, step, correct, counted] =
        world.broadcast_numbers(numbers)?.map(i64::cast_unsigned);
    let state: Vec<Tensor> = optimizer.state().into_iter().map(|(_, tensor)| tensor).collect();
    tch::no_grad(|| {
        world.broadcast(parameters)?;
        world.broadcast(&state)
    })?;
    Ok(Position {
        epoch: epoch as u32,
        images_into_epoch,
        step,
        correct,
        counted,
    })
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
