use crds::spec::{HostPath, Volume as JobVolume};

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
    workers.env =
        serde_json::from_value(serde_json::json!([{"name": "NCCL_DEBUG", "value": "INFO"}])).expect("env");
    workers.priority_class_name = Some("batch".into());
    workers.run_as_user = Some(1000);
    workers.fs_group = Some(2000);
    job.spec.model.pretrained = serde_json::from_value(serde_json::json!({
        "volume": {"persistentVolumeClaim": {"claimName": "weights"}}, "path": "vit_tiny.safetensors",
    }))
    .expect("pretrained");
    job.spec.image_pull_secrets = vec!["registry".into()];
    job.spec.checkpoint.path = "/state".into();
    job.spec.checkpoint.volume = JobVolume {
        persistent_volume_claim: None,
        host_path: Some(HostPath {
            path: "/srv/checkpoints".into(),
        }),
        sub_path: Some("team-a".into()),
    };
    let valid = crds::validate(&job).expect("valid");
    insta::assert_yaml_snapshot!(pod::build(&job, &valid, member()).spec);
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
