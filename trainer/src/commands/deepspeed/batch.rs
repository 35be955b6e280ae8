//! Sizes of batches: global = micro x accumulation x ranks.

use super::document::Node;
use super::section::{Findings, Section};

const GLOBAL: &str = "train_batch_size";
const MICRO: &str = "train_micro_batch_size_per_gpu";
const ACCUMULATION: &str = "gradient_accumulation_steps";

#[derive(Clone, Copy, Debug)]
pub(super) struct Batch {
    pub(super) global: u64,
}

impl Batch {
    /// Converts the three keys, two of which DeepSpeed allows to be omitted, to fields.
    pub(super) fn take(root: &mut Section, world: u64, findings: &mut Findings) -> Option<Self> {
        let errors = findings.errors.len();
        let mut positive = |key| {
            let value = root.count(key, findings);
            if value == Some(0) {
                findings.refuse(key, 0, "must be at least 1");
            }
            value.filter(|value| *value > 0)
        };
        let (global, micro, accumulation) = (positive(GLOBAL), positive(MICRO), positive(ACCUMULATION));
        if root.flag("managed_gradient_accumulation", findings) == Some(false) {
            findings.refuse(
                "managed_gradient_accumulation",
                false,
                "gradients are always accumulated by the trainer",
            );
        }
        if findings.errors.len() > errors {
            return None;
        }
        let (micro, accumulation, from) = match (global, micro, accumulation) {
            (_, Some(micro), Some(accumulation)) => (micro, accumulation, MICRO.to_owned()),
            (None, Some(micro), None) => (micro, 1, MICRO.to_owned()),
            (Some(global), Some(micro), None) => (micro, global / (micro * world).max(1), MICRO.to_owned()),
            (Some(global), None, accumulation) => {
                let accumulation = accumulation.unwrap_or(1);
                let from = format!("{GLOBAL} {global} / ({accumulation} x {world} ranks)");
                (global / (accumulation * world).max(1), accumulation, from)
            }
            (None, None, _) => {
                findings
                    .errors
                    .push(format!("{GLOBAL} and {MICRO} are missing: set one of them"));
                return None;
            }
        };
        let product = micro * accumulation * world;
        if let Some(global) = global
            && global != product
        {
            findings.refuse(
                GLOBAL,
                global,
                &format!(
                    "must be {MICRO} x {ACCUMULATION} x ranks, and {micro} x {accumulation} x {world} is {product}; set the number of ranks with --nodes and --gpus-per-node"
                ),
            );
            return None;
        }
        let count = |value: u64| Node::Integer(value.cast_signed());
        findings.field(&["training", "microBatchSize"], count(micro), from);
        let from = if global.is_none_or(|_| accumulation > 1) {
            ACCUMULATION.to_owned()
        } else {
            format!("{ACCUMULATION}: a step sees {product} images")
        };
        findings.field(
            &["training", "gradientAccumulationSteps"],
            count(accumulation),
            from,
        );
        Some(Self { global: product })
    }
}
