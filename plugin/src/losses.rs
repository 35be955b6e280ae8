//! Training loss over time, from rank 0's log.

use contract::progress_line;
use jiff::Timestamp;

/// Losses by optimizer step in logged order, one every five seconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Losses {
    points: Vec<Point>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Point {
    step: u64,
    loss: f64,
    time: Option<Timestamp>,
}

impl Losses {
    /// Reads a pod's log with the API server's timestamps; ignores other lines and values that are not
    /// finite.
    pub(crate) fn read(log: &str) -> Self {
        let point = |line: &str| {
            let (time, words) = match line.split_once(' ') {
                Some((time, words)) if time.parse::<Timestamp>().is_ok() => (time.parse().ok(), words),
                _ => (None, line),
            };
            let (step, loss) = progress_line::read_loss(words)?;
            loss.is_finite().then_some(Point { step, loss, time })
        };
        let mut points: Vec<Point> = log.lines().filter_map(point).collect();
        points.dedup_by_key(|point| point.step);
        Self { points }
    }

    /// The values.
    pub(crate) fn values(&self) -> Vec<f64> {
        self.points.iter().map(|point| point.loss).collect()
    }

    /// The first and the last step and loss; `None` if fewer than two are known.
    pub(crate) fn ends(&self) -> Option<((u64, f64), (u64, f64))> {
        let (first, last) = (self.points.first()?, self.points.last()?);
        (first.step < last.step).then_some(((first.step, first.loss), (last.step, last.loss)))
    }

    /// Time from the first to the last line.
    pub(crate) fn span(&self) -> Option<jiff::SignedDuration> {
        let (first, last) = (self.points.first()?.time?, self.points.last()?.time?);
        Some(last.duration_since(first))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_read_from_among_other_lines() {
        let losses = Losses::read(
            "2026-01-01T00:00:00.123456789Z starting\n\
             2026-01-01T00:00:01Z epoch 0/2 step 0/20\n\
             2026-01-01T00:00:05Z epoch 0/2 step 3/20  loss 2.3000  train 0.1000\n\
             2026-01-01T00:00:06Z  WARN something\n\
             2026-01-01T00:00:10Z epoch 0/2 step 8/20  loss 2.1000\n\
             2026-01-01T00:00:12Z epoch 0/2 step 9/20  loss NaN\n\
             2026-01-01T00:01:05Z epoch 2/2 step 20/20  loss 0.5000\n\
             2026-01-01T00:01:05Z ended at epoch 2/2 step 20/20  loss 0.5000\n",
        );
        assert_eq!(losses.values(), [2.3, 2.1, 0.5]);
        assert_eq!(losses.ends(), Some(((3, 2.3), (20, 0.5))));
        assert_eq!(losses.span().map(|span| span.as_secs()), Some(60));
    }

    #[test]
    fn a_log_without_losses_has_none() {
        let losses = Losses::read("epoch 0/2 step 0/20\nepoch 0/2 step 1/20  loss 2.0\n");
        assert_eq!(
            (losses.values(), losses.ends(), losses.span()),
            (vec![2.0], None, None)
        );
        assert_eq!(Losses::read(""), Losses::default());
    }
}
