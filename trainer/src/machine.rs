//! The machine that this process runs on.

use contract::Machine;

/// This machine, as described by `/proc`.
pub(crate) fn this_machine() -> Machine {
    let field = |file: &str, name: &str| {
        let text = fs_err::read_to_string(file).ok()?;
        let line = text.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let kibibytes = field("/proc/meminfo", "MemTotal")
        .and_then(|value| value.split_whitespace().next()?.parse::<u64>().ok());
    Machine {
        processor: field("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown".into()),
        processors: std::thread::available_parallelism().map_or(1, usize::from),
        memory_bytes: kibibytes.unwrap_or(0) * 1024,
        trainer: env!("CARGO_PKG_VERSION").into(),
    }
}
