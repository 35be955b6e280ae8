//! Which ranks compute for longer than the others, over the steps since the last line of the log.

use contract::SlowRank;
use contract::progress::{LEAST_SLOWDOWN, MOST_SLOW_RANKS};

/// Sums over the steps since the last line.
#[derive(Debug, Default)]
pub(super) struct ComputeTimes {
    /// By rank.
    seconds: Vec<f64>,
}

impl ComputeTimes {
    /// Adds a step: the seconds that each rank computed before it waited for others.
    pub(super) fn add(&mut self, seconds: &[f64]) {
        self.seconds.resize(seconds.len(), 0.0);
        for (sum, seconds) in self.seconds.iter_mut().zip(seconds) {
            *sum += seconds;
        }
    }

    pub(super) fn take(&mut self) -> Vec<SlowRank> {
        slow_ranks(&std::mem::take(&mut self.seconds))
    }
}

/// Of the ranks that computed at all, those that take at least [`LEAST_SLOWDOWN`] times as long as the median of the *others*,
/// the slowest first. Of two ranks, the median of both would hide half of what the slower one takes longer.
fn slow_ranks(seconds: &[f64]) -> Vec<SlowRank> {
    let mut sorted: Vec<f64> = seconds.iter().copied().filter(|own| *own > 0.0).collect();
    sorted.sort_by(f64::total_cmp);
    let mut slow: Vec<SlowRank> = (0_u32..)
        .zip(seconds)
        .filter(|(_, own)| **own > 0.0)
        .filter_map(|(rank, own)| {
            let slowdown = own / median_without(&sorted, *own)?;
            (slowdown.is_finite() && slowdown >= LEAST_SLOWDOWN).then_some(SlowRank { rank, slowdown })
        })
        .collect();
    slow.sort_by(|left, right| right.slowdown.total_cmp(&left.slowdown));
    slow.truncate(MOST_SLOW_RANKS);
    slow
}

/// The median of sorted values without one of them; `None` where none is left.
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
        assert_eq!(
            times.take(),
            [SlowRank {
                rank: 1,
                slowdown: 2.0
            }]
        );
        times.add(&[1.0, 1.0]);
        assert_eq!(times.take(), []);
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
