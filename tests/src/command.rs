//! Runs programs; errors include their output.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Lines of a program's output in an error.
const TAIL_LINES: usize = 30;

/// A command from a program and its arguments.
pub fn command<S: AsRef<OsStr>>(
    program: impl AsRef<OsStr>,
    arguments: impl IntoIterator<Item = S>,
) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null());
    command
}

/// Runs a command and returns its standard output. The error has the tail of both outputs.
pub fn run(command: &mut Command) -> Result<String> {
    let line = describe(command);
    let output = command
        .output()
        .with_context(|| format!("cannot start `{line}`"))?;
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(stdout);
    }
    let both = format!("{stdout}{}", String::from_utf8_lossy(&output.stderr));
    bail!(
        "`{line}` failed ({}):\n{}",
        output.status,
        tail(&both, TAIL_LINES)
    );
}

/// Runs a command, appending both outputs to `log`. The error has the tail of the log.
pub fn run_logged(command: &mut Command, log: &Path) -> Result<()> {
    let line = describe(command);
    let file = fs_err::OpenOptions::new()
        .create(true)
        .append(true)
        .open(log)?
        .into_parts()
        .0;
    let status = command
        .stdout(file.try_clone()?)
        .stderr(file)
        .status()
        .with_context(|| format!("cannot start `{line}`"))?;
    if status.success() {
        return Ok(());
    }
    bail!(
        "`{line}` failed ({status}), log {}:\n{}",
        log.display(),
        tail_of_file(log, TAIL_LINES)
    );
}

/// Whether a program of this name is on the `PATH` or in the sbin folders.
pub fn exists(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(Into::into))
        .any(|folder| folder.join(program).is_file())
}

/// The last `lines` lines of a text.
pub fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

/// The last `lines` lines of a file, or the error.
pub fn tail_of_file(path: &Path, lines: usize) -> String {
    match fs_err::read(path) {
        Ok(bytes) => tail(&String::from_utf8_lossy(&bytes), lines),
        Err(error) => format!("({error})"),
    }
}

fn describe(command: &Command) -> String {
    let words: Vec<_> = std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| word.to_string_lossy())
        .collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::{command, run, tail};

    #[test]
    fn a_failure_shows_the_command_and_what_it_said() {
        let error = run(&mut command("sh", ["-c", "echo out; echo why >&2; exit 3"]))
            .unwrap_err()
            .to_string();
        assert!(error.contains("exit 3"), "{error}");
        assert!(error.contains("why"), "{error}");
    }

    #[test]
    fn the_tail_is_the_last_lines() {
        assert_eq!(tail("a\nb\nc\n", 2), "b\nc");
        assert_eq!(tail("a", 2), "a");
    }
}
