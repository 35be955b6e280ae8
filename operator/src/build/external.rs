//! The containers of another trainer's pod: its own, and the agent's sidecar (KEP-753).

use contract::environment::{self, torchrun};
use crds::ValidatedJob;
use k8s_openapi::api::core::v1::{Container, EnvVar, Probe, SecurityContext};

use super::{Member, confined, variable};
use crate::policy::gang::AGENT;

/// User of the operator's image.
const AGENT_USER: i64 = 65532;
/// Longer than the agent waits for rank 0's name to resolve.
const STARTS_WITHIN_SECONDS: i32 = 360;

/// Turns this project's container into another trainer's, which runs `command`, and the agent's.
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
                .chain([variable(environment::LOG, environment::LOG_PATH)])
                .collect(),
        ),
        resources: valid.agent_resources(),
        // A sidecar: starts before the other containers and ends after them.
        restart_policy: Some("Always".into()),
        ports: container.ports.clone(),
        // Delays the trainer until rank 0's name resolves.
        startup_probe: container.readiness_probe.clone().map(|probe| Probe {
            period_seconds: Some(1),
            failure_threshold: Some(STARTS_WITHIN_SECONDS),
            ..probe
        }),
        readiness_probe: container.readiness_probe.clone(),
        // None of the manifest's privileges.
        security_context: Some(SecurityContext {
            run_as_non_root: Some(true),
            // Else the image's, or the one that OpenShift chooses.
            run_as_user: valid.spec.workers.run_as_user.map(|_| AGENT_USER),
            ..confined(vec![])
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
        // Python and its libraries write caches next to their files.
        context.read_only_root_filesystem = Some(false);
    }
    let trainer = Container {
        command: Some(command.to_vec()),
        args: None,
        env: Some(environment(container.env.unwrap_or_default(), valid, member)),
        ports: None,
        readiness_probe: None,
        security_context,
        // The end of its output.
        termination_message_policy: Some("FallbackToLogsOnError".into()),
        ..container
    };
    (trainer, agent)
}

/// The container's variables, and those of torchrun and its ranks. The manifest's take precedence.
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
    let mut more = vec![variable(environment::LOG, environment::LOG_PATH)];
    more.extend(
        node.environment()
            .iter()
            .map(|(name, text)| variable(name, text.as_str())),
    );
    more.retain(|variable| variables.iter().all(|given| given.name != variable.name));
    variables.extend(more);
    variables
}
