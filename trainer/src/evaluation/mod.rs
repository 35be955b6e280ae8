//! Classifies held-out images and counts the correct ones, over all ranks or in `vit-trainer eval`.

mod average_precision;

use std::ops::Range;

use tch::{Kind, TchError, Tensor};

use crate::data::{Batch, DataSet};
use crate::distributed::World;
use crate::error::TrainError;
use crate::model::{Mode, VisionTransformer};
use crate::precision::Precision;

pub(crate) use average_precision::{Place, Rankings, Sum};

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Counts {
    /// Images whose likeliest class is one that they show.
    pub(crate) correct: u64,
    pub(crate) counted: u64,
    /// Only if images may show several classes.
    pub(crate) mean_average_precision: Option<f64>,
}

impl Counts {
    pub(crate) fn accuracy(self) -> f64 {
        self.correct as f64 / self.counted.max(1) as f64
    }
}

/// Classifies every image of `data` exactly once over all ranks; `None` once `stop` is true on some rank. `gets_on` is called
/// after each batch.
///
/// All ranks run the same number of forward passes, because each pass gathers sharded weights.
/// Before each pass they agree to continue, and that ranks of a replica have the same images.
/// Otherwise batches of unequal sizes would make them wait for one another.
pub(crate) fn evaluate(
    world: &World,
    (model, precision): (&VisionTransformer, Precision),
    data: &DataSet,
    parts: &Parts,
    stop: impl Fn() -> bool,
    gets_on: impl Fn(),
) -> Result<Option<Counts>, TrainError> {
    let part = parts.of(world.mesh.data.rank);
    // Summed on the device: no batch waits for the previous one, unless more of that is kept.
    let mut right = Tensor::zeros([0_i64; 0], (Kind::Int64, data.device()));
    let mut counted = 0;
    let mut rankings = if data.has_several_classes() && world.mesh.is_first_of_replica() {
        let images = part.images.end - part.images.start;
        Some(Rankings::new(images, model.config().num_classes)?)
    } else {
        None
    };
    let mut batches = data.evaluation(part.images, part.batch_size)?;
    for _ in 0..parts.most_batches() {
        let batch = batches.next()?;
        let digest = batch.as_ref().map_or(0, |batch| batch.digest);
        let disagreement = world.mesh.disagreement(digest).cast_unsigned();
        let [stops, disagreement] = world.sum([u64::from(stop()), disagreement])?;
        if stops > 0 {
            return Ok(None);
        }
        if disagreement != 0 {
            return Err(TrainError::DifferentImages);
        }
        let batch = match batch {
            Some(batch) => batch,
            None => Batch::empty(model.config(), data.device())?,
        };
        tch::no_grad(|| {
            let logits = precision.forward(model, &batch.images, Mode::Evaluate)?;
            if batch.len() > 0 {
                counted += batch.len();
                right = right.f_add(&correct(&logits, &batch.labels)?)?;
                if let Some(rankings) = &mut rankings {
                    rankings.add(&logits, &batch.labels)?;
                }
            }
            Ok::<_, TrainError>(())
        })?;
        gets_on();
    }
    let left_out = batches.left_out();
    let right = right.f_int64_value(&[])?.cast_unsigned();
    // Ranks that have the same images count them once.
    let once = u64::from(world.mesh.is_first_of_replica());
    let own = counted * once;
    let [correct, counted, left_out] = world.sum([right * once, own, left_out * once])?;
    data.readable().check(left_out)?;
    let mut counts = Counts {
        correct,
        counted,
        mean_average_precision: None,
    };
    if data.has_several_classes() {
        let rankings = rankings.map_or_else(|| Rankings::new(0, model.config().num_classes), Ok)?;
        let Some(sum) = rated(world, &rankings, (own, counted), stop, gets_on)? else {
            return Ok(None);
        };
        counts.mean_average_precision = sum.mean();
    }
    Ok(Some(counts))
}

/// Sums average precision over the classes. The ranks have `counted` images together, this one has
/// `own`. `None` once `stop` is true on some rank. `gets_on` is called after each exchange.
fn rated(
    world: &World,
    rankings: &Rankings,
    (own, counted): (u64, u64),
    stop: impl Fn() -> bool,
    gets_on: impl Fn(),
) -> Result<Option<Sum>, TrainError> {
    // Image counts are exact in `f64`.
    let before: f64 = world.gather(own as f64)?.iter().take(world.rank as usize).sum();
    let place = Place {
        before: before as u64,
        images: counted,
        rank: world.rank,
        ranks: world.size,
    };
    let part = rankings.sum(place, |numbers| {
        world.sum_on_host(numbers)?;
        gets_on();
        let [stops] = world.sum([u64::from(stop())])?;
        Ok(stops == 0)
    })?;
    let Some(part) = part else { return Ok(None) };
    let [classes] = world.sum([part.classes])?;
    let precisions = world.gather(part.precisions)?.iter().sum();
    Ok(Some(Sum { precisions, classes }))
}

/// The number of correctly classified images, on the device: they show the likeliest class, of
/// equal logits the first. `labels` are as in [`Batch::labels`].
pub(crate) fn correct(logits_bk: &Tensor, labels: &Tensor) -> Result<Tensor, TchError> {
    if labels.dim() == 2 {
        let likeliest = logits_bk.f_argmax(1, true)?;
        return labels.f_gather(1, &likeliest, false)?.f_sum(Kind::Int64);
    }
    logits_bk
        .f_argmax(1, false)?
        .f_eq_tensor(labels)?
        .f_sum(Kind::Int64)
}

/// The images that one rank classifies, and its batch size.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Part {
    pub(crate) images: Range<u64>,
    pub(crate) batch_size: u32,
}

impl Part {
    fn batches(&self) -> u64 {
        let images = self.images.end - self.images.start;
        images.div_ceil(u64::from(self.batch_size))
    }
}

/// The replicas' parts of the images, which cover each image once. All have equally many batches,
/// because with sharded weights ranks wait for one another in each batch.
#[derive(Clone, Debug)]
pub(crate) struct Parts(Vec<Part>);

impl Parts {
    /// Splits `images` in proportion to `shares`, into batches of at most `batch_size`.
    pub(crate) fn new(images: u64, shares: &[u64], batch_size: u32) -> Self {
        let total: u64 = shares.iter().sum();
        let mut before = 0;
        let mut start = 0;
        let part = |share: &u64| {
            before += share;
            let end = (u128::from(images) * u128::from(before) / u128::from(total)) as u64;
            let images = std::mem::replace(&mut start, end)..end;
            Part { images, batch_size }
        };
        let mut parts = Self(shares.iter().map(part).collect());
        let most = parts.most_batches().max(1);
        for part in &mut parts.0 {
            let images = part.images.end - part.images.start;
            part.batch_size = images.div_ceil(most).clamp(1, batch_size.into()) as u32;
        }
        parts
    }

    fn of(&self, replica: u32) -> Part {
        self.0[replica as usize].clone()
    }

    /// The largest number of batches of a replica.
    fn most_batches(&self) -> u64 {
        self.0.iter().map(Part::batches).max().unwrap_or(0)
    }
}

/// Calls `visit` with the logits BK in 32 bits and the labels ([`Batch::labels`]) of a rank's part,
/// in order. Returns the number of images that could not be read.
pub(crate) fn classify(
    model: &VisionTransformer,
    precision: Precision,
    data: &DataSet,
    part: &Part,
    mut visit: impl FnMut(&Tensor, &Tensor) -> Result<(), TrainError>,
) -> Result<u64, TrainError> {
    let mut batches = data.evaluation(part.images.clone(), part.batch_size)?;
    while let Some(batch) = batches.next()? {
        tch::no_grad(|| {
            let logits = precision.forward(model, &batch.images, Mode::Evaluate)?;
            visit(&logits, &batch.labels)
        })?;
    }
    Ok(batches.left_out())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_image_is_classified_once_and_by_whom_shares_say() {
        for (images, shares, expected) in [
            (13, &[4, 4][..], &[0..6, 6..13][..]),
            (13, &[11, 3, 2], &[0..8, 8..11, 11..13]),
            (13, &[8, 0, 8], &[0..6, 6..6, 6..13]),
            (1, &[1, 1, 1], &[0..0, 0..0, 0..1]),
            (0, &[1, 1], &[0..0, 0..0]),
        ] {
            let parts = Parts::new(images, shares, 4);
            let found: Vec<_> = parts.0.iter().map(|part| part.images.clone()).collect();
            assert_eq!(found, expected, "{images} by {shares:?}");
        }
        let parts = Parts::new(13, &[11, 3, 2], 4);
        let sizes: Vec<u32> = parts.0.iter().map(|part| part.batch_size).collect();
        assert_eq!((parts.most_batches(), sizes), (2, vec![4, 2, 1]));
        assert_eq!(Parts::new(0, &[1, 1], 4).most_batches(), 0);
    }
}
