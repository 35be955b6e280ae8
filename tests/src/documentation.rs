//! Parses the Markdown pages for tests: links, commands and manifests.
//!
//! The info string of a fenced block, which readers do not see, says how it is tested:
//!
//! | info string | test |
//! | --- | --- |
//! | `sh` | runs it ([`commands`]) |
//! | `sh cluster` | runs it on the cluster of the end-to-end tests |
//! | `sh dry-run` | runs it, but `make` only prints commands and `helm install` renders the chart |
//! | `sh no-test: REASON` | none |
//! | `console` | runs the lines after `$ `; they must print the other lines; `...` matches all |
//! | `console numbers vary: REASON` | the same, but a number matches any number |
//! | `console fails` | the same, but the commands must fail |
//! | `console snapshot=FILE` | compares the lines with a snapshot of another test |
//! | `yaml` | validates it as a manifest, or as a part of a job's `spec` ([`manifests`]) |
//! | `yaml values` | renders the chart with it |
//! | `yaml no-test: REASON` | none |
//! | `promql` | promtool parses it |
//! | `... file=NAME` | writes it to this file before later commands |

pub mod commands;
pub mod manifests;
pub mod output;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use fs_err as fs;
use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};

use crate::root;

/// Folders with pages, in addition to the root.
const FOLDERS: [&str; 3] = ["docs", "charts", "examples"];

/// A page.
#[derive(Clone, Debug)]
pub struct Page {
    /// Relative to the root of the source tree.
    pub path: PathBuf,
    /// Anchors of its headings, as GitHub names them.
    pub anchors: BTreeSet<String>,
    /// Its headings that are only code.
    pub code_headings: Vec<Text>,
    /// Targets of its links and pictures.
    pub links: Vec<Text>,
    /// Code within its sentences.
    pub code: Vec<Text>,
    /// Its fenced blocks.
    pub blocks: Vec<Block>,
}

/// A text on a page.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Text {
    /// From 1.
    pub line: usize,
    /// The text.
    pub text: String,
}

/// A fenced block.
#[derive(Clone, Debug)]
pub struct Block {
    /// The first line of its content, from 1.
    pub line: usize,
    /// Its info string.
    pub info: String,
    /// Its content.
    pub text: String,
    /// Whether its end has not been parsed yet.
    is_open: bool,
}

impl Block {
    /// A block outside a page.
    #[cfg(test)]
    pub(crate) fn new(info: &str, text: &str) -> Self {
        Self {
            line: 1,
            info: info.into(),
            text: text.into(),
            is_open: false,
        }
    }

    /// The first word of the info string.
    pub fn language(&self) -> &str {
        self.info.split_whitespace().next().unwrap_or_default()
    }

    /// Its commands and their expected output. A console's commands are the lines after `$ ` and
    /// their continuations; other blocks consist of commands.
    pub fn parts(&self) -> (String, Vec<&str>) {
        if self.language() != "console" {
            return (self.text.clone(), vec![]);
        }
        let (mut commands, mut output) = (String::new(), vec![]);
        let mut continues = false;
        for line in self.text.lines() {
            match line.strip_prefix("$ ").or(continues.then_some(line)) {
                Some(command) => {
                    commands += &format!("{command}\n");
                    continues = command.ends_with('\\');
                }
                None => output.push(line.trim_end()),
            }
        }
        (commands, output)
    }

    /// The name of the file to write the block to, if any.
    pub fn file(&self) -> Option<&str> {
        self.info
            .split_whitespace()
            .find_map(|word| word.strip_prefix("file="))
    }
}

/// All pages, sorted by path.
pub fn pages() -> Result<Vec<Page>> {
    let root = root();
    let mut paths = Vec::new();
    for entry in fs::read_dir(&root)? {
        let path = entry?.path();
        if path.is_file() {
            paths.push(path);
        }
    }
    for folder in FOLDERS {
        files_below(&root.join(folder), &mut paths)?;
    }
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    paths.sort();
    let mut pages = Vec::new();
    for path in paths {
        let text = fs::read_to_string(&path)?;
        pages.push(Page::parse(path.strip_prefix(&root)?, &text));
    }
    ensure!(pages.len() > 10, "only {} pages", pages.len());
    Ok(pages)
}

/// A page, by its path from the root of the source tree.
pub fn page(path: &str) -> Result<Page> {
    let text = fs::read_to_string(root().join(path))?;
    Ok(Page::parse(Path::new(path), &text))
}

/// The manifests of jobs in `examples/`, sorted by name.
pub fn examples() -> Result<Vec<PathBuf>> {
    let paths = manifests_in(&root().join("examples"))?;
    ensure!(paths.len() > 2, "only {} examples", paths.len());
    Ok(paths)
}

/// The manifests of studies in `examples/studies/`.
pub fn studies() -> Result<Vec<PathBuf>> {
    manifests_in(&root().join("examples/studies"))
}

/// The manifests in a folder, without subfolders.
fn manifests_in(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "yaml") {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

/// Adds all files of a folder and its subfolders.
pub fn files_below(folder: &Path, paths: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            files_below(&path, paths)?;
        } else {
            paths.push(path);
        }
    }
    Ok(())
}

impl Page {
    fn parse(path: &Path, text: &str) -> Self {
        let mut page = Self {
            path: path.to_owned(),
            anchors: BTreeSet::new(),
            code_headings: vec![],
            links: vec![],
            code: vec![],
            blocks: vec![],
        };
        // The current heading: its text, and whether it is only code.
        let mut heading: Option<(String, bool)> = None;
        let events = Parser::new_ext(text, Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH);
        for (event, range) in events.into_offset_iter() {
            let line = text[..range.start].matches('\n').count() + 1;
            let found = |text: &str| Text {
                line,
                text: text.to_owned(),
            };
            match event {
                Event::Start(Tag::Heading { .. }) => heading = Some((String::new(), true)),
                Event::End(TagEnd::Heading(_)) => {
                    let (text, is_code) = heading.take().unwrap_or_default();
                    page.add_anchor(&text);
                    if is_code {
                        page.code_headings.push(found(&text));
                    }
                }
                Event::Code(code) => {
                    if let Some((text, _)) = &mut heading {
                        text.push_str(&code);
                    }
                    page.code.push(found(&code));
                }
                Event::Text(words) => match (&mut heading, page.blocks.last_mut()) {
                    (Some((text, is_code)), _) => {
                        text.push_str(&words);
                        *is_code = false;
                    }
                    (None, Some(block)) if block.is_open => block.text.push_str(&words),
                    _ => {}
                },
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    page.links.push(found(&dest_url));
                }
                Event::Start(Tag::CodeBlock(kind)) => page.blocks.push(Block {
                    line: line + 1,
                    info: match kind {
                        CodeBlockKind::Fenced(info) => info.into_string(),
                        CodeBlockKind::Indented => String::new(),
                    },
                    text: String::new(),
                    is_open: true,
                }),
                Event::End(TagEnd::CodeBlock) => {
                    if let Some(block) = page.blocks.last_mut() {
                        block.is_open = false;
                    }
                }
                _ => {}
            }
        }
        page
    }

    /// Adds a heading's anchor as GitHub names it: lowercase, without punctuation, with dashes for
    /// spaces, and with a number if the name exists.
    fn add_anchor(&mut self, heading: &str) {
        let kept = heading.to_lowercase().replace(' ', "-");
        let kept: String = kept
            .chars()
            .filter(|letter| letter.is_alphanumeric() || matches!(letter, '-' | '_'))
            .collect();
        let numbered = (1..).map(|number| format!("{kept}-{number}"));
        let mut names = std::iter::once(kept.clone()).chain(numbered);
        if let Some(name) = names.find(|name| !self.anchors.contains(name)) {
            self.anchors.insert(name);
        }
    }

    /// Checks that the target of a link on this page exists. URLs are not checked.
    pub fn check_link(&self, link: &Text, pages: &[Self]) -> Result<()> {
        if link.text.contains("://") || link.text.starts_with("mailto:") {
            return Ok(());
        }
        let (path, anchor) = match link.text.split_once('#') {
            Some((path, anchor)) => (path, Some(anchor)),
            None => (link.text.as_str(), None),
        };
        let target = if path.is_empty() {
            self.path.clone()
        } else {
            resolved(self.path.parent().unwrap_or(Path::new("")).join(path))
        };
        ensure!(root().join(&target).exists(), "there is no {}", target.display());
        if let Some(anchor) = anchor {
            let page = pages.iter().find(|page| page.path == target);
            let page = page.with_context(|| format!("{} is not a page", target.display()))?;
            ensure!(
                page.anchors.contains(anchor),
                "{} has no heading for #{anchor}",
                target.display()
            );
        }
        Ok(())
    }
}

/// A path without its `..` and `.`.
fn resolved(path: PathBuf) -> PathBuf {
    let mut resolved = PathBuf::new();
    for part in path.components() {
        match part {
            std::path::Component::ParentDir => {
                resolved.pop();
            }
            std::path::Component::CurDir => {}
            part => resolved.push(part),
        }
    }
    resolved
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_anchors_links_and_blocks_with_their_lines() {
        let page = Page::parse(
            Path::new("docs/a.md"),
            "# One `two`, three\n\n## One\n\n## One\n\n### `the message`\n\nSee [b](../b.md#x).\n\n```sh no-test: slow\nrun\n```\n",
        );
        let anchors: Vec<&str> = page.anchors.iter().map(String::as_str).collect();
        assert_eq!(anchors, ["one", "one-1", "one-two-three", "the-message"]);
        assert_eq!(page.code_headings[0].text, "the message");
        assert_eq!(
            (page.links[0].line, page.links[0].text.as_str()),
            (9, "../b.md#x")
        );
        let block = &page.blocks[0];
        assert_eq!(
            (block.line, block.language(), block.text.as_str()),
            (12, "sh", "run\n")
        );
    }

    #[test]
    fn a_link_to_what_is_not_there_is_found() {
        let link = |target: &str| Text {
            line: 1,
            text: target.into(),
        };
        let page = page("docs/data.md").expect("a page");
        let pages = [page.clone()];
        for good in [
            "data.md#formats",
            "#formats",
            "../README.md",
            "https://example.com/x",
        ] {
            page.check_link(&link(good), &pages).expect(good);
        }
        for bad in ["datum.md", "#format", "../docs/data.md#nowhere", "../../data.md"] {
            assert!(page.check_link(&link(bad), &pages).is_err(), "{bad} is accepted");
        }
    }
}
