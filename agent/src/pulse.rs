//! When a rank got on last, and how long it may take to.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use contract::Activity;

/// Steps of which the median is taken.
const LATEST_STEPS: usize = 101;

/// A rank that was told to stop is given up when it has not got on for this long. What the gang has not saved by then
/// it never will: a step needs all ranks.
pub const GIVEN_UP: Patience = Patience {
    steps: 10.0,
    least_seconds: 10.0,
};

/// How long a rank may stand still: so many of its median steps, and no less than so many seconds.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// Of its median steps.
    pub steps: f64,
    /// At the least.
    pub least_seconds: f64,
}

impl Patience {
    /// Whether a rank that does this has stood still for longer. Never before it has taken a step, nor in what may take
    /// any time.
    pub fn is_over(self, activity: Activity, idle_seconds: f64, median_step: Option<f64>) -> bool {
        let bound = median_step.map_or(f64::INFINITY, |median| {
            (self.steps * median).max(self.least_seconds)
        });
        activity.is_counted() && idle_seconds >= bound
    }
}

/// What one rank last did.
#[derive(Clone, Debug)]
pub struct Pulse {
    /// What it does.
    pub activity: Activity,
    /// Optimizer steps finished.
    pub step: Option<u64>,
    /// How often it has got on.
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
    /// It has finished a step, which took so many seconds.
    pub fn stepped(&mut self, step: u64, seconds: f64) {
        self.step = Some(step);
        self.turned_to(Activity::Training);
        if self.seconds.len() == LATEST_STEPS {
            self.seconds.pop_front();
        }
        self.seconds.push_back(seconds);
    }

    /// It turns to an activity, or gets on with it.
    pub fn turned_to(&mut self, activity: Activity) {
        self.activity = activity;
        self.moves += 1;
        self.moved_at = Instant::now();
    }

    /// How long it has not got on.
    pub fn idle(&self) -> Duration {
        self.moved_at.elapsed()
    }

    /// Of its latest steps, seconds.
    pub fn median_step(&self) -> Option<f64> {
        median(self.seconds.iter().copied())
    }

    /// As if it had got on so much earlier, for tests.
    #[doc(hidden)]
    pub fn age(&mut self, by: Duration) {
        self.moved_at -= by;
    }
}

/// The middle value, the lower one of two; `None` of nothing.
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
