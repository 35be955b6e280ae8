//! Runs `kubectl vit` as users do.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::Cluster;

/// The result of a command.
#[derive(Debug)]
pub struct Outcome {
    /// The exit code.
    pub code: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Outcome {
    /// Checks the exit code, and that standard output or error contains each of `words`.
    pub fn check(self, code: i32, words: &[&str]) -> Result<Self> {
        ensure!(
            self.code == code,
            "exit code {} instead of {code}: {self:#?}",
            self.code
        );
        let both = format!("{}{}", self.stdout, self.stderr);
        // Sentences may wrap.
        let in_a_line = both.split_whitespace().collect::<Vec<_>>().join(" ");
        for word in words {
            ensure!(
                both.contains(word) || in_a_line.contains(word),
                "{word:?} is missing from:\n{}{}",
                self.stdout,
                self.stderr
            );
        }
        Ok(self)
    }
}

/// The folder of the built binaries, above the running test's.
pub fn binaries() -> Result<PathBuf> {
    let test = std::env::current_exe()?;
    let folder = test
        .parent()
        .and_then(Path::parent)
        .context("the test's path has no grandparent")?;
    ensure!(
        folder.join("kubectl-vit").is_file(),
        "{} is not built: cargo build --workspace --bins",
        folder.join("kubectl-vit").display()
    );
    Ok(folder.to_owned())
}

/// `kubectl vit` with these arguments, found by kubectl on the `PATH`.
pub fn command(cluster: &Cluster, arguments: &[&str]) -> Result<Command> {
    let mut kubectl = cluster.kubectl();
    let path = std::env::var("PATH").unwrap_or_default();
    kubectl
        .env("PATH", format!("{}:{path}", binaries()?.display()))
        .env_remove("CLICOLOR_FORCE")
        .arg("vit")
        .args(arguments);
    Ok(kubectl)
}

/// Runs a command and returns its result, even if it fails.
pub fn ended(command: &mut Command) -> Result<Outcome> {
    let output = command.output()?;
    Ok(Outcome {
        code: output.status.code().context("a signal ended the command")?,
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}
