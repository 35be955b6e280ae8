//! The GPUs as tables.

use crds::status::Refusal;

use super::{Group, Report, SeenNode};
use crate::paint::Paint;
use crate::text::{bar, counted, mebibytes, or_dash, table, wrapped};

/// Maximum number of nodes listed per group; larger groups show counts per state.
const NODES: usize = 24;
/// Cells of the usage bar.
const BAR: usize = 10;

/// Groups in a table, then the nodes of each.
pub(super) fn render(report: &Report, is_wide: bool, paint: Paint) -> String {
    let wanted = format!("{} x {}", report.gpus_per_node, report.gpu_resource);
    let asked = match &report.asked_by {
        Some(job) => format!("For {job}, which requests {wanted} per node:"),
        None => format!("For a pod that requests only {wanted}:"),
    };
    let mut text = format!("{}\n\n", paint.dim(asked));
    if report.groups.is_empty() {
        text = format!("No node has {}.\n", report.gpu_resource);
    } else {
        let rows = report.groups.iter().map(|group| summary(group, report, paint));
        let header = [
            "GPU",
            "MEMORY",
            "DRIVER",
            "A NODE",
            "NODES",
            "GPUS",
            "USED",
            "FREE",
            "NODES THAT FIT",
            "",
        ];
        text += &table(&header, &rows.collect::<Vec<_>>());
        for group in &report.groups {
            text += &format!("\n{}\n", nodes(group, report, is_wide, paint));
        }
    }
    let mut notes = vec![];
    if report.nodes_without > 0 && !report.groups.is_empty() {
        let nodes = counted(report.nodes_without as i64, "node");
        notes.push(format!("{nodes} without {}", report.gpu_resource));
    }
    if !report.other_resources.is_empty() {
        notes.push(format!(
            "there are nodes with {}: --gpu-resource shows them",
            report.other_resources.join(", ")
        ));
    }
    if let Some(why) = &report.use_unknown {
        notes.push(format!("usage is unknown, so all GPUs count as free: {why}"));
    }
    if !notes.is_empty() && !report.groups.is_empty() {
        text.push('\n');
    }
    for note in notes {
        text += &format!("{}\n", paint.dim(wrapped(&note, paint.width, 0)));
    }
    text
}

fn name(group: &Group) -> String {
    let labels = group.gpus.labels.iter();
    let more: String = labels.map(|(key, value)| format!(" {key}={value}")).collect();
    match group.gpus.product.as_str() {
        "" => format!("(unknown){more}"),
        product => format!("{product}{more}"),
    }
}

fn summary(group: &Group, report: &Report, paint: Paint) -> Vec<String> {
    let fitting = group.nodes.iter().filter(|node| node.refused.is_none()).count();
    let is_known = report.use_unknown.is_none();
    let known = |number: i64| if is_known { number.to_string() } else { "?".into() };
    let share = group.used as f64 / group.capacity.max(1) as f64;
    let free = known(group.free);
    vec![
        paint.accent(name(group)),
        or_dash(group.gpus.memory_mebibytes.map(mebibytes)),
        or_dash(group.gpus.driver_major.clone()),
        group.gpus.gpus_per_node.to_string(),
        group.nodes.len().to_string(),
        group.capacity.to_string(),
        known(group.used),
        if group.free > 0 {
            paint.good(free)
        } else {
            paint.warning(free)
        },
        fitting.to_string(),
        if is_known { bar(share, BAR) } else { String::new() },
    ]
}

fn nodes(group: &Group, report: &Report, is_wide: bool, paint: Paint) -> String {
    if !is_wide && group.nodes.len() > NODES {
        let hint = paint.dim("-o wide lists every node");
        return format!("{}: {}\n{hint}", name(group), counts(&group.nodes));
    }
    let row = |node: &SeenNode| {
        let used = match report.use_unknown {
            Some(_) => format!("?/{}", node.capacity),
            None => format!("{}/{}", node.used, node.capacity),
        };
        vec![
            node.name.clone(),
            used,
            state(node, paint),
            holders(node, is_wide),
        ]
    };
    let rows: Vec<Vec<String>> = group.nodes.iter().map(row).collect();
    let text = table(&[name(group).as_str(), "USED", "STATE", "HELD BY"], &rows);
    text.trim_end().to_owned()
}

fn state(node: &SeenNode, paint: Paint) -> String {
    match &node.refused {
        None => paint.good(format!("fits, {} free", node.allocatable - node.used)),
        Some(refusal) if node.is_busy => paint.warning(refusal),
        Some(refusal) => paint.bad(refusal),
    }
}

/// Pods if wide, otherwise their jobs.
fn holders(node: &SeenNode, is_wide: bool) -> String {
    let held = node.holders.iter().map(|holder| {
        let name = if is_wide { &holder.pod } else { job_of(&holder.pod) };
        format!("{name} ({})", holder.gpus)
    });
    held.collect::<Vec<_>>().join(", ")
}

/// The job in the name of a gang's pod, `JOB-ATTEMPT-NODERANK`; other names are unchanged.
fn job_of(pod: &str) -> &str {
    let number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    match pod.rsplitn(3, '-').collect::<Vec<_>>()[..] {
        [node_rank, attempt, job] if number(node_rank) && number(attempt) => job,
        _ => pod,
    }
}

/// Counts of fitting nodes, and of rejected ones by reason.
fn counts(nodes: &[SeenNode]) -> String {
    let mut counts: Vec<(Option<Refusal>, i64)> = vec![];
    for node in nodes {
        match counts.iter_mut().find(|(known, _)| *known == node.refused) {
            Some((_, count)) => *count += 1,
            None => counts.push((node.refused, 1)),
        }
    }
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let parts = counts.iter().map(|(refused, count)| match refused {
        None => format!("{} that fit", counted(*count, "node")),
        Some(refusal) => format!("{} {refusal}", counted(*count, "node")),
    });
    parts.collect::<Vec<_>>().join(", ")
}
