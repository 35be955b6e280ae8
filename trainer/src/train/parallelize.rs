//! The one place where a model that is made for one rank becomes one that many ranks train together.

use std::rc::Rc;

use contract::Parallelism;
use torch_ext::sharded::Stage;

use super::sync::StepSync;
use crate::distributed::World;
use crate::error::TrainError;
use crate::model::VisionTransformer;
use crate::parallel::TrainedWeights;
use crate::precision::Precision;

/// Takes a finished model, whose weights become those of rank 0, and gives what the training loop goes on with.
pub(super) fn parallelize(
    model: &mut VisionTransformer,
    precision: Precision,
    world: &World,
    settings: &Parallelism,
) -> Result<(TrainedWeights, StepSync), TrainError> {
    world.broadcast(&model.parameters().tensors())?;
    if let Some(ranks) = world.sequence()? {
        model.divide_tokens(ranks, world.mesh.sequence);
    }
    if let Some(ranks) = world.tensor()? {
        model.divide_heads(ranks, world.mesh.tensor)?;
    }
    let stage = match settings.zero_stage {
        1 => Stage::One,
        2 => Stage::Two,
        3 => Stage::Three {
            reshard_after_forward: settings.reshard_after_forward,
        },
        _ => return replicate(model, precision, world, settings),
    };
    // Nothing can be divided among one rank.
    let ranks = world.mesh.sharding;
    if ranks.size == 1 {
        return replicate(model, precision, world, settings);
    }
    let sharded = Rc::new(world.sharded(stage, settings)?);
    let keeps_weights = !matches!(stage, Stage::Three { .. });
    let weights = TrainedWeights::sharded(
        model.parameters(),
        precision,
        (Rc::clone(&sharded), keeps_weights),
        (ranks, world.mesh.replicating().size),
    )?;
    model.shard(Rc::clone(&sharded));
    Ok((weights, StepSync::new(sharded)))
}

fn replicate(
    model: &VisionTransformer,
    precision: Precision,
    world: &World,
    settings: &Parallelism,
) -> Result<(TrainedWeights, StepSync), TrainError> {
    let weights = TrainedWeights::whole(model.parameters(), precision);
    let reducer = world.reducer(weights.model(), settings)?;
    Ok((weights, StepSync::new(reducer)))
}
