//! How fast ranks can exchange gradients, with nothing else going on.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tch::{Kind, Tensor};

use super::{Accelerator, World};
use crate::error::TrainError;

/// A size is measured for about so long.
const MEASURED_FOR: Duration = Duration::from_millis(500);
/// How often a size is measured at least and at most.
const REPETITIONS: (f64, f64) = (5.0, 200.0);

/// All-reduces of gradient buckets of one size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct BucketTime {
    pub(crate) bytes: u64,
    /// Ranks that add them up.
    pub(crate) ranks: u32,
    /// Mean of repetitions one right after the other, as nccl-tests take it; of the rank that took longest.
    pub(crate) seconds: f64,
}

impl World {
    /// How long an all-reduce of fp32 gradients of so many bytes takes among the ranks that have gradients for the same
    /// weights. Every rank calls it.
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
            // Every rank goes on alike.
            Ok(self.gather(own)?.into_iter().fold(0.0, f64::max))
        };
        // The first one makes connections and buffers.
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
