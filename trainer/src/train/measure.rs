//! Real steps, timed one by one, for `vit-trainer bench`.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use torch_ext::{Arithmetic, Error, Profile, SyncTimes, Trace};

use super::Trainer;
use super::plan::{Distribution, InputAlone, Plan, RankResult};
use super::step::SettledStep;
use crate::data::{Batches, DataError, StageSeconds};
use crate::error::TrainError;
use crate::metrics::{Phases, StepReport, peak_resident_bytes};

/// Why measuring ended early.
#[derive(Debug)]
enum Interruption {
    /// Some rank was told to stop.
    Stop,
    Failure(TrainError),
}

impl From<TrainError> for Interruption {
    fn from(error: TrainError) -> Self {
        Self::Failure(error)
    }
}

impl From<Error> for Interruption {
    fn from(error: Error) -> Self {
        Self::Failure(error.into())
    }
}

impl From<DataError> for Interruption {
    fn from(error: DataError) -> Self {
        Self::Failure(error.into())
    }
}

/// Training steps, repeating the same epochs.
struct Steps<'a> {
    trainer: &'a mut Trainer,
    batches: Batches,
    /// Reports of settled steps.
    reports: Vec<StepReport>,
}

impl Steps<'_> {
    /// Begins the next epoch if no step is left.
    fn prepare(&mut self) -> Result<(), TrainError> {
        let trainer = &mut *self.trainer;
        if !trainer.epoch_has_a_step() {
            trainer.position.epoch += 1;
            trainer.position.images_into_epoch = 0;
            self.batches = trainer.rest_of_epoch()?;
        }
        trainer.follow_shares(&mut self.batches)
    }

    /// One step. Returns its seconds.
    fn next(&mut self) -> Result<f64, Interruption> {
        let start = Instant::now();
        self.prepare()?;
        let settled = self.trainer.step(&mut self.batches)?;
        self.take(settled)?;
        Ok(start.elapsed().as_secs_f64())
    }

    /// Returns once no step is running.
    fn settle(&mut self) -> Result<(), Interruption> {
        let settled = self.trainer.settle()?;
        self.take(settled)
    }

    fn take(&mut self, settled: Option<SettledStep>) -> Result<(), Interruption> {
        let Some(SettledStep { stop, report, .. }) = settled else {
            return Ok(());
        };
        self.reports.push(report);
        // Without a reduction a rank knows only its own signal, and the others would wait.
        if stop && self.trainer.sync.is_on {
            return Err(Interruption::Stop);
        }
        Ok(())
    }

    /// One step. Returns its operators after which the host waits for the device.
    fn next_counted(&mut self, forbid: bool) -> Result<BTreeMap<String, u64>, Interruption> {
        self.prepare()?;
        let trace = Trace::begin()?;
        let accelerator = self.trainer.accelerator;
        accelerator.forbid_waits(forbid);
        let step = self.next();
        accelerator.forbid_waits(false);
        step?;
        Ok(trace.host_stops())
    }

    /// One step, traced by rank 0. The trace holds all its work and nothing of the steps around it.
    fn next_traced(&mut self, path: &Path) -> Result<(), Interruption> {
        self.settle()?;
        self.prepare()?;
        let accelerator = self.trainer.accelerator;
        accelerator.finish();
        let is_first = self.trainer.world.is_first();
        let with_cuda = accelerator.device().is_cuda();
        let profile = is_first.then(|| Profile::begin(with_cuda)).transpose()?;
        self.next()?;
        self.settle()?;
        accelerator.finish();
        profile.map_or(Ok(()), |profile| profile.save(path))?;
        Ok(())
    }

    /// One step that all ranks begin together. Returns its seconds.
    fn next_together(&mut self, synchronize: bool) -> Result<f64, Interruption> {
        self.trainer.world.barrier()?;
        self.trainer.sync.is_on = synchronize;
        let start = Instant::now();
        self.next()?;
        self.settle()?;
        self.trainer.sync.is_on = true;
        Ok(start.elapsed().as_secs_f64())
    }
}

impl Trainer {
    /// Runs the plan's steps, without evaluations or checkpoints. `None` if told to stop.
    pub(crate) fn bench(&mut self, plan: &Plan) -> Result<Option<RankResult>, TrainError> {
        match self.measure(plan) {
            Ok(result) => Ok(Some(result)),
            Err(Interruption::Stop) => Ok(None),
            Err(Interruption::Failure(error)) => Err(error),
        }
    }

    fn measure(&mut self, plan: &Plan) -> Result<RankResult, Interruption> {
        let batches = self.rest_of_epoch()?;
        let mut steps = Steps {
            trainer: self,
            batches,
            reports: Vec::new(),
        };
        steps.next()?;
        steps.settle()?;
        let seconds_to_first_step = since_1970() - plan.started;
        for _ in 1..plan.warmup_steps {
            steps.next()?;
        }

        steps.settle()?;
        steps.reports.clear();
        let start = Instant::now();
        let mut durations = Vec::new();
        for _ in 0..plan.steps {
            durations.push(steps.next()?);
        }
        steps.settle()?;
        let seconds = start.elapsed().as_secs_f64();
        let (mut phases, mut sync, mut images) = (Phases::default(), SyncTimes::default(), 0.0);
        for step in &steps.reports {
            images += step.images;
            phases += step.phases;
            sync += step.sync;
        }
        let host_stops = steps.next_counted(plan.forbid_host_stops)?;
        let exposed_sync_share = exposed_share(&mut steps, plan.pairs)?;
        if let Some(path) = &plan.trace {
            steps.next_traced(path)?;
        }
        drop(steps);
        let (peak_rss_bytes, peak_device_bytes) = (peak_resident_bytes(), self.accelerator.peak_bytes()?);
        let mut buckets = Vec::new();
        for bytes in &plan.buckets {
            buckets.push(self.world.bucket_time(*bytes, self.accelerator)?);
        }
        let input = self.input_alone(plan.steps)?;

        let count = f64::from(plan.steps);
        Ok(RankResult {
            rank: self.world.rank,
            images_per_second: images / seconds,
            step_ms: Distribution::from_seconds(&durations),
            phases: phases.mean(count),
            sync: sync.mean(count),
            buckets,
            input,
            exposed_sync_share_in_place: sync.all.exposed / seconds,
            exposed_sync_share,
            seconds_to_first_step,
            host_stops,
            arithmetic: Arithmetic::current()?,
            peak_rss_bytes,
            peak_device_bytes,
            gpu: self.accelerator.identity()?.map(|gpu| gpu.product),
        })
    }
}

impl Trainer {
    /// Speed of the threads that prepare batches, without a model: the micro-batches of `steps`
    /// steps, on all ranks at once, from the start of an epoch. `None` without threads or images.
    fn input_alone(&mut self, steps: u32) -> Result<Option<InputAlone>, Interruption> {
        let mut missing = steps as usize * self.share().micro_batches.len();
        if missing == 0 {
            // A rank without images does not wait for the others, which measure now.
            self.world.barrier()?;
            return Ok(None);
        }
        let (mut taken, mut prepared, mut seconds) = (0, 0, 0.0);
        let (mut threads, mut stages) = (0, StageSeconds::default());
        self.world.barrier()?;
        while missing > 0 {
            self.position.epoch += 1;
            self.position.images_into_epoch = 0;
            let start = Instant::now();
            let mut batches = self.rest_of_epoch()?;
            while missing > 0
                && let Some(batch) = batches.next()?
            {
                // Ranks no longer wait for each other.
                if self.stop.load(Ordering::Relaxed) {
                    return Err(Interruption::Stop);
                }
                taken += batch.labels.size()[0].cast_unsigned();
                missing -= 1;
            }
            let Some(progress) = batches.progress() else {
                return Ok(None);
            };
            seconds += start.elapsed().as_secs_f64();
            threads = progress.threads;
            prepared += progress.prepared;
            stages += progress.seconds;
        }
        Ok(Some(InputAlone {
            threads,
            images_per_second: taken as f64 / seconds,
            seconds_per_image: stages.per_image(prepared, taken),
        }))
    }
}

/// Share of a step saved without a gradient reduction. Each kind comes first in every other pair.
/// `None` without pairs or other ranks, and if a rank does not have whole gradients.
fn exposed_share(steps: &mut Steps<'_>, pairs: u32) -> Result<Option<f64>, Interruption> {
    let has_all_gradients = !steps.trainer.trained.weights.are_sharded();
    if pairs == 0 || steps.trainer.world.size == 1 || !has_all_gradients {
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
    let (with, without) = (
        Distribution::from_seconds(&with).p50,
        Distribution::from_seconds(&without).p50,
    );
    Ok(Some((with - without) / with))
}

fn since_1970() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0.0, |duration| duration.as_secs_f64())
}
