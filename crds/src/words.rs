//! Why a job waits for GPUs, in sentences: rendered here alone, for the message of condition
//! `Placed` and for `kubectl vit`.

use crate::ViTTrainingJobSpec;
use crate::spec::Homogeneity;
use crate::status::{AdmittedPod, OverduePod, RejectedGroup, RejectedNodes, WaitStatus};

const GROUPS_IN_MESSAGE: usize = 12;
const PODS_IN_MESSAGE: usize = 3;
const NODES_IN_MESSAGE: usize = 3;

/// Why a job waits: what it needs, why each group lacks that, and its place in the queue; without
/// groups for readers who see them elsewhere.
pub fn waits(spec: &ViTTrainingJobSpec, wait: &WaitStatus, groups: Option<&[RejectedGroup]>) -> String {
    let up_to = wait
        .max_nodes
        .map_or_else(String::new, |most| format!(" to {most}"));
    let identical = match spec.placement.homogeneity {
        Homogeneity::Required => "identical ",
        Homogeneity::Preferred | Homogeneity::Off => "",
    };
    let (gpus, resource) = (spec.workers.gpus_per_node, &spec.workers.gpu_resource);
    let mut words = format!("needs {}{up_to} x {gpus} {identical}{resource}", wait.nodes);
    if let Some(rejected) = groups {
        let reason = |group: &RejectedGroup| match &*group.group {
            "" => rejects(spec, group, false),
            name => format!("{name} has {}", rejects(spec, group, false)),
        };
        let mut groups: Vec<String> = rejected.iter().take(GROUPS_IN_MESSAGE).map(reason).collect();
        if rejected.is_empty() {
            groups.push(format!("no node has {resource}"));
        } else if rejected.len() > GROUPS_IN_MESSAGE {
            groups.push("and more groups".into());
        }
        words += &format!(": {}", groups.join("; "));
    }
    words += &overdue(&wait.overdue_pods);
    if wait.reserved_nodes > 0 {
        words += &format!("; {} nodes are reserved for it", wait.reserved_nodes);
    }
    if let Some(job) = &wait.held_back_for {
        words += &format!("; held back for {job}");
    }
    if wait.waiting > 1 {
        words += &format!(" (position {} of {})", wait.position, wait.waiting);
    }
    words
}

/// The part of a message about what admission adds to the pods; empty without any.
pub fn admitted(pod: Option<&AdmittedPod>) -> String {
    let Some(pod) = pod else {
        return String::new();
    };
    let requests = pod
        .requests
        .iter()
        .map(|(resource, more)| format!("{} more {resource}", more.0));
    let labels = pod
        .node_selector
        .iter()
        .map(|(label, value)| format!("node label {label}={value}"));
    let containers = pod.containers.iter().map(|name| format!("container {name}"));
    let added: Vec<String> = containers.chain(requests).chain(labels).collect();
    if added.is_empty() {
        return String::new();
    }
    format!("; admission adds to each pod: {}", added.join(", "))
}

/// The part of a message about pods that keep their GPUs; empty without any.
pub fn overdue(pods: &[OverduePod]) -> String {
    if pods.is_empty() {
        return String::new();
    }
    let words = |pod: &OverduePod| {
        let node = pod.node.as_deref().unwrap_or("an unknown node");
        format!("pod {} on node {node}", pod.name)
    };
    let named: Vec<String> = pods.iter().take(PODS_IN_MESSAGE).map(words).collect();
    let others = if pods.len() > PODS_IN_MESSAGE {
        " and others"
    } else {
        ""
    };
    format!(
        "; the GPUs of {}{others} stay in use: deleted, but not ended in time",
        named.join(", ")
    )
}

/// Why a gang does not get the nodes of a group: with others if `is_placed`.
pub fn rejects(spec: &ViTTrainingJobSpec, group: &RejectedGroup, is_placed: bool) -> String {
    let nodes = counted(group.fitting_nodes, "node");
    let gpus = spec.workers.gpus_per_node;
    let fitting = if let Some(largest) = group.largest_domain {
        let key = spec.placement.topology.required.as_deref().unwrap_or_default();
        Some(format!(
            "{nodes} with {gpus} free, but at most {largest} with the same {key}"
        ))
    } else if let Some(left) = group.left_over_gpus {
        Some(format!(
            "fits too, but leaves over {} GPUs of its nodes instead of {}",
            left.rejected, left.chosen
        ))
    } else {
        let only = if is_placed { "only " } else { "" };
        let is_named = group.fitting_nodes > 0 || group.reasons.is_empty();
        is_named.then(|| format!("{only}{nodes} with {gpus} free"))
    };
    let others = group.reasons.iter().map(|reason| {
        let RejectedNodes {
            code,
            nodes,
            names,
            taints,
        } = reason;
        let more = if names.len() < usize::try_from(*nodes).unwrap_or(0) {
            ", ..."
        } else {
            ""
        };
        let taints = match taints.join(", ") {
            none if none.is_empty() => none,
            some => format!(": {some}"),
        };
        format!(
            "{} {code} ({}{more}{taints})",
            counted(*nodes, "node"),
            names.join(", ")
        )
    });
    fitting.into_iter().chain(others).collect::<Vec<_>>().join(", ")
}

/// The first names of a list: `a, b, c and 2 more`.
pub fn first_names(names: &[impl AsRef<str>]) -> String {
    let first: Vec<&str> = names.iter().take(NODES_IN_MESSAGE).map(AsRef::as_ref).collect();
    match names.len() - first.len() {
        0 => first.join(", "),
        more => format!("{} and {more} more", first.join(", ")),
    }
}

/// A number with its noun: `1 node`, `2 nodes`.
pub fn counted(number: impl Into<i64>, noun: &str) -> String {
    match number.into() {
        1 => format!("1 {noun}"),
        number => format!("{number} {noun}s"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::first_names;
    use crate::status::Refusal;

    #[test]
    fn a_message_names_three_nodes() {
        assert_eq!(first_names(&["a", "b", "c"]), "a, b, c");
        assert_eq!(first_names(&["a", "b", "c", "d", "e"]), "a, b, c and 2 more");
    }

    #[test]
    fn every_refusal_has_words_of_its_own_and_an_unknown_one_is_read() {
        let words = BTreeSet::from(Refusal::ALL.map(|refusal| refusal.to_string()));
        assert_eq!(words.len(), Refusal::ALL.len());
        let newer = serde_json::from_str::<Refusal>("\"Haunted\"").expect("a reason");
        assert_eq!(newer, Refusal::Unknown);
    }
}
