//! From a manifest to a job that can run: defaults filled in, presets resolved, every rule checked.
//! All errors are reported at once, except for rules between fields whose own values are wrong.

mod bounds;
mod data;
mod elastic;
mod model;
mod workers;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use contract::{CheckpointConfig, CheckpointWriters, ConfigError, JobIdentity, Measurement, RunConfig};
use k8s_openapi::api::core::v1::{ResourceRequirements, Toleration};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::ResourceExt;

use crate::spec::{self, ViTTrainingJob, ViTTrainingJobSpec, Volume};
use crate::status::AdmissionStatus;
pub use bounds::out_of_bounds;
pub(crate) use bounds::outside;
pub use model::PRETRAINED_FOLDER;

/// A job that can run. Only [`validate`] creates it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ValidatedJob {
    /// The manifest's, with the labels, tolerations and annotations of a granted quota.
    pub spec: ViTTrainingJobSpec,
    /// The trainer's configuration on `workers.nodes` nodes, with the job's name.
    pub run_config: RunConfig,
    /// The allowed numbers of nodes, largest first; a job that is not elastic has one.
    pub sizes: Vec<u32>,
    /// Which GPUs are suitable.
    pub placement: PlacementRules,
    /// Maximum number of restarts without a new checkpoint.
    pub max_restarts: u32,
    /// Time limit of a gang's start.
    pub start_timeout: Duration,
    /// How long a node may be not ready before its pods count as lost.
    pub node_lost_after: Duration,
    /// Time limit of the job since it first had GPUs.
    pub active_deadline: Option<Duration>,
}

/// Which GPUs are suitable, and how close to each other.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct PlacementRules {
    /// Whether GPUs must be identical.
    pub homogeneity: spec::Homogeneity,
    /// Further node labels that distinguish GPUs.
    pub group_by: Vec<String>,
    /// Whether shares of GPUs count as GPUs.
    pub allow_shared: bool,
    /// Node label whose value all nodes must share.
    pub required_topology: Option<String>,
    /// Node labels from the widest part of the cluster to the narrowest; the gang is spread over
    /// few values.
    pub preferred_topology: Vec<String>,
    /// Suitable products; any if empty.
    pub products: BTreeSet<String>,
    /// Minimum memory of a GPU in MiB.
    pub min_memory_mebibytes: Option<i64>,
    /// The only nodes to use; any if empty.
    pub nodes: BTreeSet<String>,
    /// Nodes to avoid.
    pub exclude_nodes: BTreeSet<String>,
}

/// Why a manifest cannot run: every broken rule.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{}", .0.iter().map(|error| format!("spec.{error}")).collect::<Vec<_>>().join("; "))]
pub struct InvalidJob(pub Vec<ConfigError>);

/// Tolerates the taint that keeps pods without GPUs off their nodes, as the API server's admission plugin
/// `ExtendedResourceToleration` does. It would come too late for placement.
pub fn gpu_toleration(gpu_resource: &str) -> Toleration {
    Toleration {
        key: Some(gpu_resource.into()),
        operator: Some("Exists".into()),
        effect: Some("NoSchedule".into()),
        ..Toleration::default()
    }
}

impl ValidatedJob {
    /// The trainer's configuration on `nodes` nodes, with the same global batch if the gang may
    /// have that size. A gang of another size, before a change of the job, is about to be replaced.
    pub fn run_config_on(&self, nodes: u32) -> RunConfig {
        let same_batch = self
            .sizes
            .contains(&nodes)
            .then(|| self.run_config.on_nodes(nodes));
        same_batch.flatten().unwrap_or_else(|| RunConfig {
            nodes,
            ..self.run_config.clone()
        })
    }

    /// Limits the job to the quota granted by Kueue: its flavors and number of nodes.
    #[must_use]
    pub fn within(mut self, granted: Option<&AdmissionStatus>) -> Self {
        if let Some(granted) = granted {
            let most = count(granted.nodes);
            // Kueue grants at least the smallest size.
            let least = self.sizes.last().copied();
            self.sizes.retain(|nodes| *nodes <= most || Some(*nodes) == least);
            let workers = &mut self.spec.workers;
            workers.node_selector.extend(granted.node_selector.clone());
            workers.tolerations.extend(granted.tolerations.iter().cloned());
            workers.pod_labels.extend(granted.pod_labels.clone());
            workers.pod_annotations.extend(granted.pod_annotations.clone());
        }
        self
    }

    /// The pods' tolerations: the manifest's, and [that of its GPUs](gpu_toleration).
    pub fn tolerations(&self) -> Vec<Toleration> {
        let own = gpu_toleration(&self.spec.workers.gpu_resource);
        let mut tolerations = self.spec.workers.tolerations.clone();
        tolerations.retain(|toleration| *toleration != own);
        tolerations.push(own);
        tolerations
    }

    /// Requests and limits of the agent's sidecar for another trainer; `None` for vit-trainer. They
    /// are equal, so that the pod stays Guaranteed if the trainer's are.
    pub fn agent_resources(&self) -> Option<ResourceRequirements> {
        let agent = &self.spec.external.as_ref()?.agent;
        let amounts = [("cpu", &agent.cpu), ("memory", &agent.memory)];
        let amounts = amounts.map(|(name, amount)| (name.to_owned(), Quantity(amount.clone())));
        let amounts = Some(BTreeMap::from(amounts));
        Some(ResourceRequirements {
            requests: amounts.clone(),
            limits: amounts,
            ..ResourceRequirements::default()
        })
    }

    /// GPUs of each pod.
    pub fn gpus_per_node(&self) -> u32 {
        self.run_config.ranks_per_node
    }
}

const JOB_NAME: &str =
    "must have 1 to 50 lower-case letters, digits and '-', starting with a letter and not ending with '-'";

fn is_job_name(name: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let [first, .., last] = name.as_bytes() else {
        return name.bytes().all(|byte| byte.is_ascii_lowercase()) && !name.is_empty();
    };
    name.len() <= 50 && first.is_ascii_lowercase() && *last != b'-' && name.bytes().all(is_part)
}

/// Checks every rule and fills in every default.
pub fn validate(job: &ViTTrainingJob) -> Result<ValidatedJob, InvalidJob> {
    let spec = &job.spec;
    let mut errors = out_of_bounds(spec);
    let model = model::model(&spec.model, &mut errors);
    let numbers_are_sound = errors.is_empty();
    let name = JobIdentity {
        namespace: job.namespace().unwrap_or_else(|| "default".into()),
        name: job.name_any(),
        uid: job.uid(),
    };
    // Outside a cluster no API server has checked the name, which becomes a folder.
    if !is_job_name(&name.name) {
        refuse(&mut errors, "metadata.name", name.name.clone(), JOB_NAME);
    }
    let mut run_config = RunConfig {
        version: contract::Release::current(),
        model,
        data: data::data(&spec.data, &mut errors),
        training: spec.training.clone(),
        parallelism: spec.parallelism.clone(),
        nodes: count(spec.workers.nodes),
        ranks_per_node: count(spec.workers.gpus_per_node),
        device: spec.workers.device,
        checkpoint: CheckpointConfig {
            path: Path::new(&spec.checkpoint.path).join(&name.name),
            keep: count(spec.checkpoint.keep),
            every_steps: spec.checkpoint.every_steps.map(count),
            every_seconds: spec.checkpoint.every_seconds.map(count),
            resume: spec.checkpoint.resume,
            writers: writers(&spec.checkpoint, &mut errors),
        },
        measure: spec.measure,
        job: name,
    };
    run_config.training.fill_in();
    // With a placeholder for an invalid number, rules across fields are meaningless.
    let mut sizes = vec![];
    if numbers_are_sound {
        errors.extend(run_config.errors());
        sizes = elastic::sizes(spec.elastic.as_ref(), &run_config, &mut errors);
    }
    let (epochs, most) = (run_config.training.epochs, Measurement::MOST_EPOCHS);
    if spec.measure.is_some() && epochs as usize > most {
        let expected = format!("must be at most {most} with measure: a termination message holds no more");
        refuse(&mut errors, "training.epochs", epochs.to_string(), expected);
    }
    external(spec, &mut errors);
    if spec.elastic.is_some() && spec.checkpoint.volume.is_none() {
        let expected = "needs checkpoint.volume: a gang of another size continues from a checkpoint";
        refuse(&mut errors, "elastic", "given", expected);
    }
    if let Some(given) = &spec.checkpoint.volume {
        volume("checkpoint.volume", given, &mut errors);
    }
    folders(spec, &mut errors);
    workers::pods(spec, &mut errors);
    if !errors.is_empty() {
        return Err(InvalidJob(errors));
    }
    // The operator applies its choice to a configuration that has one already.
    run_config.parallelism.strategy = spec::Strategy::Manual;
    Ok(ValidatedJob {
        spec: spec.clone(),
        run_config,
        sizes,
        placement: PlacementRules {
            homogeneity: spec.placement.homogeneity,
            group_by: spec.placement.group_by.clone(),
            allow_shared: spec.placement.gpu.allow_shared,
            required_topology: spec.placement.topology.required.clone(),
            preferred_topology: spec.placement.topology.preferred.clone(),
            products: spec.placement.gpu.products.iter().cloned().collect(),
            min_memory_mebibytes: spec.placement.gpu.min_memory_mebibytes,
            nodes: spec.placement.nodes.iter().cloned().collect(),
            exclude_nodes: spec.placement.exclude_nodes.iter().cloned().collect(),
        },
        max_restarts: count(spec.failure_policy.max_restarts),
        start_timeout: seconds(spec.scheduling.start_timeout_seconds),
        node_lost_after: spec.failure_policy.node_lost_after(),
        active_deadline: spec.active_deadline_seconds.map(seconds),
    })
}

/// Without shared storage only the first rank writes.
fn writers(checkpoint: &spec::Checkpoint, errors: &mut Vec<ConfigError>) -> CheckpointWriters {
    match checkpoint.writers {
        given if checkpoint.volume.is_some() => given,
        CheckpointWriters::EveryRank => {
            let expected = "needs checkpoint.volume, which all ranks share";
            refuse(errors, "checkpoint.writers", "EveryRank", expected);
            CheckpointWriters::EveryRank
        }
        CheckpointWriters::Auto | CheckpointWriters::FirstRank => CheckpointWriters::FirstRank,
    }
}

/// Rules for another trainer.
fn external(spec: &ViTTrainingJobSpec, errors: &mut Vec<ConfigError>) {
    let Some(external) = &spec.external else { return };
    if external.command.first().is_none_or(String::is_empty) {
        refuse(errors, "external.command", "empty", "must name a program");
    }
    if spec.parallelism.strategy == spec::Strategy::Auto {
        refuse(
            errors,
            "parallelism.strategy",
            "Auto",
            spec::external::STRATEGY_EXPECTED,
        );
    }
    if spec.training.balance != spec::Balance::Off {
        let given = format!("{:?}", spec.training.balance);
        refuse(
            errors,
            "training.balance",
            given,
            spec::external::BALANCE_EXPECTED,
        );
    }
    let weights = spec.model.pretrained.as_ref().and_then(|file| file.from.as_ref());
    for (field, from) in [
        ("data.from", spec.data.from.as_ref()),
        ("model.pretrained.from", weights),
    ] {
        if from.is_some() {
            refuse(errors, field, "given", spec::external::FROM_EXPECTED);
        }
    }
}

/// Counts are signed in the schema, as Kubernetes requires. Bounds refuse negative ones, which
/// become 0 here.
fn count(value: i32) -> u32 {
    u32::try_from(value).unwrap_or(0)
}

fn seconds(value: i32) -> Duration {
    Duration::from_secs(u64::from(count(value)))
}

/// Adds a broken rule.
fn refuse(
    errors: &mut Vec<ConfigError>,
    field: &'static str,
    value: impl Into<String>,
    expected: impl Into<String>,
) {
    errors.push(ConfigError {
        field: field.into(),
        value: value.into(),
        expected: expected.into(),
    });
}

/// Refuses two volumes with the same mount path.
fn folders(spec: &ViTTrainingJobSpec, errors: &mut Vec<ConfigError>) {
    let is = |path: &str, other: &str| Path::new(path) == Path::new(other);
    let (data, checkpoints) = (&spec.data.path, &spec.checkpoint.path);
    if spec.data.format.has_files() && is(data, checkpoints) {
        let expected = "must be a different folder from data.path";
        refuse(errors, "checkpoint.path", checkpoints, expected);
    }
    for (field, path) in [("data.path", data), ("checkpoint.path", checkpoints)] {
        if spec.model.pretrained.is_some() && is(path, PRETRAINED_FOLDER) {
            let expected = "must be a different folder: pretrained weights are mounted there";
            refuse(errors, field, path, expected);
        }
    }
}

fn volume(field: &'static str, volume: &Volume, errors: &mut Vec<ConfigError>) {
    if volume.persistent_volume_claim.is_some() == volume.host_path.is_some() {
        let has_two = volume.host_path.is_some();
        let value = if has_two {
            "two sources"
        } else {
            "without a source"
        };
        let expected = "give exactly one of persistentVolumeClaim and hostPath";
        refuse(errors, field, value, expected);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::{Value, json};

    use super::*;

    const MANIFEST: &str = r"
apiVersion: vit-operator.dev/v1alpha1
kind: ViTTrainingJob
metadata: {name: digits, namespace: research}
spec:
  image: localhost/vit-trainer:dev
  model: {name: vit_tiny_patch16_224, numClasses: 10}
  data: {format: cifar10, volume: {persistentVolumeClaim: {claimName: digits}}}
  training: {epochs: 3, microBatchSize: 16}
  workers: {nodes: 2}
  checkpoint: {volume: {hostPath: {path: /srv/checkpoints}}}
";

    /// The manifest with other fields, each as `path = YAML`.
    pub(crate) fn manifest<'a>(changes: impl IntoIterator<Item = &'a str>) -> Value {
        let mut manifest: Value = serde_saphyr::from_str(MANIFEST).expect("parses");
        for change in changes {
            let (path, value) = change.split_once(" = ").expect("a field and its value");
            let spec = &mut manifest["spec"];
            let place = path.split('.').fold(spec, |place, key| &mut place[key]);
            *place = serde_saphyr::from_str(value).expect(change);
        }
        manifest
    }

    fn job<'a>(changes: impl IntoIterator<Item = &'a str>) -> ViTTrainingJob {
        serde_json::from_value(manifest(changes)).expect("a manifest")
    }

    fn valid<'a>(changes: impl IntoIterator<Item = &'a str>) -> ValidatedJob {
        validate(&job(changes)).expect("valid")
    }

    #[test]
    fn a_name_is_that_of_a_service_and_of_a_folder() {
        let named = |name: &str| {
            let mut job = job([]);
            job.metadata.name = Some(name.into());
            validate(&job)
        };
        for name in ["a", "vit-l-16", &"a".repeat(50)] {
            named(name).expect(name);
        }
        let long = "a".repeat(51);
        for name in ["", "../../x", "/anywhere", "Vit", "1a", "a-", "a.b", &long] {
            let errors = named(name).expect_err(name).to_string();
            assert!(errors.contains("metadata.name"), "{name}: {errors}");
        }
    }

    #[test]
    fn presets_and_defaults_are_filled_in() {
        let valid = valid([]);
        let config = &valid.run_config;
        assert_eq!(
            (
                config.model.hidden_size,
                config.model.depth,
                config.model.mlp_size
            ),
            (192, 12, 768)
        );
        assert_eq!(config.checkpoint.path, Path::new("/checkpoints/digits"));
        assert_eq!(
            (config.job.namespace.as_str(), config.world_size()),
            ("research", 2)
        );
        assert_eq!(
            config.data,
            contract::DataConfig {
                path: Some("/data".into()),
                ..contract::DataConfig::plain(contract::DataFormat::Cifar10)
            }
        );
        assert_eq!(valid.max_restarts, 5);
    }

    #[test]
    fn given_values_replace_those_of_presets_and_defaults() {
        let config = valid([
            "model.hiddenSize = 96",
            "model.imageSize = 32",
            "data = {format: webDataset, volume: {hostPath: {path: /srv}}, validationShards: val.tar, decodeThreads: 3}",
            "data.augmentation.mixup = 0.8",
            "checkpoint.everySteps = 500",
            "checkpoint.everySeconds = 600",
            "checkpoint.writers = EveryRank",
        ])
        .run_config;
        let model = config.model;
        assert_eq!(
            (model.hidden_size, model.mlp_size, model.image_size, model.heads),
            (96, 384, 32, 3)
        );
        let shards = contract::Shards {
            train: "train-*.tar".into(),
            validation: "val.tar".into(),
        };
        assert_eq!(
            (config.data.shards, config.data.decode_threads),
            (Some(shards), Some(3))
        );
        assert_eq!(json!(config.data.augmentation.mixup), 0.8);
        let checkpoint = config.checkpoint;
        assert_eq!(
            (
                checkpoint.every_steps,
                checkpoint.every_seconds,
                checkpoint.writers
            ),
            (Some(500), Some(600), CheckpointWriters::EveryRank)
        );
        let streamed =
            valid(["data = {format: parquet, from: {locations: ['s3://images']}, cache: {sizeLimit: 50Gi}}"]);
        let stream = streamed.run_config.data.from.expect("is streamed");
        assert_eq!(
            (stream.locations.as_slice(), stream.cache_bytes),
            (&["s3://images".to_owned()][..], Some(50 << 30))
        );
    }

    #[test]
    fn large_models_are_written_by_every_rank() {
        let writers = [1_000_000_000, 1_000_000_001].map(|size| CheckpointWriters::Auto.count(size, 8));
        assert_eq!(writers, [1, 8]);
    }

    /// Changed fields, and the beginnings of all resulting errors.
    const CHANGES: &str = r"
parallelism.strategy = Auto
parallelism.offload = {optimizer: CPU, parameters: CPU}
  valid
parallelism.offload = {optimizer: CPU, parameters: CPU}
  parallelism.offload.parameters is CPU: needs parallelism.zeroStage 3
workers.nodes = -1
checkpoint.volume = {}
data.volume = null
  workers.nodes is -1: must be at least 1
  data.volume is missing: must be given for every format except synthetic, or data.cache with data.from
  checkpoint.volume is without a source: give exactly one of persistentVolumeClaim and hostPath
training.optimizer = {betas: [0.9, 1.5]}
  training.optimizer.betas[1] is 1.5: must be at most 0.999999
workers.supplementalGroups = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17]
  workers.supplementalGroups is a list of 17: must have at most 16
model.name = vit_mega
  model.name is vit_mega: must be timm's or torchvision's name of a supported model, such as vit_medium_patch16_gap_384; or leave it out
model = {depth: 2, heads: 3, imageSize: 32, numClasses: 10}
  model.patchSize is missing: must be given, unless model.name is a preset
  model.hiddenSize is missing: must be given, unless model.name is a preset
model.imageSize = 100
  model.imageSize is 100: must be a multiple of model.patchSize (16)
model.pretrained = {path: ../secret, volume: {hostPath: {path: /srv}}}
  model.pretrained.path is ../secret: must be the path of a file in the volume, without . or ..
model.pretrained = {path: /etc/passwd, volume: {hostPath: {path: /srv}}}
  model.pretrained.path is /etc/passwd: must be
model.pretrained = {path: a/../../b, volume: {hostPath: {path: /srv}}}
  model.pretrained.path is a/../../b: must be
model.pretrained = {from: {locations: ['hf://timm/vit', 'hf://timm/deit']}}
  model.pretrained.from is 2 locations: must be one location, of one file
model.pretrained = {path: a, volume: {hostPath: {path: /srv}}, from: {locations: ['hf://timm/vit']}}
  model.pretrained is with both path and from: must have path in a volume, or from
model.pretrained = {path: a}
  model.pretrained.volume is missing: must be the volume that has the file at path
checkpoint.path = /data
  checkpoint.path is /data: must be a different folder from data.path
data.syntheticImages = 64
  data.syntheticImages is 64: is only for format synthetic
data.format = synthetic
data.syntheticImages = 64
  data.volume is given: is not for format synthetic, which has no files
data.volume = null
data.from = {locations: ['s3://images']}
  data.volume is missing: must be given for every format except synthetic, or data.cache with data.from
data.from = {locations: ['s3://images']}
data.cache = {sizeLimit: 1Gi}
  data.cache is given: must not be given with data.volume
data.volume = null
data.cache = {sizeLimit: 1Gi}
  data.cache is given: needs data.from: it holds streamed files
  data.cache is given: is for the formats webDataset and parquet: other formats are fetched into data.volume
data.from = {locations: ['s3://images']}
external = {command: [torchrun]}
  data.from is given: cannot be used with external: fetching needs vit-trainer in the image
training.optimizer = {momentum: 0.9}
training.schedule = {decayRate: 0.5}
training.lossScale = {}
  training.optimizer.momentum is given: is a parameter of sgd only
  training.schedule.decayRate is 0.5: is a parameter of the schedule step only
  training.lossScale is given: needs training.precision fp16: other formats have no loss scale
training.optimizer = {name: sgd, epsilon: 1.0e-8}
training.schedule = {name: step}
  training.optimizer.epsilon is given: is a parameter of adamw and lamb only
  training.schedule.decayEpochs is missing: the schedule step needs the number of epochs between two decays
training.classWeights = {}
data.augmentation.randAugment = v0
data.trainShards = '*.tar'
data.labelColumn = fine_label
data.classOrder = natural
  data.trainShards is *.tar: is only for format webDataset
  data.labelColumn is fine_label: is only for format parquet
  data.classOrder is natural: is only for format imageFolder
  training.classWeights is empty: set balanced to true or give values, but not both
  data.augmentation.randAugment is v0: must be rand, then any of -mN
workers.nodes = 4
elastic = {minNodes: 5, maxNodes: 3}
  elastic.minNodes is 5: must be at most workers.nodes, which is 4
  elastic.maxNodes is 3: must be at least workers.nodes, which is 4
workers.podLabels = {team: vision}
workers.podAnnotations = {k8s.v1.cni.cncf.io/networks: rdma}
workers.env = [{name: TOKEN, valueFrom: {secretKeyRef: {name: a, key: b}}}]
workers.envFrom = [{configMapRef: {name: nccl}}, {secretRef: {name: keys}, prefix: KEY_}]
workers.volumes = [{name: scratch, emptyDir: {}}, {name: bucket, csi: {driver: gcsfuse.csi.storage.gke.io}}]
workers.volumeMounts = [{name: scratch, mountPath: /scratch}, {name: bucket, mountPath: /tmpfiles}]
workers.runAsUser = 0
workers.capabilities = [IPC_LOCK]
  valid
workers.volumes = [{name: tmp, emptyDir: {}}, {name: two, emptyDir: {}, secret: {secretName: a}}, {name: old, gitRepo: {repository: a}}, {name: twice, emptyDir: {}}, {name: twice, emptyDir: {}}]
workers.volumeMounts = [{name: twice, mountPath: /a}, {name: twice, mountPath: /a}, {name: none, mountPath: /b}, {name: two, mountPath: /etc/vit/more}, {name: two, mountPath: /data}, {name: two, mountPath: /checkpoints}]
  workers.volumes is tmp: the names run-config, tmp, shared-memory, data, pretrained and checkpoints are taken by the operator; use another name
  workers.volumes is two: give each volume exactly one source, such as configMap, secret, persistentVolumeClaim or csi
  workers.volumes is old: give each volume exactly one source
  workers.volumes is twice: must be the name of one volume only
  workers.volumeMounts is /a: must be the mountPath of one volume only
  workers.volumeMounts is none: each entry of volumeMounts must have the name of one of volumes
  workers.volumeMounts is /etc/vit/more: the operator mounts its own volumes at /etc/vit, /tmp, /dev/shm, /dev/termination-log and /pretrained; use another mountPath
  workers.volumeMounts is /data: a mountPath of workers.volumeMounts must differ from data.path and checkpoint.path, where the job's own volumes are
  workers.volumeMounts is /checkpoints: a mountPath of workers.volumeMounts must differ from data.path
";

    #[test]
    fn each_error_names_field_value_and_what_would_be_right() {
        let mut lines = CHANGES.trim().lines().peekable();
        while lines.peek().is_some() {
            let mut next = |is_change| {
                let lines = std::iter::from_fn(|| lines.next_if(|line| line.starts_with("  ") != is_change));
                lines.map(str::trim_start).collect::<Vec<&str>>()
            };
            let (changes, expected) = (next(true), next(false));
            let errors = validate(&job(changes.clone())).map_or_else(|errors| errors.0, |_| vec![]);
            let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
            let expected: Vec<&str> = expected.into_iter().filter(|line| *line != "valid").collect();
            let are_same = errors
                .iter()
                .zip(&expected)
                .all(|(error, start)| error.starts_with(start));
            assert!(
                are_same && errors.len() == expected.len(),
                "{changes:#?}: {errors:#?} instead of {expected:#?}"
            );
        }
    }

    #[test]
    fn the_errors_of_a_job_are_one_message() {
        let error = validate(&job([
            "workers.nodes = 4",
            "elastic = {minNodes: 5, maxNodes: 3}",
        ]));
        assert_eq!(
            error.expect_err("refused").to_string(),
            "spec.elastic.minNodes is 5: must be at most workers.nodes, which is 4; \
             spec.elastic.maxNodes is 3: must be at least workers.nodes, which is 4"
        );
    }

    #[test]
    fn an_elastic_job_has_every_size_that_shares_its_global_batch() {
        for (elastic, sizes) in [
            ("null", vec![4]),
            ("{minNodes: 4}", vec![4]),
            ("{minNodes: 3, maxNodes: 5}", vec![4]),
            // 4 x 16 images.
            ("{minNodes: 1}", vec![4, 2, 1]),
            ("{minNodes: 2, maxNodes: 9}", vec![8, 4, 2]),
        ] {
            let valid = valid(["workers.nodes = 4", &format!("elastic = {elastic}")]);
            assert_eq!(valid.sizes, sizes);
            let batch = valid.run_config.global_batch_size();
            for nodes in sizes {
                let config = valid.run_config_on(nodes);
                assert_eq!((config.nodes, config.global_batch_size()), (nodes, batch));
            }
        }
    }

    #[test]
    fn an_unknown_field_is_refused_by_name() {
        let manifest = MANIFEST.replace("epochs: 3", "epochs: 3, epoch: 4");
        let error = serde_saphyr::from_str::<ViTTrainingJob>(&manifest)
            .expect_err("refused")
            .to_string();
        assert!(error.contains("epoch"), "{error}");
    }
}
