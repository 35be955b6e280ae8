//! Progress messages of long steps.

use std::fmt::Display;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// How often a running step prints a message.
const HEARTBEAT: Duration = Duration::from_secs(30);

/// Prints a line on standard error, with the harness's prefix.
#[expect(clippy::print_stderr, reason = "progress is for the user")]
pub fn say(message: impl Display) {
    eprintln!("vit-cluster: {message}");
}

/// Runs a step, printing its start, a regular heartbeat, and its result with the duration.
pub fn step<T>(what: impl Display, run: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
    let what = what.to_string();
    let started = Instant::now();
    say(format_args!("{what} ..."));
    let (ended, heartbeat) = channel::<()>();
    let result = std::thread::scope(|scope| {
        let what = &what;
        scope.spawn(move || {
            while heartbeat.recv_timeout(HEARTBEAT) == Err(RecvTimeoutError::Timeout) {
                say(format_args!("{what}: {} s so far", started.elapsed().as_secs()));
            }
        });
        let result = run();
        drop(ended);
        result
    });
    let seconds = started.elapsed().as_secs_f64();
    match &result {
        Ok(_) => say(format_args!("{what}: done in {seconds:.1} s")),
        Err(_) => say(format_args!("{what}: failed after {seconds:.1} s")),
    }
    result
}
