//! Lower bound of a step's time.

use contract::RunConfig;
use serde::Serialize;

use crate::Sent;

/// Measured speeds of the machines to plan for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speeds {
    /// Images/s of a single rank training the job's model, with its precision and
    /// `activationCheckpointing`.
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
    /// Computation.
    pub compute: f64,
    /// Averaging gradients and gathering weights, during computation.
    pub overlapped: f64,
    /// Exchange of activations, without computation.
    pub exposed: f64,
    /// The whole step, with everything hidden that can be.
    pub total: f64,
}

impl Speeds {
    /// A step of a job in which a rank sends `sent`. `computes_again`: whether it recomputes
    /// activations that the measured speed kept. A lower bound: nothing hides the first gather and
    /// the last reduction, and ranks wait for each other.
    pub(crate) fn step(&self, divided: &RunConfig, sent: Sent, computes_again: bool) -> Step {
        let images = divided.global_batch_size() as f64 / f64::from(divided.world_size());
        // A second forward pass, in addition to the first and a backward pass of twice the time.
        let again = if computes_again { 4.0 / 3.0 } else { 1.0 };
        let compute = again * images / self.images_per_second;
        let Sent {
            gradients,
            weights,
            activations,
            off_node,
        } = sent;
        let ranks_per_node = f64::from(divided.ranks_per_node);
        // If each node has all shards, the rest of a rank's traffic.
        let within_node = match (divided.ranks_per_node, divided.parallelism.shard_within_node) {
            (1, _) => 0.0,
            (_, false) => gradients + weights,
            (_, true) => gradients + weights - off_node / ranks_per_node,
        };
        // Both kinds overlap: rings pass on pieces, and units follow one another.
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
