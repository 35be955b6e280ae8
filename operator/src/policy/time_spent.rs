//! What a job spends its time on (effective training time ratio), updated when its phase changes or
//! rank 0 reports progress. Every second since the first GPUs, unless suspended, is in one part.

use contract::{Progress, Spent};
use crds::Phase;
use crds::status::{AttemptTime, TimeSpentStatus, ViTTrainingJobStatus};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

use crate::numbers::rounded;

/// What a job has spent its time on after its status became `next`. `None` before its first GPUs,
/// and if its trainer does not report it.
pub(crate) fn after(
    last: &ViTTrainingJobStatus,
    next: &ViTTrainingJobStatus,
    reported: Option<&Progress>,
    now: Timestamp,
) -> Option<TimeSpentStatus> {
    let Some(known) = &last.time_spent else {
        let is_first = next.attempt == 1 && last.attempt == 0 && next.phase == Some(Phase::Starting);
        return is_first.then(|| TimeSpentStatus {
            updated_at: Some(MicroTime(now)),
            ..TimeSpentStatus::default()
        });
    };
    let is_reported = reported.is_some() && next.progress != last.progress;
    if last.phase == next.phase && last.attempt == next.attempt && !is_reported {
        return Some(known.clone());
    }
    let mut spent = if last.phase == Some(Phase::Running) {
        trained(known, next, reported, now)?
    } else {
        known.until(now, last.phase)
    };
    if next.attempt != last.attempt {
        let reached = last.progress.as_ref().map_or(0, |progress| progress.step);
        spent.reached_step = spent.reached_step.max(reached);
        spent.attempt = AttemptTime::default();
    }
    Some(to_milliseconds(spent))
}

/// Adds the time since `known` of a gang that trained. Rank 0's reports lag by varying amounts, so
/// they are compared with the gang's whole running time, not with the time since the last report.
fn trained(
    known: &TimeSpentStatus,
    next: &ViTTrainingJobStatus,
    reported: Option<&Progress>,
    now: Timestamp,
) -> Option<TimeSpentStatus> {
    let last = known.attempt;
    let mut attempt = match reported {
        Some(progress) => with_reported(known, progress, progress.spent?),
        None => last,
    };
    let in_parts = |time: &AttemptTime| time.step_seconds + time.evaluation_seconds + time.checkpoint_seconds;
    let passed = now.duration_since(known.updated_at.as_ref().map_or(now, |time| time.0));
    let passed = passed.as_secs_f64().max(0.0);
    let mut spent = known.clone();
    if matches!(next.phase, Some(Phase::Running | Phase::Succeeded)) {
        attempt.running_seconds += passed;
    } else {
        // It has ended or is ending, since an unknown time.
        let until_the_end = (in_parts(&attempt) - in_parts(&last)).clamp(0.0, passed);
        attempt.running_seconds += until_the_end;
        spent.restart_seconds += passed - until_the_end;
    }
    let in_no_part = (attempt.running_seconds - in_parts(&attempt)).max(0.0);
    if last.step_seconds > 0.0 {
        // The first report was late, too: some of its steps were counted as start.
        attempt.start_seconds = attempt.start_seconds.min(in_no_part);
        attempt.other_seconds = in_no_part - attempt.start_seconds;
    } else {
        attempt.start_seconds = in_no_part;
    }
    let more = |of: fn(&AttemptTime) -> f64| of(&attempt) - of(&last);
    spent.useful_seconds += more(|time| time.step_seconds - time.repeated_seconds);
    spent.repeated_seconds += more(|time| time.repeated_seconds);
    spent.evaluation_seconds += more(|time| time.evaluation_seconds);
    spent.checkpoint_seconds += more(|time| time.checkpoint_seconds);
    spent.start_seconds += more(|time| time.start_seconds);
    spent.other_seconds += more(|time| time.other_seconds);
    spent.attempt = attempt;
    spent.updated_at = Some(MicroTime(now));
    Some(spent.until(now, None))
}

/// The attempt's time with a new report. All steps, repeated ones included, count as equally long.
fn with_reported(known: &TimeSpentStatus, progress: &Progress, spent: Spent) -> AttemptTime {
    let reached = u64::try_from(known.reached_step).unwrap_or(0);
    let steps = progress.step.saturating_sub(spent.first_step);
    let repeated = reached.min(progress.step).saturating_sub(spent.first_step);
    let share = if steps > 0 {
        repeated as f64 / steps as f64
    } else {
        0.0
    };
    let last = known.attempt;
    AttemptTime {
        // Answers may arrive out of order.
        step_seconds: spent.step_seconds.max(last.step_seconds),
        // Repeated steps come first: their time does not shrink as others follow.
        repeated_seconds: (spent.step_seconds * share).max(last.repeated_seconds),
        evaluation_seconds: spent.evaluation_seconds.max(last.evaluation_seconds),
        checkpoint_seconds: spent.checkpoint_seconds.max(last.checkpoint_seconds),
        ..last
    }
}

fn to_milliseconds(mut spent: TimeSpentStatus) -> TimeSpentStatus {
    let attempt = &mut spent.attempt;
    for value in [
        &mut spent.useful_seconds,
        &mut spent.repeated_seconds,
        &mut spent.queue_seconds,
        &mut spent.start_seconds,
        &mut spent.restart_seconds,
        &mut spent.evaluation_seconds,
        &mut spent.checkpoint_seconds,
        &mut spent.other_seconds,
        &mut attempt.step_seconds,
        &mut attempt.repeated_seconds,
        &mut attempt.evaluation_seconds,
        &mut attempt.checkpoint_seconds,
        &mut attempt.running_seconds,
        &mut attempt.start_seconds,
        &mut attempt.other_seconds,
    ] {
        *value = rounded(*value, 3);
    }
    spent.effective_ratio = rounded(spent.effective_ratio, 4);
    spent
}

#[cfg(test)]
mod tests {
    use crds::status::ProgressStatus;
    use jiff::SignedDuration;

    use super::*;
    use crate::fixtures::at;

    /// A job and the current second.
    #[derive(Default)]
    struct Story {
        status: ViTTrainingJobStatus,
        now: i64,
    }

    impl Story {
        /// After this many seconds the job is in this phase and attempt, with this report.
        fn after(&mut self, seconds: i64, phase: Phase, attempt: i32, reported: Option<(u64, Spent)>) {
            self.now += seconds;
            let progress = reported.map(|(step, spent)| Progress {
                attempt: u32::try_from(attempt).expect("a number"),
                step,
                spent: Some(spent),
                ..Progress::default()
            });
            let mut next = ViTTrainingJobStatus {
                phase: Some(phase),
                attempt,
                ..self.status.clone()
            };
            if let Some(progress) = &progress {
                next.progress = Some(ProgressStatus {
                    step: i64::try_from(progress.step).expect("a step"),
                    ..ProgressStatus::default()
                });
            }
            next.time_spent = after(&self.status, &next, progress.as_ref(), self.time());
            // As the API server returns it.
            let json = serde_json::to_string(&next).expect("JSON");
            self.status = serde_json::from_str(&json).expect("a status");
        }

        /// Not on a whole second.
        fn time(&self) -> Timestamp {
            at(self.now) + SignedDuration::from_millis(700)
        }

        fn spent(&self) -> &TimeSpentStatus {
            self.status.time_spent.as_ref().expect("it is accounted for")
        }

        /// The nonzero parts.
        fn parts(&self) -> String {
            let parts = self.spent().parts().into_iter();
            let parts = parts.filter(|(_, seconds)| *seconds != 0.0);
            let words = parts.map(|(part, seconds)| format!("{part} {seconds}"));
            words.collect::<Vec<_>>().join(", ")
        }

        /// The sum of all parts.
        fn sum(&self) -> f64 {
            self.spent().parts().iter().map(|(_, seconds)| seconds).sum()
        }
    }

    fn spent(first_step: u64, step: f64, evaluation: f64, checkpoint: f64) -> Spent {
        Spent {
            first_step,
            step_seconds: step,
            evaluation_seconds: evaluation,
            checkpoint_seconds: checkpoint,
        }
    }

    #[test]
    fn every_second_since_the_first_gpus_is_in_one_part() {
        let mut story = Story::default();
        story.after(50, Phase::Pending, 0, None);
        assert_eq!(
            story.status.time_spent, None,
            "waiting for the first GPUs does not count"
        );
        story.after(10, Phase::Starting, 1, None);
        story.after(5, Phase::Running, 1, None);
        story.after(7, Phase::Running, 1, Some((4, spent(0, 4.0, 0.0, 0.0))));
        // 5 and 3 seconds of start.
        assert_eq!(story.parts(), "useful 4, start 8");
        story.after(20, Phase::Running, 1, Some((16, spent(0, 16.0, 5.0, 2.0))));
        // It fails, which is noticed later. The checkpoint has 10 of its 16 steps.
        story.after(30, Phase::Restarting, 1, None);
        story.after(2, Phase::Pending, 1, None);
        story.after(100, Phase::Starting, 2, None);
        story.after(6, Phase::Running, 2, None);
        story.after(9, Phase::Running, 2, Some((18, spent(10, 8.0, 0.0, 0.0))));
        assert_eq!(
            story.parts(),
            "useful 18, repeated 6, queue 100, start 15, restart 32, evaluation 5, checkpoint 2, other 1"
        );
        story.after(10, Phase::Succeeded, 2, Some((28, spent(10, 18.0, 0.0, 0.0))));
        assert_eq!((story.sum(), story.now - 60), (189.0, 189));
        assert_eq!(story.spent().effective_ratio.to_string(), "0.1481");
        // Nothing changes after its end.
        story.after(1000, Phase::Succeeded, 2, None);
        assert_eq!(story.spent().effective_ratio.to_string(), "0.1481");
    }

    #[test]
    fn what_is_told_early_or_late_adds_up() {
        let mut story = Story::default();
        story.after(0, Phase::Starting, 1, None);
        story.after(1, Phase::Running, 1, None);
        // Rank 0 always trains; its reports are up to two seconds late.
        for round in 1..=50_u32 {
            let late = f64::from((round + 1) % 3);
            let spent = spent(0, 2.0 * f64::from(round) - late, 0.0, 0.0);
            story.after(2, Phase::Running, 1, Some((u64::from(round), spent)));
        }
        assert_eq!((story.sum(), story.now), (101.0, 101));
        assert!(story.spent().useful_seconds >= 98.0, "{}", story.parts());
    }

    #[test]
    fn time_in_which_a_job_is_suspended_does_not_count() {
        let mut story = Story::default();
        story.after(0, Phase::Starting, 1, None);
        story.after(1, Phase::Running, 1, None);
        story.after(4, Phase::Running, 1, Some((4, spent(0, 4.0, 0.0, 0.0))));
        story.after(2, Phase::Suspending, 1, None);
        story.after(3, Phase::Suspended, 1, None);
        story.after(5000, Phase::Pending, 1, None);
        story.after(7, Phase::Starting, 2, None);
        assert_eq!(story.parts(), "useful 4, queue 7, start 1, restart 5");
    }

    #[test]
    fn nothing_is_told_of_a_trainer_that_does_not_tell() {
        let mut story = Story::default();
        story.after(0, Phase::Starting, 1, None);
        story.after(1, Phase::Running, 1, None);
        let last = story.status.clone();
        let mut next = last.clone();
        next.progress = Some(ProgressStatus::default());
        assert_eq!(after(&last, &next, Some(&Progress::default()), at(9)), None);
    }

    #[test]
    fn a_status_without_news_stays_as_it_is() {
        let mut story = Story::default();
        story.after(0, Phase::Starting, 1, None);
        let before = story.status.clone();
        story.after(100, Phase::Starting, 1, None);
        assert_eq!(story.status, before);
        let waiting = story.spent().until(story.time(), Some(Phase::Starting));
        assert_eq!(waiting.start_seconds.to_string(), "100");
    }
}
