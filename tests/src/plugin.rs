//! `kubectl vit` as its users run it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::Cluster;

/// What a command came to.
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
    /// Asserts the exit code, and that the words are told on either of both.
    pub fn check(self, code: i32, words: &[&str]) -> Result<Self> {
        ensure!(
            self.code == code,
            "exit code {} in place of {code}: {self:#?}",
            self.code
        );
        let told = format!("{}{}", self.stdout, self.stderr);
        // Sentences may be on several lines.
        let in_a_line = told.split_whitespace().collect::<Vec<_>>().join(" ");
        for word in words {
            ensure!(
                told.contains(word) || in_a_line.contains(word),
                "{word:?} is not told:\n{}{}",
                self.stdout,
                self.stderr
            );
        }
        Ok(self)
    }
}

/// The folder of the built binaries, which the test that asks is in, too.
pub fn binaries() -> Result<PathBuf> {
    let test = std::env::current_exe()?;
    let folder = test
        .parent()
        .and_then(Path::parent)
        .context("a test lies in a folder")?;
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

/// Runs a command to its end, whichever that is.
pub fn ended(command: &mut Command) -> Result<Outcome> {
    let output = command.output()?;
    Ok(Outcome {
        code: output.status.code().context("was not ended by a signal")?,
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}
