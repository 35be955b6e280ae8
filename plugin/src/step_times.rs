//! The parts of optimizer steps' time, from the counters that agents serve at `/metrics`.

use std::collections::BTreeMap;

use contract::metrics::{LABEL_KIND, LABEL_PHASE, LABEL_RANK, STEP_PHASES, STEP_SECONDS, SYNC_SECONDS_TOTAL};

use crate::exposition::{label, sample};

const PHASES: usize = STEP_PHASES.len();

/// Seconds of steps since each rank's attempt began, in the order of [`STEP_PHASES`].
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct StepTimes {
    ranks: BTreeMap<u32, RankTimes>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct RankTimes {
    phases: [f64; PHASES],
    /// Time of communication, hidden or not.
    communication: f64,
    steps: f64,
}

/// Shares of the time of steps, 0 to 1.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Split {
    /// In the order of [`STEP_PHASES`]; together 1.
    pub(crate) phases: [f64; PHASES],
    /// Communication overlapped with the backward pass: no step waited for it.
    pub(crate) hidden: f64,
    /// Seconds of a step, mean over all ranks.
    pub(crate) step_seconds: f64,
    /// Number of ranks covered.
    pub(crate) ranks: usize,
}

impl Split {
    /// The share of a part of a step.
    pub(crate) fn of(&self, phase: &str) -> f64 {
        index_of(phase).map_or(0.0, |index| self.phases[index])
    }
}

fn index_of(phase: &str) -> Option<usize> {
    STEP_PHASES.iter().position(|known| *known == phase)
}

impl StepTimes {
    /// Reads the metrics of several agents.
    pub(crate) fn read(expositions: &[String]) -> Self {
        let mut times = Self::default();
        for exposition in expositions {
            times.add(exposition);
        }
        times
    }

    /// Each rank's shares of step time, and its total seconds of steps.
    pub(crate) fn by_rank(&self) -> BTreeMap<u32, (Split, f64)> {
        let split = |(rank, times): (&u32, &RankTimes)| {
            let split = Self {
                ranks: BTreeMap::from([(*rank, *times)]),
            };
            Some((*rank, (split.split()?, times.phases.iter().sum())))
        };
        self.ranks.iter().filter_map(split).collect()
    }

    /// Adds an agent's metrics in Prometheus' text format; other samples are ignored.
    pub(crate) fn add(&mut self, exposition: &str) {
        let (sum, count) = (format!("{STEP_SECONDS}_sum"), format!("{STEP_SECONDS}_count"));
        for (name, labels, value) in exposition.lines().filter_map(sample) {
            let Some(rank) = label(labels, LABEL_RANK).and_then(|rank| rank.parse().ok()) else {
                continue;
            };
            let phase = label(labels, LABEL_PHASE).and_then(index_of);
            let is_total = name == SYNC_SECONDS_TOTAL && label(labels, LABEL_KIND) == Some("total");
            match phase {
                Some(phase) if name == sum => self.ranks.entry(rank).or_default().phases[phase] = value,
                Some(0) if name == count => self.ranks.entry(rank).or_default().steps = value,
                // One of each operation.
                _ if is_total => self.ranks.entry(rank).or_default().communication += value,
                _ => {}
            }
        }
    }

    /// The difference to an earlier reading; all of it for ranks that have restarted since.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        let ranks = self.ranks.iter().map(|(rank, now)| {
            let before = earlier.ranks.get(rank).filter(|before| before.steps <= now.steps);
            let before = before.copied().unwrap_or_default();
            let mut phases = now.phases;
            for (phase, before) in phases.iter_mut().zip(before.phases) {
                *phase -= before;
            }
            let times = RankTimes {
                phases,
                communication: now.communication - before.communication,
                steps: now.steps - before.steps,
            };
            (*rank, times)
        });
        Self {
            ranks: ranks.collect(),
        }
    }

    /// Shares over all ranks; `None` before the first step.
    pub(crate) fn split(&self) -> Option<Split> {
        let mut phases = [0.0; PHASES];
        let (mut communication, mut steps) = (0.0, 0.0);
        for rank in self.ranks.values() {
            for (total, seconds) in phases.iter_mut().zip(rank.phases) {
                *total += seconds;
            }
            communication += rank.communication;
            steps += rank.steps;
        }
        let whole: f64 = phases.iter().sum();
        if whole <= 0.0 || steps <= 0.0 {
            return None;
        }
        let mut split = Split {
            phases: phases.map(|seconds| seconds / whole),
            hidden: 0.0,
            step_seconds: whole / steps,
            ranks: self.ranks.len(),
        };
        split.hidden = (communication / whole - split.of("sync_exposed")).max(0.0);
        Some(split)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The metrics of one rank's agent after this many steps.
    fn exposition(rank: u32, steps: u32, straggler: f64) -> String {
        let labels = |more: &str| format!("{{job_name=\"a\",namespace=\"b\",{more}rank=\"{rank}\"}}");
        let steps = f64::from(steps);
        let mut text = "# TYPE vit_step_seconds histogram\n".to_owned();
        for (phase, seconds) in [
            ("data", 0.1),
            ("forward", 0.2),
            ("backward", 0.4),
            ("sync_exposed", 0.1),
            ("sync_straggler", straggler),
            ("optimizer", 0.1),
        ] {
            let labels = labels(&format!("phase=\"{phase}\","));
            text += &format!(
                "vit_step_seconds_sum{labels} {}\nvit_step_seconds_count{labels} {steps}\n",
                steps * seconds
            );
        }
        let total = |operation: &str, seconds: f64| {
            let labels = labels(&format!("kind=\"total\",operation=\"{operation}\","));
            format!("vit_sync_seconds_total{labels} {}\n", steps * seconds)
        };
        text += &total("reduce_scatter", 0.15);
        text += &total("all_gather", 0.1);
        text + &format!("vit_loss{} 2.5\n", labels(""))
    }

    #[test]
    fn shares_are_over_all_ranks() {
        let mut times = StepTimes::default();
        times.add(&exposition(0, 10, 0.1));
        times.add(&exposition(1, 10, 0.1));
        let split = times.split().expect("steps were taken");
        assert_eq!(split.ranks, 2);
        assert!((split.step_seconds - 1.0).abs() < 1e-9, "{split:?}");
        for (phase, share) in [("data", 0.1), ("backward", 0.4), ("sync_straggler", 0.1)] {
            assert!((split.of(phase) - share).abs() < 1e-9, "{phase}: {split:?}");
        }
        assert!((split.hidden - 0.15).abs() < 1e-9, "{split:?}");
    }

    #[test]
    fn times_since_an_earlier_look_are_a_difference() {
        let at = |steps, straggler| {
            let mut times = StepTimes::default();
            times.add(&exposition(0, steps, straggler));
            times
        };
        let split = at(20, 0.1).since(&at(10, 0.1)).split().expect("steps were taken");
        assert!((split.of("sync_straggler") - 0.1).abs() < 1e-9, "{split:?}");
        assert_eq!(
            at(10, 0.1).since(&at(10, 0.1)).split(),
            None,
            "no step between them"
        );
        let restarted = at(5, 0.1).since(&at(10, 0.1));
        assert_eq!(restarted, at(5, 0.1), "a new attempt counts from nothing");
    }

    #[test]
    fn what_is_no_sample_of_ours_is_left_out() {
        let mut times = StepTimes::default();
        times.add("<html>\nvit_step_seconds_sum{phase=\"data\"} 1\nvit_step_seconds_sum{phase=\"x\",rank=\"0\"} y\n");
        assert_eq!(times, StepTimes::default());
        assert_eq!(times.split(), None);
    }
}
