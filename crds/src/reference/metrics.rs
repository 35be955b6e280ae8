//! The metrics reference as a table, generated from a program's `/metrics`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

/// Labels with values from the user or the cluster, which the table does not list.
const NAMES: [&str; 8] = [
    "namespace",
    "job_name",
    "rank",
    "node",
    "product",
    "resource",
    "method",
    "code",
];

/// One row per metric, in the order of the exposition: name, type, labels (with values if they are
/// a closed set) and help text. `exposition` has at least one series of every metric.
pub fn metrics(exposition: &str) -> String {
    let mut table = String::from("| Metric | Type | Labels | What it is |\n| --- | --- | --- | --- |\n");
    for block in exposition.split("# HELP ").skip(1) {
        let mut lines = block.lines();
        let Some((name, help)) = lines.next().and_then(|line| line.split_once(' ')) else {
            continue;
        };
        let mut kind = "";
        let mut labels = BTreeMap::<&str, BTreeSet<&str>>::new();
        for line in lines {
            if let Some(type_) = line.strip_prefix("# TYPE ") {
                kind = type_.rsplit(' ').next().unwrap_or_default();
            }
            for (label, value) in labels_of_series(line) {
                labels.entry(label).or_default().insert(value);
            }
        }
        let labels: Vec<String> = labels
            .iter()
            .filter(|(label, _)| **label != "le")
            .map(|(label, values)| {
                if NAMES.contains(label) {
                    return format!("`{label}`");
                }
                let values: Vec<String> = values.iter().map(|value| format!("`{value}`")).collect();
                format!("`{label}`: {}", values.join(", "))
            })
            .collect();
        let _ = writeln!(
            table,
            "| `{name}` | {kind} | {} | {} |",
            labels.join("; "),
            help.trim_end_matches('.')
        );
    }
    table
}

/// Labels and values of a series. None of our values contains a comma or a quote.
fn labels_of_series(line: &str) -> impl Iterator<Item = (&str, &str)> {
    let labels = line.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
    let labels = labels.map_or("", |(labels, _)| labels);
    labels
        .split(',')
        .filter_map(|label| Some((label.split_once('=')?.0, label.split('"').nth(1)?)))
}

#[cfg(test)]
mod tests {
    use super::metrics;

    #[test]
    fn a_row_has_type_labels_and_help() {
        let exposition = "# HELP a_total How many.\n# TYPE a_total counter\na_total{kind=\"x\",rank=\"0\"} 1\n\
             a_total{kind=\"y\",rank=\"0\"} 1\n# HELP b Seconds\n# TYPE b histogram\nb_bucket{le=\"1\"} 0\nb_sum 0\n";
        let rows: Vec<String> = metrics(exposition).lines().skip(2).map(str::to_owned).collect();
        assert_eq!(
            rows,
            [
                "| `a_total` | counter | `kind`: `x`, `y`; `rank` | How many |",
                "| `b` | histogram |  | Seconds |"
            ]
        );
    }
}
