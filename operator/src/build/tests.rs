use crds::spec::{HostPath, ImagePullSecret, Volume as JobVolume, reserved};

use super::*;
use crate::build::pod::Member;
use crate::fixtures;

fn member() -> Member<'static> {
    Member {
        attempt: 3,
        node_rank: 1,
        gang_size: 2,
        node: "gpu-7",
        is_grouped: false,
    }
}

#[test]
fn a_pod_of_a_gang() {
    let job = fixtures::job();
    let valid = crds::validate(&job).expect("valid");
    insta::assert_yaml_snapshot!(pod::build(&job, &valid, member()));
}

#[test]
fn the_ranks_of_one_pod_meet_within_it() {
    let job = fixtures::job();
    let valid = crds::validate(&job).expect("valid");
    let alone = Member {
        node_rank: 0,
        gang_size: 1,
        ..member()
    };
    let spec = pod::build(&job, &valid, alone).spec.expect("a specification");
    let variables = spec
        .containers
        .into_iter()
        .filter_map(|container| container.env)
        .flatten();
    let host = variables.filter(|variable| variable.name == contract::environment::COORDINATOR_HOST);
    assert_eq!(
        host.map(|host| host.value).collect::<Vec<_>>(),
        [Some("localhost".to_owned())]
    );
}

#[test]
fn a_pod_with_everything_that_can_be_set() {
    let mut job = fixtures::job();
    let workers = &mut job.spec.workers;
    workers.gpus_per_node = 4;
    workers.gpu_resource = "amd.com/gpu".into();
    workers.resources = serde_json::from_value(serde_json::json!({
        "requests": {"cpu": "8", "memory": "64Gi"}, "limits": {"memory": "64Gi"},
    }))
    .expect("resources");
    workers.node_selector = [("pool".to_owned(), "training".to_owned())].into();
    workers.tolerations = serde_json::from_value(serde_json::json!([
        {"key": "amd.com/gpu", "operator": "Exists"},
    ]))
    .expect("tolerations");
    workers.env = serde_json::from_value(serde_json::json!([
        {"name": "NCCL_DEBUG", "value": "INFO"},
        {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "tracking", "key": "token"}}},
    ]))
    .expect("env");
    workers.env_from =
        serde_json::from_value(serde_json::json!([{"configMapRef": {"name": "nccl"}}])).expect("envFrom");
    workers.volumes = serde_json::from_value(serde_json::json!([
        {"name": "scratch", "emptyDir": {"sizeLimit": "10Gi"}},
        {"name": "topology", "configMap": {"name": "nccl-topology"}},
    ]))
    .expect("volumes");
    workers.volume_mounts = serde_json::from_value(serde_json::json!([
        {"name": "scratch", "mountPath": "/scratch"},
        {"name": "topology", "mountPath": "/etc/nccl", "readOnly": true},
    ]))
    .expect("volumeMounts");
    workers.pod_labels = [("team".to_owned(), "vision".to_owned())].into();
    workers.pod_annotations = [("k8s.v1.cni.cncf.io/networks".to_owned(), "rdma".to_owned())].into();
    workers.priority_class_name = Some("batch".into());
    workers.service_account_name = Some("trainer".into());
    workers.runtime_class_name = Some("nvidia".into());
    workers.host_network = true;
    workers.run_as_user = Some(0);
    workers.capabilities = vec!["IPC_LOCK".into()];
    workers.fs_group = Some(2000);
    workers.supplemental_groups = vec![44];
    job.spec.model.pretrained = serde_json::from_value(serde_json::json!({
        "volume": {"persistentVolumeClaim": {"claimName": "weights"}}, "path": "vit_tiny.safetensors",
    }))
    .expect("pretrained");
    job.spec.image_pull_secrets = vec![ImagePullSecret {
        name: "registry".into(),
    }];
    job.spec.checkpoint.path = "/state".into();
    job.spec.checkpoint.volume = JobVolume {
        persistent_volume_claim: None,
        host_path: Some(HostPath {
            path: "/srv/checkpoints".into(),
        }),
        sub_path: Some("team-a".into()),
    };
    let valid = crds::validate(&job).expect("valid");
    insta::assert_yaml_snapshot!(pod::build(&job, &valid, member()));
}

#[test]
fn a_pod_on_the_network_of_its_node_asks_for_what_was_planned() {
    let mut job = fixtures::job();
    job.spec.workers.host_network = true;
    let valid = crds::validate(&job).expect("valid");
    let spec = pod::build(&job, &valid, member()).spec.expect("a specification");
    let planned = planner::policy::request::GangRequest::from(&valid);
    assert_eq!(
        planner::facts::resources::requests_of(&spec),
        planned.shape.requests
    );
}

#[test]
fn all_that_the_operator_gives_a_pod_is_refused_in_a_manifest() {
    let mut job = fixtures::job();
    job.spec.model.pretrained = serde_json::from_value(serde_json::json!({
        "volume": {"persistentVolumeClaim": {"claimName": "weights"}}, "path": "vit_tiny.safetensors",
    }))
    .expect("pretrained");
    let valid = crds::validate(&job).expect("valid");
    let pod = pod::build(&job, &valid, member());
    let keys = [pod.metadata.labels, pod.metadata.annotations];
    for key in keys
        .into_iter()
        .flatten()
        .flat_map(std::collections::BTreeMap::into_keys)
    {
        assert!(reserved::is_reserved_key(&key), "{key}");
    }
    let spec = pod.spec.expect("a specification");
    let volumes = spec.volumes.unwrap_or_default();
    let names: Vec<&str> = volumes.iter().map(|volume| volume.name.as_str()).collect();
    assert_eq!(names, reserved::VOLUMES);
    let container = &spec.containers[0];
    for variable in container.env.iter().flatten() {
        assert!(
            variable.name.starts_with(reserved::ENV_PREFIX),
            "{}",
            variable.name
        );
    }
    let of_manifest = [&job.spec.data.path, &job.spec.checkpoint.path];
    let mounts = container
        .volume_mounts
        .iter()
        .flatten()
        .map(|mount| &mount.mount_path);
    for path in mounts.chain(&container.termination_message_path) {
        assert!(
            reserved::is_reserved_folder(path) || of_manifest.contains(&path),
            "{path}"
        );
    }
}

#[test]
fn the_pod_group_of_an_attempt() {
    let job = fixtures::job();
    let valid = crds::validate(&job).expect("valid");
    let group = pod_group::build(pod_group::Version("v1beta1"), &job, 3, 2);
    let grouped = Member {
        is_grouped: true,
        ..member()
    };
    let spec = pod::build(&job, &valid, grouped).spec.expect("a specification");
    let of_pod = spec.scheduling_group.and_then(|group| group.pod_group_name);
    assert_eq!(of_pod, group.metadata.name);
    insta::assert_yaml_snapshot!(group);
}

#[test]
fn the_headless_service_of_a_job() {
    insta::assert_yaml_snapshot!(service::build(&fixtures::job()));
}

#[test]
fn a_network_policy_lets_in_the_job_and_whoever_reads_metrics() {
    insta::assert_yaml_snapshot!(network_policy::build(&fixtures::job()));
}

#[test]
fn the_config_map_of_an_attempt() {
    let job = fixtures::job();
    let valid = crds::validate(&job).expect("valid");
    insta::assert_yaml_snapshot!(config_map::build(&job, &valid.run_config, 3));
}

#[test]
fn the_trainer_reads_back_the_run_configuration_that_was_rendered() {
    let job = fixtures::job();
    let valid = crds::validate(&job).expect("valid");
    let config_map = config_map::build(&job, &valid.run_config, 1);
    let json = &config_map.data.expect("data")[config_map::RUN_CONFIG_KEY];
    assert_eq!(
        serde_json::from_str::<contract::RunConfig>(json).expect("reads back"),
        valid.run_config
    );
    assert!(
        contract::environment::RUN_CONFIG_PATH.ends_with(&format!("/{}", config_map::RUN_CONFIG_KEY)),
        "the key is not the name of the file that the trainer opens"
    );
}

#[test]
fn host_names_stay_within_what_dns_allows() {
    let mut job = fixtures::job();
    job.metadata.name = Some("j".repeat(50));
    let longest = pod::name(&job, 999_999, 4095);
    assert!(longest.len() <= 63, "{} is too long", longest.len());
}

#[test]
fn a_view_of_a_built_pod_tells_what_it_was_built_for() {
    let job = fixtures::job();
    let valid = crds::validate(&job).expect("valid");
    let mut pod = pod::build(&job, &valid, member());
    pod.status = serde_json::from_value(serde_json::json!({
        "phase": "Running", "podIP": "fd00::7",
        "conditions": [{"type": "Ready", "status": "True"}],
    }))
    .ok();
    let view = crate::policy::gang::PodView::of(&pod).expect("ours");
    assert_eq!(
        (view.attempt, view.node_rank, view.gang_size, view.node.as_deref()),
        (3, 1, 2, Some("gpu-7"))
    );
    assert_eq!(view.agent.as_deref(), Some("http://[fd00::7]:9402"));
    assert!(view.ready && view.leaving.is_none() && view.stuck.is_none());
}
