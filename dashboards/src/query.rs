//! `PromQL` from the names of metrics and labels.

use std::fmt;

/// The window of rates that Grafana chooses by resolution and scrape interval.
const RATE_WINDOW: &str = "$__rate_interval";

/// The time range shown.
const RANGE: &str = "$__range";

/// A label of series from several clusters, as [`Series::of`] selects them. Others lack it.
pub(crate) const LABEL_CLUSTER: &str = "cluster";

/// The series of a metric.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    metric: String,
    matchers: Vec<String>,
}

impl Series {
    /// The series of the chosen clusters.
    pub(crate) fn of(metric: &str) -> Self {
        let everywhere = Self {
            metric: metric.into(),
            matchers: vec![],
        };
        everywhere.matching(LABEL_CLUSTER, "$cluster")
    }

    /// Sum of a histogram's observations.
    pub(crate) fn sum_of(histogram: &str) -> Self {
        Self::of(&format!("{histogram}_sum"))
    }

    /// Count of a histogram's observations.
    pub(crate) fn count_of(histogram: &str) -> Self {
        Self::of(&format!("{histogram}_count"))
    }

    /// Only series whose label has this value, which may be a variable with one value.
    pub(crate) fn with(mut self, label: &str, value: &str) -> Self {
        self.matchers.push(format!("{label}={value:?}"));
        self
    }

    /// Only series whose label matches this, which may be a variable with several values.
    pub(crate) fn matching(mut self, label: &str, pattern: &str) -> Self {
        self.matchers.push(format!("{label}=~{pattern:?}"));
        self
    }

    /// A counter's increase per second.
    pub(crate) fn rate(&self) -> Expr {
        Expr(format!("rate({self}[{RATE_WINDOW}])"))
    }

    /// A gauge's increase per second.
    pub(crate) fn deriv(&self) -> Expr {
        Expr(format!("deriv({self}[{RATE_WINDOW}])"))
    }

    /// A gauge's value that long ago.
    pub(crate) fn before(&self, time: &str) -> Expr {
        Expr(format!("{self} offset {time}"))
    }

    /// A counter's increase in a window of this length.
    pub(crate) fn increase(&self, window: &str) -> Expr {
        Expr(format!("increase({self}[{window}])"))
    }
}

impl fmt::Display for Series {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}{{{}}}", self.metric, self.matchers.join(","))
    }
}

/// An expression.
#[derive(Clone, Debug)]
pub(crate) struct Expr(String);

impl From<Series> for Expr {
    fn from(series: Series) -> Self {
        Self(series.to_string())
    }
}

impl Expr {
    pub(crate) fn sum(self) -> Self {
        self.aggregated("sum", &[])
    }

    pub(crate) fn max(self) -> Self {
        self.aggregated("max", &[])
    }

    pub(crate) fn sum_by(self, labels: &[&str]) -> Self {
        self.aggregated("sum", labels)
    }

    pub(crate) fn max_by(self, labels: &[&str]) -> Self {
        self.aggregated("max", labels)
    }

    pub(crate) fn count_by(self, labels: &[&str]) -> Self {
        self.aggregated("count", labels)
    }

    /// One series per value of these labels, as there may briefly be several.
    pub(crate) fn first_by(self, labels: &[&str]) -> Self {
        Self(format!("topk by ({}) (1, {self})", labels.join(", ")))
    }

    /// The series with the largest means over the time range.
    pub(crate) fn largest(self, count: usize) -> Self {
        self.ranked("topk", count)
    }

    /// The series with the smallest means over the time range.
    pub(crate) fn smallest(self, count: usize) -> Self {
        self.ranked("bottomk", count)
    }

    /// Chosen once, at the end of the time range: `topk` alone would choose separately at each
    /// point.
    fn ranked(self, how: &str, count: usize) -> Self {
        Self(format!(
            "({self}) and {how}({count}, avg_over_time(({self})[{RANGE}:] @ end()))"
        ))
    }

    fn aggregated(self, how: &str, labels: &[&str]) -> Self {
        let Self(of) = self;
        Self(match labels {
            [] => format!("{how}({of})"),
            labels => format!("{how} by ({}) ({of})", labels.join(", ")),
        })
    }

    /// Divided by another; no value where that is 0.
    pub(crate) fn over(self, other: Self) -> Self {
        Self(format!("{self} / ({other} > 0)"))
    }

    /// The same if the other has no labels or fewer.
    pub(crate) fn over_all(self, other: Self) -> Self {
        Self(format!("{self} / on () group_left () ({other} > 0)"))
    }

    pub(crate) fn times(self, other: Self) -> Self {
        Self(format!("{self} * {other}"))
    }

    pub(crate) fn minus(self, other: Self) -> Self {
        Self(format!("{self} - {other}"))
    }

    pub(crate) fn above(self, bound: f64) -> Self {
        Self(format!("{self} > {bound}"))
    }

    /// One minus this.
    pub(crate) fn complement(self) -> Self {
        Self(format!("1 - {self}"))
    }

    /// Adds a label of a series that is always 1, joined on the labels `by`.
    pub(crate) fn labeled(self, by: &[&str], label: &str, info: Self) -> Self {
        Self(format!(
            "{self} * on ({}) group_left ({label}) {info}",
            by.join(", ")
        ))
    }

    /// In parentheses.
    pub(crate) fn grouped(self) -> Self {
        Self(format!("({self})"))
    }
}

impl fmt::Display for Expr {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// A quantile of a histogram's observations within a window.
pub(crate) fn quantile(quantile: f64, histogram: &str, window: &str) -> Expr {
    let buckets = Series::of(&format!("{histogram}_bucket"));
    let rate = Expr(format!("rate({buckets}[{window}])"));
    Expr(format!(
        "histogram_quantile({quantile}, {})",
        rate.sum_by(&["le"])
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_read_as_promql() {
        let series = Series::of("vit_images_total")
            .with("namespace", "$namespace")
            .matching("rank", "$rank");
        let rate = series.rate().sum_by(&["rank"]);
        assert_eq!(
            rate.to_string(),
            r#"sum by (rank) (rate(vit_images_total{cluster=~"$cluster",namespace="$namespace",rank=~"$rank"}[$__rate_interval]))"#
        );
        assert_eq!(
            Expr::from(Series::of("a"))
                .max()
                .over(Series::of("b").rate().sum())
                .to_string(),
            r#"max(a{cluster=~"$cluster"}) / (sum(rate(b{cluster=~"$cluster"}[$__rate_interval])) > 0)"#
        );
        assert_eq!(
            Expr::from(Series::of("a")).largest(10).to_string(),
            r#"(a{cluster=~"$cluster"}) and topk(10, avg_over_time((a{cluster=~"$cluster"})[$__range:] @ end()))"#
        );
        assert_eq!(
            quantile(0.5, "s", "1h").to_string(),
            r#"histogram_quantile(0.5, sum by (le) (rate(s_bucket{cluster=~"$cluster"}[1h])))"#
        );
    }
}
