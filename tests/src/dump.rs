//! The state of a cluster as text, for debugging.

use std::fmt::Write as _;

use crate::binaries::Binaries;
use crate::command::{command, run, tail_of_file};
use crate::process;
use crate::state::State;

/// Lines shown of each log.
const LOG_LINES: usize = 40;

/// The `kubectl` queries, in order.
const QUESTIONS: [&str; 6] = [
    "get nodes -o wide",
    "get pods -A -o wide",
    "get events -A --sort-by=.lastTimestamp",
    "get vittrainingjobs -A -o yaml",
    "describe pods -A",
    "describe nodes",
];

/// Objects, events, the logs of all pods, and the tails of all components' logs. Never fails: an
/// error replaces what could not be read.
pub fn dump(state: &State, binaries: &Binaries, components: &[String]) -> String {
    let kubectl = |question: &str| {
        let mut kubectl = command(binaries.path("kubectl"), ["--request-timeout=10s"]);
        run(kubectl
            .args(question.split(' '))
            .env("KUBECONFIG", state.kubeconfig()))
        .unwrap_or_else(|error| format!("{error:#}"))
    };
    let mut text = String::new();
    let mut section = |title: &str, body: &str| {
        let _ = write!(text, "==== {title}\n{}\n\n", body.trim_end());
    };
    for question in QUESTIONS {
        section(&format!("kubectl {question}"), &kubectl(question));
    }
    let names = "custom-columns=:.metadata.namespace,:.metadata.name";
    for line in kubectl(&format!("get pods -A --no-headers -o {names}")).lines() {
        let Some((namespace, pod)) = line.split_once(char::is_whitespace) else {
            continue;
        };
        let question = format!(
            "logs -n {namespace} {} --all-containers --prefix --tail={LOG_LINES}",
            pod.trim()
        );
        section(&format!("kubectl {question}"), &kubectl(&question));
    }
    for component in components {
        let condition = if process::running(state, component).is_some() {
            "running"
        } else {
            "ENDED"
        };
        let log = state.log_file(component);
        section(
            &format!("{component} ({condition}), tail of {}", log.display()),
            &tail_of_file(&log, LOG_LINES),
        );
    }
    text
}
