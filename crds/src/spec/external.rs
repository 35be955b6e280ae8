use kube::core::Rule;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// External is another trainer. Its command is started once on each node, with the environment that torchrun reads (PET_NNODES,
/// PET_NPROC_PER_NODE, PET_NODE_RANK, PET_MASTER_ADDR and PET_MASTER_PORT), with MASTER_ADDR and MASTER_PORT, and, where
/// gpusPerNode is 1, as the rank itself with RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE and GROUP_RANK. VIT_RUN_CONFIG names
/// a file of JSON with what the manifest says of model, data and training; the trainer is to follow it as far as it goes.
/// VIT_LOG names the file to which rank 0 writes lines of JSON, from which progress, metrics and stalls are told.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct External {
    /// command and its arguments, in place of the image's own. In a cluster $(NAME) stands for an environment variable.
    #[schemars(length(min = 1, max = 64), inner(length(max = 4096)))]
    pub command: Vec<String>,
}

/// Another trainer is not told to share images by speed.
pub(super) fn shares_evenly() -> Rule {
    let message = format!("training.balance {BALANCE_EXPECTED}");
    Rule::new("!has(self.external) || self.training.balance == 'Off'").message(message.as_str())
}

pub(crate) const BALANCE_EXPECTED: &str =
    "must be Off with external: shares that change while it trains cannot be told to another trainer";

/// What another trainer divides it decides itself.
pub(super) fn divides_itself() -> Rule {
    let message = format!("parallelism.strategy {STRATEGY_EXPECTED}");
    Rule::new("!has(self.external) || self.parallelism.strategy == 'Manual'").message(message.as_str())
}

pub(crate) const STRATEGY_EXPECTED: &str =
    "must be Manual with external: what another trainer needs of memory is not known";

/// What fetches is this project's trainer, which another one's image does not hold.
pub(super) fn fetches_itself() -> Rule {
    let message = format!("data.from {FROM_EXPECTED}");
    Rule::new("!has(self.external) || !has(self.data.from)").message(message.as_str())
}

pub(crate) const FROM_EXPECTED: &str =
    "is not for external: vit-trainer fetches, which the image of another trainer does not hold";
