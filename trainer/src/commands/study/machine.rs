//! Where a run was measured.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

/// A machine, and what ran on it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Machine {
    /// Product of its processors.
    processor: String,
    /// Processors that may be used.
    processors: usize,
    memory_bytes: u64,
    /// Version of vit-trainer.
    trainer: String,
}

impl Machine {
    /// This one, as far as `/proc` tells it.
    pub(super) fn of_this() -> Self {
        let field = |file: &str, name: &str| {
            let text = fs_err::read_to_string(file).ok()?;
            let line = text.lines().find(|line| line.starts_with(name))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        let kibibytes = field("/proc/meminfo", "MemTotal")
            .and_then(|value| value.split_whitespace().next()?.parse::<u64>().ok());
        Self {
            processor: field("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown".into()),
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: kibibytes.unwrap_or(0) * 1024,
            trainer: env!("CARGO_PKG_VERSION").into(),
        }
    }

    fn text(&self) -> String {
        format!(
            "{} x {}, {:.0} GB",
            self.processors,
            self.processor,
            self.memory_bytes as f64 / 1e9
        )
    }
}

/// What a report says of where its runs were measured; `devices` are the products of all runs' GPUs.
pub(super) fn circumstances(machines: &[Machine], devices: Vec<String>) -> Vec<(String, String)> {
    let mut rows = Vec::new();
    let title = if machines.len() > 1 {
        "machines (unlike: compare with care)"
    } else {
        "machine"
    };
    let texts: Vec<String> = machines.iter().map(Machine::text).collect();
    rows.push((title.to_owned(), texts.join("; ")));
    let devices: BTreeSet<String> = devices.into_iter().collect();
    let devices: Vec<String> = devices.into_iter().collect();
    // Logs name GPUs only.
    if !devices.is_empty() {
        rows.push(("GPUs".into(), devices.join(", ")));
    }
    let versions: BTreeSet<&str> = machines.iter().map(|machine| machine.trainer.as_str()).collect();
    rows.push((
        "vit-trainer".into(),
        versions.into_iter().collect::<Vec<_>>().join(", "),
    ));
    rows
}
