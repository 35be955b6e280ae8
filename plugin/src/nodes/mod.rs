//! `kubectl vit nodes`: the GPUs of the cluster as the operator's planner sees them. It is the planner's own code that groups
//! and refuses here.

mod render;

use std::sync::Arc;

use crds::validate;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::ListParams;
use planner::policy::request::{GangRequest, Shape};
use planner::{GpuPod, Survey, SurveyedGroup, SurveyedNode};
use serde::Serialize;

use crate::cluster::Cluster;
use crate::error::{Error, Exit};
use crate::kind::JobName;
use crate::output::{self, Format};
use crate::paint::Paint;
use render::render;

/// Show the GPUs of the cluster by group: free, used, and nodes that are refused, with the reason
///
/// Groups and reasons are those of the operator's planner. Without --job, nodes are looked at for a pod that wants GPUs and
/// nothing else: taints count against a node, labels do not.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  kubectl vit nodes\n  kubectl vit nodes --job digits")]
pub(crate) struct Arguments {
    /// As this job sees them: its products, memory, labels, tolerations and requests
    #[arg(long, value_name = "JOB", conflicts_with_all = ["gpu_resource", "gpus_per_node"], add = crate::completion::jobs())]
    job: Option<JobName>,
    /// Resource by which nodes count their GPUs
    #[arg(long, value_name = "NAME", default_value = "nvidia.com/gpu")]
    gpu_resource: String,
    /// GPUs that a pod wants of a node
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    gpus_per_node: u32,
    /// Output format; wide lists every node of large groups, and the pods that hold GPUs
    #[arg(short, long, value_enum)]
    output: Option<Format>,
}

pub(crate) async fn run(cluster: &Cluster, arguments: &Arguments) -> Result<Exit, Error> {
    let shape = match &arguments.job {
        Some(name) => {
            let job = cluster.get(name).await?;
            let granted = job.status.as_ref().and_then(|status| status.admission.as_ref());
            GangRequest::from(&validate(&job)?.within(granted)).shape
        }
        None => Arc::new(Shape::of_gpus(&arguments.gpu_resource, arguments.gpus_per_node)),
    };
    let nodes: Api<Node> = Api::all(cluster.client().clone());
    let nodes = cluster.list(nodes, ListParams::default(), "list nodes").await?;
    // Without rights to pods of all namespaces, groups and what nodes have can still be shown.
    let pods: Api<Pod> = Api::all(cluster.client().clone());
    let (pods, unknown) = match cluster
        .list(pods, ListParams::default(), "list the pods of all namespaces")
        .await
    {
        Ok(pods) => (pods, None),
        Err(Error::Refused { doing, message }) => (vec![], Some(format!("cannot {doing}: {message}"))),
        Err(error) => return Err(error),
    };
    let asked_by = arguments.job.as_ref();
    let report = Report {
        asked_by: asked_by.map(|name| format!("{}/{name}", cluster.namespace())),
        use_unknown: unknown,
        ..Report::of(nodes, pods, &shape)
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

/// Other resources that nodes have and that look like GPUs, for whoever asked for the wrong one.
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

/// The GPUs of the cluster as one pod sees them.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    gpu_resource: String,
    gpus_per_node: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    asked_by: Option<String>,
    /// Nodes that have none of the resource.
    nodes_without: usize,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    other_resources: Vec<String>,
    /// Why it is not known what pods hold.
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
    /// Of nodes that a pod can go to.
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
    /// The operator's words for why no pod can go there; absent where one can.
    #[serde(skip_serializing_if = "Option::is_none")]
    refused: Option<String>,
    /// Whether it is only gangs of this operator that are in the way.
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
    fn of(nodes: Vec<Node>, pods: Vec<Pod>, shape: &Shape) -> Self {
        let other_resources = other_resources(&nodes, &shape.gpu_resource);
        let survey = Survey::new(nodes, pods);
        Self {
            gpu_resource: shape.gpu_resource.clone(),
            gpus_per_node: shape.gpus_per_node,
            asked_by: None,
            nodes_without: survey.nodes_without(&shape.gpu_resource),
            other_resources,
            use_unknown: None,
            groups: survey.groups(shape).into_iter().map(Group::of).collect(),
        }
    }
}

impl Group {
    fn of(group: SurveyedGroup) -> Self {
        let holder = |GpuPod { pod, gpus }| HeldBy { pod, gpus };
        let node = |node: SurveyedNode| SeenNode {
            name: node.name,
            capacity: node.capacity,
            allocatable: node.allocatable,
            used: node.used,
            refused: node.refusal.map(|refusal| refusal.to_string()),
            is_busy: node.is_busy,
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
