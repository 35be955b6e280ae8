//! The status of a study. Pure.

use crds::conditions::types::{COMPLETE, FAILED, RECONCILED, RUNNING, SUSPENDED};
use crds::conditions::{self, reasons, study_reasons};
use crds::study::status::{CurrentRun, PointStatus, RunsStatus, StudyPhase, ViTScalingStudyStatus};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;
use study::{Outcome, Plan, PointResult, Records, Results};

use super::next::Next;
use super::observation::{Child, Observation};
use super::runs::RunRepetition;
use crate::error::Error;
use crate::numbers::rounded;

/// Failed runs that a condition names.
const NAMED_FAILURES: usize = 3;

struct Draft {
    status: ViTScalingStudyStatus,
    generation: Option<i64>,
    now: Timestamp,
}

impl Draft {
    fn of(observation: &Observation) -> Self {
        Self {
            status: observation.status(),
            generation: observation.study.metadata.generation,
            now: observation.now,
        }
    }

    fn set(&mut self, type_: &str, value: bool, reason: &str, message: &str) {
        let condition = conditions::condition(type_, value, (reason, message), self.generation, self.now);
        conditions::set(&mut self.status.conditions, condition);
    }

    /// Sets a condition to false if it was true.
    fn unset(&mut self, type_: &str, message: &str) {
        if self
            .status
            .condition(type_)
            .is_some_and(|known| known.status == "True")
        {
            self.set(type_, false, reasons::RESUMED, message);
        }
    }

    fn end(&mut self, phase: StudyPhase) {
        self.status.phase = Some(phase);
        self.status.current = None;
        self.status.completion_time.get_or_insert(Time(self.now));
        if self.status.condition(RUNNING).is_some() {
            self.set(RUNNING, false, study_reasons::NO_RUNS, "the study is over");
        }
    }

    fn done(mut self) -> ViTScalingStudyStatus {
        self.status.observed_generation = self.generation;
        self.status
    }
}

/// The status of a study with an invalid manifest.
pub(super) fn invalid(observation: &Observation, why: &str) -> ViTScalingStudyStatus {
    let mut draft = Draft::of(observation);
    draft.status.nodes.clear();
    draft.end(StudyPhase::Failed);
    draft.unset(COMPLETE, "the manifest was changed");
    draft.set(FAILED, true, reasons::INVALID_SPEC, why);
    draft.done()
}

/// The status with the next actions.
pub(super) fn status(
    observation: &Observation,
    plan: &Plan,
    slots: &[RunRepetition<'_>],
    next: &Next,
) -> ViTScalingStudyStatus {
    let mut draft = Draft::of(observation);
    let results = Results::new(plan, &next.records.measured(plan));
    draft.status.points = results.points.iter().map(point).collect();
    draft.status.runs = Some(runs(plan, slots, &next.records));
    draft.status.nodes.clone_from(&next.nodes);
    if next.is_over(plan, slots) {
        finish(&mut draft, plan, slots, &next.records);
        return draft.done();
    }
    draft.status.completion_time = None;
    draft.unset(COMPLETE, "the manifest was changed");
    draft.unset(FAILED, "the manifest was changed");
    let under_way = observation.jobs.iter().find(|child| !child.is_over());
    if observation.study.spec.suspend {
        suspend(&mut draft, under_way);
        return draft.done();
    }
    draft.unset(SUSPENDED, "spec.suspend is not set");
    draft.status.start_time.get_or_insert(Time(draft.now));
    if let Some(child) = under_way {
        follow(&mut draft, slots, child, next);
    } else if let Some(creation) = &next.create {
        draft.status.phase = Some(StudyPhase::Pending);
        draft.status.current = Some(CurrentRun {
            run: creation.words.clone(),
            repetition: signed(creation.repetition + 1),
            job: creation.job.name_any(),
        });
        let message = format!("{}: job {} is created", creation.words, creation.job.name_any());
        draft.set(RUNNING, false, study_reasons::RUN_WAITS, &message);
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
        ..Draft::of(observation)
    };
    match error {
        // Not a fault, but a reason to reconcile again.
        Some(error) if error.is_conflict() => {}
        Some(error) => draft.set(RECONCILED, false, reasons::RECONCILE_FAILED, &error.to_string()),
        None => draft
            .status
            .conditions
            .retain(|condition| condition.type_ != RECONCILED),
    }
    draft.status
}

fn suspend(draft: &mut Draft, under_way: Option<&Child>) {
    if let Some(child) = under_way {
        let message = format!(
            "job {} is being stopped; it starts over later",
            child.job.name_any()
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

fn follow(draft: &mut Draft, slots: &[RunRepetition<'_>], child: &Child, next: &Next) {
    let slot = slots.iter().find(|slot| child.is_of(slot));
    let job = child.job.name_any();
    let words = slot.map_or_else(|| job.clone(), RunRepetition::words);
    draft.status.current = Some(CurrentRun {
        run: words.clone(),
        repetition: signed(child.repetition + 1),
        job: job.clone(),
    });
    let is_deleted = child.is_being_deleted() || next.delete.iter().any(|deletion| deletion.name == job);
    if child.trains() && !is_deleted {
        draft.status.phase = Some(StudyPhase::Running);
        draft.set(
            RUNNING,
            true,
            study_reasons::RUN_TRAINS,
            &format!("{words} is job {job}"),
        );
        return;
    }
    draft.status.phase = Some(StudyPhase::Pending);
    let what = if is_deleted {
        "is being deleted".to_owned()
    } else {
        child.waits_for()
    };
    let mut message = format!("{words}: job {job}: {what}");
    if !next.leaves_nodes_to.is_empty() {
        let others = next.leaves_nodes_to.join(", ");
        message += &format!("; the study does not use the nodes of {others}");
    }
    draft.set(RUNNING, false, study_reasons::RUN_WAITS, &message);
}

fn finish(draft: &mut Draft, plan: &Plan, slots: &[RunRepetition<'_>], records: &Records) {
    draft.unset(SUSPENDED, "the study is over");
    let mut failures = Vec::new();
    for slot in slots {
        if let Some(Outcome::Failure { message, .. }) = records
            .get(plan, slot.run, slot.repetition)
            .map(|record| &record.outcome)
        {
            failures.push(format!("{}: {message}", slot.words()));
        }
    }
    let total = slots.len();
    if failures.is_empty() {
        draft.end(StudyPhase::Succeeded);
        draft.unset(FAILED, "the manifest was changed");
        draft.set(
            COMPLETE,
            true,
            study_reasons::ALL_RUNS_MEASURED,
            &format!("{total} runs were measured"),
        );
        return;
    }
    draft.end(StudyPhase::Failed);
    draft.unset(COMPLETE, "the manifest was changed");
    let count = failures.len();
    failures.truncate(NAMED_FAILURES);
    let mut message = format!("{count} of {total} runs failed: {}", failures.join("; "));
    if count > NAMED_FAILURES {
        message += &format!("; and {} more", count - NAMED_FAILURES);
    }
    draft.set(FAILED, true, study_reasons::RUNS_FAILED, &message);
}

fn runs(plan: &Plan, slots: &[RunRepetition<'_>], records: &Records) -> RunsStatus {
    let (mut measured, mut failed) = (0, 0);
    for slot in slots {
        match records.get(plan, slot.run, slot.repetition) {
            Some(record) if matches!(record.outcome, Outcome::Measurement(_)) => measured += 1,
            Some(record) if record.is_over(plan.retries) => failed += 1,
            _ => {}
        }
    }
    let total = signed(slots.len());
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
