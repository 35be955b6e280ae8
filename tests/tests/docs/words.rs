//! Figures, lengths and English of the pages and of what programs print, and what the pictures show.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use vit_tests::documentation;
use vit_tests::root;

use crate::messages::{self, Test};

pub(crate) const TESTS: &[(&str, Test)] = &[
    ("README quotes figures of docs/performance.md", figures),
    ("README and guides are short", lengths),
    ("no text reads as translated", english),
    ("pictures of dashboards show panels that exist", panels),
    ("the picture of the terminal shows lines that exist", terminal),
];

const README_WORDS: usize = 900;
const GUIDES_WORDS: usize = 28_000;

/// Words of translated English, and what to write.
const TICS: &[(&str, &str)] = &[
    ("tell", "report, show, print"),
    ("tells", "reports, shows, prints"),
    ("told", "reported, shown"),
    ("anew", "again"),
    ("once more", "again"),
    ("of its own", "nothing, or separate"),
    ("by its own", "nothing"),
    ("of their own", "nothing, or separate"),
    ("like gpus", "identical GPUs"),
    ("like nodes", "identical nodes"),
    ("gives back", "returns, releases"),
    ("give back", "return, release"),
    ("lets go", "releases"),
    ("hands over", "passes"),
    ("under way", "running"),
    ("gets on", "makes progress"),
    ("stands still", "is stuck, pauses"),
    ("goes on", "continues"),
    ("go on", "continue"),
    ("at hand", "available"),
    ("is no", "is not a"),
    ("are no", "are not"),
    ("is there", "exists"),
];
/// Idioms that begin as one of them does.
const IDIOMS: &[&str] = &[
    "there is no",
    "there are no",
    "is no longer",
    "are no longer",
    "is no more than",
    "is no larger than",
];

fn read(path: &str) -> Result<String> {
    Ok(fs_err::read_to_string(root().join(path))?)
}

/// What has a digit, without the punctuation around it.
fn numbers(text: &str) -> BTreeSet<&str> {
    text.split(|sign: char| !(sign.is_ascii_digit() || sign == '.' || sign == ','))
        .map(|part| part.trim_matches(['.', ',']))
        .filter(|part| !part.is_empty())
        .collect()
}

fn figures() -> Result<()> {
    let (readme, performance) = (read("README.md")?, read("docs/performance.md")?);
    let (_, measured) = readme.split_once("## Measured").context("a section Measured")?;
    let (measured, _) = measured.split_once("\n## ").context("a section after it")?;
    // The right-hand cells: those on the left say what was measured.
    let cells = measured.lines().filter_map(|line| line.split('|').nth(2));
    let quoted: Vec<&str> = cells.flat_map(numbers).collect();
    ensure!(quoted.len() > 15, "only {quoted:?}");
    let known = numbers(&performance);
    let unknown: Vec<_> = quoted
        .into_iter()
        .filter(|number| !known.contains(number))
        .collect();
    ensure!(
        unknown.is_empty(),
        "docs/performance.md does not have {unknown:?}"
    );
    Ok(())
}

fn lengths() -> Result<()> {
    let words = |path: &Path| {
        Ok::<_, anyhow::Error>(
            fs_err::read_to_string(root().join(path))?
                .split_whitespace()
                .count(),
        )
    };
    let readme = words(Path::new("README.md"))?;
    ensure!(
        readme <= README_WORDS,
        "README.md has {readme} words, more than {README_WORDS}"
    );
    let mut guides = 0;
    for page in documentation::pages()? {
        if page.path.starts_with("docs") && !page.path.starts_with("docs/reference") {
            guides += words(&page.path)?;
        }
    }
    ensure!(
        (GUIDES_WORDS / 2..=GUIDES_WORDS).contains(&guides),
        "the guides have {guides} words, which may be {GUIDES_WORDS}"
    );
    Ok(())
}

/// The tics in a text, each with what to write in its place.
fn tics(text: &str) -> Vec<String> {
    let mut text = format!(
        " {} ",
        text.split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
            .to_lowercase()
    );
    for idiom in IDIOMS {
        text = text.replace(idiom, "");
    }
    let is_whole = |start: usize, end: usize| {
        let is_word =
            |sign: Option<char>| sign.is_some_and(|sign| sign.is_alphanumeric() || "-_".contains(sign));
        !is_word(text[..start].chars().next_back()) && !is_word(text[end..].chars().next())
    };
    let found = TICS.iter().filter(|(tic, _)| {
        text.match_indices(tic)
            .any(|(start, _)| is_whole(start, start + tic.len()))
    });
    found
        .map(|(tic, better)| format!("{tic:?} (write: {better})"))
        .collect()
}

fn english() -> Result<()> {
    let mut complaints = vec![];
    let mut check = |place: &str, text: &str| {
        for tic in tics(text) {
            complaints.push(format!(
                "{place}: {tic} in {:?}",
                text.trim().chars().take(120).collect::<String>()
            ));
        }
    };
    for page in documentation::pages()? {
        let path = page.path.display().to_string();
        for (number, line) in read(&path)?.lines().enumerate() {
            check(&format!("{path}:{}", number + 1), line);
        }
    }
    for path in [
        "charts/vit-operator/values.yaml",
        "charts/vit-operator/files/rules.yaml",
        "charts/vit-operator/Chart.yaml",
    ] {
        for (number, line) in read(path)?.lines().enumerate() {
            check(&format!("{path}:{}", number + 1), line);
        }
    }
    for folder in messages::SOURCES
        .iter()
        .chain(&["plugin/src", "dashboards/src", "objects/src"])
    {
        // One word is a name.
        for text in messages::strings(&[folder])?
            .iter()
            .filter(|text| text.contains(' '))
        {
            check(folder, text);
        }
    }
    crate::none(complaints)
}

/// Files of docs/pictures with this ending.
fn beside_pictures(ending: &str) -> Result<Vec<std::path::PathBuf>> {
    let mut paths = vec![];
    documentation::files_below(&root().join("docs/pictures"), &mut paths)?;
    paths.retain(|path| path.extension().is_some_and(|extension| extension == ending));
    ensure!(
        !paths.is_empty(),
        "docs/pictures has no *.{ending}: make pictures"
    );
    Ok(paths)
}

fn panels() -> Result<()> {
    let mut known = BTreeSet::new();
    for name in ["fleet", "training-job"] {
        let dashboard = read(&format!("charts/vit-operator/files/dashboards/{name}.json"))?;
        let dashboard: Value = serde_json::from_str(&dashboard)?;
        let panels = dashboard["panels"].as_array().context("panels")?;
        known.extend(
            panels
                .iter()
                .filter_map(|panel| panel["title"].as_str())
                .map(str::to_owned),
        );
    }
    for path in beside_pictures("panels")? {
        ensure!(
            path.with_extension("png").is_file(),
            "{} has no picture",
            path.display()
        );
        let shown = fs_err::read_to_string(&path)?;
        let gone: Vec<_> = shown.lines().filter(|title| !known.contains(*title)).collect();
        ensure!(
            gone.is_empty(),
            "{} shows {gone:?}, which no dashboard has: make pictures",
            path.display()
        );
    }
    Ok(())
}

/// A line of `kubectl vit` that begins with a label and spaces.
fn label(line: &str) -> Option<&str> {
    let (label, rest) = line.trim_start().split_once("  ")?;
    let is_label =
        !rest.trim().is_empty() && label.chars().all(|sign| sign.is_ascii_lowercase() || sign == ' ');
    is_label.then_some(label)
}

fn terminal() -> Result<()> {
    let mut snapshots = vec![];
    documentation::files_below(&root().join("plugin/src"), &mut snapshots)?;
    snapshots.retain(|path| path.extension().is_some_and(|extension| extension == "snap"));
    let mut known = BTreeSet::new();
    for path in snapshots {
        known.extend(
            fs_err::read_to_string(path)?
                .lines()
                .filter_map(label)
                .map(str::to_owned),
        );
    }
    for path in beside_pictures("txt")? {
        ensure!(
            path.with_extension("png").is_file(),
            "{} has no picture",
            path.display()
        );
        let shown = fs_err::read_to_string(&path)?;
        let labels: BTreeSet<&str> = shown.lines().filter_map(label).collect();
        ensure!(labels.len() > 5, "{}: only {labels:?}", path.display());
        let gone: Vec<_> = labels
            .into_iter()
            .filter(|label| !known.contains(*label))
            .collect();
        ensure!(
            gone.is_empty(),
            "{} shows {gone:?}, which kubectl vit does not print: make pictures",
            path.display()
        );
    }
    Ok(())
}
