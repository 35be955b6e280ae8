//! `kubectl vit nodes`: the GPUs of the cluster, grouped and judged by the operator's planner.

mod render;

use std::sync::Arc;

use crds::status::Refusal;
use crds::validate;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::ListParams;
use planner::policy::node_fit::Verdict;
use planner::policy::request::{GangRequest, Shape};
use planner::{Survey, SurveyedGroup, SurveyedNode};
use serde::Serialize;

use crate::cluster::Cluster;
use crate::error::{Error, Exit};
use crate::kind::JobName;
use crate::output::{self, Format};
use crate::paint::Paint;
use render::render;

/// Show the cluster's GPUs by group: free, used, and rejected nodes with the reason
///
/// The operator's planner computes groups and reasons. Without --job, it assumes a pod that requests only GPUs: taints
/// count against a node, labels do not.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  kubectl vit nodes\n  kubectl vit nodes --job digits")]
pub(crate) struct Arguments {
    /// Apply this job's products, memory, labels, tolerations and requests
    #[arg(long, value_name = "JOB", conflicts_with_all = ["gpu_resource", "gpus_per_node"], add = crate::completion::jobs())]
    job: Option<JobName>,
    /// Extended resource of the GPUs
    #[arg(long, value_name = "NAME", default_value = "nvidia.com/gpu")]
    gpu_resource: String,
    /// GPUs requested per node
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64), allow_negative_numbers = true)]
    gpus_per_node: u32,
    /// Output format; wide lists every node of large groups, and the pods that hold GPUs
    #[arg(short, long, value_enum)]
    output: Option<Format>,
}

pub(crate) async fn run(cluster: &Cluster, arguments: &Arguments) -> Result<Exit, Error> {
    let shape = match &arguments.job {
        Some(name) => {
            let job = cluster.get(name).await?;
            let status = job.status.as_ref();
            let granted = status.and_then(|status| status.admission.as_ref());
            let admitted = status.and_then(|status| status.admitted_pod.as_ref());
            let request = GangRequest::from(&validate(&job)?.within(granted));
            request.admitted(admitted).shape
        }
        None => Arc::new(Shape::of_gpus(&arguments.gpu_resource, arguments.gpus_per_node)),
    };
    let nodes = list_nodes(cluster).await?;
    // Without the right to list all pods, groups and capacities can still be shown.
    let (pods, unknown) = match list_pods(cluster).await {
        Ok(pods) => (pods, None),
        Err(Error::Refused { doing, message }) => (vec![], Some(format!("cannot {doing}: {message}"))),
        Err(error) => return Err(error),
    };
    let asked_by = arguments.job.as_ref();
    let report = Report {
        asked_by: asked_by.map(|name| format!("{}/{name}", cluster.namespace())),
        use_unknown: unknown,
        ..Report::new(nodes, pods, &shape)
    };
    if let Some(format) = arguments.output.filter(|format| format.is_object()) {
        let nodes = report.groups.iter().flat_map(|group| &group.nodes);
        let names: Vec<String> = nodes.map(|node| format!("node/{}", node.name)).collect();
        output::object(&report, &names, format)?;
    } else {
        let is_wide = arguments.output == Some(Format::Wide);
        output::print(&render(&report, is_wide, Paint::of_stdout()))?;
    }
    Ok(Exit::Done)
}

pub(crate) async fn list_nodes(cluster: &Cluster) -> Result<Vec<Node>, Error> {
    let api = Api::all(cluster.client().clone());
    cluster.list(api, ListParams::default(), "list nodes").await
}

/// The pods of all namespaces.
pub(crate) async fn list_pods(cluster: &Cluster) -> Result<Vec<Pod>, Error> {
    let api = Api::all(cluster.client().clone());
    let doing = "list the pods of all namespaces";
    cluster.list(api, ListParams::default(), doing).await
}

/// Other resources of the nodes whose names suggest GPUs, in case the user asked for the wrong one.
fn other_resources(nodes: &[Node], asked: &str) -> Vec<String> {
    let mut names: Vec<String> = nodes
        .iter()
        .filter_map(|node| node.status.as_ref()?.capacity.as_ref())
        .flatten()
        .filter(|(name, amount)| amount.0 != "0" && name.as_str() != asked)
        .map(|(name, _)| name.clone())
        .filter(|name| name.split_once('/').is_some_and(|(_, name)| name.contains("gpu")))
        .collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// The GPUs of the cluster, judged for one pod.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    gpu_resource: String,
    gpus_per_node: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    asked_by: Option<String>,
    /// Nodes without the resource.
    nodes_without: usize,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    other_resources: Vec<String>,
    /// Why usage by pods is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    use_unknown: Option<String>,
    groups: Vec<Group>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Group {
    gpus: crds::status::GpuGroup,
    capacity: i64,
    used: i64,
    /// On nodes that fit.
    free: i64,
    nodes: Vec<SeenNode>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct SeenNode {
    name: String,
    capacity: i64,
    allocatable: i64,
    used: i64,
    /// Why the planner rejects the node; absent if it fits.
    #[serde(skip_serializing_if = "Option::is_none")]
    refused: Option<Refusal>,
    /// Whether only gangs of this operator prevent a fit.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    is_busy: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    holders: Vec<HeldBy>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct HeldBy {
    pod: String,
    gpus: i64,
}

impl Report {
    fn new(nodes: Vec<Node>, pods: Vec<Pod>, shape: &Shape) -> Self {
        let other_resources = other_resources(&nodes, &shape.gpu_resource);
        let survey = Survey::new(nodes, pods);
        Self {
            gpu_resource: shape.gpu_resource.clone(),
            gpus_per_node: shape.gpus_per_node,
            asked_by: None,
            nodes_without: survey.nodes_without(&shape.gpu_resource),
            other_resources,
            use_unknown: None,
            groups: survey.groups(shape).into_iter().map(Group::from_survey).collect(),
        }
    }
}

impl Group {
    fn from_survey(group: SurveyedGroup) -> Self {
        let holder = |(pod, gpus)| HeldBy { pod, gpus };
        let node = |node: SurveyedNode| SeenNode {
            name: node.name,
            capacity: node.gpus.capacity,
            allocatable: node.gpus.allocatable,
            used: node.gpus.used,
            refused: node.verdict.refusal(),
            is_busy: matches!(node.verdict, Verdict::Busy { .. }),
            holders: node.pods.into_iter().map(holder).collect(),
        };
        let nodes: Vec<SeenNode> = group.nodes.into_iter().map(node).collect();
        let fitting = nodes.iter().filter(|node| node.refused.is_none());
        Self {
            gpus: group.gpus,
            capacity: nodes.iter().map(|node| node.capacity).sum(),
            used: nodes.iter().map(|node| node.used).sum(),
            free: fitting.map(|node| node.allocatable - node.used).sum(),
            nodes,
        }
    }
}

#[cfg(test)]
mod tests;
