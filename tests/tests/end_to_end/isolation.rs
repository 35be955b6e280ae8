//! Network access to a job's pods with enforced NetworkPolicies.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use contract::environment::{DEFAULT_AGENT_PORT, DEFAULT_COORDINATOR_PORT};
use serde_json::json;
use vit_tests::image;

use crate::context::{Context, Namespace};
use crate::rights::restricted;

/// Time limit for a policy to take effect.
const DEADLINE: Duration = Duration::from_secs(30);

/// Ranks reach each other, as the checkpoint shows; other pods reach only the metrics.
pub(crate) fn strangers_reach_metrics_alone(context: &Context<'_>) -> Result<()> {
    let namespace = context.namespace("isolated")?;
    let places = [&namespace, &context.namespace("strangers")?];
    let stranger = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "stranger"},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": [{
            "name": "shell", "image": image::TRAINER, "command": ["sleep", "infinity"], "securityContext": restricted(),
        }]},
    });
    for place in places {
        place.apply_all(std::slice::from_ref(&stranger))?;
    }
    namespace.create("digits", json!({"training": {"epochs": 5000}}))?;
    namespace.wait_checkpoint("digits")?;
    let rank_0 = namespace.kubectl(["get", "pod", "digits-1-0", "--output=jsonpath={.status.podIP}"])?;
    let reaches = |place: &Namespace<'_>, port: u16| {
        let connect = format!("</dev/tcp/{rank_0}/{port}");
        place
            .kubectl(["exec", "stranger", "--", "timeout", "5", "bash", "-c", &connect])
            .is_ok()
    };
    for place in places {
        let name = &place.name;
        place.kubectl(["wait", "--for=condition=Ready", "pod/stranger", "--timeout=60s"])?;
        ensure!(
            reaches(place, DEFAULT_AGENT_PORT),
            "metrics cannot be reached from {name}"
        );
        ensure!(
            !reaches(place, DEFAULT_COORDINATOR_PORT),
            "the rendezvous store can be reached from {name}"
        );
    }
    // The policy is what blocks them: policies are additive, and this one admits everyone.
    namespace.apply_all(&[json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "everyone"},
        "spec": {"podSelector": {}, "ingress": [{}]},
    })])?;
    let began = Instant::now();
    for place in places {
        while !reaches(place, DEFAULT_COORDINATOR_PORT) {
            ensure!(
                began.elapsed() < DEADLINE,
                "the rendezvous store cannot be reached from {}",
                place.name
            );
        }
    }
    Ok(())
}
