//! The trained model, and all its tensors that a checkpoint holds.

use contract::{CheckpointWriters, RunConfig};
use tch::{Device, Tensor};

use super::parallelize::{FirstValues, parallelize};
use super::sync::StepSync;
use crate::checkpoint::{Expected, Named, Part, Stored, assign, has_checkpoints};
use crate::distributed::World;
use crate::error::TrainError;
use crate::model::{Fit, Mode, VisionTransformer, Weights};
use crate::optim::{Average, Optimizer};
use crate::parallel::{StateTensor, TrainedWeights};
use crate::precision::Precision;

/// A model with its weights in every format, its optimizer, and their average.
#[derive(Debug)]
pub(super) struct Trained {
    pub(super) model: VisionTransformer,
    pub(super) precision: Precision,
    pub(super) weights: TrainedWeights,
    pub(super) optimizer: Optimizer,
    pub(super) average: Option<Average>,
}

impl Trained {
    /// With random weights, or with rank 0's pretrained ones if the configuration has some.
    pub(super) fn new(
        config: &RunConfig,
        device: Device,
        world: &World,
    ) -> Result<(Self, StepSync), TrainError> {
        let training = &config.training;
        let mut model = VisionTransformer::without_values(&config.model, device);
        model.checkpoint_activations(training.activation_checkpointing);
        let first_values = FirstValues {
            seed: training.seed,
            given: world
                .is_first()
                .then(|| pretrained(config, &model))
                .transpose()?
                .flatten(),
        };
        let precision = Precision::begin(training)?;
        let (weights, sync) = parallelize(&mut model, first_values, precision, world, &config.parallelism)?;
        let trained = Self {
            optimizer: Optimizer::new(training, model.parameters(), &weights)?,
            average: training.ema.map(|ema| Average::new(ema, &weights)),
            model,
            precision,
            weights,
        };
        Ok((trained, sync))
    }

    /// Logits of training images.
    pub(super) fn forward(&self, images_bchw: &Tensor, mode: Mode) -> Result<Tensor, TrainError> {
        self.precision.forward(&self.model, images_bchw, mode)
    }

    /// Every tensor of the training state.
    pub(super) fn state(&self) -> TrainingState {
        let average = |average: &Average| self.weights.with_frozen(average.weights());
        let always = [
            (Part::Model, self.weights.named()),
            (Part::Optimizer, self.optimizer.state()),
        ];
        let average = self.average.iter().map(|found| (Part::Average, average(found)));
        TrainingState(always.into_iter().chain(average).collect())
    }
}

/// The pretrained weights, by parameter. `None` if a checkpoint replaces them: the file may be
/// gone.
fn pretrained(
    config: &RunConfig,
    model: &VisionTransformer,
) -> Result<Option<Vec<Option<Tensor>>>, TrainError> {
    let file = config.model.pretrained.as_ref();
    let Some(file) = file.filter(|_| !has_checkpoints(&config.checkpoint.path)) else {
        return Ok(None);
    };
    let values = Weights::read(file)?.fit(model, Fit::Adapted)?;
    tracing::info!("starting from the weights of {}", file.display());
    Ok(Some(values))
}

/// Handles to every tensor of the training state, by checkpoint file.
#[derive(Debug)]
pub(super) struct TrainingState(Vec<(Part, Vec<StateTensor>)>);

impl TrainingState {
    /// The tensors that a matching checkpoint holds.
    pub(super) fn expected(&self) -> Vec<Expected> {
        let shape = |tensor: &StateTensor| (tensor.name.clone(), tensor.division.shape().to_vec());
        let parts = self.0.iter().map(|(part, tensors)| Expected {
            part: *part,
            tensors: tensors.iter().map(shape).collect(),
        });
        parts.collect()
    }

    /// How many of `ranks` ranks write checkpoints of this state.
    pub(super) fn writers(&self, writers: CheckpointWriters, ranks: u32) -> u32 {
        let model = self.0.iter().filter(|(part, _)| *part == Part::Model);
        let parameters = model
            .flat_map(|(_, tensors)| tensors)
            .map(|tensor| tensor.division.numel());
        writers.count(parameters.sum(), ranks)
    }

    /// Whole copies in host memory of what this rank writes as one of the first `writers`.
    pub(super) fn collect(&self, world: &World, writers: u32) -> Result<Vec<(Part, Named)>, TrainError> {
        let tensors = self.0.iter().flat_map(|(_, tensors)| tensors);
        let numels: Vec<u64> = tensors
            .map(|tensor| tensor.division.numel().unsigned_abs())
            .collect();
        let mut owners = &assign(&numels, writers)[..];
        let mut files = Vec::new();
        for (part, tensors) in &self.0 {
            let (own, rest) = owners.split_at(tensors.len());
            owners = rest;
            let whole = world.collect(tensors, own)?;
            if !whole.is_empty() {
                files.push((*part, whole));
            }
        }
        Ok(files)
    }

    /// Gives every rank its part of the `values` of a checkpoint that rank 0 has.
    pub(super) fn spread(
        &self,
        world: &World,
        values: Option<&[(Part, Vec<Stored>)]>,
    ) -> Result<(), TrainError> {
        for (part, tensors) in &self.0 {
            let of_part = |values: &'_ [(Part, Vec<Stored>)]| {
                let index = values.iter().position(|(found, _)| found == part);
                index.expect("values of each part")
            };
            let values = values.map(|values| values[of_part(values)].1.iter());
            world.spread(
                tensors,
                values.map(|stored| stored.map(|stored| Ok(stored.read()?))),
            )?;
        }
        Ok(())
    }
}
