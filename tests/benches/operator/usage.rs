//! What processes have used, as the kernel counts it.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use fs_err as fs;

/// Ticks a second in `/proc/PID/stat`: part of the kernel's interface, whatever its own timer does.
const TICKS_PER_SECOND: f64 = 100.0;

/// What components have used since an earlier look. One that was not there then has used all it has.
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
    // The command in parentheses may hold anything; user and system time are the 14th and 15th field.
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

/// The largest resident memory that a process has had.
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
        .with_context(|| format!("process {pid} tells no VmHWM"))
}

/// What is beyond two decimals is noise.
pub(crate) fn hundredths(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}
