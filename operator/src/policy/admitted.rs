//! What admission makes of a job's pods.

use crds::status::AdmittedPod;
use k8s_openapi::api::core::v1::{Container, PodSpec, Toleration};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use planner::facts::resources::{CPU, is_of_nodes, requests_of};

const MEBIBYTE: i64 = 1 << 20;

/// What admission (webhooks, policies, limit ranges, runtime classes) adds to a pod, as far as it
/// matters to placement.
pub(crate) fn admitted(built: &PodSpec, pod: &PodSpec) -> AdmittedPod {
    let wanted = requests_of(built);
    let more = requests_of(pod).into_iter().filter_map(|(resource, amount)| {
        let more = amount - wanted.get(&resource).copied().unwrap_or(0);
        (more > 0 && is_of_nodes(&resource)).then(|| (quantity(&resource, more), resource))
    });
    let selector = pod.node_selector.clone().unwrap_or_default();
    let known = built.node_selector.clone().unwrap_or_default();
    let tolerations = pod.tolerations.iter().flatten();
    let own = |toleration: &&Toleration| {
        built
            .tolerations
            .iter()
            .flatten()
            .any(|known| known == *toleration)
    };
    let names = |pod: &PodSpec| {
        let all = pod.init_containers.iter().flatten().chain(&pod.containers);
        all.map(|container: &Container| container.name.clone())
            .collect::<Vec<_>>()
    };
    let own_names = names(built);
    AdmittedPod {
        requests: more.map(|(quantity, resource)| (resource, quantity)).collect(),
        node_selector: selector
            .into_iter()
            .filter(|(label, value)| known.get(label) != Some(value))
            .collect(),
        tolerations: tolerations
            .filter(|one| !own(one) && !is_usual(one))
            .cloned()
            .collect(),
        containers: names(pod)
            .into_iter()
            .filter(|name| !own_names.contains(name))
            .collect(),
    }
}

/// Every pod gets these, and they matter to running pods alone.
fn is_usual(toleration: &Toleration) -> bool {
    let key = toleration.key.as_deref().unwrap_or_default();
    toleration.effect.as_deref() == Some("NoExecute") && key.starts_with("node.kubernetes.io/")
}

fn quantity(resource: &str, amount: i64) -> Quantity {
    Quantity(match resource {
        CPU => format!("{amount}m"),
        _ if !resource.contains('/') && amount % MEBIBYTE == 0 => format!("{}Mi", amount / MEBIBYTE),
        _ => amount.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn added(change: impl FnOnce(&mut Value)) -> AdmittedPod {
        let built = json!({
            "nodeSelector": {"pool": "training"},
            "tolerations": [{"key": "team", "operator": "Exists"}],
            "containers": [{"name": "trainer", "resources": {"limits": {"nvidia.com/gpu": "1", "cpu": "4"}}}],
        });
        let mut pod = built.clone();
        pod["tolerations"].as_array_mut().expect("a list").push(
            json!({"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}),
        );
        pod["serviceAccountName"] = json!("default");
        change(&mut pod);
        let spec = |value: Value| serde_json::from_value::<PodSpec>(value).expect("a pod");
        admitted(&spec(built), &spec(pod))
    }

    #[test]
    fn only_what_matters_to_placement_is_kept() {
        assert_eq!(added(|_| ()), AdmittedPod::default(), "what every pod gets");
        let sidecar = added(|pod| {
            pod["initContainers"] = json!([
                {"name": "mesh", "restartPolicy": "Always", "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}}},
            ]);
            pod["containers"][0]["resources"]["requests"] = json!({"nvidia.com/gpu": "1", "cpu": "8"});
        });
        let expected = json!({"requests": {"cpu": "4100m", "memory": "128Mi"}, "containers": ["mesh"]});
        assert_eq!(json!(sidecar), expected);
        let class = added(|pod| {
            pod["nodeSelector"]["runtime"] = json!("kata");
            pod["tolerations"]
                .as_array_mut()
                .expect("a list")
                .push(json!({"key": "kata", "operator": "Exists"}));
            pod["overhead"] = json!({"memory": "1000"});
        });
        let expected = json!({
            "requests": {"memory": "1000"}, "nodeSelector": {"runtime": "kata"},
            "tolerations": [{"key": "kata", "operator": "Exists"}],
        });
        assert_eq!(json!(class), expected);
        let less =
            added(|pod| pod["containers"][0]["resources"] = json!({"limits": {"nvidia.com/gpu": "1"}}));
        assert_eq!(
            less,
            AdmittedPod::default(),
            "the manifest's requests are kept free"
        );
    }
}
