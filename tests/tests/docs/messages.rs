//! Pages on trouble have messages as their headings: what they quote is said somewhere in the source.

use std::path::Path;

use anyhow::{Result, ensure};
use vit_tests::documentation::{self, Page};
use vit_tests::operator::root;

type Test = fn() -> Result<()>;

pub(crate) const TESTS: &[(&str, Test)] = &[
    ("messages that are explained are said", explained_are_said),
    ("messages of the trainer are explained", trainers_are_explained),
];

const PAGES: [&str; 2] = ["docs/troubleshooting.md", "docs/troubleshooting-trainer.md"];
/// What says something to users.
const SOURCES: [&str; 6] = [
    "charts/vit-operator",
    "crds/src",
    "operator/src",
    "planner/src",
    "contract/src",
    "trainer/src",
];
/// Stands in a heading for what differs from case to case.
const VARIES: &str = "...";
/// A shorter part of a message may be found by chance.
const LEAST: usize = 5;

/// A file of the source as the text of its messages.
struct Source {
    path: String,
    text: String,
}

fn sources() -> Result<Vec<Source>> {
    let mut sources = vec![];
    for folder in SOURCES {
        read(&root().join(folder), &mut sources)?;
    }
    ensure!(sources.len() > 100, "only {} files", sources.len());
    Ok(sources)
}

fn read(folder: &Path, sources: &mut Vec<Source>) -> Result<()> {
    for entry in fs_err::read_dir(folder)? {
        let path = entry?.path();
        let extension = path.extension().and_then(|extension| extension.to_str());
        if path.is_dir() {
            read(&path, sources)?;
        } else if matches!(extension, Some("rs" | "json" | "yaml")) && !path.ends_with("tests.rs") {
            let text = fs_err::read_to_string(&path)?;
            sources.push(Source {
                path: path.display().to_string(),
                text: spoken(&text),
            });
        }
    }
    Ok(())
}

/// A source without its tests and comments, and with strings over several lines as they are printed.
fn spoken(text: &str) -> String {
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let mut spoken = String::new();
    let mut continues = false;
    for line in code.lines() {
        let part = if continues { line.trim_start() } else { line };
        if !continues && line.trim_start().starts_with("//") {
            continue;
        }
        continues = part.ends_with('\\');
        spoken += part.trim_end_matches('\\');
        if !continues {
            spoken.push('\n');
        }
    }
    spoken.replace("\\\"", "\"")
}

/// Whether one message of a source has all parts, in their order.
fn says(source: &Source, parts: &[&str]) -> bool {
    let first = parts.first().copied().unwrap_or_default();
    source.text.match_indices(first).any(|(at, _)| {
        // Parts of one message are near: a format string, and the branches that fill it in.
        let near: String = source.text[at..].chars().take(3000).collect();
        let mut rest = near.as_str();
        parts.iter().all(|part| match rest.find(part) {
            Some(at) => {
                rest = &rest[at + part.len()..];
                true
            }
            None => false,
        })
    })
}

fn parts(heading: &str) -> Vec<&str> {
    let parts = heading.split(VARIES).map(str::trim);
    parts.filter(|part| part.len() >= LEAST).collect()
}

fn explained_are_said() -> Result<()> {
    let sources = sources()?;
    let mut unknown = vec![];
    for page in pages()? {
        ensure!(
            page.code_headings.len() > 10,
            "{}: only {} messages",
            page.path.display(),
            page.code_headings.len()
        );
        for heading in &page.code_headings {
            let parts = parts(&heading.text);
            if parts.is_empty() || !sources.iter().any(|source| says(source, &parts)) {
                unknown.push(format!(
                    "{}:{}: nothing says {:?}",
                    page.path.display(),
                    heading.line,
                    heading.text
                ));
            }
        }
    }
    ensure!(unknown.is_empty(), "{}", unknown.join("\n"));
    Ok(())
}

fn pages() -> Result<Vec<Page>> {
    PAGES.into_iter().map(documentation::page).collect()
}

/// Errors of the trainer are told as `#[error("...")]`: each that can end training has a heading.
fn trainers_are_explained() -> Result<()> {
    let pages = pages()?;
    let headings: Vec<Vec<&str>> = pages
        .iter()
        .flat_map(|page| page.code_headings.iter().map(|heading| parts(&heading.text)))
        .collect();
    let mut missing = vec![];
    for file in [
        "trainer/src/error.rs",
        "trainer/src/data/error.rs",
        "trainer/src/checkpoint/error.rs",
    ] {
        let text = spoken(&fs_err::read_to_string(root().join(file))?);
        let messages = messages(&text);
        ensure!(messages.len() > 5, "{file}: only {messages:?}");
        for message in messages {
            let source = Source {
                path: file.into(),
                text: message,
            };
            let is_explained = headings
                .iter()
                .any(|parts| !parts.is_empty() && says(&source, parts));
            if !is_explained {
                missing.push(format!("{}: {}", source.path, source.text));
            }
        }
    }
    ensure!(missing.is_empty(), "not explained:\n{}", missing.join("\n"));
    Ok(())
}

/// The texts of `#[error("...")]` that are more than another's.
fn messages(text: &str) -> Vec<String> {
    text.split("#[error(")
        .skip(1)
        .filter_map(|rest| {
            let message = rest.trim_start().strip_prefix('"')?;
            // A quote within the text is followed by more of it.
            let is_end = |(at, _): &(usize, &str)| message[at + 1..].starts_with(['\n', ',', ')']);
            let (end, _) = message.match_indices('"').find(is_end)?;
            Some(message[..end].to_owned())
        })
        .filter(|message| {
            message
                .split(['{', '}'])
                .step_by(2)
                .any(|part| part.trim().len() >= LEAST)
        })
        .collect()
}
