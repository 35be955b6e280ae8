//! `PromQL` from the names of metrics and labels.

use std::fmt;

/// The window of rates that Grafana chooses by resolution and scrape interval.
const RATE_WINDOW: &str = "$__rate_interval";

/// The series of a metric.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    metric: String,
    matchers: Vec<String>,
}

impl Series {
    pub(crate) fn of(metric: &str) -> Self {
        Self {
            metric: metric.into(),
            matchers: vec![],
        }
    }

    /// Sum of a histogram's observations.
    pub(crate) fn sum_of(histogram: &str) -> Self {
        Self::of(&format!("{histogram}_sum"))
    }

    /// Count of a histogram's observations.
    pub(crate) fn count_of(histogram: &str) -> Self {
        Self::of(&format!("{histogram}_count"))
    }

    /// Only those whose label has this value, which may be a variable of one value.
    pub(crate) fn with(mut self, label: &str, value: &str) -> Self {
        self.matchers.push(format!("{label}={value:?}"));
        self
    }

    /// Only those whose label matches this, which may be a variable of several values.
    pub(crate) fn matching(mut self, label: &str, pattern: &str) -> Self {
        self.matchers.push(format!("{label}=~{pattern:?}"));
        self
    }

    /// What a counter rises a second.
    pub(crate) fn rate(&self) -> Expr {
        Expr(format!("rate({self}[{RATE_WINDOW}])"))
    }

    /// What a gauge rises a second.
    pub(crate) fn deriv(&self) -> Expr {
        Expr(format!("deriv({self}[{RATE_WINDOW}])"))
    }

    /// What a gauge was so long ago.
    pub(crate) fn before(&self, time: &str) -> Expr {
        Expr(format!("{self} offset {time}"))
    }

    /// What a counter rises in a window of this length.
    pub(crate) fn increase(&self, window: &str) -> Expr {
        Expr(format!("increase({self}[{window}])"))
    }
}

impl fmt::Display for Series {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.metric)?;
        if self.matchers.is_empty() {
            return Ok(());
        }
        write!(formatter, "{{{}}}", self.matchers.join(","))
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

    /// One series of each of these labels' values, where there may be several for a moment.
    pub(crate) fn first_by(self, labels: &[&str]) -> Self {
        Self(format!("topk by ({}) (1, {self})", labels.join(", ")))
    }

    fn aggregated(self, how: &str, labels: &[&str]) -> Self {
        let Self(of) = self;
        Self(match labels {
            [] => format!("{how}({of})"),
            labels => format!("{how} by ({}) ({of})", labels.join(", ")),
        })
    }

    /// Over another; nothing where that is 0.
    pub(crate) fn over(self, other: Self) -> Self {
        Self(format!("{self} / ({other} > 0)"))
    }

    /// The same, where the other has no labels, or fewer ones.
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

    /// One less this.
    pub(crate) fn complement(self) -> Self {
        Self(format!("1 - {self}"))
    }

    /// With a label of a series that is always 1, joined by the labels of both.
    pub(crate) fn labelled(self, by: &[&str], label: &str, info: Self) -> Self {
        Self(format!(
            "{self} * on ({}) group_left ({label}) {info}",
            by.join(", ")
        ))
    }

    /// In brackets.
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
    let rate = Expr(format!("rate({histogram}_bucket[{window}])"));
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
            r#"sum by (rank) (rate(vit_images_total{namespace="$namespace",rank=~"$rank"}[$__rate_interval]))"#
        );
        assert_eq!(
            Expr::from(Series::of("a"))
                .max()
                .over(Series::of("b").rate().sum())
                .to_string(),
            "max(a) / (sum(rate(b[$__rate_interval])) > 0)"
        );
        assert_eq!(
            quantile(0.5, "s", "1h").to_string(),
            "histogram_quantile(0.5, sum by (le) (rate(s_bucket[1h])))"
        );
    }
}
