//! Machines and versions that runs were measured on.

use std::collections::{BTreeMap, BTreeSet};

use contract::{Machine, Measurement};

/// Machines, nodes, GPUs and trainer versions of the measurements, as names and values.
pub(super) fn circumstances<'a>(
    measurements: impl Iterator<Item = &'a Measurement> + Clone,
) -> Vec<(String, String)> {
    let mut machines: Vec<&Machine> = Vec::new();
    for machine in measurements.clone().filter_map(|found| found.machine.as_ref()) {
        // Compare the rounded text: the kernel's share of the memory may differ by a page.
        if !machines.iter().any(|known| text(known) == text(machine)) {
            machines.push(machine);
        }
    }
    let title = if machines.len() > 1 {
        "machines (different: compare with care)"
    } else {
        "machine"
    };
    let texts: Vec<String> = machines.iter().copied().map(text).collect();
    let mut rows = vec![(title.to_owned(), texts.join("; "))];
    rows.extend(nodes(measurements.clone()));
    let devices: BTreeSet<&str> = measurements.filter_map(|found| found.device.as_deref()).collect();
    // Logs name only GPUs.
    if !devices.is_empty() {
        rows.push(("GPUs".into(), devices.into_iter().collect::<Vec<_>>().join(", ")));
    }
    let versions: BTreeSet<&str> = machines.iter().map(|machine| machine.trainer.as_str()).collect();
    let versions: Vec<&str> = versions.into_iter().collect();
    rows.push(("vit-trainer".into(), versions.join(", ")));
    rows
}

/// The cluster's nodes, and whether runs with equally many nodes used different ones.
fn nodes<'a>(measurements: impl Iterator<Item = &'a Measurement>) -> Option<(String, String)> {
    let mut by_count: BTreeMap<usize, BTreeSet<&[String]>> = BTreeMap::new();
    for found in measurements.filter(|found| !found.nodes.is_empty()) {
        by_count
            .entry(found.nodes.len())
            .or_default()
            .insert(&found.nodes);
    }
    let all: BTreeSet<&String> = by_count.values().flatten().copied().flatten().collect();
    let all: Vec<&str> = all.into_iter().map(String::as_str).collect();
    let title = if by_count.values().any(|sets| sets.len() > 1) {
        "nodes (different for runs of the same size: compare with care)"
    } else {
        "nodes"
    };
    (!all.is_empty()).then(|| (title.to_owned(), all.join(", ")))
}

fn text(machine: &Machine) -> String {
    format!(
        "{} x {}, {:.0} GB",
        machine.processors,
        machine.processor,
        machine.memory_bytes as f64 / 1e9
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::measurement;

    #[test]
    fn runs_on_unlike_nodes_are_told() {
        let on = |nodes: &[&str]| Measurement {
            nodes: nodes.iter().map(ToString::to_string).collect(),
            ..measurement(100.0)
        };
        let row = |found: &[Measurement]| nodes(found.iter());
        assert_eq!(row(&[measurement(100.0)]), None);
        let same = [on(&["a", "b"]), on(&["a"]), on(&["a", "b"])];
        assert_eq!(row(&same), Some(("nodes".into(), "a, b".into())));
        let different = row(&[on(&["a"]), on(&["b"])]).expect("nodes");
        assert!(different.0.contains("compare with care"), "{different:?}");
    }
}
