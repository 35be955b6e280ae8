//! The learning rate over a run, as a function of the position in epochs. Being no function of the step count, it goes
//! on smoothly when a run is resumed with another global batch size.

use contract::Schedule;

/// Where a step lies, in epochs since the start of the run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct StepSpan {
    /// Before its first image.
    pub(crate) start: f64,
    /// After its last.
    pub(crate) end: f64,
}

/// Learning rate of a step of a run of `epochs`: linear warm-up (read at the step's end, so that the first step is
/// not lost on a rate of zero), then constant, or half a cosine (arXiv 1608.03983) read at the step's start.
pub(crate) fn learning_rate(schedule: &Schedule, peak: f64, epochs: u32, step: StepSpan) -> f64 {
    let warmup = schedule.warmup_epochs();
    if step.start < warmup {
        return peak * (step.end / warmup).min(1.0);
    }
    match schedule {
        Schedule::Constant { .. } => peak,
        Schedule::Cosine { .. } => {
            let length = (f64::from(epochs) - warmup).max(f64::EPSILON);
            let done = ((step.start - warmup) / length).min(1.0);
            peak * 0.5 * (1.0 + (std::f64::consts::PI * done).cos())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(schedule: &Schedule, start: f64) -> f64 {
        learning_rate(
            schedule,
            2.0,
            10,
            StepSpan {
                start,
                end: start + 0.5,
            },
        )
    }

    #[test]
    fn warm_up_rises_to_the_peak_and_the_cosine_falls_to_zero() {
        let cosine = Schedule::Cosine { warmup_epochs: 2.0 };
        let rates = [0.0, 1.0, 1.5, 2.0, 6.0, 10.0].map(|start| rate(&cosine, start));
        for (found, expected) in rates.iter().zip([0.5, 1.5, 2.0, 2.0, 1.0, 0.0]) {
            assert!((found - expected).abs() < 1e-12, "{rates:?}");
        }
    }

    #[test]
    fn constant_stays_at_the_peak() {
        let constant = Schedule::Constant { warmup_epochs: 0.0 };
        for start in [0.0, 4.0, 9.5] {
            assert!((rate(&constant, start) - 2.0).abs() < f64::EPSILON);
        }
    }
}
