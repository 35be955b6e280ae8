//! Tests of the pages: links, manifests, commands, explained messages, generated references, and the
//! saved study.
//! Needs the built programs, but no cluster; `api_server` and `end_to_end` apply manifests and run
//! cluster commands.
//!
//! `vit_tests::documentation` lists the tests of blocks. `UPDATE_EXPECT=1` updates generated pages.

mod gitops;
mod invariants;
mod messages;
mod reference;
mod studies;
mod words;

use std::process::Command;

use anyhow::{Result, ensure};
use libtest_mimic::{Arguments, Failed, Trial};
use vit_tests::binaries::Binaries;
use vit_tests::documentation::commands::{Fate, Place, Session, compare_with_snapshot, fate};
use vit_tests::documentation::{self, Block, Page, Text, manifests};
use vit_tests::{command, packages, root};

/// Folders of the source tree: inline code that begins with one of them is a path.
const FOLDERS: [&str; 7] = [
    "charts/",
    "crds/",
    "docs/",
    "examples/",
    "operator/",
    "scripts/",
    "tests/",
];

/// Most dry-run blocks: commands that build images or install the chart, which a test only prints.
const DRY_RUNS: usize = 13;

fn main() -> Result<()> {
    let arguments = Arguments::from_args();
    let pages = documentation::pages()?;
    let mut trials = vec![];
    for page in &pages {
        let name = page.path.display().to_string();
        let all = pages.clone();
        trials.push(trial(format!("links of {name}"), page, move |page| {
            links(page, &all)
        }));
        trials.push(trial(format!("manifests of {name}"), page, manifests_of));
        trials.push(trial(format!("marks of {name}"), page, marks));
        let is_run = |block| {
            matches!(
                fate(block),
                Ok(Fate::Run(Place::Here) | Fate::DryRun | Fate::Fail)
            )
        };
        if page.blocks.iter().any(is_run) {
            trials.push(trial(format!("commands of {name}"), page, commands));
        }
    }
    trials.push(Trial::test("few commands are a dry run", move || {
        tried(dry_runs(&pages))
    }));
    for path in documentation::examples()? {
        let name = path.strip_prefix(root())?.display().to_string();
        trials.push(Trial::test(name, move || {
            tried(
                fs_err::read_to_string(&path)
                    .map_err(Into::into)
                    .and_then(example),
            )
        }));
    }
    for path in documentation::studies()? {
        let name = path.strip_prefix(root())?.display().to_string();
        trials.push(Trial::test(name, move || {
            tried(
                fs_err::read_to_string(&path)
                    .map_err(Into::into)
                    .and_then(|text| study(&text)),
            )
        }));
    }
    let tests = [
        gitops::TESTS,
        invariants::TESTS,
        messages::TESTS,
        reference::TESTS,
        studies::TESTS,
        words::TESTS,
    ];
    for (name, test) in tests.concat() {
        trials.push(Trial::test(name, move || tried(test())));
    }
    libtest_mimic::run(&arguments, trials).exit();
}

fn trial(name: String, page: &Page, test: impl FnOnce(&Page) -> Result<()> + Send + 'static) -> Trial {
    let page = page.clone();
    Trial::test(name, move || tried(test(&page)))
}

fn tried(outcome: Result<()>) -> Result<(), Failed> {
    outcome.map_err(|error| format!("{error:#}").into())
}

/// Fails with all complaints at once.
fn none(complaints: Vec<String>) -> Result<()> {
    ensure!(complaints.is_empty(), "{}", complaints.join("\n"));
    Ok(())
}

fn links(page: &Page, pages: &[Page]) -> Result<()> {
    let complaint = |text: &Text, error: &dyn std::fmt::Display| {
        format!("{}:{}: {}: {error}", page.path.display(), text.line, text.text)
    };
    let links = page
        .links
        .iter()
        .filter_map(|link| Some(complaint(link, &page.check_link(link, pages).err()?)));
    let is_path = |code: &&Text| {
        FOLDERS.iter().any(|folder| code.text.starts_with(folder))
            && !code
                .text
                .contains(|c: char| c.is_whitespace() || "*<{".contains(c))
    };
    let paths = page
        .code
        .iter()
        .filter(is_path)
        .filter(|code| !root().join(&code.text).exists())
        .map(|code| complaint(code, &"the file does not exist"));
    none(links.chain(paths).collect())
}

fn manifests_of(page: &Page) -> Result<()> {
    let mut complaints = vec![];
    for block in &page.blocks {
        let found = match block.info.as_str() {
            "yaml values" => render(&block.text),
            "promql" => parse(&block.text),
            _ => manifests::of_block(block)
                .and_then(|manifests| manifests.iter().try_for_each(manifests::Manifest::validate)),
        };
        if let Err(error) = found {
            complaints.push(format!("{}:{}: {error:#}", page.path.display(), block.line));
        }
    }
    none(complaints)
}

/// The chart accepts these values.
fn render(values: &str) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("values.yaml");
    fs_err::write(&file, values)?;
    let mut helm = Command::new(Binaries::build()?.path("helm"));
    helm.args(["template", "vit-operator", "--kube-version", "1.30.0"])
        .arg(root().join("charts/vit-operator"))
        .arg("-f")
        .arg(&file);
    command::run(&mut helm)?;
    Ok(())
}

/// Prometheus can parse this expression.
fn parse(expression: &str) -> Result<()> {
    let rule = serde_json::json!({"record": "documented", "expr": expression});
    let rules = serde_json::json!({"groups": [{"name": "documented", "rules": [rule]}]});
    let file = tempfile::NamedTempFile::new()?;
    fs_err::write(file.path(), rules.to_string())?;
    let mut promtool = Command::new(packages::prometheus()?.with_file_name("promtool"));
    promtool.args(["check", "rules"]).arg(file.path());
    command::run(&mut promtool)?;
    Ok(())
}

/// Limits the number of blocks whose `make` and `helm` do not run.
fn dry_runs(pages: &[Page]) -> Result<()> {
    let of_page = |page: &Page| {
        let blocks = page
            .blocks
            .iter()
            .filter(|block| matches!(fate(block), Ok(Fate::DryRun)));
        let place = |block: &Block| format!("{}:{}: {}", page.path.display(), block.line, block.text.trim());
        blocks.map(place).collect::<Vec<_>>()
    };
    let places: Vec<String> = pages.iter().flat_map(of_page).collect();
    ensure!(
        places.len() <= DRY_RUNS,
        "{} blocks:\n{}",
        places.len(),
        places.join("\n")
    );
    Ok(())
}

/// Every block with commands has a valid mark, and snapshot blocks match their snapshots.
fn marks(page: &Page) -> Result<()> {
    let complaint = |block: &Block, error: &dyn std::fmt::Display| {
        format!("{}:{}: {error}", page.path.display(), block.line)
    };
    let wrong = page
        .blocks
        .iter()
        .filter_map(|block| Some(complaint(block, &fate(block).err()?)));
    let unmarked = page
        .blocks
        .iter()
        .filter(|block| {
            page.path.starts_with("docs") && block.info.is_empty() && block.text.starts_with("$ ")
        })
        .map(|block| {
            complaint(
                block,
                &"commands in a block without a language: it should be `console`",
            )
        });
    let stale = page
        .blocks
        .iter()
        .filter(|block| matches!(fate(block), Ok(Fate::Snapshot)));
    let stale = stale.filter_map(|block| Some(complaint(block, &compare_with_snapshot(block).err()?)));
    none(wrong.chain(unmarked).chain(stale).collect())
}

fn commands(page: &Page) -> Result<()> {
    let ran = Session::new()?.follow(page, Place::Here)?;
    ensure!(ran > 0, "no command ran");
    Ok(())
}

/// The manifest is one valid study.
fn study(text: &str) -> Result<()> {
    let found = manifests::parse(text)?;
    let are_studies = found
        .iter()
        .all(|manifest| matches!(manifest, manifests::Manifest::Study(_)));
    ensure!(are_studies && found.len() == 1, "not one study");
    found.iter().try_for_each(manifests::Manifest::validate)
}

/// A manifest of `examples/` begins with its usage, is valid, and has one job.
fn example(text: String) -> Result<()> {
    let header: Vec<&str> = text.lines().take_while(|line| line.starts_with('#')).collect();
    let command = "#   kubectl apply -f examples/";
    ensure!(
        header.len() > 4 && header.iter().any(|line| line.starts_with(command)),
        "its first comment has no {command:?}"
    );
    let found = manifests::parse(&text)?;
    found.iter().try_for_each(manifests::Manifest::validate)?;
    let is_job = |manifest: &&manifests::Manifest| matches!(manifest, manifests::Manifest::Job(_));
    let jobs = found.iter().filter(is_job).count();
    ensure!(jobs == 1, "{jobs} jobs");
    Ok(())
}
