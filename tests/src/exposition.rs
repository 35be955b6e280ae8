//! Parses `/metrics` in Prometheus' text format.

use std::collections::BTreeMap;

/// The value of a series.
#[derive(Clone, Debug)]
pub struct Sample {
    metric: String,
    /// Its labels by name.
    pub labels: BTreeMap<String, String>,
    /// Its value.
    pub value: f64,
}

/// The samples of one scrape.
#[derive(Clone, Debug, Default)]
pub struct Exposition(Vec<Sample>);

impl Exposition {
    /// Parses samples and skips all other lines. Label values must not contain `",`.
    pub fn parse(text: &str) -> Self {
        let sample = |line: &str| {
            // Label values may contain spaces.
            let (series, values) = match line.rsplit_once('}') {
                Some(parts) => parts,
                None => line.split_once(' ')?,
            };
            let (metric, labels) = series.split_once('{').unwrap_or((series, ""));
            let label = |label: &str| {
                let (name, value) = label.split_once("=\"")?;
                Some((name.to_owned(), value.trim_end_matches('"').to_owned()))
            };
            Some(Sample {
                metric: metric.to_owned(),
                labels: labels.split("\",").filter_map(label).collect(),
                value: values.split_whitespace().next()?.parse().ok()?,
            })
        };
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        Self(lines.filter_map(sample).collect())
    }

    /// All series of a metric.
    pub fn of(&self, metric: &str) -> impl Iterator<Item = &Sample> {
        self.0.iter().filter(move |sample| sample.metric == metric)
    }

    /// The sum over all label values of a metric.
    pub fn sum(&self, metric: &str) -> f64 {
        self.of(metric).map(|sample| sample.value).sum()
    }

    /// A histogram without labels except `le`.
    pub fn histogram(&self, metric: &str) -> Histogram {
        let bucket = |sample: &Sample| Some((sample.labels.get("le")?.parse().ok()?, sample.value));
        let mut buckets: Vec<(f64, f64)> = self.of(&format!("{metric}_bucket")).filter_map(bucket).collect();
        buckets.sort_by(|(one, _), (other, _)| one.total_cmp(other));
        Histogram(buckets)
    }
}

/// Upper bounds and cumulative counts; the last bound is infinite.
#[derive(Clone, Debug)]
pub struct Histogram(Vec<(f64, f64)>);

impl Histogram {
    /// The observations since an earlier scrape.
    #[must_use]
    pub fn since(mut self, earlier: &Self) -> Self {
        // The bounds are the same, or missing if nothing was observed before.
        for ((_, count), (_, before)) in self.0.iter_mut().zip(&earlier.0) {
            *count -= before;
        }
        self
    }

    /// Number of observations.
    pub fn count(&self) -> f64 {
        self.0.last().map_or(0.0, |(_, count)| *count)
    }

    /// The quantile `share`, interpolated within its bucket like `PromQL`'s `histogram_quantile`.
    /// At most the largest finite bound; `None` without observations.
    pub fn quantile(&self, share: f64) -> Option<f64> {
        let wanted = share * self.count();
        let (mut lower, mut below) = (0.0, 0.0);
        for &(bound, count) in &self.0 {
            if wanted > 0.0 && count >= wanted {
                let within = (wanted - below) / (count - below);
                return Some(if bound.is_finite() {
                    lower + (bound - lower) * within
                } else {
                    lower
                });
            }
            (lower, below) = (bound, count);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::Exposition;

    const TEXT: &str = r#"# HELP seconds How long
# TYPE seconds histogram
seconds_bucket{le="0.5"} 10
seconds_bucket{le="1"} 30
seconds_bucket{le="+Inf"} 40
seconds_sum 31.5
seconds_count 40
jobs{phase="Running now",of="a, b"} 3
jobs{phase="Failed"} 1 1700000000
jobs_other 7
"#;

    #[test]
    fn samples_are_read_with_their_labels() {
        let scrape = Exposition::parse(TEXT);
        let labels: Vec<_> = scrape.of("jobs").map(|sample| &sample.labels).collect();
        let label = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let first = [label("of", "a, b"), label("phase", "Running now")];
        assert_eq!(labels, [&first.into(), &[label("phase", "Failed")].into()]);
        let sums = ["jobs", "seconds_sum"].map(|metric| scrape.sum(metric).to_string());
        assert_eq!(sums, ["4", "31.5"]);
        assert_eq!(scrape.of("seconds").count(), 0);
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
        let later = TEXT
            .replace("\"1\"} 30", "\"1\"} 34")
            .replace("Inf\"} 40", "Inf\"} 44");
        let since = Exposition::parse(&later).histogram("seconds").since(&earlier);
        assert!((since.count() - 4.0).abs() < f64::EPSILON);
        assert_eq!(since.quantile(0.5), Some(0.75));
    }
}
