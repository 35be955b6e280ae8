//! Headings of the troubleshooting pages are messages of the source, with `...` for variable parts.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{Visit, visit_attribute, visit_item, visit_macro};
use vit_tests::documentation::{self, Page};
use vit_tests::root;

pub(crate) type Test = fn() -> Result<()>;

pub(crate) const TESTS: &[(&str, Test)] = &[
    ("messages that are explained are said", explained_are_said),
    ("messages of the trainer are explained", trainers_are_explained),
];

const PAGES: [&str; 2] = ["docs/troubleshooting.md", "docs/troubleshooting-trainer.md"];
/// Sources with user-visible messages.
pub(crate) const SOURCES: [&str; 8] = [
    "agent/src",
    "contract/src",
    "crds/src",
    "operator/src",
    "planner/src",
    "study/src",
    "study-report/src",
    "trainer/src",
];
/// Stands for variable text in a heading.
const VARIES: &str = "...";
/// Shorter parts of a message may match by chance.
const LEAST: usize = 5;

/// The strings of a source file, including macros and attributes, without its tests.
#[derive(Default)]
struct Strings {
    all: Vec<String>,
    /// The texts of `#[error("...")]`.
    errors: Vec<String>,
}

impl Strings {
    fn of(path: &Path) -> Result<Self> {
        let text = fs_err::read_to_string(path)?;
        let file = syn::parse_file(&text).with_context(|| path.display().to_string())?;
        let mut strings = Self::default();
        strings.visit_file(&file);
        Ok(strings)
    }

    fn take(&mut self, tokens: TokenStream) {
        for token in tokens {
            match token {
                TokenTree::Group(group) => self.take(group.stream()),
                TokenTree::Literal(literal) => {
                    if let Ok(text) = syn::parse_str::<syn::LitStr>(&literal.to_string()) {
                        self.all.push(text.value());
                    }
                }
                TokenTree::Ident(_) | TokenTree::Punct(_) => {}
            }
        }
    }
}

impl<'ast> Visit<'ast> for Strings {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        let is_test = |attribute: &syn::Attribute| {
            attribute.path().is_ident("cfg")
                && matches!(&attribute.meta, syn::Meta::List(list) if list.tokens.to_string() == "test")
        };
        match item {
            syn::Item::Mod(module) if module.attrs.iter().any(is_test) => {}
            item => visit_item(self, item),
        }
    }

    fn visit_lit_str(&mut self, text: &'ast syn::LitStr) {
        self.all.push(text.value());
    }

    fn visit_macro(&mut self, called: &'ast syn::Macro) {
        self.take(called.tokens.clone());
        visit_macro(self, called);
    }

    fn visit_attribute(&mut self, attribute: &'ast syn::Attribute) {
        if let syn::Meta::List(list) = &attribute.meta {
            let before = self.all.len();
            self.take(list.tokens.clone());
            if attribute.path().is_ident("error") {
                self.errors.extend_from_slice(&self.all[before..]);
            }
        }
        // Not the value of `doc = "..."`, which is a comment.
        if !attribute.path().is_ident("doc") {
            visit_attribute(self, attribute);
        }
    }
}

pub(crate) fn strings(folders: &[&str]) -> Result<Vec<String>> {
    let mut paths = vec![];
    for folder in folders {
        documentation::files_below(&root().join(folder), &mut paths)?;
    }
    paths.retain(|path| {
        path.extension().is_some_and(|extension| extension == "rs") && !path.ends_with("tests.rs")
    });
    ensure!(!paths.is_empty(), "no files in {folders:?}");
    let strings = paths.iter().map(|path| Ok(Strings::of(path)?.all));
    Ok(strings.collect::<Result<Vec<_>>>()?.concat())
}

/// Whether a message has all parts of a heading, in order.
fn says(message: &str, parts: &[&str]) -> bool {
    let mut rest = message;
    let mut found = |part: &&str| {
        let at = rest.find(part)?;
        rest = &rest[at + part.len()..];
        Some(())
    };
    !parts.is_empty() && parts.iter().all(|part| found(part).is_some())
}

fn parts(heading: &str) -> Vec<&str> {
    let parts = heading.split(VARIES).map(str::trim);
    parts.filter(|part| part.len() >= LEAST).collect()
}

fn explained_are_said() -> Result<()> {
    let strings = strings(&SOURCES)?;
    let mut unknown = vec![];
    for page in pages()? {
        let (path, headings) = (page.path.display(), &page.code_headings);
        ensure!(headings.len() > 10, "{path}: only {} messages", headings.len());
        for heading in headings {
            let parts = parts(&heading.text);
            if !strings.iter().any(|message| says(message, &parts)) {
                unknown.push(format!(
                    "{path}:{}: nothing says {:?}",
                    heading.line, heading.text
                ));
            }
        }
    }
    super::none(unknown)
}

fn pages() -> Result<Vec<Page>> {
    PAGES.into_iter().map(documentation::page).collect()
}

/// Each error of the trainer (`#[error("...")]`) that can end training has a heading.
fn trainers_are_explained() -> Result<()> {
    let pages = pages()?;
    let headings = pages.iter().flat_map(|page| &page.code_headings);
    let headings: Vec<Vec<&str>> = headings.map(|heading| parts(&heading.text)).collect();
    let mut missing = vec![];
    for file in [
        "trainer/src/error.rs",
        "trainer/src/data/error.rs",
        "trainer/src/checkpoint/error.rs",
    ] {
        let mut messages = Strings::of(&root().join(file))?.errors;
        // Some only forward another error's text.
        messages.retain(|message| {
            let mut own = message.split(['{', '}']).step_by(2);
            own.any(|part| part.trim().len() >= LEAST)
        });
        ensure!(messages.len() > 5, "{file}: only {messages:?}");
        messages.retain(|message| !headings.iter().any(|parts| says(message, parts)));
        missing.extend(
            messages
                .into_iter()
                .map(|message| format!("{file}: not explained: {message}")),
        );
    }
    super::none(missing)
}
