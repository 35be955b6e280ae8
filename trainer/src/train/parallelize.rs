//! The only place where a model built for one rank becomes one that many ranks train together.

use std::rc::Rc;

use contract::Parallelism;
use tch::Tensor;
use torch_ext::Member;
use torch_ext::sharded::Stage;

use super::sync::StepSync;
use crate::distributed::World;
use crate::error::TrainError;
use crate::model::{VisionTransformer, seed_values};
use crate::parallel::{Divider, TrainedWeights};
use crate::precision::Precision;

/// The values that training starts from.
#[derive(Debug)]
pub(super) struct FirstValues {
    pub(super) seed: u64,
    /// By parameter: values that replace the random ones. Only those of rank 0 count.
    pub(super) given: Option<Vec<Option<Tensor>>>,
}

/// Takes a model without values and returns the state for the training loop. Values are made unit
/// by unit: if ranks shard them, no rank ever has all of them on its device.
pub(super) fn parallelize(
    model: &mut VisionTransformer,
    first_values: FirstValues,
    precision: Precision,
    world: &World,
    settings: &Parallelism,
) -> Result<(TrainedWeights, StepSync), TrainError> {
    if let Some(ranks) = world.sequence()? {
        model.divide_tokens(ranks, world.mesh.sequence);
    }
    if let Some(ranks) = world.tensor()? {
        model.divide_heads(ranks);
    }
    let share = (|tensors: &[Tensor]| world.broadcast(tensors), world.mesh.tensor);
    let stage = match settings.zero_stage {
        1 => Some(Stage::One),
        2 => Some(Stage::Two),
        3 => Some(Stage::Three {
            reshard_after_forward: settings.reshard_after_forward,
        }),
        _ => None,
    };
    let offload = settings.offload;
    // A single rank has nothing to shard.
    let Some(stage) = stage.filter(|_| world.mesh.sharding.size > 1) else {
        fill(model, first_values, share, |_, _| Ok(()))?;
        let weights = TrainedWeights::whole(model.parameters(), precision, offload.optimizer)?;
        let reducer = world.reducer(weights.model(), settings)?;
        return Ok((weights, StepSync::new(reducer)));
    };
    let sharded = Rc::new(world.sharded(stage, settings, model.parameters().first_trained_unit())?);
    let ranks = (world.mesh.sharding, world.mesh.replicating().size);
    let mut divider = Divider::new((Rc::clone(&sharded), stage), (precision, offload), ranks);
    fill(model, first_values, share, |model, unit| {
        divide(&mut divider, model, unit)
    })?;
    model.shard(Rc::clone(&sharded));
    Ok((divider.finish(model.parameters()), StepSync::new(sharded)))
}

/// Shards what is trained of a unit.
fn divide(divider: &mut Divider, model: &VisionTransformer, unit: usize) -> Result<(), TrainError> {
    let parameters = model.parameters();
    let trained = parameters.of_unit(unit).iter();
    let trained: Vec<_> = trained.filter(|parameter| parameter.is_trained).collect();
    if trained.is_empty() {
        return Ok(());
    }
    divider.divide(parameters.first_trained_unit(), &trained)
}

/// Draws each unit in turn, replaces it with given values, and lets `share` distribute those of
/// rank 0. If ranks divide heads, a rank keeps its part. Then calls `then`.
fn fill(
    model: &mut VisionTransformer,
    first_values: FirstValues,
    (share, heads): (impl Fn(&[Tensor]) -> Result<(), TrainError>, Member),
    mut then: impl FnMut(&VisionTransformer, usize) -> Result<(), TrainError>,
) -> Result<(), TrainError> {
    seed_values(first_values.seed);
    let mut given = first_values.given.into_iter().flatten();
    for unit in 0..model.parameters().units() {
        model.parameters().draw(unit);
        let parameters = model.parameters().of_unit(unit);
        for (parameter, value) in parameters.iter().zip(&mut given) {
            if let Some(value) = value {
                tch::no_grad(|| parameter.tensor.shallow_clone().f_copy_(&value))?;
            }
        }
        let tensors: Vec<Tensor> = parameters
            .iter()
            .map(|parameter| parameter.tensor.shallow_clone())
            .collect();
        share(&tensors)?;
        if heads.size > 1 {
            model.parameters_mut().split_among(unit, heads)?;
        }
        then(model, unit)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::time::Duration;

    use contract::{ModelConfig, Offload, Pooling};
    use tch::Device;
    use torch_ext::Rendezvous;
    use torch_ext::memory::Meter;

    use super::*;
    use crate::data::fixtures::config;
    use crate::distributed::{Accelerator, LostPeer, Place};
    use crate::model::fixtures::small;

    const RANKS: u32 = 4;

    /// Peak bytes of tensors on a rank until its model is sharded, and the bytes held afterwards.
    fn divided(model: &ModelConfig, settings: &Parallelism) -> (i64, i64) {
        let address = Ipv4Addr::LOCALHOST.into();
        let port = Rendezvous::reserve_port(address).expect("a port");
        let rank = |rank| {
            let place = Place {
                rank,
                local_rank: rank,
                world_size: RANKS,
                coordinator_host: address.to_string(),
                coordinator_port: port,
                address,
                job: None,
                attempt: 1,
            };
            let lost = LostPeer::default();
            let mut world = World::join(
                &place,
                (settings, RANKS),
                Accelerator::Cpu,
                Duration::from_secs(60),
                &lost,
                |_| {},
            )
            .expect("joins");
            let stage = Stage::Three {
                reshard_after_forward: true,
            };
            let sharded = Rc::new(world.sharded(stage, settings, 0).expect("shards"));
            // Without the broadcast: a thread of Gloo may be the last to release the tensors sent.
            let meter = Meter::start().expect("counts");
            let mut model = VisionTransformer::without_values(model, Device::Cpu);
            let ranks = (world.mesh.sharding, 1);
            let mut divider = Divider::new((sharded, stage), (Precision::Full, Offload::default()), ranks);
            let first_values = FirstValues { seed: 1, given: None };
            let share = (|_: &[Tensor]| Ok(()), world.mesh.tensor);
            fill(&mut model, first_values, share, |model, unit| {
                divide(&mut divider, model, unit)
            })
            .expect("shards");
            let bytes = (meter.peak(), meter.held());
            world.leave();
            bytes
        };
        std::thread::scope(|scope| {
            let ranks = (0..RANKS).map(|number| scope.spawn(move || rank(number)));
            let all: Vec<_> = ranks
                .collect::<Vec<_>>()
                .into_iter()
                .map(std::thread::ScopedJoinHandle::join)
                .collect();
            all.into_iter()
                .map(|bytes| bytes.expect("a rank"))
                .max()
                .expect("ranks")
        })
    }

    #[test]
    fn no_rank_ever_holds_a_model_that_is_divided() {
        let model = ModelConfig {
            hidden_size: 96,
            mlp_size: 384,
            depth: 16,
            ..small(Pooling::Token)
        };
        let built = VisionTransformer::without_values(&model, Device::Cpu);
        let bytes = |parameters: &[crate::model::Parameter]| {
            let values = parameters
                .iter()
                .map(|parameter| parameter.shape.iter().product::<i64>());
            4 * values.sum::<i64>()
        };
        let units: Vec<i64> = (0..built.parameters().units())
            .map(|unit| bytes(built.parameters().of_unit(unit)))
            .collect();
        let (all, largest) = (units.iter().sum::<i64>(), units.iter().max().expect("units"));
        let settings = Parallelism {
            zero_stage: 3,
            ..config("{format: synthetic, syntheticImages: 64}").parallelism
        };
        let (peak, held) = divided(&model, &settings);
        // Weights and gradient buffers, a shard of each.
        let shards = 2 * all / i64::from(RANKS);
        assert!(
            (shards..shards * 11 / 10).contains(&held),
            "{held} bytes of {all}"
        );
        // A unit as drawn, and its flat tensors.
        let most = shards * 11 / 10 + 3 * largest;
        assert!(peak < most && most < all, "{peak} bytes of {all}, {most} allowed");
    }
}
