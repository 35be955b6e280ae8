//! How long a step takes at least.

use contract::RunConfig;
use serde::Serialize;

use crate::Sent;

/// What was measured of the machines that a job is planned for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speeds {
    /// Images/s of one rank that trains the job's model alone, with the job's precision and `activationCheckpointing`.
    pub images_per_second: f64,
    /// Bytes/s that a rank sends to another one on its node.
    pub within_node: f64,
    /// Bytes/s that all ranks of a node together send to other nodes.
    pub between_nodes: f64,
}

/// Seconds of a step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Step {
    /// In which a rank computes.
    pub compute: f64,
    /// In which gradients are averaged and weights gathered, while ranks compute.
    pub overlapped: f64,
    /// In which activations are exchanged, while nothing is computed.
    pub exposed: f64,
    /// All of the step, if what can be hidden is.
    pub total: f64,
}

impl Speeds {
    /// A step of a job that is divided, and in which a rank sends so much. `computes_again` is whether it computes activations again that were kept where the speed
    /// was measured. A lower bound: the first gather and the last reduction hide behind nothing, and ranks wait for each other.
    pub(crate) fn step(&self, divided: &RunConfig, sent: Sent, computes_again: bool) -> Step {
        let images = divided.global_batch_size() as f64 / f64::from(divided.world_size());
        // A forward pass more, beside one and a backward pass, which takes twice as long.
        let again = if computes_again { 4.0 / 3.0 } else { 1.0 };
        let compute = again * images / self.images_per_second;
        let Sent {
            gradients,
            weights,
            activations,
            off_node,
        } = sent;
        let ranks_per_node = f64::from(divided.ranks_per_node);
        // Where each node has shards of its own, the rest of what a rank sends.
        let within_node = match (divided.ranks_per_node, divided.parallelism.shard_within_node) {
            (1, _) => 0.0,
            (_, false) => gradients + weights,
            (_, true) => gradients + weights - off_node / ranks_per_node,
        };
        // What goes both ways goes at once: rings pass pieces on, and units follow one another.
        let overlapped = (within_node / self.within_node).max(off_node / self.between_nodes);
        let is_on_one_node = divided.parallelism.ranks_per_replica() <= divided.ranks_per_node;
        let exposed = if is_on_one_node {
            activations / self.within_node
        } else {
            activations * ranks_per_node / self.between_nodes
        };
        Step {
            compute,
            overlapped,
            exposed,
            total: compute.max(overlapped) + exposed,
        }
    }
}
