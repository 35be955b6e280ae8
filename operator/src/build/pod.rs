//! One pod of a gang: pinned to its planned node, with a stable host name, under Pod Security "restricted".

use std::path::Path;

use contract::environment;
use crds::spec::{Cache, ImagePullPolicy, Volume as JobVolume};
use crds::validate::PRETRAINED_FOLDER;
use crds::{ValidatedJob, ViTTrainingJob, ViTTrainingJobSpec, labels};
use k8s_openapi::api::core::v1::{
    Affinity, ConfigMapVolumeSource, Container, ContainerPort, EmptyDirVolumeSource, EnvFromSource, EnvVar,
    EnvVarSource, HTTPGetAction, HostPathVolumeSource, LocalObjectReference, NodeAffinity, NodeSelector,
    NodeSelectorRequirement, NodeSelectorTerm, ObjectFieldSelector, PersistentVolumeClaimVolumeSource, Pod,
    PodSchedulingGroup, PodSecurityContext, PodSpec, Probe, ResourceRequirements, SeccompProfile, Volume,
    VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt as _;

use super::fetch::{DATA, PRETRAINED};
use super::{Member, confined, external, fetch, metadata, name_of_attempt, variable};
use crate::policy::gang::{CONTAINER, METRICS_PORT};

/// Name of the volume of checkpoints.
const CHECKPOINTS: &str = "checkpoints";

pub(crate) fn name(job: &ViTTrainingJob, attempt: i32, node_rank: usize) -> String {
    format!("{}-{attempt}-{node_rank}", job.name_any())
}

pub(crate) fn build(job: &ViTTrainingJob, valid: &ValidatedJob, member: Member<'_>) -> Pod {
    let (spec, workers) = (&valid.spec, &valid.spec.workers);
    let name = name(job, member.attempt, member.node_rank);
    let mut metadata = metadata(job, name.clone());
    let own = metadata.labels.replace(workers.pod_labels.clone());
    let labels = metadata.labels.get_or_insert_default();
    labels.extend(own.unwrap_or_default());
    labels.extend([
        (labels::ATTEMPT.into(), member.attempt.to_string()),
        (labels::NODE_RANK.into(), member.node_rank.to_string()),
        (labels::GANG_SIZE.into(), member.gang_size.to_string()),
    ]);
    let mut annotations = workers.pod_annotations.clone();
    let port = environment::DEFAULT_AGENT_PORT.to_string();
    annotations.extend([
        ("prometheus.io/scrape".into(), "true".into()),
        ("prometheus.io/port".into(), port),
        ("prometheus.io/path".into(), "/metrics".into()),
    ]);
    metadata.annotations = Some(annotations);
    let (volumes, mounts) = volumes(job, valid, member.attempt);
    let container = container(job, valid, member, mounts);
    let before = fetch::containers(&container, spec);
    let (container, beside) = match &spec.external {
        None => (container, None),
        Some(other) => {
            let (trainer, agent) = external::containers(container, &other.command, valid, member);
            (trainer, Some(agent))
        }
    };
    let secrets = spec.image_pull_secrets.iter().map(|secret| LocalObjectReference {
        name: secret.name.clone(),
    });
    Pod {
        metadata,
        spec: Some(PodSpec {
            restart_policy: Some("Never".into()),
            hostname: Some(name),
            subdomain: Some(job.name_any()),
            affinity: Some(pinned_to(member.node)),
            node_selector: some_if_any(workers.node_selector.clone()),
            tolerations: Some(valid.tolerations()),
            priority_class_name: workers.priority_class_name.clone(),
            scheduler_name: spec.scheduling.scheduler_name.clone(),
            scheduling_group: member.is_grouped.then(|| PodSchedulingGroup {
                pod_group_name: Some(name_of_attempt(job, member.attempt)),
            }),
            image_pull_secrets: some_if_any(secrets.collect::<Vec<_>>()),
            termination_grace_period_seconds: Some(spec.checkpoint.stop_seconds.into()),
            service_account_name: workers.service_account_name.clone(),
            automount_service_account_token: Some(false),
            runtime_class_name: workers.runtime_class_name.clone(),
            host_network: workers.host_network.then_some(true),
            // Otherwise these pods use their node's resolver, which does not know rank 0's pod.
            dns_policy: workers.host_network.then(|| "ClusterFirstWithHostNet".into()),
            enable_service_links: Some(false),
            security_context: Some(PodSecurityContext {
                run_as_non_root: Some(workers.run_as_user != Some(0)),
                run_as_user: workers.run_as_user,
                fs_group: workers.fs_group,
                supplemental_groups: some_if_any(workers.supplemental_groups.clone()),
                // A checkpoint folder can hold many files; this checks only its root.
                fs_group_change_policy: workers.fs_group.map(|_| "OnRootMismatch".into()),
                seccomp_profile: Some(SeccompProfile {
                    type_: "RuntimeDefault".into(),
                    localhost_profile: None,
                }),
                ..PodSecurityContext::default()
            }),
            // PID 1 ignores SIGTERM without a handler: another trainer may have none, and
            // vit-trainer has none while it loads libtorch.
            share_process_namespace: Some(true),
            init_containers: some_if_any(before.into_iter().chain(beside).collect::<Vec<_>>()),
            containers: vec![container],
            volumes: Some(volumes),
            ..PodSpec::default()
        }),
        status: None,
    }
}

fn container(
    job: &ViTTrainingJob,
    valid: &ValidatedJob,
    member: Member<'_>,
    mounts: Vec<VolumeMount>,
) -> Container {
    let (spec, workers) = (&valid.spec, &valid.spec.workers);
    let pull_policy = match spec.image_pull_policy {
        ImagePullPolicy::Always => "Always",
        ImagePullPolicy::IfNotPresent => "IfNotPresent",
        ImagePullPolicy::Never => "Never",
    };
    Container {
        name: CONTAINER.into(),
        image: Some(spec.image.clone()),
        image_pull_policy: Some(pull_policy.into()),
        args: Some(vec!["agent".into()]),
        env: Some(environment(job, valid, member)),
        env_from: some_if_any(sources_of_environment(spec)),
        ports: Some(ports(workers.host_network)),
        readiness_probe: Some(Probe {
            http_get: Some(HTTPGetAction {
                path: Some("/healthz".into()),
                port: IntOrString::String(METRICS_PORT.into()),
                ..HTTPGetAction::default()
            }),
            period_seconds: Some(2),
            timeout_seconds: Some(2),
            failure_threshold: Some(5),
            ..Probe::default()
        }),
        resources: Some(resources(valid)),
        security_context: Some(confined(workers.capabilities.clone())),
        termination_message_path: Some(environment::TERMINATION_LOG_PATH.into()),
        termination_message_policy: Some("File".into()),
        volume_mounts: Some(mounts),
        ..Container::default()
    }
}

/// A pod on the host network declares all its ports, so that kube-scheduler and the operator's
/// [requests](planner::facts::resources::requests_of) allow one per node.
fn ports(host_network: bool) -> Vec<ContainerPort> {
    let port = |name: &str, number: u16| ContainerPort {
        name: Some(name.into()),
        container_port: i32::from(number),
        host_port: host_network.then(|| i32::from(number)),
        ..ContainerPort::default()
    };
    let mut ports = vec![port(METRICS_PORT, environment::DEFAULT_AGENT_PORT)];
    if host_network {
        ports.push(port("coordinator", environment::DEFAULT_COORDINATOR_PORT));
    }
    ports
}

/// The user's sources, and the credentials of a store from which the trainer streams.
fn sources_of_environment(spec: &ViTTrainingJobSpec) -> Vec<EnvFromSource> {
    let streamed = spec.data.from.as_ref().filter(|_| spec.data.cache.is_some());
    let credentials = streamed.and_then(fetch::credentials);
    spec.workers.env_from.iter().cloned().chain(credentials).collect()
}

/// The user's variables, then the operator's, whose names are reserved.
fn environment(job: &ViTTrainingJob, valid: &ValidatedJob, member: Member<'_>) -> Vec<EnvVar> {
    let coordinator = match member.gang_size {
        1 => "localhost".to_owned(),
        _ => format!("{}.{}", name(job, member.attempt, 0), job.name_any()),
    };
    let (port, agent_port) = (
        environment::DEFAULT_COORDINATOR_PORT,
        environment::DEFAULT_AGENT_PORT,
    );
    let field = |name: &str, path: &str| EnvVar {
        name: name.into(),
        value: None,
        value_from: Some(EnvVarSource {
            field_ref: Some(ObjectFieldSelector {
                field_path: path.into(),
                api_version: None,
            }),
            ..EnvVarSource::default()
        }),
    };
    let mut variables = valid.spec.workers.env.clone();
    variables.extend([
        variable(environment::RUN_CONFIG, environment::RUN_CONFIG_PATH),
        variable(environment::NODE_RANK, member.node_rank.to_string()),
        variable(environment::ATTEMPT, member.attempt.to_string()),
        variable(environment::COORDINATOR_HOST, coordinator),
        variable(environment::COORDINATOR_PORT, port.to_string()),
        field(environment::POD_ADDRESS, "status.podIP"),
        field(environment::NODE_NAME, "spec.nodeName"),
        variable(environment::AGENT_PORT, agent_port.to_string()),
        variable(environment::TERMINATION_LOG, environment::TERMINATION_LOG_PATH),
    ]);
    variables
}

/// The user's requests and limits, and the GPUs, for which Kubernetes requires both to be equal.
pub(crate) fn resources(valid: &ValidatedJob) -> ResourceRequirements {
    let mut resources = valid.spec.workers.resources.clone();
    for list in [&mut resources.requests, &mut resources.limits] {
        list.get_or_insert_default().insert(
            valid.spec.workers.gpu_resource.clone(),
            Quantity(valid.gpus_per_node().to_string()),
        );
    }
    resources
}

/// Matches the node's name, which labels cannot imitate; kube-scheduler still checks the fit.
fn pinned_to(node: &str) -> Affinity {
    Affinity {
        node_affinity: Some(NodeAffinity {
            required_during_scheduling_ignored_during_execution: Some(NodeSelector {
                node_selector_terms: vec![NodeSelectorTerm {
                    match_fields: Some(vec![NodeSelectorRequirement {
                        key: "metadata.name".into(),
                        operator: "In".into(),
                        values: Some(vec![node.into()]),
                    }]),
                    match_expressions: None,
                }],
            }),
            ..NodeAffinity::default()
        }),
        ..Affinity::default()
    }
}

/// Of each source of files, the volume and where it is mounted.
fn volumes(job: &ViTTrainingJob, valid: &ValidatedJob, attempt: i32) -> (Vec<Volume>, Vec<VolumeMount>) {
    let run_config = Volume {
        name: "run-config".into(),
        config_map: Some(ConfigMapVolumeSource {
            name: name_of_attempt(job, attempt),
            ..ConfigMapVolumeSource::default()
        }),
        ..Volume::default()
    };
    let folder = Path::new(environment::RUN_CONFIG_PATH).parent();
    let folder = folder.unwrap_or(Path::new("/")).display().to_string();
    let mut all = vec![
        (run_config, mount("run-config", &folder, None, true)),
        (empty("tmp", None, None), mount("tmp", "/tmp", None, false)),
        // Ranks of one pod exchange tensors through it; the default is 64 MiB.
        (
            empty("shared-memory", Some("Memory"), None),
            mount("shared-memory", "/dev/shm", None, false),
        ),
    ];
    let mounted = |name: &str, volume: &JobVolume, path: &str, read_only: bool| {
        let sub_path = volume.sub_path.as_ref();
        (source(name, volume, read_only), mount(name, path, sub_path, true))
    };
    let data = &valid.spec.data;
    let cached = |cache: &Cache| {
        (
            empty(DATA, None, Some(&cache.size_limit)),
            mount(DATA, &data.path, None, false),
        )
    };
    // Another container fetches into the volume of data with an origin.
    let files = data.volume.as_ref();
    let files = files.map(|volume| mounted(DATA, volume, &data.path, data.from.is_none()));
    all.extend(files.or_else(|| data.cache.as_ref().map(cached)));
    let pretrained = valid.spec.model.pretrained.as_ref();
    all.extend(pretrained.map(|file| match &file.volume {
        Some(volume) => mounted(PRETRAINED, volume, PRETRAINED_FOLDER, file.from.is_none()),
        None => (
            empty(PRETRAINED, None, None),
            mount(PRETRAINED, PRETRAINED_FOLDER, None, true),
        ),
    }));
    let checkpoint = &valid.spec.checkpoint;
    all.push(match &checkpoint.volume {
        None => (
            empty(CHECKPOINTS, None, None),
            mount(CHECKPOINTS, &checkpoint.path, None, false),
        ),
        Some(volume) => (
            source(CHECKPOINTS, volume, false),
            mount(CHECKPOINTS, &checkpoint.path, volume.sub_path.as_ref(), false),
        ),
    });
    let (mut volumes, mut mounts): (Vec<_>, Vec<_>) = all.into_iter().unzip();
    volumes.extend(valid.spec.workers.volumes.iter().cloned());
    mounts.extend(valid.spec.workers.volume_mounts.iter().cloned());
    (volumes, mounts)
}

fn mount(name: &str, path: &str, sub_path: Option<&String>, read_only: bool) -> VolumeMount {
    VolumeMount {
        name: name.into(),
        mount_path: path.into(),
        sub_path: sub_path.cloned(),
        read_only: read_only.then_some(true),
        ..VolumeMount::default()
    }
}

fn empty(name: &str, medium: Option<&str>, size_limit: Option<&String>) -> Volume {
    Volume {
        name: name.into(),
        empty_dir: Some(EmptyDirVolumeSource {
            medium: medium.map(Into::into),
            size_limit: size_limit.cloned().map(Quantity),
            ..EmptyDirVolumeSource::default()
        }),
        ..Volume::default()
    }
}

fn source(name: &str, volume: &JobVolume, read_only: bool) -> Volume {
    Volume {
        name: name.into(),
        persistent_volume_claim: volume.persistent_volume_claim.as_ref().map(|claim| {
            PersistentVolumeClaimVolumeSource {
                claim_name: claim.claim_name.clone(),
                read_only: read_only.then_some(true),
            }
        }),
        host_path: volume.host_path.as_ref().map(|folder| HostPathVolumeSource {
            path: folder.path.clone(),
            type_: None,
        }),
        ..Volume::default()
    }
}

fn some_if_any<C: IntoIterator + Default + PartialEq>(collection: C) -> Option<C> {
    (collection != C::default()).then_some(collection)
}
