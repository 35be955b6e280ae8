//! The GPUs as tables.

use super::{Group, Report, SeenNode};
use crate::paint::Paint;
use crate::text::{bar, counted, mebibytes, table, wrapped};

/// Nodes of a group that are listed, at most; more are counted by what is said of them.
const NODES: usize = 24;
/// Cells of the bar of what is used.
const BAR: usize = 10;

/// Groups in a table, then the nodes of each.
pub(super) fn render(report: &Report, is_wide: bool, paint: Paint) -> String {
    let asked = match &report.asked_by {
        Some(job) => format!(
            "As {job} sees them, which wants {} x {} of a node:",
            report.gpus_per_node, report.gpu_resource
        ),
        None => format!(
            "As a pod sees them that wants {} x {} and nothing else:",
            report.gpus_per_node, report.gpu_resource
        ),
    };
    let mut text = format!("{}\n\n", paint.dim(asked));
    if report.groups.is_empty() {
        text = format!("No node has {}.\n", report.gpu_resource);
    } else {
        let rows: Vec<Vec<String>> = report
            .groups
            .iter()
            .map(|group| summary(group, report, paint))
            .collect();
        text += &table(
            &[
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
            ],
            &rows,
        );
        for group in &report.groups {
            text += &format!("\n{}\n", nodes(group, report, is_wide, paint));
        }
    }
    let mut notes = vec![];
    if report.nodes_without > 0 && !report.groups.is_empty() {
        notes.push(format!(
            "{} without {}",
            counted(report.nodes_without as i64, "node"),
            report.gpu_resource
        ));
    }
    if !report.other_resources.is_empty() {
        notes.push(format!(
            "there are nodes with {}: --gpu-resource shows them",
            report.other_resources.join(", ")
        ));
    }
    if let Some(why) = &report.use_unknown {
        notes.push(format!(
            "what is used is not known, and all counts as free: {why}"
        ));
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
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".into());
    let fitting = group.nodes.iter().filter(|node| node.refused.is_none()).count();
    let known = |number: i64| match report.use_unknown {
        Some(_) => "?".to_owned(),
        None => number.to_string(),
    };
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
        match report.use_unknown {
            Some(_) => String::new(),
            None => bar(share, BAR),
        },
    ]
}

fn nodes(group: &Group, report: &Report, is_wide: bool, paint: Paint) -> String {
    let mut text = String::new();
    let shown = if is_wide || group.nodes.len() <= NODES {
        group.nodes.len()
    } else {
        0
    };
    let mut rows = vec![];
    for node in group.nodes.iter().take(shown) {
        let mut row = vec![
            node.name.clone(),
            match report.use_unknown {
                Some(_) => format!("?/{}", node.capacity),
                None => format!("{}/{}", node.used, node.capacity),
            },
            state(node, paint),
        ];
        row.push(holders(node, is_wide));
        rows.push(row);
    }
    if shown > 0 {
        text += &table(&[name(group).as_str(), "USED", "STATE", "HELD BY"], &rows);
    } else {
        text += &format!("{}: {}\n", name(group), counts(&group.nodes));
        text += &paint.dim("-o wide lists every node");
    }
    text.trim_end().to_owned()
}

fn state(node: &SeenNode, paint: Paint) -> String {
    match &node.refused {
        None => paint.good(format!("fits, {} free", node.allocatable - node.used)),
        Some(words) if node.is_busy => paint.warning(words),
        Some(words) => paint.bad(words),
    }
}

/// Pods, or, without their numbers, the gangs they are of.
fn holders(node: &SeenNode, is_wide: bool) -> String {
    let held = node.holders.iter().map(|holder| {
        let pod = if is_wide {
            &holder.pod[..]
        } else {
            job_of(&holder.pod)
        };
        format!("{pod} ({})", holder.gpus)
    });
    held.collect::<Vec<_>>().join(", ")
}

/// What comes before the attempt and the node rank in the name of a gang's pod.
fn job_of(pod: &str) -> &str {
    let number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    match pod.rsplit_once('-') {
        Some((rest, node_rank)) if number(node_rank) => match rest.rsplit_once('-') {
            Some((job, attempt)) if number(attempt) => job,
            _ => pod,
        },
        _ => pod,
    }
}

/// How many nodes fit, and of which how many are refused for which reason.
fn counts(nodes: &[SeenNode]) -> String {
    let mut counts: Vec<(String, i64)> = vec![];
    for node in nodes {
        let words = node.refused.clone().unwrap_or_else(|| "that fit".into());
        match counts.iter_mut().find(|(known, _)| *known == words) {
            Some((_, count)) => *count += 1,
            None => counts.push((words, 1)),
        }
    }
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let parts: Vec<String> = counts
        .into_iter()
        .map(|(words, count)| format!("{} {words}", counted(count, "node")))
        .collect();
    parts.join(", ")
}
