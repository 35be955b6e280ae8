//! The status of a study. Pure.

use crds::Phase;
use crds::conditions::types::{COMPLETE, FAILED, RECONCILED, RUNNING, SUSPENDED};
use crds::conditions::{self, reasons, study_reasons};
use crds::study::status::{CurrentRun, PointStatus, RunsStatus, StudyPhase, ViTScalingStudyStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;
use study::{Plan, PointResult, Results, RunState, StudyJob};

use super::next::Next;
use super::observation::{Observation, is_being_deleted, waits_for};
use super::runs::{self, RunRepetition, slot_of};
use crate::error::Error;
use crate::numbers::rounded;

/// Failed runs that a condition names.
const NAMED_FAILURES: usize = 3;

struct Draft<'a> {
    status: ViTScalingStudyStatus,
    seen: &'a Observation,
}

impl<'a> Draft<'a> {
    fn of(seen: &'a Observation) -> Self {
        Self {
            status: seen.status(),
            seen,
        }
    }

    fn set(&mut self, type_: &str, value: bool, reason: &str, message: &str) {
        let generation = self.seen.study.metadata.generation;
        let condition = conditions::condition(type_, value, (reason, message), generation, self.seen.now);
        conditions::set(&mut self.status.conditions, condition);
    }

    /// Sets a condition to false if it was true.
    fn unset(&mut self, type_: &str, message: &str) {
        let known = self.status.condition(type_);
        if known.is_some_and(|known| known.status == "True") {
            self.set(type_, false, reasons::RESUMED, message);
        }
    }

    /// Why no run trains.
    fn wait(&mut self, message: &str) {
        self.status.phase = Some(StudyPhase::Pending);
        self.set(RUNNING, false, study_reasons::RUN_WAITS, message);
    }

    fn end(&mut self, phase: StudyPhase) {
        self.status.phase = Some(phase);
        self.status.current = None;
        self.status.completion_time.get_or_insert(Time(self.seen.now));
        if self.status.condition(RUNNING).is_some() {
            self.set(RUNNING, false, study_reasons::NO_RUNS, "the study is over");
        }
    }

    fn done(mut self) -> ViTScalingStudyStatus {
        self.status.observed_generation = self.seen.study.metadata.generation;
        self.status
    }
}

/// The status of a study with an invalid manifest.
pub(super) fn invalid(observation: &Observation, why: &str) -> ViTScalingStudyStatus {
    let mut draft = Draft::of(observation);
    draft.end(StudyPhase::Failed);
    draft.unset(COMPLETE, "sweeps were added");
    draft.set(FAILED, true, reasons::INVALID_SPEC, why);
    draft.done()
}

/// The status with the next actions.
pub(super) fn status(observation: &Observation, plan: &Plan, next: &Next) -> ViTScalingStudyStatus {
    let slots = &runs::slots(plan);
    let mut draft = Draft::of(observation);
    let mut measured = plan.measured(&observation.jobs);
    let states: Vec<RunState> = slots.iter().map(|slot| observation.state(plan, slot)).collect();
    for (slot, state) in slots.iter().zip(&states) {
        if let RunState::Failed(message) = state
            && let Some(run) = plan.runs.iter().position(|run| run.key == slot.run.key)
        {
            measured[run][slot.repetition as usize] = Err(message.clone());
        }
    }
    draft.status.points = Results::new(plan, &measured).points.iter().map(point).collect();
    draft.status.runs = Some(counts(&states));
    if !states.iter().any(|state| matches!(state, RunState::Open { .. })) {
        finish(&mut draft, slots, &states);
        return draft.done();
    }
    draft.status.completion_time = None;
    draft.unset(COMPLETE, "sweeps were added");
    draft.unset(FAILED, "sweeps were added");
    let unfinished = observation.unfinished();
    if observation.study.spec.suspend {
        suspend(&mut draft, unfinished);
        return draft.done();
    }
    draft.unset(SUSPENDED, "spec.suspend is not set");
    if let Some(job) = unfinished {
        draft.status.start_time.get_or_insert(Time(observation.now));
        follow(&mut draft, slots, job, next);
    } else if let Some(creation) = &next.create {
        draft.status.start_time.get_or_insert(Time(observation.now));
        let (words, name) = (&creation.words, creation.job.name_any());
        draft.status.current = Some(current(words, creation.repetition, &name));
        draft.wait(&format!("{words}: job {name} is created"));
    } else if let Some(other) = &observation.waits_for {
        draft.status.current = None;
        let why = "one study at a time runs in a namespace";
        draft.wait(&format!("study {other} measures first: {why}"));
    }
    draft.done()
}

/// The status with the error that stopped the round, if any.
pub(super) fn with_error(
    observation: &Observation,
    status: ViTScalingStudyStatus,
    error: Option<&Error>,
) -> ViTScalingStudyStatus {
    let mut draft = Draft {
        status,
        seen: observation,
    };
    match error {
        Some(error) => draft.set(RECONCILED, false, reasons::RECONCILE_FAILED, &error.to_string()),
        None => draft
            .status
            .conditions
            .retain(|condition| condition.type_ != RECONCILED),
    }
    draft.status
}

fn suspend(draft: &mut Draft<'_>, unfinished: Option<&StudyJob>) {
    if let Some(job) = unfinished {
        let message = format!(
            "job {} is being stopped; it starts over later",
            job.job.name_any()
        );
        draft.set(SUSPENDED, false, reasons::SUSPENDING, &message);
        return;
    }
    draft.status.phase = Some(StudyPhase::Suspended);
    draft.status.current = None;
    let message = "spec.suspend is set; measurements are kept";
    draft.set(SUSPENDED, true, reasons::SUSPENDED, message);
    draft.set(RUNNING, false, reasons::SUSPENDED, message);
}

fn follow(draft: &mut Draft<'_>, slots: &[RunRepetition<'_>], job: &StudyJob, next: &Next) {
    let slot = slot_of(job, slots);
    let name = job.job.name_any();
    let words = slot.map_or_else(|| name.clone(), RunRepetition::words);
    draft.status.current = Some(current(&words, job.repetition(), &name));
    let is_deleted =
        is_being_deleted(job) || next.delete.iter().any(|doomed| doomed.job.uid() == job.job.uid());
    if job.phase() == Some(Phase::Running) && !is_deleted {
        draft.status.phase = Some(StudyPhase::Running);
        let message = format!("{words} is job {name}");
        draft.set(RUNNING, true, study_reasons::RUN_TRAINS, &message);
    } else if is_deleted {
        draft.wait(&format!("{words}: job {name}: is being deleted"));
    } else {
        draft.wait(&format!("{words}: job {name}: {}", waits_for(job)));
    }
}

fn current(words: &str, repetition: u32, job: &str) -> CurrentRun {
    CurrentRun {
        run: words.into(),
        repetition: signed(repetition + 1),
        job: job.into(),
    }
}

fn finish(draft: &mut Draft<'_>, slots: &[RunRepetition<'_>], states: &[RunState]) {
    draft.unset(SUSPENDED, "the study is over");
    let failure = |(slot, state): (&RunRepetition<'_>, &RunState)| match state {
        RunState::Failed(message) => Some(format!("{}: {message}", slot.words())),
        _ => None,
    };
    let mut failures: Vec<String> = slots.iter().zip(states).filter_map(failure).collect();
    let total = slots.len();
    if failures.is_empty() {
        draft.end(StudyPhase::Succeeded);
        draft.unset(FAILED, "sweeps were added");
        let message = format!("{total} runs were measured");
        draft.set(COMPLETE, true, study_reasons::ALL_RUNS_MEASURED, &message);
        return;
    }
    draft.end(StudyPhase::Failed);
    draft.unset(COMPLETE, "sweeps were added");
    let count = failures.len();
    failures.truncate(NAMED_FAILURES);
    let mut message = format!("{count} of {total} runs failed: {}", failures.join("; "));
    if count > NAMED_FAILURES {
        message += &format!("; and {} more", count - NAMED_FAILURES);
    }
    draft.set(FAILED, true, study_reasons::RUNS_FAILED, &message);
}

fn counts(states: &[RunState]) -> RunsStatus {
    let (mut measured, mut failed) = (0, 0);
    for state in states {
        match state {
            RunState::Measured(_) => measured += 1,
            RunState::Failed(_) => failed += 1,
            RunState::Open { .. } => {}
        }
    }
    let total = signed(states.len());
    RunsStatus {
        total,
        measured,
        failed,
        summary: format!("{measured}/{total}"),
    }
}

fn point(result: &PointResult) -> PointStatus {
    let point = &result.point;
    let measured = result.measured.as_ref();
    let failure = result.failures.iter().find(|failure| *failure != study::NOT_RUN);
    PointStatus {
        sweep: point.sweep.clone(),
        ranks: signed(point.ranks),
        micro_batch_size: signed(point.micro_batch_size),
        gradient_accumulation_steps: signed(point.gradient_accumulation_steps),
        variant: point.variant.clone(),
        measured: signed(result.repetitions),
        images_per_second: measured.map(|measured| rounded(measured.images_per_second.median, 1)),
        step_milliseconds: measured.map(|measured| rounded(measured.step_seconds.median * 1e3, 3)),
        sync_share: measured.and_then(|measured| {
            let exposed = measured.if_attributed(measured.exposed_seconds)?.median;
            let waiting = exposed + measured.straggler_seconds.median;
            Some(rounded(waiting / measured.step_seconds.median, 4))
        }),
        efficiency: measured
            .and_then(|measured| measured.efficiency)
            .map(|share| rounded(share.median, 3)),
        failure: failure.cloned(),
    }
}

fn signed(count: impl TryInto<i32>) -> i32 {
    count.try_into().unwrap_or(i32::MAX)
}
