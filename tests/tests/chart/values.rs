//! Effects of single values.

use anyhow::{Context as _, Result, ensure};
use crds::ViTTrainingJob;
use crds::spec::Device;
use serde_json::{Value, json};
use vit_tests::binaries::Binaries;
use vit_tests::chart;
use vit_tests::rights::{Account, rules_of};

use crate::{NAMESPACE, kind_and_name, objects, of_kind, only, text};

fn pod_of_operator(objects: &[Value]) -> Result<&Value> {
    Ok(&only(objects, "Deployment")?["spec"]["template"]["spec"])
}

#[test]
fn the_deployment_is_as_the_values_say() -> Result<()> {
    // Values, a pointer, and the expected value there.
    let cases: Vec<(String, String, Value)> = serde_json::from_value(json!([
        ["replicaCount=3", "/spec/replicas", 3],
        ["revisionHistoryLimit=2", "/spec/revisionHistoryLimit", 2],
        ["podAnnotations.note=mine", "/spec/template/metadata/annotations/note", "mine"],
        ["podLabels.team=vision", "/spec/template/metadata/labels/team", "vision"],
        ["imagePullSecrets[0].name=registry", "/spec/template/spec/imagePullSecrets", [{"name": "registry"}]],
        ["priorityClassName=high", "/spec/template/spec/priorityClassName", "high"],
        ["nodeSelector.pool=system", "/spec/template/spec/nodeSelector", {"pool": "system"}],
        ["extraVolumes[0].name=scratch,extraVolumes[0].emptyDir.medium=Memory",
         "/spec/template/spec/volumes", [{"name": "scratch", "emptyDir": {"medium": "Memory"}}]],
        ["extraVolumeMounts[0].name=scratch,extraVolumeMounts[0].mountPath=/scratch",
         "/spec/template/spec/containers/0/volumeMounts", [{"name": "scratch", "mountPath": "/scratch"}]],
        ["extraArgs={--replica=a}", "/spec/template/spec/containers/0/args/6", "--replica=a"],
        ["extraEnv[0].name=RUST_BACKTRACE,extraEnv[0].value=full",
         "/spec/template/spec/containers/0/env/3", {"name": "RUST_BACKTRACE", "value": "full"}],
        ["extraEnv[1].name=TOKEN,extraEnv[1].valueFrom.secretKeyRef.name=a,extraEnv[1].valueFrom.secretKeyRef.key=b",
         "/spec/template/spec/containers/0/env/4/valueFrom/secretKeyRef", {"name": "a", "key": "b"}],
        ["livenessProbe.failureThreshold=5",
         "/spec/template/spec/containers/0/livenessProbe", {"httpGet": {"path": "/healthz", "port": "metrics"}, "periodSeconds": 10, "failureThreshold": 5}],
        ["readinessProbe.periodSeconds=4",
         "/spec/template/spec/containers/0/readinessProbe", {"httpGet": {"path": "/readyz", "port": "metrics"}, "periodSeconds": 4}],
    ]))?;
    let values: Vec<&str> = cases.iter().map(|(values, ..)| values.as_str()).collect();
    let objects = objects(&values)?;
    let deployment = only(&objects, "Deployment")?;
    for (values, pointer, expected) in &cases {
        ensure!(
            deployment.pointer(pointer) == Some(expected),
            "{values}: {deployment}"
        );
    }
    Ok(())
}

#[test]
fn spread_constraints_are_about_the_pods_of_the_operator() -> Result<()> {
    let values = "topologySpreadConstraints[0].maxSkew=1,topologySpreadConstraints[0].topologyKey=zone,\
                  topologySpreadConstraints[0].whenUnsatisfiable=ScheduleAnyway";
    let objects = objects(&[values])?;
    let spec = &only(&objects, "Deployment")?["spec"];
    let spread = &spec["template"]["spec"]["topologySpreadConstraints"][0];
    ensure!(
        spread["topologyKey"] == "zone" && spread["labelSelector"] == spec["selector"],
        "{spread}"
    );
    Ok(())
}

#[test]
fn security_contexts_and_pull_secrets_are_those_of_the_test_too() -> Result<()> {
    let values = "podSecurityContext.fsGroup=7,securityContext.runAsUser=8,imagePullSecrets[0].name=registry";
    let objects = objects(&[values])?;
    let pods = [pod_of_operator(&objects)?, &only(&objects, "Pod")?["spec"]];
    for pod in pods {
        let of_pod =
            json!({"fsGroup": 7, "runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}});
        let of_container = json!({
            "runAsUser": 8, "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
            "capabilities": {"drop": ["ALL"]},
        });
        ensure!(
            pod["securityContext"] == of_pod
                && pod["containers"][0]["securityContext"] == of_container
                && pod["imagePullSecrets"] == json!([{"name": "registry"}]),
            "{pod}"
        );
    }
    Ok(())
}

#[test]
fn an_image_is_named_by_its_digest_or_else_its_tag() -> Result<()> {
    let digest = format!("sha256:{}", "0123456789abcdef".repeat(4));
    for (values, reference) in [
        (String::new(), "IMAGE:0.1.0".to_owned()),
        ("PATH.tag=nightly".to_owned(), "IMAGE:nightly".to_owned()),
        (
            "PATH.registry=localhost:5000".to_owned(),
            "localhost:5000/IMAGE:0.1.0".to_owned(),
        ),
        (
            format!("PATH.tag=nightly,PATH.digest={digest}"),
            format!("IMAGE@{digest}"),
        ),
        (
            format!("PATH.registry=example.com/vit,PATH.digest={digest}"),
            format!("example.com/vit/IMAGE@{digest}"),
        ),
    ] {
        let of_operator = values.replace("PATH", "image");
        let of_test = values.replace("PATH", "test.image");
        let objects = objects(&[&of_operator, &of_test])?;
        let deployment = pod_of_operator(&objects)?;
        let test = &only(&objects, "Pod")?["spec"];
        let expected = reference.replace("IMAGE", "vit-operator");
        ensure!(
            [deployment, test].map(|pod| text(pod, "/containers/0/image")) == [expected.as_str(); 2],
            "{expected}: {deployment}, {test}"
        );
        let (image, expected) = (
            test_job(&objects)?.spec.image,
            reference.replace("IMAGE", "vit-trainer"),
        );
        ensure!(image == expected, "{image} is not {expected}");
    }
    Ok(())
}

#[test]
fn without_rbac_there_are_no_roles_but_those_of_the_test() -> Result<()> {
    for values in ["rbac.create=false", "rbac.create=false,namespace=research"] {
        let objects = objects(&[values])?;
        let of_rbac = objects
            .iter()
            .filter(|object| text(object, "/apiVersion").starts_with("rbac."));
        let names: Vec<_> = of_rbac.map(kind_and_name).collect();
        let of_test =
            ["Role", "RoleBinding"].map(|kind| (kind.to_owned(), "first:vit-operator-test".to_owned()));
        ensure!(names == of_test, "{names:?}");
    }
    Ok(())
}

#[test]
fn common_labels_are_on_all_but_the_resource_definition() -> Result<()> {
    let values = [
        "commonLabels.team=vision",
        "metrics.prometheusRule.enabled=true,metrics.podMonitor.operator=true,metrics.podMonitor.jobs=true",
        "metrics.serviceMonitor.enabled=true",
    ];
    let objects = objects(&values)?;
    ensure!(objects.len() > 20, "{} objects", objects.len());
    for object in &objects {
        let is_labelled = text(object, "/metadata/labels/team") == "vision";
        let is_definition = text(object, "/kind") == "CustomResourceDefinition";
        ensure!(is_labelled != is_definition, "{:?}", kind_and_name(object));
    }
    Ok(())
}

#[test]
fn an_account_of_ones_own_gets_the_rights_and_none_is_made() -> Result<()> {
    let objects = objects(&["serviceAccount.create=false,serviceAccount.name=mine"])?;
    let accounts = of_kind(&objects, "ServiceAccount");
    ensure!(accounts.len() == 1, "only the test's: {accounts:?}");
    let pod = pod_of_operator(&objects)?;
    ensure!(pod["serviceAccountName"] == "mine", "{pod}");
    let rules = |name| {
        rules_of(
            &objects,
            Account {
                namespace: NAMESPACE,
                name,
            },
        )
    };
    ensure!(rules("mine")?.len() > 5, "the account has too few rules");
    ensure!(rules("vit-operator")?.is_empty(), "another account has rules");
    Ok(())
}

#[test]
fn names_are_the_releases_and_say_what_they_are_of() -> Result<()> {
    for (release, values, name) in [
        ("vit-operator", &[][..], "vit-operator"),
        ("research", &[], "research-vit-operator"),
        ("my-vit-operator", &[], "my-vit-operator"),
        ("research", &["nameOverride=vision"], "research-vision"),
        ("vision", &["nameOverride=vision"], "vision"),
        ("research", &["fullnameOverride=short"], "short"),
    ] {
        let objects = chart::manifests(&chart::template(&Binaries::build()?, release, NAMESPACE, values)?)?;
        let deployment = only(&objects, "Deployment")?;
        ensure!(
            text(deployment, "/metadata/name") == name,
            "{release}: {deployment}"
        );
        let arguments = &deployment["spec"]["template"]["spec"]["containers"][0]["args"];
        ensure!(
            arguments
                .as_array()
                .context("arguments")?
                .contains(&json!(format!("--lease-name={name}"))),
            "{arguments}"
        );
    }
    Ok(())
}

/// The job of `helm test`.
fn test_job(objects: &[Value]) -> Result<ViTTrainingJob> {
    let job = only(objects, "ViTTrainingJob")?;
    serde_json::from_value(job.clone()).with_context(|| job.to_string())
}

#[test]
fn the_job_of_the_test_can_be_run_where_the_operator_runs_jobs() -> Result<()> {
    for (values, namespace, claim) in [
        (&[][..], NAMESPACE, "vit-operator-test"),
        (&["namespace=research"], "research", "first-vit-operator-test"),
        (&["test.checkpoints.existingClaim=mine"], NAMESPACE, "mine"),
    ] {
        let objects = objects(values)?;
        let job = test_job(&objects)?;
        crds::validate(&job)?;
        // The default image has no CUDA.
        ensure!(job.spec.workers.device == Device::Cpu, "{:?}", job.spec.workers);
        ensure!(
            job.metadata.namespace.as_deref() == Some(namespace),
            "{:?}",
            job.metadata
        );
        let volume = job
            .spec
            .checkpoint
            .volume
            .and_then(|volume| volume.persistent_volume_claim)
            .context("a claim")?;
        ensure!(volume.claim_name == claim, "{}", volume.claim_name);
        let claims = of_kind(&objects, "PersistentVolumeClaim");
        let made = claims
            .iter()
            .map(|claim| (text(claim, "/metadata/namespace"), text(claim, "/metadata/name")));
        let expected = (claim != "mine").then_some((namespace, claim));
        ensure!(made.eq(expected), "{claims:?}");
        let name = "vit-operator-test";
        let rules = rules_of(
            &objects,
            Account {
                namespace: NAMESPACE,
                name,
            },
        )?;
        let name = job.metadata.name.context("a name")?;
        ensure!(
            matches!(&rules[..], [rule] if rule.resource_names == Some(vec![name.clone()])),
            "{rules:?}"
        );
        let script = text(only(&objects, "Pod")?, "/spec/containers/0/args/0");
        let watch = format!("kubectl-vit watch {name} --namespace={namespace} ");
        ensure!(script.starts_with(&watch), "{script}");
    }
    Ok(())
}

#[test]
fn the_job_of_the_test_has_what_the_cluster_wants_of_it() -> Result<()> {
    let values = [
        "test.image.repository=registry.example.com/vit-trainer,test.image.tag=0.1.0-cuda13",
        "test.gpuResource=amd.com/gpu,test.deadlineSeconds=90",
        "test.spec.workers.tolerations[0].operator=Exists,test.spec.imagePullSecrets[0].name=registry",
        "test.spec.model.depth=1",
    ];
    let objects = objects(&values)?;
    let spec = test_job(&objects)?.spec;
    ensure!(
        spec.image == "registry.example.com/vit-trainer:0.1.0-cuda13",
        "{}",
        spec.image
    );
    ensure!(
        matches!(&spec.image_pull_secrets[..], [secret] if secret.name == "registry"),
        "{:?}",
        spec.image_pull_secrets
    );
    ensure!(
        spec.workers.gpu_resource == "amd.com/gpu"
            && spec.workers.nodes == 1
            && spec.workers.device == Device::Auto
            && spec.workers.tolerations.len() == 1,
        "{:?}",
        spec.workers
    );
    ensure!(
        spec.model.depth == Some(1) && spec.model.heads == Some(2),
        "{:?}",
        spec.model
    );
    let script = text(only(&objects, "Pod")?, "/spec/containers/0/args/0");
    ensure!(script.contains("--timeout=90\n"), "{script}");
    Ok(())
}

#[test]
fn what_the_test_makes_goes_with_it() -> Result<()> {
    let objects = objects(&[])?;
    let annotation = |object: &Value, name: &str| {
        object["metadata"]["annotations"][name]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    let hooks: Vec<&Value> = objects
        .iter()
        .filter(|object| annotation(object, "helm.sh/hook") == "test")
        .collect();
    ensure!(hooks.len() == 6, "{} hooks", hooks.len());
    for hook in hooks {
        let policy = annotation(hook, "helm.sh/hook-delete-policy");
        ensure!(policy == "before-hook-creation,hook-succeeded", "{hook}");
        let is_first = annotation(hook, "helm.sh/hook-weight") == "-1";
        ensure!(is_first == (text(hook, "/kind") != "Pod"), "{hook}");
    }
    Ok(())
}
