//! Step times as DeepSpeed prints them under `wall_clock_breakdown`, for direct comparison.

use serde::Serialize;

use super::Phases;

/// Means over the micro-batches of an interval in milliseconds, named like DeepSpeed's timers.
/// `bwd` is `bwd_inner`, the computation, plus `bwd_allreduce`, the wait for gradients.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Breakdown {
    fwd_microstep: f64,
    bwd_microstep: f64,
    bwd_inner_microstep: f64,
    bwd_allreduce_microstep: f64,
    step_microstep: f64,
    #[serde(skip)]
    micro_batches: f64,
}

impl Breakdown {
    /// For the mean phases of a step of `micro_batches` micro-batches. As in DeepSpeed, no figure
    /// includes the time of data loading.
    pub(super) fn new(phases: &Phases, micro_batches: f64) -> Self {
        let milliseconds = |seconds: f64| seconds * 1000.0 / micro_batches;
        let wait = phases.sync_exposed + phases.sync_straggler;
        Self {
            fwd_microstep: milliseconds(phases.forward),
            bwd_microstep: milliseconds(phases.backward + wait),
            bwd_inner_microstep: milliseconds(phases.backward),
            bwd_allreduce_microstep: milliseconds(wait),
            step_microstep: milliseconds(phases.optimizer),
            micro_batches,
        }
    }

    /// The line of a micro-batch, and that of a whole step.
    pub(super) fn lines(&self) -> [String; 2] {
        let line = |suffix: &str, factor: f64| {
            let times = [
                ("fwd", self.fwd_microstep),
                ("bwd", self.bwd_microstep),
                ("bwd_inner", self.bwd_inner_microstep),
                ("bwd_allreduce", self.bwd_allreduce_microstep),
                ("step", self.step_microstep),
            ];
            let times = times.map(|(name, time)| format!(" | {name}{suffix}: {:.2}", time * factor));
            format!("[Rank 0] time (ms){}", times.concat())
        };
        [line("_microstep", 1.0), line("", self.micro_batches)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_are_deepspeeds_and_the_wait_is_its_all_reduce() {
        let phases = Phases {
            data: 9.0,
            forward: 0.002,
            backward: 0.0045,
            sync_exposed: 0.001,
            sync_straggler: 0.0005,
            optimizer: 0.00025,
        };
        let breakdown = Breakdown::new(&phases, 2.0);
        assert_eq!(
            breakdown.lines(),
            [
                "[Rank 0] time (ms) | fwd_microstep: 1.00 | bwd_microstep: 3.00 | bwd_inner_microstep: 2.25 | bwd_allreduce_microstep: 0.75 | step_microstep: 0.12",
                "[Rank 0] time (ms) | fwd: 2.00 | bwd: 6.00 | bwd_inner: 4.50 | bwd_allreduce: 1.50 | step: 0.25",
            ]
        );
        let json = serde_json::to_value(breakdown).expect("serializes");
        assert_eq!(json.as_object().map(serde_json::Map::len), Some(5));
        assert_eq!(json["bwd_allreduce_microstep"], 0.75);
    }
}
