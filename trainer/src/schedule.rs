//! The learning rate over a run, as a function of the position in epochs, not of the step count. It
//! continues smoothly if a run is resumed with another global batch size.

use contract::{Schedule, ScheduleName};

/// The position of a step, in epochs since the start of the run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct StepSpan {
    /// Before its first image.
    pub(crate) start: f64,
    /// After its last.
    pub(crate) end: f64,
}

/// Learning rate of a step of a run of `epochs`: linear warm-up, then the schedule's course.
/// Warm-up is read at the step's end, so that the first rate is not zero; the course at its start.
pub(crate) fn learning_rate(schedule: &Schedule, peak: f64, epochs: u32, step: StepSpan) -> f64 {
    let (warmup, least) = (schedule.warmup_epochs, schedule.min_learning_rate);
    if step.start < warmup {
        return peak * (step.end / warmup).min(1.0);
    }
    let since_warmup = step.start - warmup;
    match schedule.name {
        ScheduleName::Constant => peak,
        ScheduleName::Cosine => {
            let length = (f64::from(epochs) - warmup).max(f64::EPSILON);
            let done = (since_warmup / length).min(1.0);
            least + (peak - least) * 0.5 * (1.0 + (std::f64::consts::PI * done).cos())
        }
        ScheduleName::Step => {
            let decay_epochs = schedule.decay_epochs.unwrap_or(f64::INFINITY);
            let decays = (since_warmup / decay_epochs + ROUNDING).floor();
            (peak * schedule.decay_rate().powf(decays)).max(least)
        }
    }
}

/// Tolerance for positions that should be a whole number of epochs but fall short by rounding.
const ROUNDING: f64 = 1e-9;

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn rates<const N: usize>(schedule: Value, starts: [f64; N]) -> [f64; N] {
        let schedule = serde_json::from_value(schedule).expect("a schedule");
        starts.map(|start| {
            let step = StepSpan {
                start,
                end: start + 0.5,
            };
            learning_rate(&schedule, 2.0, 10, step)
        })
    }

    fn close(found: &[f64], expected: &[f64]) {
        for (one, other) in found.iter().zip(expected) {
            assert!((one - other).abs() < 1e-12, "{found:?} is not {expected:?}");
        }
    }

    #[test]
    fn warm_up_rises_to_the_peak_and_the_cosine_falls_to_the_least() {
        let starts = [0.0, 1.0, 1.5, 2.0, 6.0, 10.0];
        let to_zero = json!({"name": "cosine", "warmupEpochs": 2.0});
        close(&rates(to_zero, starts), &[0.5, 1.5, 2.0, 2.0, 1.0, 0.0]);
        let to_half = json!({"name": "cosine", "warmupEpochs": 2.0, "minLearningRate": 0.5});
        close(&rates(to_half, starts), &[0.5, 1.5, 2.0, 2.0, 1.25, 0.5]);
    }

    #[test]
    fn constant_stays_at_the_peak() {
        close(&rates(json!({"name": "constant"}), [0.0, 4.0, 9.5]), &[2.0; 3]);
    }

    #[test]
    fn steps_fall_every_so_many_epochs_after_the_warm_up_down_to_the_least() {
        let few = json!({"name": "step", "decayEpochs": 3.0, "warmupEpochs": 1.0, "minLearningRate": 0.05});
        close(
            &rates(few, [0.0, 1.0, 3.5, 4.0, 6.9, 7.0, 10.0]),
            &[1.0, 2.0, 2.0, 0.2, 0.2, 0.05, 0.05],
        );
        let many = json!({"name": "step", "decayEpochs": 0.1, "decayRate": 0.5});
        // 0.7 / 0.1 is a little less than 7 in floating point.
        close(&rates(many, [0.7]), &[2.0 * 0.5_f64.powi(7)]);
    }
}
