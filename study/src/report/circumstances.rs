//! Where runs were measured.

use std::collections::BTreeSet;

use contract::{Machine, Measurement};

/// What a report says of where its runs were measured: each a name and a value.
pub(super) fn circumstances<'a>(
    measurements: impl Iterator<Item = &'a Measurement> + Clone,
) -> Vec<(String, String)> {
    let mut machines: Vec<&Machine> = Vec::new();
    for machine in measurements.clone().filter_map(|found| found.machine.as_ref()) {
        if !machines.contains(&machine) {
            machines.push(machine);
        }
    }
    let title = if machines.len() > 1 {
        "machines (unlike: compare with care)"
    } else {
        "machine"
    };
    let texts: Vec<String> = machines.iter().copied().map(text).collect();
    let mut rows = vec![(title.to_owned(), texts.join("; "))];
    let devices: BTreeSet<&str> = measurements.filter_map(|found| found.device.as_deref()).collect();
    // Logs name GPUs only.
    if !devices.is_empty() {
        rows.push(("GPUs".into(), devices.into_iter().collect::<Vec<_>>().join(", ")));
    }
    let versions: BTreeSet<&str> = machines.iter().map(|machine| machine.trainer.as_str()).collect();
    let versions: Vec<&str> = versions.into_iter().collect();
    rows.push(("vit-trainer".into(), versions.join(", ")));
    rows
}

fn text(machine: &Machine) -> String {
    format!(
        "{} x {}, {:.0} GB",
        machine.processors,
        machine.processor,
        machine.memory_bytes as f64 / 1e9
    )
}
