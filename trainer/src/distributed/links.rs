//! Speed of gradient exchange with nothing else running.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tch::{Kind, Tensor};

use super::{Accelerator, World};
use crate::error::TrainError;

/// Approximate time per measured size.
const MEASURED_FOR: Duration = Duration::from_millis(500);
/// Least and most repetitions per size.
const REPETITIONS: (f64, f64) = (5.0, 200.0);

/// All-reduces of gradient buckets of one size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct BucketTime {
    pub(crate) bytes: u64,
    /// Ranks that sum them.
    pub(crate) ranks: u32,
    /// Mean of back-to-back repetitions, as in nccl-tests, on the slowest rank.
    pub(crate) seconds: f64,
}

impl World {
    /// Time of an all-reduce of `bytes` bytes of fp32 gradients among the ranks that have gradients
    /// for the same weights. Every rank calls it.
    pub(crate) fn bucket_time(&self, bytes: u64, accelerator: Accelerator) -> Result<BucketTime, TrainError> {
        let numbers = (bytes / 4).max(1);
        let (group, _) = self.reducing();
        let mut bucket = Tensor::f_zeros([numbers.cast_signed()], (Kind::Float, accelerator.device()))?;
        let mut seconds_of = |repetitions: u32| -> Result<f64, TrainError> {
            accelerator.finish();
            self.barrier()?;
            let start = Instant::now();
            for _ in 0..repetitions {
                group.all_reduce_sum(&mut bucket)?;
            }
            accelerator.finish();
            let own = start.elapsed().as_secs_f64() / f64::from(repetitions);
            // All ranks need the same number of repetitions.
            Ok(self.gather(own)?.into_iter().fold(0.0, f64::max))
        };
        // The first one creates connections and buffers.
        seconds_of(1)?;
        let once = seconds_of(1)?;
        let repetitions = (MEASURED_FOR.as_secs_f64() / once).clamp(REPETITIONS.0, REPETITIONS.1);
        Ok(BucketTime {
            bytes: numbers * 4,
            ranks: self.mesh.reducing().size,
            seconds: seconds_of(repetitions as u32)?,
        })
    }
}
