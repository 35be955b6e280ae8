//! Real steps, timed one by one, for `vit-trainer bench`.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use torch_ext::SyncTimes;

use super::Trainer;
use super::plan::{Distribution, Plan, RankResult};
use crate::data::Batches;
use crate::error::TrainError;
use crate::metrics::{Phases, peak_resident_bytes};

/// Steps as training takes them, over and over the same epochs.
struct Steps<'a> {
    trainer: &'a mut Trainer,
    batches: Batches,
}

impl Steps<'_> {
    /// One step. Gives its seconds.
    fn next(&mut self) -> Result<f64, TrainError> {
        let trainer = &mut *self.trainer;
        if !trainer.epoch_has_a_step() {
            trainer.position.epoch += 1;
            trainer.position.images_into_epoch = 0;
            self.batches = trainer.rest_of_epoch()?;
        }
        let start = Instant::now();
        trainer.step(&mut self.batches)?;
        Ok(start.elapsed().as_secs_f64())
    }

    /// One step that all ranks begin together, with or without reducing gradients. Gives its seconds.
    fn next_together(&mut self, synchronize: bool) -> Result<f64, TrainError> {
        self.trainer.world.barrier()?;
        self.trainer.sync.is_on = synchronize;
        let seconds = self.next();
        self.trainer.sync.is_on = true;
        seconds
    }
}

impl Trainer {
    /// Takes the plan's steps. No evaluation, no checkpoint.
    pub(crate) fn bench(&mut self, plan: &Plan) -> Result<RankResult, TrainError> {
        let batches = self.rest_of_epoch()?;
        let mut steps = Steps {
            trainer: self,
            batches,
        };
        steps.next()?;
        let seconds_to_first_step = since_1970() - plan.started;
        for _ in 1..plan.warmup_steps {
            steps.next()?;
        }

        let mut durations = Vec::new();
        let (mut phases, mut sync) = (Phases::default(), SyncTimes::default());
        for _ in 0..plan.steps {
            durations.push(steps.next()?);
            if let Some(step) = steps.trainer.observer.last_step() {
                phases += step.phases;
                sync += step.sync;
            }
        }
        let exposed_sync_share = exposed_share(&mut steps, plan.pairs)?;

        let (seconds, count) = (durations.iter().sum::<f64>(), f64::from(plan.steps));
        Ok(RankResult {
            rank: self.world.rank,
            images_per_second: self.local_images() as f64 * count / seconds,
            step_ms: Distribution::of(&durations),
            phases: phases.mean(count),
            sync: sync.mean(count),
            exposed_sync_share_in_place: sync.exposed / seconds,
            exposed_sync_share,
            seconds_to_first_step,
            peak_rss_bytes: peak_resident_bytes(),
            peak_device_bytes: self.accelerator.peak_bytes()?,
            gpu: self.accelerator.product(),
        })
    }
}

/// The difference to steps that do not reduce gradients, as a share of those that do. Each kind comes first in every
/// other pair. `None` without pairs, or without other ranks.
fn exposed_share(steps: &mut Steps<'_>, pairs: u32) -> Result<Option<f64>, TrainError> {
    if pairs == 0 || steps.trainer.world.size == 1 {
        return Ok(None);
    }
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for pair in 0..pairs {
        let first = pair % 2 == 0;
        for synchronize in [first, !first] {
            let seconds = steps.next_together(synchronize)?;
            if synchronize { &mut with } else { &mut without }.push(seconds);
        }
    }
    let (with, without) = (Distribution::of(&with).p50, Distribution::of(&without).p50);
    Ok(Some((with - without) / with))
}

fn since_1970() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0.0, |duration| duration.as_secs_f64())
}
