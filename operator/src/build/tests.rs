use crds::spec::reserved;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::*;
use crate::api::pod_group::Version;
use crate::build::Member;
use crate::fixtures;

fn member() -> Member<'static> {
    Member {
        attempt: 3,
        node_rank: 1,
        gang_size: 2,
        node: "gpu-7",
        is_grouped: false,
        agent_image: None,
    }
}

fn pod_of(job: &ViTTrainingJob, member: Member<'_>) -> Pod {
    pod::build(job, &crds::validate(job).expect("valid"), member)
}

fn pretrained() -> Value {
    json!({"volume": {"persistentVolumeClaim": {"claimName": "weights"}}, "path": "vit_tiny.safetensors"})
}

/// Invariant G15.
#[test]
fn a_pod_of_a_gang() {
    insta::assert_yaml_snapshot!(pod_of(&fixtures::job(), member()));
}

#[test]
fn the_ranks_of_one_pod_meet_within_it() {
    let job = fixtures::job();
    let alone = Member {
        node_rank: 0,
        gang_size: 1,
        ..member()
    };
    let spec = pod_of(&job, alone).spec.expect("a specification");
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
    let mut manifest = json!(fixtures::job());
    let workers = json!({
        "nodes": 2,
        "gpusPerNode": 4,
        "gpuResource": "amd.com/gpu",
        "resources": {"requests": {"cpu": "8", "memory": "64Gi"}, "limits": {"memory": "64Gi"}},
        "nodeSelector": {"pool": "training"},
        "tolerations": [{"key": "amd.com/gpu", "operator": "Exists"}],
        "env": [
            {"name": "NCCL_DEBUG", "value": "INFO"},
            {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "tracking", "key": "token"}}},
        ],
        "envFrom": [{"configMapRef": {"name": "nccl"}}],
        "volumes": [
            {"name": "scratch", "emptyDir": {"sizeLimit": "10Gi"}},
            {"name": "topology", "configMap": {"name": "nccl-topology"}},
        ],
        "volumeMounts": [
            {"name": "scratch", "mountPath": "/scratch"},
            {"name": "topology", "mountPath": "/etc/nccl", "readOnly": true},
        ],
        "podLabels": {"team": "vision"},
        "podAnnotations": {"k8s.v1.cni.cncf.io/networks": "rdma"},
        "priorityClassName": "batch",
        "serviceAccountName": "trainer",
        "runtimeClassName": "nvidia",
        "hostNetwork": true,
        "runAsUser": 0,
        "capabilities": ["IPC_LOCK"],
        "fsGroup": 2000,
        "supplementalGroups": [44],
    });
    manifest["spec"]["workers"] = workers;
    manifest["spec"]["model"]["pretrained"] = pretrained();
    manifest["spec"]["imagePullSecrets"] = json!([{"name": "registry"}]);
    manifest["spec"]["checkpoint"]["path"] = json!("/state");
    manifest["spec"]["checkpoint"]["stopSeconds"] = json!(600);
    manifest["spec"]["checkpoint"]["volume"] =
        json!({"hostPath": {"path": "/srv/checkpoints"}, "subPath": "team-a"});
    let job = serde_json::from_value(manifest).expect("a job");
    insta::assert_yaml_snapshot!(pod_of(&job, member()));
}

#[test]
fn a_pod_of_another_trainer() {
    let mut job = fixtures::job();
    job.spec.image = "registry.example/ddp:1".into();
    job.spec.external = serde_json::from_value(json!({"command": ["torchrun", "/ddp.py"]})).ok();
    job.spec.workers.env =
        serde_json::from_value(json!([{"name": "MASTER_PORT", "value": "4711"}])).expect("variables");
    let member = Member {
        agent_image: Some("localhost/vit-operator:dev"),
        ..member()
    };
    let spec = pod_of(&job, member).spec.expect("a specification");
    insta::assert_yaml_snapshot!(json!({
        "initContainers": spec.init_containers,
        "containers": spec.containers,
        "shareProcessNamespace": spec.share_process_namespace,
    }));
}

/// The parts of a pod that have to do with its data.
fn data_of(job: &ViTTrainingJob) -> Value {
    let spec = pod_of(job, member()).spec.expect("a specification");
    let volumes = spec.volumes.into_iter().flatten();
    let mounts = spec.containers[0].volume_mounts.iter().flatten();
    json!({
        "initContainers": spec.init_containers,
        "dataVolume": volumes.filter(|volume| volume.name == "data").collect::<Vec<_>>(),
        "dataOfTheTrainer": mounts.filter(|mount| mount.name == "data").collect::<Vec<_>>(),
        "envFromOfTheTrainer": spec.containers[0].env_from,
    })
}

#[test]
fn a_pod_that_fetches_its_data_set() {
    let mut job = fixtures::job();
    let from = json!({
        "locations": ["s3://images/train-*.tar", "s3://images/val-*.tar"],
        "credentialsSecret": "images-credentials",
    });
    job.spec.data.from = serde_json::from_value(from).expect("an origin");
    insta::assert_yaml_snapshot!(data_of(&job));
}

#[test]
fn weights_are_fetched_before_the_data_set_into_a_folder_that_the_trainer_only_reads() {
    let mut job = fixtures::job();
    let from = json!({"locations": ["hf://timm/vit@v1"], "credentialsSecret": "token"});
    job.spec.model.pretrained = serde_json::from_value(json!({"from": from})).expect("weights");
    job.spec.data.from = serde_json::from_value(json!({"locations": ["s3://images"]})).expect("an origin");
    let pod = json!(pod_of(&job, member()));
    let before = pod["spec"]["initContainers"].as_array().expect("containers");
    let names: Vec<_> = before.iter().map(|container| &container["name"]).collect();
    assert_eq!(names, ["fetch-weights", "fetch"]);
    assert_eq!(
        before[0]["args"],
        json!([
            "fetch",
            "--to",
            "/pretrained",
            "--",
            "hf://timm/vit@v1/model.safetensors"
        ])
    );
    assert_eq!(before[0]["envFrom"], json!([{"secretRef": {"name": "token"}}]));
    let mount = |container: &Value| {
        let mounts = container["volumeMounts"].as_array().expect("mounts").iter();
        mounts
            .filter(|mount| mount["name"] == "pretrained")
            .cloned()
            .collect::<Vec<_>>()
    };
    assert_eq!(
        mount(&before[0]),
        [json!({"name": "pretrained", "mountPath": "/pretrained"})]
    );
    assert_eq!(
        mount(&pod["spec"]["containers"][0]),
        [json!({"name": "pretrained", "mountPath": "/pretrained", "readOnly": true})]
    );
    let volumes = pod["spec"]["volumes"].as_array().expect("volumes");
    assert!(
        volumes.contains(&json!({"name": "pretrained", "emptyDir": {}})),
        "{volumes:?}"
    );
}

#[test]
fn a_pod_that_streams_its_data_set() {
    let mut job = fixtures::job();
    job.spec.data.format = contract::DataFormat::Parquet;
    job.spec.data.volume = None;
    let from = json!({"locations": ["s3://images"], "credentialsSecret": "images-credentials"});
    job.spec.data.from = serde_json::from_value(from).expect("an origin");
    job.spec.data.cache = serde_json::from_value(json!({"sizeLimit": "50Gi"})).expect("a cache");
    let expected = json!({
        "initContainers": null,
        "dataVolume": [{"name": "data", "emptyDir": {"sizeLimit": "50Gi"}}],
        "dataOfTheTrainer": [{"name": "data", "mountPath": "/data"}],
        "envFromOfTheTrainer": [{"secretRef": {"name": "images-credentials"}}],
    });
    assert_eq!(data_of(&job), expected);
}

#[test]
fn a_pod_asks_for_what_was_planned() {
    let agent = json!({"cpu": "1", "memory": "256Mi"});
    let external = json!({"command": ["torchrun", "/ddp.py"], "agent": agent});
    let from = json!({"locations": ["s3://images"]});
    for (external, from) in [
        (json!(null), json!(null)),
        (external, json!(null)),
        (json!(null), from),
    ] {
        for host_network in [false, true] {
            let mut job = fixtures::job();
            job.spec.data.from = serde_json::from_value(from.clone()).expect("an origin");
            job.spec.external = serde_json::from_value(external.clone()).expect("a trainer");
            job.spec.workers.host_network = host_network;
            job.spec.workers.resources =
                serde_json::from_value(json!({"limits": {"memory": "8Gi"}})).expect("resources");
            let valid = crds::validate(&job).expect("valid");
            let spec = pod_of(&job, member()).spec.expect("a specification");
            let planned = planner::policy::request::GangRequest::from(&valid).shape;
            let found = planner::facts::resources::requests_of(&spec);
            assert_eq!(found, planned.requests, "{external}, {host_network}");
            // And for Kueue's request, which has no ports.
            let workload = json!(workload::build(&job, &valid, 0));
            let of_workload = &workload["spec"]["podSets"][0]["template"]["spec"];
            let beside = of_workload["initContainers"][0]["resources"].clone();
            assert_eq!(beside, json!(valid.agent_resources()));
        }
    }
}

#[test]
fn all_that_the_operator_gives_a_pod_is_refused_in_a_manifest() {
    let mut job = fixtures::job();
    job.spec.model.pretrained = serde_json::from_value(pretrained()).expect("pretrained");
    let pod = pod_of(&job, member());
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
    let group = pod_group::build(Version("v1beta1"), &job, 3, 2);
    let grouped = Member {
        is_grouped: true,
        ..member()
    };
    let spec = pod_of(&job, grouped).spec.expect("a specification");
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
