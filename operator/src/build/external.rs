//! The containers of another trainer's pod: its own, and the agent that stands beside it, a sidecar (KEP-753).

use contract::environment::{self, torchrun};
use crds::ValidatedJob;
use k8s_openapi::api::core::v1::{Capabilities, Container, EnvVar, Probe, SecurityContext};

use super::Member;
use crate::policy::gang::AGENT;

/// User of the operator's image.
const AGENT_USER: i64 = 65532;
/// Longer than the agent looks for the name of rank 0's pod.
const STARTS_WITHIN_SECONDS: i32 = 360;

/// Makes of the container of this project's trainer that of another one, which runs `command`, and the agent's.
pub(super) fn containers(
    container: Container,
    command: &[String],
    valid: &ValidatedJob,
    member: Member<'_>,
) -> (Container, Container) {
    let own_mounts = ["run-config", "tmp"];
    let mounts = container.volume_mounts.iter().flatten();
    let agent = Container {
        name: AGENT.into(),
        image: member.agent_image.map(Into::into),
        image_pull_policy: Some("IfNotPresent".into()),
        args: Some(vec!["agent".into()]),
        env: Some(
            container
                .env
                .iter()
                .flatten()
                .filter(|variable| variable.name.starts_with(crds::spec::reserved::ENV_PREFIX))
                .cloned()
                .chain([value(environment::LOG, environment::LOG_PATH)])
                .collect(),
        ),
        resources: valid.agent_resources(),
        // A container that starts before the others, and ends after them.
        restart_policy: Some("Always".into()),
        ports: container.ports.clone(),
        // The trainer is started once this has answered: it then finds the pod of rank 0 by its name.
        startup_probe: container.readiness_probe.clone().map(|probe| Probe {
            period_seconds: Some(1),
            failure_threshold: Some(STARTS_WITHIN_SECONDS),
            ..probe
        }),
        readiness_probe: container.readiness_probe.clone(),
        // None of what the manifest grants the trainer.
        security_context: Some(SecurityContext {
            allow_privilege_escalation: Some(false),
            read_only_root_filesystem: Some(true),
            run_as_non_root: Some(true),
            run_as_user: Some(AGENT_USER),
            capabilities: Some(Capabilities {
                drop: Some(vec!["ALL".into()]),
                add: None,
            }),
            ..SecurityContext::default()
        }),
        termination_message_path: container.termination_message_path.clone(),
        termination_message_policy: container.termination_message_policy.clone(),
        volume_mounts: Some(
            mounts
                .filter(|mount| own_mounts.contains(&mount.name.as_str()))
                .cloned()
                .collect(),
        ),
        ..Container::default()
    };
    let mut security_context = container.security_context;
    if let Some(context) = &mut security_context {
        // Python and its libraries write caches to wherever they are.
        context.read_only_root_filesystem = Some(false);
    }
    let trainer = Container {
        command: Some(command.to_vec()),
        args: None,
        env: Some(environment(container.env.unwrap_or_default(), valid, member)),
        ports: None,
        readiness_probe: None,
        security_context,
        // The end of what it printed.
        termination_message_policy: Some("FallbackToLogsOnError".into()),
        ..container
    };
    (trainer, agent)
}

/// The container's variables, and those that torchrun and its ranks read. What the manifest sets stays.
fn environment(mut variables: Vec<EnvVar>, valid: &ValidatedJob, member: Member<'_>) -> Vec<EnvVar> {
    let host = variables
        .iter()
        .find(|variable| variable.name == environment::COORDINATOR_HOST);
    let host = host.and_then(|variable| variable.value.clone());
    let node = torchrun::Node {
        rank: member.node_rank,
        nodes: member.gang_size,
        ranks_per_node: valid.gpus_per_node(),
        host: &host.unwrap_or_default(),
        port: environment::DEFAULT_COORDINATOR_PORT,
    };
    let mut more = vec![value(environment::LOG, environment::LOG_PATH)];
    more.extend(node.environment().iter().map(|(name, text)| value(name, text)));
    more.retain(|variable| variables.iter().all(|given| given.name != variable.name));
    variables.extend(more);
    variables
}

fn value(name: &str, value: &str) -> EnvVar {
    EnvVar {
        name: name.into(),
        value: Some(value.into()),
        value_from: None,
    }
}
