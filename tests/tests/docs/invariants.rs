//! A test names each invariant of ARCHITECTURE.md that it checks: `/// Invariant G4.`

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use vit_tests::documentation::files_below;
use vit_tests::root;

use crate::messages::Test;

pub(crate) const TESTS: &[(&str, Test)] = &[("each invariant is named by a test", named)];

/// Folders with tests.
const FOLDERS: [&str; 7] = [
    "agent/src",
    "contract/src",
    "operator/src",
    "planner/src",
    "tests/tests",
    "trainer/src",
    "trainer/torch-ext/src",
];

/// The numbers in lines that begin with this, after any indentation.
fn numbers(text: &str, prefix: &str) -> BTreeSet<u32> {
    let rests = text
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix(prefix));
    rests
        .filter_map(|rest| {
            rest.split(|letter: char| !letter.is_ascii_digit())
                .next()?
                .parse()
                .ok()
        })
        .collect()
}

fn named() -> Result<()> {
    let page = fs_err::read_to_string(root().join("ARCHITECTURE.md"))?;
    let listed = numbers(&page, "- **G");
    ensure!(!listed.is_empty(), "ARCHITECTURE.md lists no invariants");
    let mut files = vec![];
    for folder in FOLDERS {
        files_below(&root().join(folder), &mut files)?;
    }
    let mut named = BTreeSet::new();
    for file in files
        .iter()
        .filter(|file| file.extension().is_some_and(|end| end == "rs"))
    {
        let text = fs_err::read_to_string(file).with_context(|| format!("{}", file.display()))?;
        named.extend(numbers(&text, "/// Invariant G"));
    }
    let unnamed: Vec<_> = listed.difference(&named).collect();
    let unknown: Vec<_> = named.difference(&listed).collect();
    ensure!(
        unnamed.is_empty() && unknown.is_empty(),
        "no test names the invariants {unnamed:?} of ARCHITECTURE.md; tests name {unknown:?}, which it lacks"
    );
    Ok(())
}
