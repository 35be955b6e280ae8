//! Completion by kubectl's protocol: for `kubectl vit WORDS<TAB>`, it runs `kubectl_complete-vit WORDS`, a link to this
//! binary, and reads candidates from its standard output.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::time::Duration;

use clap::{CommandFactory as _, FromArgMatches as _};
use clap_complete::engine::{ArgValueCandidates, ArgValueCompleter, CompletionCandidate, complete};
use crds::{Phase, ViTScalingStudy, ViTTrainingJob};
use kube::ResourceExt as _;
use kube::api::ListParams;

use crate::CommandLine;
use crate::cluster::{Cluster, Connection};
use crate::kind::Kind;
use crate::output;

/// The name that kubectl looks for.
const NAME: &str = "kubectl_complete-vit";
/// Maximum delay of the shell.
const TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum number of proposed objects.
const MOST: u32 = 500;
/// `ShellCompDirectiveNoFileComp` of Cobra: no file names are proposed.
const NO_FILES: &str = ":4";

/// Whether the program was called to complete a command line.
pub(crate) fn is_asked() -> bool {
    let program = std::env::args_os().next();
    let name = program.as_deref().map(Path::new).and_then(Path::file_stem);
    name == Some(OsStr::new(NAME))
}

/// Writes the candidates for the last word of the command line, each with its help.
pub(crate) fn run() {
    let mut words: Vec<OsString> = std::env::args_os().collect();
    words[0] = "kubectl-vit".into();
    let last = words.len() - 1;
    let candidates = complete(&mut CommandLine::command(), words, last, None).unwrap_or_default();
    let mut text = String::new();
    for candidate in candidates.iter().filter(|candidate| !candidate.is_hide_set()) {
        let value = candidate.get_value().to_string_lossy();
        let help = candidate.get_help().map(ToString::to_string).unwrap_or_default();
        text += &match help.lines().next() {
            Some(help) if !help.is_empty() => format!("{value}\t{help}\n"),
            _ => format!("{value}\n"),
        };
    }
    // The shell may have exited.
    let _ = output::print(&format!("{text}{NO_FILES}\n"));
}

/// Proposes the jobs of the namespace that the command line names.
pub(crate) fn jobs() -> ArgValueCompleter {
    names::<ViTTrainingJob>()
}

/// Proposes the studies of the namespace that the command line names.
pub(crate) fn studies() -> ArgValueCompleter {
    names::<ViTScalingStudy>()
}

/// Proposes the objects of a kind in the namespace that the command line names.
pub(crate) fn names<K: Kind>() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| {
        let current = current.to_string_lossy();
        let mut found: Vec<K> = fetch(connection(std::env::args_os().collect())).unwrap_or_default();
        found.retain(|object| object.name_any().starts_with(&*current));
        let candidate =
            |object: &K| CompletionCandidate::new(object.name_any()).help(Some(object.summary().into()));
        found.iter().map(candidate).collect()
    })
}

/// Proposes phases.
pub(crate) fn phases() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let words = Phase::ALL.iter().map(|phase| phase.as_str());
        words.map(CompletionCandidate::new).collect()
    })
}

/// The connection flags of an incomplete command line.
fn connection(mut words: Vec<OsString>) -> Connection {
    // The word that is being completed may be anything.
    words.pop();
    let matches = CommandLine::command()
        .ignore_errors(true)
        .try_get_matches_from(words);
    let Ok(matches) = matches else {
        return Connection::default();
    };
    // A global flag may be before or after the subcommand.
    let mut innermost = &matches;
    while let Some((_, inner)) = innermost.subcommand() {
        innermost = inner;
    }
    Connection::from_arg_matches(innermost).unwrap_or_default()
}

fn fetch<K: Kind>(connection: Connection) -> Option<Vec<K>> {
    let runtime = crate::runtime().ok()?;
    runtime.block_on(async {
        let asking = async {
            let cluster = Cluster::connect(&connection).await.ok()?;
            let params = ListParams::default().limit(MOST);
            let listed = cluster.api().list(&params).await.ok()?;
            Some(
                listed
                    .items
                    .into_iter()
                    .filter_map(|stored| stored.0.ok())
                    .collect(),
            )
        };
        tokio::time::timeout(TIMEOUT, asking).await.ok()?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_namespace_of_an_incomplete_command_line_is_used() {
        let namespace = |line: &str| {
            let mut words: Vec<OsString> = line.split(' ').map(Into::into).collect();
            words.push(OsString::new());
            connection(words).namespace
        };
        assert_eq!(namespace("kubectl-vit status"), None);
        assert_eq!(
            namespace("kubectl-vit status -n research").as_deref(),
            Some("research")
        );
        assert_eq!(
            namespace("kubectl-vit -n research logs --rank 1").as_deref(),
            Some("research")
        );
        assert_eq!(
            namespace("kubectl-vit study -n research status").as_deref(),
            Some("research")
        );
    }

    #[test]
    fn subcommands_and_phases_are_proposed() {
        let proposed = |words: &[&str]| -> Vec<String> {
            let words: Vec<OsString> = words.iter().map(Into::into).collect();
            let last = words.len() - 1;
            let candidates = complete(&mut CommandLine::command(), words, last, None).expect("completes");
            let values = candidates
                .iter()
                .map(|candidate| candidate.get_value().to_string_lossy());
            values.map(Into::into).collect()
        };
        assert_eq!(proposed(&["kubectl-vit", "sta"]), ["status"]);
        assert_eq!(proposed(&["kubectl-vit", "list", "--phase", "Ru"]), ["Running"]);
        let all = proposed(&["kubectl-vit", ""]);
        assert!(
            all.contains(&"why".into()) && !all.contains(&"reference".into()),
            "{all:?}"
        );
    }
}
