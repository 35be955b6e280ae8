//! How images are classified, and how many of them right: held-out ones over all ranks, or in `vit-trainer eval`.

use tch::{Device, Kind, TchError, Tensor};

use crate::data::DataSet;
use crate::distributed::World;
use crate::error::TrainError;
use crate::model::{Mode, VisionTransformer};
use crate::precision::Precision;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Counts {
    pub(crate) correct: u64,
    pub(crate) counted: u64,
    pub(crate) stop_requests: u64,
}

impl Counts {
    pub(crate) fn accuracy(self) -> f64 {
        self.correct as f64 / self.counted.max(1) as f64
    }
}

/// Classifies every image of `data` exactly once over all ranks. `stop` rides along, so that ranks agree on stopping
/// after an evaluation without a collective of its own. `gets_on` is called after each batch.
///
/// Every rank runs as many forward passes as every other: where weights are divided, each gathers them.
pub(crate) fn evaluate(
    world: &World,
    (model, precision): (&VisionTransformer, Precision),
    data: &DataSet,
    batch_size: u32,
    stop: bool,
    gets_on: impl Fn(),
) -> Result<Counts, TrainError> {
    let part = Part {
        rank: world.mesh.data.rank,
        ranks: world.mesh.data.size,
        batch_size,
    };
    // Adds up on the device, so that no batch waits for the one before.
    let mut right = Tensor::zeros([0_i64; 0], (Kind::Int64, data.device()));
    let mut counted = 0;
    let mut missing = part.most_batches(data.len());
    let left_out = classify(model, precision, data, part, |logits, labels| {
        counted += labels.size()[0].cast_unsigned();
        right = right.f_add(&correct(logits, labels)?)?;
        missing -= 1;
        gets_on();
        Ok(())
    })?;
    for _ in 0..missing {
        run_blank(model, precision, data.device())?;
        gets_on();
    }
    let right = right.f_int64_value(&[])?.cast_unsigned();
    // Ranks that have the same images count them once.
    let once = u64::from(world.mesh.is_first_of_replica());
    let own = [right * once, counted * once, u64::from(stop), left_out * once];
    let [correct, counted, stop_requests, left_out] = world.sum(own)?;
    data.readable().check(left_out)?;
    Ok(Counts {
        correct,
        counted,
        stop_requests,
    })
}

/// How many images of a batch are classified right, on the device: their label is the likeliest class, of equal logits the
/// first.
pub(crate) fn correct(logits_bk: &Tensor, labels_b: &Tensor) -> Result<Tensor, TchError> {
    logits_bk
        .f_argmax(1, false)?
        .f_eq_tensor(labels_b)?
        .f_sum(Kind::Int64)
}

/// Which images one rank classifies, and how many at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) rank: u32,
    pub(crate) ranks: u32,
    pub(crate) batch_size: u32,
}

impl Part {
    /// Batches of the rank that has the most.
    fn most_batches(self, images: u64) -> u64 {
        images
            .div_ceil(u64::from(self.ranks))
            .div_ceil(u64::from(self.batch_size))
    }
}

/// A forward pass of no image in particular.
fn run_blank(model: &VisionTransformer, precision: Precision, device: Device) -> Result<(), TrainError> {
    let model_config = model.config();
    let (channels, side) = (model_config.channels, model_config.image_size);
    let shape = [1, channels, side, side].map(i64::from);
    tch::no_grad(|| {
        let image = Tensor::f_zeros(shape, (Kind::Float, device))?;
        precision.forward(model, &image, Mode::Evaluate).map(drop)
    })
}

/// Gives `visit` the logits BK in 32 bits and the labels B of every image of a rank's part, in order. Gives
/// the number of images that could not be read.
pub(crate) fn classify(
    model: &VisionTransformer,
    precision: Precision,
    data: &DataSet,
    part: Part,
    mut visit: impl FnMut(&Tensor, &Tensor) -> Result<(), TrainError>,
) -> Result<u64, TrainError> {
    let mut batches = data.evaluation(part.rank, part.ranks, part.batch_size)?;
    while let Some(batch) = batches.next()? {
        tch::no_grad(|| {
            let logits = precision.forward(model, &batch.images, Mode::Evaluate)?;
            visit(&logits, &batch.labels)
        })?;
    }
    Ok(batches.left_out())
}
