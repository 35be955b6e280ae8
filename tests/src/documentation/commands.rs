//! Runs the commands of pages as a reader would: in order, in one folder.
//!
//! Readers are at the root of the built source tree. Tests use a temporary folder that looks like
//! it, with the examples, the chart, the built programs, the digits, and the files that pages
//! assume, `job.yaml` and `ds_config.json`. Examples train for fewer epochs. In a dry run `make`
//! only prints its commands and `helm install` renders the chart, so that both fail if a target,
//! flag or value does not exist. Other blocks have neither.

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use fs_err as fs;
use serde_json::Value;

use super::{Block, Page, examples, output};
use crate::binaries::Binaries;
use crate::root;
use crate::{cache, command, digits, packages};

/// Epochs of examples on this machine, so that tests do not train for minutes.
const EPOCHS_HERE: i64 = 2;
/// Epochs of examples on a cluster, where pages act on jobs while they train.
const EPOCHS_ON_CLUSTER: i64 = 12;

/// A `helm` without a cluster: it renders instead of installing.
const HELM: &str = r#"verb=$1; shift
case $verb in
install|upgrade)
  arguments=()
  for argument in "$@"; do
    case $argument in --install|--wait|--reuse-values) ;; *) arguments+=("$argument") ;; esac
  done
  exec 'HELM' template --kube-version 1.30.0 "${arguments[@]}" ;;
template|lint|package) exec 'HELM' "$verb" "$@" ;;
*) echo "helm $verb needs a cluster" >&2; exit 1 ;;
esac"#;

/// The folder with the programs of a dry run.
const DRY: &str = "dry-run";

/// Where a block's commands run.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Place {
    /// On this machine.
    Here,
    /// On a cluster with the operator.
    Cluster,
}

/// How the commands of a block are tested.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Fate {
    /// Not at all: it has no commands, or a reason not to run them.
    Unread,
    /// They must succeed; a console must print its output.
    Run(Place),
    /// They must succeed on this machine, without effects of `make` and `helm install`.
    DryRun,
    /// They must fail on this machine with the block's output.
    Fail,
    /// The output is compared with another test's snapshot.
    Snapshot,
}

/// Prefix of a snapshot's file.
const SNAPSHOT: &str = "snapshot=";

/// How the commands of a block are tested; an error if its info string is unknown.
pub fn fate(block: &Block) -> Result<Fate> {
    let (language, rest) = block.info.split_once(' ').unwrap_or((&block.info, ""));
    if !matches!(language, "sh" | "bash" | "shell" | "console") {
        return Ok(Fate::Unread);
    }
    ensure!(
        matches!(language, "sh" | "console"),
        "{language} should be `sh`, or `console` for commands after `$ ` with their output"
    );
    match (rest, rest.split_once(": ")) {
        ("", _) => Ok(Fate::Run(Place::Here)),
        ("cluster", _) => Ok(Fate::Run(Place::Cluster)),
        ("dry-run", _) if language == "sh" => Ok(Fate::DryRun),
        ("fails", _) if language == "console" => Ok(Fate::Fail),
        (_, Some(("numbers vary", reason))) if language == "console" && !reason.trim().is_empty() => {
            Ok(Fate::Run(Place::Here))
        }
        (_, Some(("no-test", reason))) if language == "sh" && !reason.trim().is_empty() => Ok(Fate::Unread),
        _ if language == "console" && rest.starts_with(SNAPSHOT) => Ok(Fate::Snapshot),
        _ => bail!("{rest:?} is not a valid mark of `{language}`: `vit_tests::documentation` lists them"),
    }
}

/// A reader's terminal.
#[derive(Debug)]
pub struct Session {
    folder: tempfile::TempDir,
    environment: Vec<(String, String)>,
}

impl Session {
    /// Without a cluster.
    pub fn new() -> Result<Self> {
        let session = Self::prepared(EPOCHS_HERE)?;
        let binaries = Binaries::build()?;
        let helm = binaries.path("helm").display().to_string();
        let (bin, dry) = (session.folder.path().join("bin"), session.folder.path().join(DRY));
        symlink(binaries.path("kubectl"), bin.join("kubectl"))?;
        let make = format!(
            "exec /usr/bin/make --no-print-directory -C '{}' -n \"$@\"",
            root().display()
        );
        executable(&dry.join("make"), &make)?;
        executable(&dry.join("helm"), &HELM.replace("HELM", &helm))?;
        Ok(session)
    }

    /// With `kubectl` and `helm` for the cluster of this kubeconfig.
    pub fn on_cluster(kubeconfig: &Path) -> Result<Self> {
        let mut session = Self::prepared(EPOCHS_ON_CLUSTER)?;
        let binaries = Binaries::build()?;
        for program in ["kubectl", "helm"] {
            symlink(
                binaries.path(program),
                session.folder.path().join("bin").join(program),
            )?;
        }
        session
            .environment
            .push(("KUBECONFIG".into(), kubeconfig.display().to_string()));
        Ok(session)
    }

    fn prepared(epochs: i64) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("vit-docs-").tempdir()?;
        let top = folder.path();
        for part in ["bin", DRY, "examples", "target"] {
            fs::create_dir(top.join(part))?;
        }
        for path in examples()? {
            let name = path.file_name().context("an example has a name")?;
            let text = shortened(&fs::read_to_string(&path)?, epochs)?;
            fs::write(top.join("examples").join(name), text)?;
        }
        fs::copy(top.join("examples/digits.yaml"), top.join("job.yaml"))?;
        fs::write(
            top.join("ds_config.json"),
            r#"{"train_micro_batch_size_per_gpu": 4}"#,
        )?;
        for part in ["charts", "docs"] {
            symlink(root().join(part), top.join(part))?;
        }
        let built = built()?;
        symlink(&built, top.join("target/release"))?;
        symlink(
            packages::prometheus()?.with_file_name("promtool"),
            top.join("bin/promtool"),
        )?;
        digits::write(&top.join("target/digits"))?;
        let path = format!(
            "{}:{}:{}",
            top.join("bin").display(),
            built.display(),
            std::env::var("PATH").unwrap_or_default()
        );
        Ok(Self {
            environment: vec![
                ("PATH".into(), path),
                ("HOME".into(), top.display().to_string()),
                ("VIT_CACHE".into(), cache::directory()?.display().to_string()),
            ],
            folder,
        })
    }

    /// Runs all blocks of a page for this place, writes its files, and returns the blocks' number.
    pub fn follow(&self, page: &Page, here: Place) -> Result<usize> {
        let mut ran = 0;
        for block in &page.blocks {
            if let Some(name) = block.file() {
                fs::write(self.folder.path().join(name), &block.text)?;
            }
            let place = || format!("{}:{}", page.path.display(), block.line);
            match fate(block).with_context(place)? {
                Fate::Run(there) if there == here => self.console(block).with_context(place)?,
                Fate::DryRun if here == Place::Here => {
                    let script = format!("PATH=$PWD/{DRY}:$PATH\n{}", block.parts().0);
                    self.run(&script).map(drop).with_context(place)?;
                }
                Fate::Fail if here == Place::Here => self.console(block).with_context(place)?,
                _ => continue,
            }
            ran += 1;
        }
        Ok(ran)
    }

    /// Runs a block. A console's output includes standard error.
    fn console(&self, block: &Block) -> Result<()> {
        if block.language() == "sh" {
            return self.run(&block.parts().0).map(drop);
        }
        let log = tempfile::NamedTempFile::new()?;
        let script = format!("exec > {} 2>&1\n{}", log.path().display(), block.parts().0);
        let outcome = self.run(&script);
        let printed = fs::read_to_string(log.path())?;
        match outcome {
            Ok(_) if fate(block)? == Fate::Fail => bail!("it did not fail: {printed}"),
            Err(error) if fate(block)? != Fate::Fail => Err(error.context(printed)),
            _ => output::compare(block, &printed),
        }
    }

    /// Runs a script until the first failing command, and returns its output.
    pub fn run(&self, script: &str) -> Result<String> {
        let mut bash = command::command("bash", ["-euo", "pipefail", "-c", script]);
        bash.current_dir(self.folder.path())
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null());
        command::run(&mut bash)
    }
}

/// Compares a console's output with its snapshot.
pub fn compare_with_snapshot(block: &Block) -> Result<()> {
    let file = block.info.split_once(SNAPSHOT).context("no snapshot is named")?.1;
    let text = fs::read_to_string(root().join(file))?;
    let (_, content) = text.split_once("\n---\n").context("the snapshot has no header")?;
    output::compare(block, content)
}

/// The folder of the built programs: of this test's profile, or else `target/release`.
fn built() -> Result<PathBuf> {
    let test = std::env::current_exe()?;
    let own = test
        .ancestors()
        .nth(2)
        .context("the test is not in target/*/deps")?;
    let folders = [own.to_owned(), root().join("target/release")];
    let whole = folders.into_iter().find(|folder| {
        ["vit-trainer", "vit-operator", "vit-cluster"]
            .iter()
            .all(|program| folder.join(program).exists())
    });
    whole.context("the programs are missing: run `make binaries`")
}

/// The help of a built program's command, in an empty environment.
pub fn help(program: &str, command: &[String]) -> Result<String> {
    let mut help = Command::new(built()?.join(program));
    help.args(command).arg("--help").env_clear().stdin(Stdio::null());
    command::run(&mut help)
}

fn executable(path: &Path, script: &str) -> Result<()> {
    fs::write(path, format!("#!/bin/bash\n{script}\n"))?;
    fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))?;
    Ok(())
}

/// Limits the epochs of an example's jobs; its other documents stay.
fn shortened(text: &str, epochs: i64) -> Result<String> {
    let mut documents = Vec::new();
    for document in text.split("\n---\n") {
        let mut value: Value = serde_saphyr::from_str(document)?;
        if value["kind"] == "ViTTrainingJob" {
            let training = &mut value["spec"]["training"];
            let at_most = |value: &mut Value, most: i64| {
                if value.as_f64().is_some_and(|value| value > most as f64) {
                    *value = most.into();
                }
            };
            at_most(&mut training["epochs"], epochs);
            if training["schedule"].is_object() {
                at_most(&mut training["schedule"]["warmupEpochs"], 1);
            }
        }
        // As YAML, because commands edit its lines.
        documents.push(serde_saphyr::to_string(&value)?);
    }
    Ok(documents.join("\n---\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_says_where_it_is_run() {
        for (info, expected) in [
            ("sh", Fate::Run(Place::Here)),
            ("console", Fate::Run(Place::Here)),
            ("console fails", Fate::Fail),
            ("console numbers vary: a few epochs", Fate::Run(Place::Here)),
            ("console snapshot=a.snap", Fate::Snapshot),
            ("sh dry-run", Fate::DryRun),
            ("sh cluster", Fate::Run(Place::Cluster)),
            ("sh no-test: needs a GPU", Fate::Unread),
            ("yaml", Fate::Unread),
            ("", Fate::Unread),
        ] {
            assert_eq!(fate(&Block::new(info, "true\n")).expect(info), expected, "{info}");
        }
        for info in [
            "sh no-test",
            "sh no-test: ",
            "sh klaster",
            "sh fails",
            "console numbers vary: ",
            "console no-test: made up",
            "console dry-run",
            "bash",
            "shell",
        ] {
            assert!(fate(&Block::new(info, "true\n")).is_err(), "{info} is accepted");
        }
    }
}
