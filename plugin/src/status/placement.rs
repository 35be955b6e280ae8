//! A job's nodes, ranks, rejected groups and queue.

use crds::status::{GpuGroup, MixedGroup, PlacementStatus, ViTTrainingJobStatus};
use crds::{Phase, words};

use super::View;
use super::screen::{LEFT, Screen};
use crate::gang::Member;
use crate::paint::Paint;
use crate::text::{counted, mebibytes, ranks, wrapped};

/// Maximum number of nodes listed individually; more are counted.
const NODES: usize = 8;

/// The gang's GPUs, nodes and ranks, and rejected groups.
pub(super) fn placed(
    view: &View,
    status: &ViTTrainingJobStatus,
    placement: &PlacementStatus,
    is_wide: bool,
    screen: &mut Screen,
) {
    let paint = screen.paint;
    let gpus_per_node = view.job.spec.workers.gpus_per_node;
    let holds_gpus = status.workers.unwrap_or_default().desired > 0;
    if !placement.nodes.is_empty() {
        let kind =
            |kind: &MixedGroup| format!("{} of {}", counted(kind.nodes, "node"), described(&kind.group));
        let kinds = match &placement.group {
            Some(group) => described(group),
            None => placement.mixed.iter().map(kind).collect::<Vec<_>>().join(", "),
        };
        let topology = placement.topology.iter();
        let topology =
            topology.map(|spread| format!("; {}: {}", spread.key, words::first_names(&spread.domains)));
        let topology: String = topology.collect();
        let was = if holds_gpus { "" } else { "was on " };
        let nodes_of = counted(placement.nodes.len() as i64, "node");
        let gpus = counted(gpus_per_node, "GPU");
        screen.line(
            "placement",
            &format!("{was}{nodes_of} x {gpus} of {kinds}{topology}"),
        );
        nodes(view, placement, is_wide, screen);
    }
    if let Some(strategy) = &placement.strategy {
        let takes = mebibytes(strategy.memory_mebibytes);
        let available = strategy.available_mebibytes.map(mebibytes);
        let available = available.map_or_else(String::new, |available| format!(" of {available}"));
        screen.line(
            "strategy",
            &format!("{}: {takes}{available} a rank", strategy.name),
        );
    }
    if status.phase == Some(Phase::Pending) || is_wide || holds_gpus {
        for (index, group) in placement.rejected_groups.iter().enumerate() {
            let title = if index == 0 { "refused" } else { "" };
            let why = words::rejects(&view.job.spec, group, !placement.nodes.is_empty());
            let line = wrapped(&format!("{}: {why}", group.name()), paint.width, LEFT + 2);
            screen.raw(title, &line);
        }
    }
}

fn described(group: &GpuGroup) -> String {
    let product = match group.product.as_str() {
        "" => "an unknown product",
        product => product,
    };
    let mut more = vec![];
    more.extend(group.memory_mebibytes.map(mebibytes));
    more.extend(
        group
            .driver_major
            .as_ref()
            .map(|driver| format!("driver {driver}")),
    );
    more.extend(group.replicas.map(|replicas| format!("{replicas} pods a GPU")));
    more.extend(group.sharing_strategy.clone());
    if more.is_empty() {
        product.into()
    } else {
        format!("{product} ({})", more.join(", "))
    }
}

fn nodes(view: &View, placement: &PlacementStatus, is_wide: bool, screen: &mut Screen) {
    let paint = screen.paint;
    let gpus = view.job.spec.workers.gpus_per_node;
    let members = view.members.yes().map_or(&[][..], Vec::as_slice);
    let count = placement.nodes.len();
    let shown = if is_wide || count <= NODES {
        count
    } else {
        NODES - 1
    };
    let nodes = &placement.nodes[..shown];
    let width = nodes.iter().map(String::len).max().unwrap_or(0);
    for (index, node) in nodes.iter().enumerate() {
        let ranks = ranks(index as i32, gpus);
        let member = members.iter().find(|member| member.node_rank == index as i32);
        let state = member.map_or(String::new(), |member| state(member, paint));
        screen.raw("", format!("{node:<width$}  {ranks:<12}  {state}").trim_end());
    }
    if shown < count {
        let ready = members.iter().filter(|member| member.is_ready).count();
        let more = count - shown;
        let words = format!("and {more} more nodes (-o wide names them); {ready} of {count} pods ready");
        screen.raw("", &paint.dim(words));
    }
}

fn state(member: &Member, paint: Paint) -> String {
    let words = if member.is_ready || member.state == "done" {
        paint.good(&member.state)
    } else {
        paint.warning(&member.state)
    };
    format!("{words}  {}", paint.dim(&member.pod))
}

/// The queue and the granted quota.
pub(super) fn queue(view: &View, status: &ViTTrainingJobStatus, screen: &mut Screen) {
    let Some(queue) = &view.job.spec.scheduling.queue_name else {
        return;
    };
    let words = match &status.admission {
        Some(granted) => {
            let flavors = granted.flavors.iter().map(|flavor| format!(", {flavor}"));
            let flavors = flavors.collect::<String>();
            let nodes = counted(granted.nodes, "node");
            format!(
                "{queue}: has quota for {nodes} in ClusterQueue {}{flavors}",
                granted.cluster_queue
            )
        }
        None => format!("{queue}: no quota"),
    };
    screen.line("queue", &words);
}
