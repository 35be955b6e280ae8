//! The reference of all commands, `docs/reference/kubectl-vit.md`, made from the command line's own definition.

use clap::CommandFactory as _;
use clap_markdown::{MarkdownOptions, help_markdown_command_custom};

use crate::CommandLine;

/// The page.
pub(crate) fn markdown() -> String {
    let options = MarkdownOptions::new()
        .title("kubectl vit".into())
        .show_table_of_contents(false)
        .show_footer(false);
    let command = CommandLine::command();
    let mut page = help_markdown_command_custom(&command, &options);
    let mut texts = vec![];
    after_help(&command, &mut texts);
    // Lines for a terminal stay as they are.
    for text in texts {
        page = page.replace(&text, &format!("```text\n{text}\n```"));
    }
    let lines: Vec<&str> = page.lines().map(str::trim_end).collect();
    let mut page = lines.join("\n");
    page = page.replacen(
        "This document contains the help content for the `kubectl vit` command-line program.",
        "Made from the command line by `make generate`; do not edit. [kubectl.md](../kubectl.md) is the tour.",
        1,
    );
    format!("{}\n", page.trim_end())
}

/// The texts after the help of a command and its subcommands.
fn after_help(command: &clap::Command, texts: &mut Vec<String>) {
    texts.extend(command.get_after_help().map(ToString::to_string));
    for subcommand in command.get_subcommands() {
        after_help(subcommand, texts);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_in_docs_is_fresh() {
        let stored = include_str!("../../docs/reference/kubectl-vit.md");
        assert!(
            stored == markdown(),
            "docs/reference/kubectl-vit.md is not fresh: run `make generate` and commit the result"
        );
    }
}
