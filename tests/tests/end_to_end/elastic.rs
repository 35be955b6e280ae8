//! A gang that trains on all available nodes.

use anyhow::{Context as _, Result, ensure};
use contract::RunConfig;
use serde_json::json;

use crate::context::{Context, Namespace};
use crate::steps::{check_attempts, nodes_of};

/// The nodes with identical GPUs.
const IDENTICAL_NODES: [&str; 3] = ["node0", "node1", "node2"];

/// Optimizer steps between checkpoints.
const EVERY_STEPS: i64 = 50;

pub(crate) fn elastic_gang_shrinks_with_a_node_and_grows_again(context: &Context<'_>) -> Result<()> {
    let namespace = context.namespace("elastic")?;
    namespace.create(
        "digits",
        json!({
            // More than it completes, however fast this machine is.
            "training": {"epochs": 5000},
            "elastic": {},
            "checkpoint": {"everySteps": EVERY_STEPS},
            "failurePolicy": {"nodeLostSeconds": 5},
        }),
    )?;
    let nodes = nodes_of(&namespace.wait_checkpoint("digits")?)?;
    ensure!(nodes.len() == 2, "nodes: {nodes:?}");
    let whole = run_config(&namespace, 1)?;
    let lost = nodes.last().context("no nodes")?;
    // Without the spare node, the gang cannot keep its size.
    let spare = IDENTICAL_NODES
        .into_iter()
        .find(|node| nodes.iter().all(|taken| taken != node))
        .context("no spare node")?;
    context.kubectl(["cordon", spare])?;
    let ran = shrink_and_grow(context, &namespace, lost, &whole);
    context.kubectl(["uncordon", spare])?;
    ran
}

fn shrink_and_grow(
    context: &Context<'_>,
    namespace: &Namespace<'_>,
    lost: &str,
    whole: &RunConfig,
) -> Result<()> {
    context.cluster.kill_node(lost)?;
    let shrunken = namespace.wait_attempt("digits", 2);
    let config = run_config(namespace, 2);
    context.block_on(context.cluster.start_node(lost))?;
    let nodes = nodes_of(&shrunken?)?;
    ensure!(nodes.len() == 1 && nodes[0] != lost, "nodes: {nodes:?}");
    let config = config?;
    ensure!(
        config.nodes == 1 && config.global_batch_size() == whole.global_batch_size(),
        "{config:?} does not train like {whole:?}"
    );

    let grown = namespace.wait("digits", "has grown again", |status| status.attempt == 3)?;
    ensure!(nodes_of(&grown)?.len() == 2, "{:?}", grown.placement);
    let steps = namespace.check_continues("digits")?;
    // Growing is not a failure.
    check_attempts(&namespace.status("digits")?, 3, 1)?;
    // Growing stops the gang right after a checkpoint. The node's death costs the steps after the
    // last checkpoint, or the one before if that was still being written.
    ensure!(
        steps.again < 2 * EVERY_STEPS,
        "{} steps were repeated",
        steps.again
    );
    Ok(())
}

/// The trainer's configuration in an attempt.
fn run_config(namespace: &Namespace<'_>, attempt: i32) -> Result<RunConfig> {
    let name = format!("digits-{attempt}");
    let json = namespace.kubectl(["get", "configmap", &name, "-o", r"jsonpath={.data.run\.json}"])?;
    Ok(serde_json::from_str(&json)?)
}
