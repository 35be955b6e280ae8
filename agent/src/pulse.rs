//! When a rank last made progress, and how long it may be idle.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use contract::Activity;

/// Number of steps for the median.
const LATEST_STEPS: usize = 101;

/// A stopping rank without progress for this long is given up. The gang can no longer save, because
/// a step needs all ranks.
pub const GIVEN_UP: Patience = Patience {
    steps: 10.0,
    least_seconds: 10.0,
};

/// Maximum idle time of a rank: a multiple of its median step, and a minimum in seconds.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// Multiple of the median step.
    pub steps: f64,
    /// Minimum in seconds.
    pub least_seconds: f64,
}

impl Patience {
    /// Whether a rank with this activity was idle for longer. Always false before its first step,
    /// and in activities without a time limit.
    pub fn is_over(self, activity: Activity, idle_seconds: f64, median_step: Option<f64>) -> bool {
        let bound = median_step.map_or(f64::INFINITY, |median| {
            (self.steps * median).max(self.least_seconds)
        });
        activity.is_counted() && idle_seconds >= bound
    }
}

/// Progress of a rank.
#[derive(Clone, Debug)]
pub struct Pulse {
    /// Its activity.
    pub activity: Activity,
    /// Optimizer steps finished.
    pub step: Option<u64>,
    /// How often it made progress.
    pub moves: u64,
    moved_at: Instant,
    seconds: VecDeque<f64>,
}

impl Default for Pulse {
    fn default() -> Self {
        Self {
            activity: Activity::default(),
            step: None,
            moves: 0,
            moved_at: Instant::now(),
            seconds: VecDeque::new(),
        }
    }
}

impl Pulse {
    /// Records a finished step that lasted `seconds`.
    pub fn stepped(&mut self, step: u64, seconds: f64) {
        self.step = Some(step);
        self.turned_to(Activity::Training);
        if self.seconds.len() == LATEST_STEPS {
            self.seconds.pop_front();
        }
        self.seconds.push_back(seconds);
    }

    /// Records a change of activity, or progress in it.
    pub fn turned_to(&mut self, activity: Activity) {
        self.activity = activity;
        self.moves += 1;
        self.moved_at = Instant::now();
    }

    /// Time since its last progress.
    pub fn idle(&self) -> Duration {
        self.moved_at.elapsed()
    }

    /// Median of its latest steps, seconds.
    pub fn median_step(&self) -> Option<f64> {
        median(self.seconds.iter().copied())
    }

    /// Moves its last progress into the past, for tests.
    #[doc(hidden)]
    pub fn age(&mut self, by: Duration) {
        self.moved_at -= by;
    }
}

/// The lower median; `None` without values.
fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    let middle = values.len().checked_sub(1)? / 2;
    let (_, median, _) = values.select_nth_unstable_by(middle, f64::total_cmp);
    Some(*median)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_of_the_latest_steps() {
        let mut pulse = Pulse::default();
        pulse.stepped(1, 1000.0);
        for step in 0..LATEST_STEPS as u64 {
            pulse.stepped(2 + step, if step < 60 { 0.25 } else { 4.0 });
        }
        assert_eq!(pulse.median_step(), Some(0.25));
        assert_eq!(median([2.0, 1.0].into_iter()), Some(1.0));
        assert_eq!(median(std::iter::empty()), None);
    }

    #[test]
    fn a_rank_is_given_up_after_ten_of_its_steps_and_ten_seconds_at_least() {
        let over = |activity, idle, median| GIVEN_UP.is_over(activity, idle, median);
        assert!(over(Activity::Training, 10.0, Some(0.2)));
        assert!(!over(Activity::Training, 9.0, Some(0.2)));
        assert!(!over(Activity::Training, 29.0, Some(3.0)));
        assert!(over(Activity::Evaluating, 30.0, Some(3.0)));
        assert!(!over(Activity::Checkpointing, 60.0, Some(0.2)));
        assert!(!over(Activity::Training, 60.0, None), "before its first step");
        assert!(!over(Activity::Starting, 60.0, None));
    }
}
