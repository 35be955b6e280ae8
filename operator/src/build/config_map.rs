//! The ConfigMap with the run configuration of one attempt.

use std::collections::BTreeMap;

use contract::RunConfig;
use crds::ViTTrainingJob;
use k8s_openapi::api::core::v1::ConfigMap;

use super::metadata_of_attempt;

/// Key of the run configuration, and its file name in the pods.
pub(crate) const RUN_CONFIG_KEY: &str = "run.json";

/// One per attempt, because sizes can differ. Immutable, so that kubelets do not watch it.
pub(crate) fn build(job: &ViTTrainingJob, run_config: &RunConfig, attempt: i32) -> ConfigMap {
    let json = serde_json::to_string_pretty(run_config)
        .expect("a run configuration has only string keys and finite numbers, which its rules check");
    ConfigMap {
        metadata: metadata_of_attempt(job, attempt),
        data: Some(BTreeMap::from([(RUN_CONFIG_KEY.into(), json)])),
        immutable: Some(true),
        ..ConfigMap::default()
    }
}
