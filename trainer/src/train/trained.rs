//! What is trained, and every tensor of it that a checkpoint holds.

use contract::RunConfig;
use tch::{Device, Tensor};

use crate::checkpoint::{Part, has_checkpoints};
use crate::error::TrainError;
use crate::model::{Fit, Mode, VisionTransformer, Weights};
use crate::optim::{Average, Optimizer};
use crate::precision::{Precision, TrainedWeights};

type Named = Vec<(String, Tensor)>;

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
    /// At random weights, or on the first rank at pretrained ones if the configuration names some.
    pub(super) fn new(config: &RunConfig, device: Device, is_first: bool) -> Result<Self, TrainError> {
        let training = &config.training;
        let mut model = VisionTransformer::new(&config.model, training.seed, device);
        model.checkpoint_activations(training.activation_checkpointing);
        if is_first {
            start_from_pretrained(config, &model)?;
        }
        let precision = Precision::begin(training)?;
        let weights = TrainedWeights::new(model.parameters(), precision);
        Ok(Self {
            optimizer: Optimizer::new(training, model.parameters(), &weights),
            average: training.ema.map(|ema| Average::new(ema, &config.model, device)),
            model,
            precision,
            weights,
        })
    }

    /// Logits of training images.
    pub(super) fn forward(&self, images_bchw: &Tensor, mode: Mode) -> Result<Tensor, TrainError> {
        self.precision.forward(&self.model, images_bchw, mode)
    }

    pub(super) fn tensors(&self) -> Tensors {
        Tensors {
            weights: self.weights.named(),
            optimizer: self.optimizer.state(),
            average: self.average.as_ref().map(Average::named),
        }
    }
}

/// Not where a checkpoint will replace the weights: the file may be gone by then.
fn start_from_pretrained(config: &RunConfig, model: &VisionTransformer) -> Result<(), TrainError> {
    if let Some(file) = &config.model.pretrained
        && !has_checkpoints(&config.checkpoint.path)
    {
        Weights::read(file)?.load_into(model, Fit::Adapted)?;
        tracing::info!("starting from the weights of {}", file.display());
    }
    Ok(())
}

/// Handles to every tensor that training goes on from, under its name.
#[derive(Debug)]
pub(super) struct Tensors {
    /// In 32 bits.
    weights: Named,
    optimizer: Named,
    average: Option<Named>,
}

impl Tensors {
    /// The files of a checkpoint.
    pub(super) fn parts(&self) -> Vec<Part<'_>> {
        let always = [Part::model(&self.weights), Part::optimizer(&self.optimizer)];
        let average = self.average.as_deref().map(Part::average);
        always.into_iter().chain(average).collect()
    }

    /// What ranks need of rank 0 after that many steps. Before the first one, state and average hold nothing yet.
    pub(super) fn shared(&self, steps: u64) -> Vec<Tensor> {
        let grown = [Some(&self.optimizer), self.average.as_ref()];
        let grown = grown.into_iter().flatten().filter(|_| steps > 0);
        let named = std::iter::once(&self.weights).chain(grown).flatten();
        named.map(|(_, tensor)| tensor.shallow_clone()).collect()
    }

    /// Gives the average the values of the weights, as timm does with a checkpoint that has none.
    pub(super) fn start_average_from_weights(&self) {
        let Some(average) = &self.average else { return };
        tch::no_grad(|| {
            for ((_, average), (_, weight)) in average.iter().zip(&self.weights) {
                average.shallow_clone().copy_(weight);
            }
        });
    }
}
