//! Resource usage of processes, from the kernel.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use fs_err as fs;

/// Ticks per second in `/proc/PID/stat`: fixed by the kernel's interface.
const TICKS_PER_SECOND: f64 = 100.0;

/// Usage of components since an earlier reading; everything if a component is new.
pub(crate) fn since(now: BTreeMap<String, f64>, earlier: &BTreeMap<String, f64>) -> BTreeMap<String, f64> {
    let used = |(name, seconds): (String, f64)| {
        let before = earlier.get(&name).copied().unwrap_or(0.0);
        (name, hundredths(seconds - before))
    };
    now.into_iter().map(used).collect()
}

/// CPU seconds of a process.
pub(crate) fn cpu_seconds(pid: i32) -> Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The command in parentheses may contain any character. Fields 14 and 15 are CPU times.
    let fields = stat.rsplit_once(')').map(|(_, rest)| rest.split_whitespace());
    let ticks = fields.and_then(|fields| {
        let mut fields = fields.skip(11);
        let (user, system): (f64, f64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        Some(user + system)
    });
    ticks
        .map(|ticks| ticks / TICKS_PER_SECOND)
        .with_context(|| format!("cannot read the times in {stat:?}"))
}

/// Peak resident memory of a process.
pub(crate) fn peak_rss_bytes(pid: i32) -> Result<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let kibibytes = status.lines().find_map(|line| {
        line.strip_prefix("VmHWM:")?
            .split_whitespace()
            .next()?
            .parse::<f64>()
            .ok()
    });
    kibibytes
        .map(|kibibytes| kibibytes * 1024.0)
        .with_context(|| format!("process {pid} reports no VmHWM"))
}

/// Rounds to two decimals; more is noise.
pub(crate) fn hundredths(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}
