//! Ranks that compute longer than others, and their cost, since the last log line.
//!
//! A step lasts as long as its slowest rank computes. Without that rank it would last as long as
//! the next slowest; if no rank were slower than usual, as long as the median one.

use contract::progress::{LEAST_SLOWDOWN, MOST_SLOW_RANKS};
use contract::{RankSeconds, SlowRank};

/// Sums over the steps since the last line.
#[derive(Debug, Default)]
pub(super) struct ComputeTimes {
    /// Steps.
    count: f64,
    /// By rank.
    seconds: Vec<f64>,
    /// By rank, seconds by which steps would have been shorter without it.
    saved: Vec<f64>,
    /// Compute time of the slowest rank of each step.
    slowest: f64,
    /// Its excess over the median rank.
    lost: f64,
}

/// The cost of slow ranks.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Slowness {
    /// The slowest first.
    pub(super) ranks: Vec<SlowRank>,
    /// Excess of the slowest rank as a share of its compute time, below 1; `None` if unknown.
    pub(super) lost: Option<f64>,
    /// Over all ranks; `None` if unknown.
    pub(super) compute: Option<RankSeconds>,
}

impl ComputeTimes {
    /// Adds a step: the compute seconds of each rank before it waited for others.
    pub(super) fn add(&mut self, seconds: &[f64]) {
        self.count += 1.0;
        self.seconds.resize(seconds.len(), 0.0);
        self.saved.resize(seconds.len(), 0.0);
        for (sum, seconds) in self.seconds.iter_mut().zip(seconds) {
            *sum += seconds;
        }
        // Without another rank, this one would still compute.
        let slowest = (0_u32..)
            .zip(seconds)
            .max_by(|left, right| left.1.total_cmp(right.1));
        if let Some((rank, _)) = slowest {
            self.saved[rank as usize] += saved_without(seconds, rank);
        }
        let sorted = of_those_that_compute(seconds);
        if let (Some(slowest), Some(middle)) = (sorted.last(), sorted.get(sorted.len().saturating_sub(1) / 2))
        {
            self.slowest += slowest;
            self.lost += slowest - middle;
        }
    }

    pub(super) fn take(&mut self) -> Slowness {
        let Self {
            count,
            seconds,
            saved,
            slowest,
            lost,
        } = std::mem::take(self);
        let mut ranks = slow_ranks(&seconds);
        for slow in &mut ranks {
            let saved = saved[slow.rank as usize] / count;
            slow.saved_seconds = (saved > 0.0).then_some(saved);
        }
        Slowness {
            ranks,
            lost: (slowest > 0.0).then(|| lost / slowest),
            compute: (slowest > 0.0).then(|| {
                let computing = of_those_that_compute(&seconds);
                RankSeconds {
                    mean_compute_seconds: computing.iter().sum::<f64>() / computing.len() as f64 / count,
                    slowest_compute_seconds: slowest / count,
                }
            }),
        }
    }
}

/// Seconds by which a step would have been shorter without a rank.
pub(super) fn saved_without(seconds: &[f64], rank: u32) -> f64 {
    let Some(own) = seconds.get(rank as usize) else {
        return 0.0;
    };
    let others = (0_u32..).zip(seconds).filter(|(other, _)| *other != rank);
    let slowest = others.map(|(_, seconds)| *seconds).fold(0.0, f64::max);
    // If no other rank computes, there is no step without it.
    if slowest > 0.0 {
        (own - slowest).max(0.0)
    } else {
        0.0
    }
}

fn of_those_that_compute(seconds: &[f64]) -> Vec<f64> {
    let mut sorted: Vec<f64> = seconds.iter().copied().filter(|own| *own > 0.0).collect();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// The ranks that compute at least [`LEAST_SLOWDOWN`] times as long as the median of the *others*,
/// slowest first. With two ranks, the median of both would hide half of the difference.
fn slow_ranks(seconds: &[f64]) -> Vec<SlowRank> {
    let sorted = of_those_that_compute(seconds);
    let mut slow: Vec<SlowRank> = (0_u32..)
        .zip(seconds)
        .filter(|(_, own)| **own > 0.0)
        .filter_map(|(rank, own)| {
            let slowdown = own / median_without(&sorted, *own)?;
            (slowdown.is_finite() && slowdown >= LEAST_SLOWDOWN).then_some(SlowRank {
                rank,
                slowdown,
                saved_seconds: None,
            })
        })
        .collect();
    slow.sort_by(|left, right| right.slowdown.total_cmp(&left.slowdown));
    slow.truncate(MOST_SLOW_RANKS);
    slow
}

/// The median of sorted values without one of them; `None` if none is left.
fn median_without(sorted: &[f64], value: f64) -> Option<f64> {
    let left_out = sorted.partition_point(|other| other.total_cmp(&value).is_lt());
    let other = |index: usize| sorted[index + usize::from(index >= left_out)];
    match sorted.len().checked_sub(1)? {
        0 => None,
        count if count % 2 == 1 => Some(other(count / 2)),
        count => Some(f64::midpoint(other(count / 2 - 1), other(count / 2))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slow(seconds: &[f64]) -> Vec<(u32, f64)> {
        slow_ranks(seconds)
            .into_iter()
            .map(|rank| (rank.rank, rank.slowdown))
            .collect()
    }

    #[test]
    fn a_rank_is_measured_against_the_median_of_the_others() {
        assert_eq!(slow(&[1.0, 2.0]), [(1, 2.0)]);
        assert_eq!(slow(&[1.0, 1.0, 1.5, 1.1]), [(2, 1.5)]);
        assert_eq!(slow(&[4.0, 1.0, 1.0, 3.0, 1.0]), [(0, 4.0), (3, 3.0)]);
        assert_eq!(slow(&[1.0, 1.1, 1.19]), []);
        assert_eq!(slow(&[3.0]), [], "nobody to compare with");
        assert_eq!(slow(&[]), []);
        assert_eq!(slow(&[0.0, 1.0]), [], "one of them has no images");
        assert_eq!(slow(&[1.0, 0.0, 2.0, 0.0]), [(2, 2.0)]);
    }

    #[test]
    fn the_median_leaves_one_value_out() {
        for (sorted, value, median) in [
            (&[1.0, 2.0, 3.0][..], 1.0, 2.5),
            (&[1.0, 2.0, 3.0], 2.0, 2.0),
            (&[1.0, 2.0, 3.0], 3.0, 1.5),
            (&[1.0, 2.0, 2.0, 9.0], 2.0, 2.0),
        ] {
            let found = median_without(sorted, value).expect("others");
            assert!(
                (found - median).abs() < 1e-12,
                "{sorted:?} without {value}: {found}"
            );
        }
        assert_eq!(median_without(&[1.0], 1.0), None);
    }

    #[test]
    fn steps_add_up_and_a_line_starts_anew() {
        let mut times = ComputeTimes::default();
        times.add(&[1.0, 3.0]);
        times.add(&[1.0, 1.0]);
        let slow = SlowRank {
            rank: 1,
            slowdown: 2.0,
            // 2 s in one step and nothing in the other.
            saved_seconds: Some(1.0),
        };
        assert_eq!(
            times.take(),
            Slowness {
                ranks: vec![slow],
                lost: Some(0.5),
                compute: Some(RankSeconds {
                    mean_compute_seconds: 1.5,
                    slowest_compute_seconds: 2.0,
                }),
            }
        );
        times.add(&[0.0, 0.0]);
        assert_eq!(times.take(), Slowness::default(), "nothing was measured");
    }

    #[test]
    fn what_is_lost_is_what_the_slowest_takes_longer_than_the_middle() {
        let lost = |seconds: &[f64]| {
            let mut times = ComputeTimes::default();
            times.add(seconds);
            times.take().lost
        };
        for (seconds, expected) in [
            (&[1.0, 4.0][..], Some(0.75)),
            (&[1.0, 2.0, 4.0], Some(0.5)),
            (&[1.0, 2.0, 3.0, 8.0], Some(0.75)),
            (&[0.0, 2.0, 4.0], Some(0.5)),
            (&[5.0], Some(0.0)),
            (&[0.0], None),
            (&[], None),
        ] {
            assert_eq!(lost(seconds), expected, "{seconds:?}");
        }
    }

    #[test]
    fn only_the_slowest_rank_is_worth_going_without() {
        let saved = |seconds: &[f64]| -> Vec<f64> {
            let ranks = 0..seconds.len() as u32;
            ranks.map(|rank| saved_without(seconds, rank)).collect()
        };
        assert_eq!(saved(&[1.0, 5.0, 2.0]), [0.0, 3.0, 0.0]);
        assert_eq!(
            saved(&[4.0, 4.0, 2.0]),
            [0.0, 0.0, 0.0],
            "without one the other stays"
        );
        assert_eq!(saved(&[3.0, 0.0]), [0.0, 0.0], "nobody else computes");
        assert!(saved_without(&[1.0], 7) < f64::MIN_POSITIVE);
    }

    #[test]
    fn of_many_slow_ranks_the_slowest_are_told() {
        let seconds: Vec<f64> = (0..1024)
            .map(|rank| if rank < 300 { 2.0 + f64::from(rank) } else { 1.0 })
            .collect();
        let slow = slow_ranks(&seconds);
        assert_eq!((slow.len(), slow[0].rank), (MOST_SLOW_RANKS, 299));
    }
}
