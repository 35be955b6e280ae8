//! The subset of Prometheus' text format that agents use.

/// Name, labels and value of a sample.
pub(crate) fn sample(line: &str) -> Option<(&str, &str, f64)> {
    let (name, rest) = line.split_once('{')?;
    let (labels, value) = rest.rsplit_once('}')?;
    Some((name, labels, value.trim().parse().ok()?))
}

/// The value of a label without escapes.
pub(crate) fn label<'a>(labels: &'a str, name: &str) -> Option<&'a str> {
    labels
        .split(',')
        .find_map(|pair| pair.strip_prefix(name)?.strip_prefix("=\"")?.strip_suffix('"'))
}
