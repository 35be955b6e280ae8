//! Finds stragglers: ranks that stay slow.
//!
//! Rank 0 reports after each log interval which ranks computed longer than the others. Single
//! intervals are noisy, so an exponentially weighted mean over half a minute counts. A rank is a
//! straggler once the mean exceeds one threshold, until it falls below another.

use std::collections::BTreeMap;

use contract::progress::{LEAST_SLOWDOWN, MOST_SLOW_RANKS};
use contract::{Progress, SlowRank};
use crds::status::StragglerStatus;
use jiff::Timestamp;

/// Mean slowdown from which a rank is a straggler.
const NAMED_FROM: f64 = 1.33;
/// Mean slowdown below which it no longer is.
const NAMED_TO: f64 = LEAST_SLOWDOWN;
/// Slowdown of a rank that is not reported.
const NOT_SLOW: f64 = 1.0;
/// Cap of a record's slowdown: one bad interval does not make a straggler.
const MOST: f64 = 2.0;
/// Time constant of the mean.
const SECONDS: f64 = 30.0;
/// Largest weight of one record, even after a long pause.
const LARGEST_WEIGHT: f64 = 0.25;
/// Mean below which a rank is forgotten.
const FORGOTTEN: f64 = 1.01;

/// The slow ranks of one attempt.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct SlowRanks {
    attempt: u32,
    /// Step of the newest record, and when it was processed.
    newest: Option<(u64, Timestamp)>,
    ranks: BTreeMap<u32, Slow>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Slow {
    /// Its last report.
    reported: SlowRank,
    mean: f64,
    is_straggler: bool,
}

impl SlowRanks {
    /// After another record. `known` are the stragglers in the status, to resume an attempt that
    /// another leader observed.
    pub(crate) fn after(&self, record: &Progress, known: &[StragglerStatus], now: Timestamp) -> Self {
        let mut next = if self.attempt == record.attempt {
            self.clone()
        } else {
            Self::resumed(record.attempt, known)
        };
        let weight = match next.newest {
            Some((step, _)) if step == record.step => return next,
            Some((_, looked_at)) => weight(now.duration_since(looked_at).as_secs_f64()),
            // The record may be old.
            None => 0.0,
        };
        next.newest = Some((record.step, now));
        for rank in &record.slow_ranks {
            next.ranks.entry(rank.rank).or_insert(Slow {
                reported: *rank,
                mean: NOT_SLOW,
                is_straggler: false,
            });
        }
        let mut named = next.stragglers().len();
        next.ranks.retain(|rank, slow| {
            let reported = record.slow_ranks.iter().find(|reported| reported.rank == *rank);
            let was_named = slow.is_straggler;
            slow.add(reported, weight);
            // The status has limited room; known stragglers stay, so that they do not alternate.
            slow.is_straggler &= was_named || named < MOST_SLOW_RANKS;
            named = named - usize::from(was_named) + usize::from(slow.is_straggler);
            slow.is_straggler || slow.mean >= FORGOTTEN
        });
        next
    }

    fn resumed(attempt: u32, known: &[StragglerStatus]) -> Self {
        let slow = |straggler: &StragglerStatus| {
            let rank = u32::try_from(straggler.rank).ok()?;
            let slow = Slow {
                reported: SlowRank {
                    rank,
                    slowdown: straggler.slowdown,
                    saved_seconds: straggler.saved_seconds,
                },
                mean: straggler.slowdown.min(MOST),
                is_straggler: true,
            };
            Some((rank, slow))
        };
        Self {
            attempt,
            newest: None,
            ranks: known.iter().filter_map(slow).collect(),
        }
    }

    /// The last reports of the stragglers.
    pub(crate) fn stragglers(&self) -> Vec<SlowRank> {
        let stragglers = self.ranks.values().filter(|slow| slow.is_straggler);
        stragglers.map(|slow| slow.reported).collect()
    }
}

/// Weight of a record this many seconds after the last.
fn weight(seconds: f64) -> f64 {
    (1.0 - (-seconds / SECONDS).exp()).clamp(0.0, LARGEST_WEIGHT)
}

impl Slow {
    /// Adds a record; `reported` is `None` if the rank was not slow in it.
    fn add(&mut self, reported: Option<&SlowRank>, weight: f64) {
        self.reported = reported.copied().unwrap_or(self.reported);
        let slowdown = reported.map_or(NOT_SLOW, |reported| reported.slowdown);
        self.mean += weight * (slowdown.min(MOST) - self.mean);
        self.is_straggler = self.mean >= if self.is_straggler { NAMED_TO } else { NAMED_FROM };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{at, straggler};

    const NEVER: i64 = 10_000;

    fn slow(rank: u32, slowdown: f64) -> SlowRank {
        SlowRank {
            rank,
            slowdown,
            saved_seconds: Some(0.25),
        }
    }

    fn record(step: u64, slowdown: Option<f64>) -> Progress {
        Progress {
            attempt: 1,
            step,
            slow_ranks: slowdown.map(|slowdown| slow(3, slowdown)).into_iter().collect(),
            ..Progress::default()
        }
    }

    #[test]
    fn no_more_ranks_are_named_than_the_status_has_room_for() {
        let mut ranks = SlowRanks::default();
        for step in 0..100 {
            let slow_ranks = (0..24).filter(|rank| (u64::from(*rank) + step) % 3 > 0);
            let record = Progress {
                slow_ranks: slow_ranks.map(|rank| slow(rank, 2.0)).collect(),
                ..record(step, None)
            };
            ranks = ranks.after(&record, &[], at(2 * step.cast_signed()));
            assert!(
                ranks.stragglers().len() <= MOST_SLOW_RANKS,
                "{:?}",
                ranks.stragglers()
            );
        }
        assert_eq!(ranks.stragglers().len(), MOST_SLOW_RANKS);
    }

    /// Adds a record every two seconds with the next slowdown of rank 3; returns the seconds until the
    /// rank becomes a straggler, or no longer is; or [`NEVER`].
    fn seconds_until(named: bool, ranks: &mut SlowRanks, slowdowns: [Option<f64>; 5]) -> i64 {
        let (first, begun) = ranks.newest.map_or((0, at(0)), |(step, time)| (step, time));
        for turn in 1..200_u32 {
            let now = begun + jiff::SignedDuration::from_secs(2 * i64::from(turn));
            let step = first + u64::from(turn);
            *ranks = ranks.after(&record(step, slowdowns[turn as usize % 5]), &[], now);
            if ranks.stragglers().is_empty() != named {
                return now.duration_since(begun).as_secs();
            }
        }
        NEVER
    }

    #[test]
    fn a_rank_that_stays_slow_is_named_until_it_recovers() {
        let always = |slowdown| [slowdown; 5];
        let cases = [
            (false, always(Some(1.5)), 25..45),
            (true, always(None), 10..30),
            // Single intervals name nobody and clear nobody.
            (false, [Some(40.0), None, None, None, None], NEVER..i64::MAX),
            (
                true,
                [None, Some(3.0), Some(3.0), Some(3.0), Some(3.0)],
                NEVER..i64::MAX,
            ),
            // Between the thresholds a rank stays what it is.
            (false, always(Some(1.25)), NEVER..i64::MAX),
            (true, always(Some(1.25)), NEVER..i64::MAX),
        ];
        for (was_named, slowdowns, expected) in cases {
            let mut ranks = SlowRanks::default();
            if was_named {
                assert!(seconds_until(true, &mut ranks, always(Some(1.5))) < NEVER);
                assert_eq!(ranks.stragglers(), [slow(3, 1.5)]);
            }
            let seconds = seconds_until(!was_named, &mut ranks, slowdowns);
            assert!(expected.contains(&seconds), "{slowdowns:?}: {seconds} s");
        }
        let mut ranks = SlowRanks::default();
        for (named, slowdown) in [(true, Some(1.5)), (false, None), (true, None)] {
            seconds_until(named, &mut ranks, always(slowdown));
        }
        assert!(ranks.ranks.is_empty(), "forgotten: {ranks:?}");
    }

    #[test]
    fn a_record_counts_once_and_one_after_a_long_pause_for_a_quarter() {
        let mut ranks = SlowRanks::default();
        for second in 0..100 {
            ranks = ranks.after(&record(1, Some(2.0)), &[], at(second));
        }
        assert_eq!(ranks.stragglers(), []);
        let ranks = ranks.after(&record(2, Some(9.0)), &[], at(1000));
        assert_eq!(ranks.stragglers(), [], "after an evaluation, say");
        let ranks = ranks.after(&record(3, Some(9.0)), &[], at(2000));
        assert_eq!(ranks.stragglers(), [slow(3, 9.0)], "with steps of minutes");
    }

    #[test]
    fn a_new_leader_goes_on_from_the_status_and_a_new_attempt_from_nothing() {
        let mut ranks = SlowRanks::default().after(&record(1, None), &[straggler(3, "b", 1.7)], at(0));
        assert_eq!(
            ranks.stragglers(),
            [SlowRank {
                saved_seconds: Some(0.1235),
                ..slow(3, 1.7)
            }]
        );
        assert!(seconds_until(false, &mut ranks, [None; 5]) < NEVER);
        let again = Progress {
            attempt: 2,
            ..record(9, Some(2.0))
        };
        assert_eq!(ranks.after(&again, &[], at(100)).stragglers(), []);
    }
}
