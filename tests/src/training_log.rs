//! Checks and counts the optimizer steps in a job's `log.jsonl`.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

/// Optimizer steps of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Steps {
    /// The last step.
    pub done: i64,
    /// The step of the last checkpoint.
    pub saved: i64,
    /// Steps repeated after resuming from an earlier checkpoint.
    pub again: i64,
    /// Steps that a killed attempt saved without logging them.
    pub unlogged: i64,
}

/// Reads a log. A checkpoint is due at the end of each epoch at the latest.
///
/// # Errors
/// A step is missing, or repeated although it was saved.
pub fn count(log: &str, steps_per_epoch: i64) -> Result<Steps> {
    let (mut attempt, mut start) = (0, 0);
    let (mut done, mut logged, mut saved, mut again, mut unlogged) = (0, 0, 0, 0, 0);
    for line in log.lines() {
        let record: Value = serde_json::from_str(line).with_context(|| line.to_owned())?;
        let step = record["step"]
            .as_i64()
            .with_context(|| format!("no step in {line}"))?;
        match record["kind"].as_str() {
            Some("start") => {
                // Attempts that end before the first step of the job log nothing.
                let number = record["attempt"].as_i64().unwrap_or_default();
                ensure!(
                    number == attempt + 1 || attempt == 0 && number > 0,
                    "attempt {attempt} is followed by {line}"
                );
                // A killed attempt may have completed the next checkpoint without logging it.
                let next_due = (saved / steps_per_epoch + 1) * steps_per_epoch;
                ensure!(
                    (saved..=next_due).contains(&step),
                    "the last checkpoint has step {saved}, the next one was due at {next_due}, but the attempt starts with {line}"
                );
                again += (done - step).max(0);
                unlogged += step - saved;
                (attempt, start, done, logged, saved) = (number, step, step, step, step);
            }
            Some("train") => {
                ensure!(step >= done, "step {done} is followed by {line}");
                ensure!(
                    record["steps"] == step - logged,
                    "steps after {logged} are missing from {line}"
                );
                (done, logged) = (step, step);
            }
            // Written in the background, while training continues.
            Some("checkpoint") => {
                // An attempt stopped at the end of an epoch saves before the evaluation, the next
                // one after it.
                let is_evaluated_now = step == saved && step == start;
                ensure!(
                    step > saved || is_evaluated_now,
                    "the checkpoint of step {saved} is followed by {line}"
                );
                saved = step;
                done = done.max(step);
            }
            _ => {}
        }
    }
    Ok(Steps {
        done,
        saved,
        again,
        unlogged,
    })
}

#[cfg(test)]
mod tests {
    use super::count;

    fn log(lines: &[&str]) -> String {
        let line = |line: &&str| {
            let words: Vec<&str> = line.split(' ').collect();
            let more = match words[..] {
                ["start", _, attempt] => format!(r#","attempt":{attempt}"#),
                ["train", _, steps] => format!(r#","steps":{steps}"#),
                _ => String::new(),
            };
            format!(r#"{{"kind":"{}","step":{}{more}}}"#, words[0], words[1])
        };
        lines.iter().map(line).collect::<Vec<_>>().join("\n")
    }

    const WHOLE: [&str; 5] = [
        "start 0 1",
        "train 40 40",
        "train 45 5",
        "checkpoint 45",
        "train 60 15",
    ];

    /// Steps done, saved, done again and not logged.
    fn then(lines: &[&str]) -> Option<[i64; 4]> {
        let steps = count(&log(&[&WHOLE[..], lines].concat()), 45).ok()?;
        Some([steps.done, steps.saved, steps.again, steps.unlogged])
    }

    #[test]
    fn steps_after_the_last_checkpoint_are_done_again() {
        let steps = then(&["start 45 2", "train 90 45", "checkpoint 90"]);
        assert_eq!(steps, Some([90, 90, 15, 0]));
    }

    #[test]
    fn a_killed_attempt_may_have_saved_what_was_due_next_and_nothing_later() {
        let steps = then(&["start 90 2", "train 100 10"]);
        assert_eq!(steps, Some([100, 90, 0, 45]));
        assert_eq!(then(&["start 91 2"]), None);
    }

    #[test]
    fn an_attempt_may_not_start_before_what_was_saved() {
        assert_eq!(then(&["start 44 2"]), None);
    }

    #[test]
    fn no_step_and_no_attempt_may_be_missing() {
        assert_eq!(then(&["train 80 19"]), None);
        assert_eq!(then(&["start 45 3"]), None);
        assert_eq!(then(&["train 59 15"]), None);
    }

    #[test]
    fn a_step_is_saved_again_only_where_an_attempt_starts_with_its_evaluation() {
        let resumed = ["train 90 30", "checkpoint 90", "start 90 2", "checkpoint 90"];
        assert_eq!(then(&resumed).map(|[_, saved, ..]| saved), Some(90));
        assert_eq!(then(&["checkpoint 45"]), None);
        assert_eq!(then(&["train 90 30", "checkpoint 90", "checkpoint 90"]), None);
    }
}
