//! When an elastic gang is replaced by a larger one.

use std::time::Duration;

use contract::Progress;
use crds::conditions::types;
use crds::status::ViTTrainingJobStatus;

/// Whether training ends sooner on `to` nodes than on `from`, including the start of a new gang.
/// The start is assumed to last as long as the present gang's, at most `start_timeout`: a pod that
/// was briefly not ready makes it look longer. If the remaining time is unknown, growing pays off.
pub(crate) fn pays_off(
    status: &ViTTrainingJobStatus,
    progress: &Progress,
    start_timeout: Duration,
    from: usize,
    to: usize,
) -> bool {
    let placed = status
        .placement
        .as_ref()
        .and_then(|placement| placement.time.as_ref());
    let runs_since = status
        .condition(types::RUNNING)
        .filter(|running| running.status == "True")
        .map(|running| running.last_transition_time.0);
    let cost = match (placed, runs_since) {
        (Some(placed), Some(runs_since)) => runs_since.duration_since(placed.0).as_secs_f64(),
        _ => 0.0,
    };
    match progress.eta_seconds {
        Some(left) => left as f64 * (1.0 - from as f64 / to as f64) > cost.min(start_timeout.as_secs_f64()),
        None => true,
    }
}

#[cfg(test)]
mod tests {
    use crds::Phase;
    use crds::conditions::reasons;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;
    use crate::fixtures::{at, condition, status};

    #[test]
    fn what_is_won_must_be_more_than_a_start_takes() {
        let mut status = status(Phase::Running, 1);
        status.conditions = vec![condition(types::RUNNING, true, reasons::ALL_PODS_READY)];
        for (took, left, from, to, expected) in [
            (20, Some(41), 1, 2, true),
            (20, Some(39), 1, 2, false),
            (20, Some(100), 3, 4, true),
            (20, Some(70), 3, 4, false),
            (20, Some(0), 1, 8, false),
            (20, None, 1, 2, true),
            // No start lasts an hour: a pod was briefly not ready.
            (3600, Some(241), 1, 2, true),
            (3600, Some(239), 1, 2, false),
        ] {
            status.placement.as_mut().expect("placed").time = Some(Time(at(-took)));
            let progress = Progress {
                eta_seconds: left,
                ..Progress::default()
            };
            let found = pays_off(&status, &progress, Duration::from_secs(120), from, to);
            assert_eq!(
                found, expected,
                "{left:?} s left, from {from} to {to} after {took} s"
            );
        }
    }
}
