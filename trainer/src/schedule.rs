//! The learning rate over a run, as a function of the position in epochs, not of the step count. It
//! continues smoothly if a run is resumed with another global batch size.

use contract::{Course, Schedule};

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
    let Schedule {
        ref course,
        warmup_epochs: warmup,
        min_learning_rate: least,
    } = *schedule;
    if step.start < warmup {
        return peak * (step.end / warmup).min(1.0);
    }
    let since_warmup = step.start - warmup;
    match *course {
        Course::Constant => peak,
        Course::Cosine => {
            let length = (f64::from(epochs) - warmup).max(f64::EPSILON);
            let done = (since_warmup / length).min(1.0);
            least + (peak - least) * 0.5 * (1.0 + (std::f64::consts::PI * done).cos())
        }
        Course::Step {
            decay_epochs,
            decay_rate,
        } => (peak * decay_rate.powf((since_warmup / decay_epochs + ROUNDING).floor())).max(least),
    }
}

/// Tolerance for positions that should be a whole number of epochs but fall short by rounding.
const ROUNDING: f64 = 1e-9;

#[cfg(test)]
mod tests {
    use super::*;

    fn rates<const N: usize>(
        course: Course,
        warmup_epochs: f64,
        min_learning_rate: f64,
        starts: [f64; N],
    ) -> [f64; N] {
        let schedule = Schedule {
            course,
            warmup_epochs,
            min_learning_rate,
        };
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
        close(
            &rates(Course::Cosine, 2.0, 0.0, starts),
            &[0.5, 1.5, 2.0, 2.0, 1.0, 0.0],
        );
        close(
            &rates(Course::Cosine, 2.0, 0.5, starts),
            &[0.5, 1.5, 2.0, 2.0, 1.25, 0.5],
        );
    }

    #[test]
    fn constant_stays_at_the_peak() {
        close(&rates(Course::Constant, 0.0, 0.0, [0.0, 4.0, 9.5]), &[2.0; 3]);
    }

    #[test]
    fn steps_fall_every_so_many_epochs_after_the_warm_up_down_to_the_least() {
        let course = Course::Step {
            decay_epochs: 3.0,
            decay_rate: 0.1,
        };
        close(
            &rates(course, 1.0, 0.05, [0.0, 1.0, 3.5, 4.0, 6.9, 7.0, 10.0]),
            &[1.0, 2.0, 2.0, 0.2, 0.2, 0.05, 0.05],
        );
        let many = Course::Step {
            decay_epochs: 0.1,
            decay_rate: 0.5,
        };
        // 0.7 / 0.1 is a little less than 7 in floating point.
        close(&rates(many, 0.0, 0.0, [0.7]), &[2.0 * 0.5_f64.powi(7)]);
    }
}
