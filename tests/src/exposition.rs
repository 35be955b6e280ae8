//! What a program tells at `/metrics`, in the text format of Prometheus.

use std::collections::BTreeMap;

/// The samples of one scrape, by name and labels as they were written.
#[derive(Clone, Debug, Default)]
pub struct Exposition(BTreeMap<String, f64>);

impl Exposition {
    /// Reads samples. Comments, and what is no sample, are left out.
    pub fn parse(text: &str) -> Self {
        let sample = |line: &str| {
            if line.starts_with('#') {
                return None;
            }
            // A label's value may hold spaces, so the series ends with its labels.
            let end = line
                .rfind('}')
                .map_or_else(|| line.find(' '), |at| Some(at + 1))?;
            let value = line[end..].split_whitespace().next()?.parse().ok()?;
            Some((line[..end].to_owned(), value))
        };
        Self(text.lines().filter_map(sample).collect())
    }

    /// One sample, such as `vit_operator_jobs{phase="Running"}`.
    pub fn value(&self, series: &str) -> Option<f64> {
        self.0.get(series).copied()
    }

    /// The sum over all label values of a metric.
    pub fn sum(&self, metric: &str) -> f64 {
        self.of(metric).map(|(_, value)| value).sum()
    }

    /// A histogram without labels of its own.
    pub fn histogram(&self, metric: &str) -> Histogram {
        let bucket = |(labels, count): (&str, f64)| {
            let bound = labels.strip_prefix("{le=\"")?.strip_suffix("\"}")?;
            Some((bound.parse().ok()?, count))
        };
        let mut buckets: Vec<(f64, f64)> = self.of(&format!("{metric}_bucket")).filter_map(bucket).collect();
        buckets.sort_by(|(one, _), (other, _)| one.total_cmp(other));
        Histogram { buckets }
    }

    /// Labels by name, and values, of all series of a metric whose labels' values hold no quotes and no commas.
    pub fn labelled<'a>(
        &'a self,
        metric: &'a str,
    ) -> impl Iterator<Item = (BTreeMap<&'a str, &'a str>, f64)> {
        self.of(metric).map(|(labels, value)| {
            let labels = labels.trim_start_matches('{').trim_end_matches('}');
            let label = |label: &'a str| {
                let (name, value) = label.split_once('=')?;
                Some((name, value.trim_matches('"')))
            };
            (labels.split(',').filter_map(label).collect(), value)
        })
    }

    /// Labels and values of all series of a metric.
    fn of<'a>(&'a self, metric: &'a str) -> impl Iterator<Item = (&'a str, f64)> {
        self.0.iter().filter_map(move |(series, value)| {
            let labels = series.strip_prefix(metric)?;
            (labels.is_empty() || labels.starts_with('{')).then_some((labels, *value))
        })
    }
}

/// Counts of observations up to each bound; the last bound is infinite.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Histogram {
    buckets: Vec<(f64, f64)>,
}

impl Histogram {
    /// What came to it since an earlier scrape.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        // The same program has the same bounds; one that has observed nothing yet may show none.
        let before = earlier.buckets.iter().map(|(_, count)| *count);
        Self {
            buckets: self
                .buckets
                .iter()
                .zip(before.chain(std::iter::repeat(0.0)))
                .map(|((bound, count), before)| (*bound, count - before))
                .collect(),
        }
    }

    /// How many observations there are.
    pub fn count(&self) -> f64 {
        self.buckets.last().map_or(0.0, |(_, count)| *count)
    }

    /// The value that a share of the observations does not exceed, interpolated within its bucket as `PromQL`'s
    /// `histogram_quantile` does. `None` without observations; the largest finite bound where it is above that.
    pub fn quantile(&self, share: f64) -> Option<f64> {
        let wanted = share * self.count();
        if wanted <= 0.0 {
            return None;
        }
        let (mut lower, mut below) = (0.0, 0.0);
        for (bound, count) in &self.buckets {
            if *count >= wanted {
                let within = (wanted - below) / (count - below);
                return Some(if bound.is_finite() {
                    lower + (bound - lower) * within
                } else {
                    lower
                });
            }
            (lower, below) = (*bound, *count);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::Exposition;

    const TEXT: &str = "\
# HELP seconds How long\n\
# TYPE seconds histogram\n\
seconds_bucket{le=\"0.5\"} 10\n\
seconds_bucket{le=\"1\"} 30\n\
seconds_bucket{le=\"+Inf\"} 40\n\
seconds_sum 31.5\n\
seconds_count 40\n\
jobs{phase=\"Running now\"} 3\n\
jobs{phase=\"Failed\"} 1 1700000000\n\
jobs_other 7\n";

    #[test]
    fn samples_are_read_with_their_labels() {
        let scrape = Exposition::parse(TEXT);
        assert_eq!(scrape.value("jobs{phase=\"Running now\"}"), Some(3.0));
        assert_eq!(scrape.value("seconds_sum"), Some(31.5));
        assert_eq!(scrape.value("seconds"), None);
        assert!((scrape.sum("jobs") - 4.0).abs() < f64::EPSILON);
    }

    #[test]
    fn labels_are_told_apart() {
        let scrape =
            Exposition::parse("requests{verb=\"PUT\",resource=\"jobs\"} 3\nrequests_other{verb=\"GET\"} 1\n");
        let series: Vec<_> = scrape.labelled("requests").collect();
        let labels = [("resource", "jobs"), ("verb", "PUT")].into();
        assert_eq!(series, [(labels, 3.0)]);
    }

    #[test]
    fn a_quantile_lies_within_its_bucket() {
        let all = Exposition::parse(TEXT).histogram("seconds");
        assert!((all.count() - 40.0).abs() < f64::EPSILON);
        assert_eq!(all.quantile(0.125), Some(0.25));
        assert_eq!(all.quantile(0.5), Some(0.75));
        assert_eq!(all.quantile(0.99), Some(1.0), "above the last finite bound");
        assert_eq!(Exposition::default().histogram("seconds").quantile(0.5), None);
    }

    #[test]
    fn only_what_came_since_counts() {
        let earlier = Exposition::parse(TEXT).histogram("seconds");
        let later = Exposition::parse(
            &TEXT
                .replace("\"1\"} 30", "\"1\"} 34")
                .replace("+Inf\"} 40", "+Inf\"} 44"),
        );
        let since = later.histogram("seconds").since(&earlier);
        assert!((since.count() - 4.0).abs() < f64::EPSILON);
        assert_eq!(since.quantile(0.5), Some(0.75));
    }
}
