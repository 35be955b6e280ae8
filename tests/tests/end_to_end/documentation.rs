//! Runs the pages' commands for a cluster, as a reader would.

use anyhow::{Context as _, Result, ensure};
use vit_tests::command;
use vit_tests::documentation::commands::{Fate, Place, Session, fate};
use vit_tests::documentation::{self, Page};

use crate::context::Context;

const GETTING_STARTED: &str = "docs/getting-started.md";

pub(crate) fn commands_of_getting_started_work(context: &Context<'_>) -> Result<()> {
    let page = documentation::page(GETTING_STARTED)?;
    follow(context, "getting-started", &[page])
}

/// All other pages with such commands.
pub(crate) fn commands_of_how_tos_work(context: &Context<'_>) -> Result<()> {
    let is_for_cluster = |page: &Page| {
        let is = |block| matches!(fate(block), Ok(Fate::Run(Place::Cluster)));
        !page.path.ends_with(GETTING_STARTED) && page.blocks.iter().any(is)
    };
    let pages: Vec<Page> = documentation::pages()?
        .into_iter()
        .filter(is_for_cluster)
        .collect();
    ensure!(pages.len() > 2, "only {pages:?}");
    follow(context, "how-tos", &pages)
}

/// Runs the commands of pages in a namespace with the examples' claims, `kubectl`'s default.
fn follow(context: &Context<'_>, name: &str, pages: &[Page]) -> Result<()> {
    let namespace = context.namespace(name)?;
    let kubeconfig = namespace.folder.join("kubeconfig");
    fs_err::copy(context.cluster.kubeconfig(), &kubeconfig)?;
    let mut kubectl = context.cluster.kubectl();
    kubectl.env("KUBECONFIG", &kubeconfig).args([
        "config",
        "set-context",
        "--current",
        "--namespace",
        &namespace.name,
    ]);
    command::run(&mut kubectl)?;
    let session = Session::on_cluster(&kubeconfig)?;
    for page in pages {
        let ran = session
            .follow(page, Place::Cluster)
            .with_context(|| page.path.display().to_string())?;
        ensure!(ran > 0, "no command of {} ran", page.path.display());
    }
    Ok(())
}
