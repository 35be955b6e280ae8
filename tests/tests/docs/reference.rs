//! The pages of command lines equal the programs' help.

use std::fmt::Write as _;

use anyhow::{Context as _, Result, ensure};
use expect_test::expect_file;
use vit_tests::documentation::commands::help;

type Test = fn() -> Result<()>;

pub(crate) const TESTS: &[(&str, Test)] = &[
    ("reference of vit-trainer", || {
        let page = page(
            "vit-trainer",
            "[trainer.md](../trainer.md) explains what the commands do.",
        )?;
        expect_file!["../../../docs/reference/vit-trainer.md"].assert_eq(&page);
        Ok(())
    }),
    ("reference of vit-operator", || {
        let page = page(
            "vit-operator",
            "The chart sets these options: see [install.md](../install.md#values).",
        )?;
        expect_file!["../../../docs/reference/vit-operator.md"].assert_eq(&page);
        Ok(())
    }),
];

fn page(program: &str, more: &str) -> Result<String> {
    let mut page =
        format!("# {program}\n\nMade from `{program} --help` by `make docs-write`; do not edit.\n{more}\n");
    section(program, &mut vec![], &mut page)?;
    ensure!(page.matches("\n## ").count() > 1, "no subcommands: {page}");
    Ok(page)
}

/// The help of a command, then those of its subcommands.
fn section(program: &str, command: &mut Vec<String>, page: &mut String) -> Result<()> {
    let help = help(program, command)?;
    let name = std::iter::once(program)
        .chain(command.iter().map(String::as_str))
        .collect::<Vec<_>>()
        .join(" ");
    let text: Vec<&str> = help.lines().map(str::trim_end).collect();
    let _ = write!(page, "\n## {name}\n\n```text\n{}\n```\n", text.join("\n").trim());
    for subcommand in subcommands(&help).context(name)? {
        command.push(subcommand);
        section(program, command, page)?;
        command.pop();
    }
    Ok(())
}

/// The names under `Commands:`, except `help`.
fn subcommands(help: &str) -> Result<Vec<String>> {
    let Some((_, commands)) = help.split_once("\nCommands:\n") else {
        return Ok(vec![]);
    };
    let names: Vec<String> = commands
        .lines()
        .take_while(|line| !line.is_empty())
        // Continuation lines are indented further.
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .map(str::to_owned)
        .collect();
    ensure!(!names.is_empty(), "no commands under Commands: {help}");
    Ok(names)
}
