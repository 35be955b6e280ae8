use kube::core::Rule;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// External is another trainer. Its command is started once per node, with the variables that
/// torchrun reads (PET_NNODES, PET_NPROC_PER_NODE, PET_NODE_RANK, PET_MASTER_ADDR,
/// PET_MASTER_PORT), MASTER_ADDR and MASTER_PORT. If gpusPerNode is 1, it is the rank and gets
/// RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE and GROUP_RANK. VIT_RUN_CONFIG names a JSON file
/// with the manifest's model, data and training, to follow as far as possible. VIT_LOG names the
/// file for rank 0's JSON lines, the source of progress, metrics and stall detection.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct External {
    /// command and its arguments, instead of the image's. In a cluster $(NAME) stands for an
    /// environment variable.
    #[schemars(length(min = 1, max = 64), inner(length(max = 4096)))]
    pub command: Vec<String>,
    /// agent is the sidecar that reads the log.
    #[serde(default, skip_serializing_if = "AgentResources::is_default")]
    pub agent: AgentResources,
}

/// AgentResources are requests and limits of the sidecar, equal so that the pod stays Guaranteed if the
/// trainer's are. The default suffices; a LimitRange may demand more.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct AgentResources {
    /// cpu in cores, or in thousandths with the suffix m.
    #[schemars(regex(pattern = "^[1-9][0-9]{0,4}m?$"))]
    pub cpu: String,
    /// memory with the suffix Mi or Gi.
    #[schemars(regex(pattern = "^[1-9][0-9]{0,5}(Mi|Gi)$"))]
    pub memory: String,
}

impl Default for AgentResources {
    fn default() -> Self {
        Self {
            cpu: "100m".into(),
            memory: "128Mi".into(),
        }
    }
}

impl AgentResources {
    /// The default is not serialized: a study's runs keep their keys, and older CRDs take the job.
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Another trainer cannot share images by speed.
pub(super) fn shares_evenly() -> Rule {
    let message = format!("training.balance {BALANCE_EXPECTED}");
    Rule::new("!has(self.external) || self.training.balance == 'Off'").message(message.as_str())
}

pub(crate) const BALANCE_EXPECTED: &str =
    "must be Off with external: another trainer cannot change the ranks' shares";

/// Another trainer chooses its sharding.
pub(super) fn divides_itself() -> Rule {
    let message = format!("parallelism.strategy {STRATEGY_EXPECTED}");
    Rule::new("!has(self.external) || self.parallelism.strategy == 'Manual'").message(message.as_str())
}

pub(crate) const STRATEGY_EXPECTED: &str =
    "must be Manual with external: the memory needs of another trainer are unknown";

/// Fetching needs vit-trainer in the image.
pub(super) fn fetches_itself() -> Rule {
    let message = format!("data.from and model.pretrained.from {FROM_EXPECTED}");
    let fetches = "has(self.data.from) || (has(self.model.pretrained) && has(self.model.pretrained.from))";
    Rule::new(format!("!has(self.external) || !({fetches})")).message(message.as_str())
}

pub(crate) const FROM_EXPECTED: &str =
    "cannot be used with external: fetching needs vit-trainer in the image";

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_default_agent_is_not_written() {
        let external = json!({"command": ["torchrun"]});
        let read: External = serde_json::from_value(external.clone()).expect("a trainer");
        assert_eq!(json!(read), external);
        let external = json!({"command": ["torchrun"], "agent": {"cpu": "1", "memory": "128Mi"}});
        let read: External = serde_json::from_value(external.clone()).expect("a trainer");
        assert_eq!(json!(read), external);
    }
}
