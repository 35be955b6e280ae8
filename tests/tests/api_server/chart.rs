//! Validates the rendered chart on the API server, with the Prometheus operator's CRDs. Unknown and
//! duplicate fields and warnings are errors.

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use vit_tests::binaries::{self, Binaries};
use vit_tests::{Cluster, chart, command, operator};

use crate::{VALID, kubectl, kubectl_input, until};

/// Namespaces of the release and, with `namespace`, of jobs.
const NAMESPACES: [&str; 2] = [operator::OPERATOR, "research"];

/// Sets of values that together turn everything on and off.
const VALUES: &[(&str, &[&str])] = &[
    ("defaults", &[]),
    ("one namespace", &["namespace=research"]),
    (
        "everything",
        &[
            "metrics.prometheusRule.enabled=true,metrics.prometheusRule.labels.release=a",
            "metrics.prometheusRule.alerts.ViTStraggler.threshold=1.5,metrics.prometheusRule.alerts.ViTStraggler.for=1h",
            "metrics.podMonitor.operator=true,metrics.podMonitor.jobs=true,metrics.podMonitor.interval=30s",
            "metrics.podMonitor.scrapeTimeout=10s,metrics.podMonitor.relabelings[0].targetLabel=cluster",
            "metrics.podMonitor.metricRelabelings[0].regex=pod,metrics.podMonitor.metricRelabelings[0].action=labeldrop",
            "metrics.serviceMonitor.enabled=true,metrics.service.annotations.g=h,metrics.serviceMonitor.scrapeTimeout=10s",
            "metrics.serviceMonitor.relabelings[0].targetLabel=cluster",
            "image.registry=localhost:5000,image.digest=sha256:\
             0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
            "extraArgs={--replica=a},extraVolumes[0].name=scratch,extraVolumes[0].emptyDir.medium=Memory",
            "extraVolumeMounts[0].name=scratch,extraVolumeMounts[0].mountPath=/scratch",
            "livenessProbe.failureThreshold=5,readinessProbe.timeoutSeconds=2",
            "podSecurityContext.fsGroup=7,securityContext.runAsUser=8",
            "commonLabels.team=vision,podLabels.a=b,podAnnotations.c=d,serviceAccount.annotations.e=f",
            "extraEnv[0].name=A,extraEnv[0].valueFrom.fieldRef.fieldPath=metadata.name",
            "imagePullSecrets[0].name=registry",
            "priorityClassName=system-cluster-critical,nodeSelector.pool=system",
            "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]\
             .matchExpressions[0].key=a",
            "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]\
             .matchExpressions[0].operator=Exists",
            "topologySpreadConstraints[0].maxSkew=1,topologySpreadConstraints[0].topologyKey=zone",
            "topologySpreadConstraints[0].whenUnsatisfiable=DoNotSchedule",
            "resources.limits.cpu=2,test.checkpoints.storageClassName=fast",
        ],
    ),
    (
        "as little as possible",
        &[
            "replicaCount=1,revisionHistoryLimit=0,rbac.create=false,crds.install=false",
            "podGroups=false,kueue=false,podDisruptionBudget=false",
            "networkPolicy.operator=false,networkPolicy.jobs=false,metrics.scrapeAnnotations=false",
            "serviceAccount.create=false,serviceAccount.name=default,test.checkpoints.existingClaim=mine",
            "tolerations=null,resources=null,livenessProbe=null,readinessProbe=null",
        ],
    ),
];

/// The account that creates an object owned by a job.
const ACCOUNT: &str = "--serviceaccount=default:maker";

const APPLY: [&str; 7] = [
    "apply",
    "--server-side",
    "--force-conflicts",
    "--dry-run=server",
    "--validate=strict",
    "--warnings-as-errors",
    "--filename=-",
];

pub(crate) fn manifests_are_valid(cluster: &Cluster, _: usize) -> Result<()> {
    prepare(cluster)?;
    let helm = Binaries::build()?;
    let render = |values| chart::template(&helm, operator::OPERATOR, operator::OPERATOR, values);
    for (name, values) in VALUES {
        let manifests = render(values)?;
        let applied = kubectl_input(cluster, APPLY, &manifests).with_context(|| format!("values: {name}"))?;
        let objects = chart::manifests(&manifests)?.len();
        ensure!(
            applied.lines().count() == objects,
            "{name}: {objects} objects, but applied {applied}"
        );
    }
    // Checks that the check can fail.
    let manifests = render(&["metrics.podMonitor.jobs=true"])?;
    for (right, wrong, refusal) in [
        ("  replicas: 2", "  replica: 2", ".spec.replica"),
        ("honorLabels: true", "honourLabels: true", "honourLabels"),
        (
            "allowPrivilegeEscalation: false",
            "allowPrivilegeEscalation: true",
            "allowPrivilegeEscalation",
        ),
    ] {
        ensure!(manifests.contains(right), "{right:?} is not in the manifests");
        let Err(error) = kubectl_input(cluster, APPLY, &manifests.replace(right, wrong)) else {
            anyhow::bail!("{wrong:?} is accepted")
        };
        ensure!(format!("{error:#}").contains(refusal), "{wrong:?}: {error:#}");
    }
    Ok(())
}

/// Creates the namespaces and installs the Prometheus operator's CRDs.
fn prepare(cluster: &Cluster) -> Result<()> {
    let restricted =
        ["enforce", "warn"].map(|mode| (format!("pod-security.kubernetes.io/{mode}"), json!("restricted")));
    let labels: serde_json::Map<_, _> = restricted.into_iter().collect();
    for name in NAMESPACES {
        let namespace = json!({
            "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels},
        });
        kubectl_input(
            cluster,
            ["apply", "--server-side", "-f", "-"],
            &namespace.to_string(),
        )?;
    }
    let definitions = binaries::prometheus_operator_source()?.join("example/prometheus-operator-crd");
    for kind in ["podmonitors", "prometheusrules", "servicemonitors"] {
        let path = definitions.join(format!("monitoring.coreos.com_{kind}.yaml"));
        kubectl(
            cluster,
            ["apply", "--server-side", "-f", &path.display().to_string()],
        )?;
        until(|| {
            kubectl(
                cluster,
                ["explain", kind, "--api-version=monitoring.coreos.com/v1"],
            )?;
            Ok(())
        })?;
    }
    // The server checks a pod's account even in a dry run.
    let account = json!({
        "apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": {"name": "vit-operator-test", "namespace": operator::OPERATOR},
    });
    kubectl_input(
        cluster,
        ["apply", "--server-side", "-f", "-"],
        &account.to_string(),
    )?;
    Ok(())
}

/// Shows why the operator needs the right to update vittrainingjobs/finalizers without ever
/// requesting it: otherwise no object of a job can be created.
pub(crate) fn owned_objects_take_the_right_to_finalizers(cluster: &Cluster, _: usize) -> Result<()> {
    kubectl_input(
        cluster,
        ["create", "-f", "-"],
        &VALID.replacen("name: digits\n", "name: owner\n", 1),
    )?;
    let uid = kubectl(cluster, ["get", "vtj/owner", "-o", "jsonpath={.metadata.uid}"])?;
    let owned = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "owned", "ownerReferences": [{
            "apiVersion": "vit-operator.dev/v1alpha1", "kind": "ViTTrainingJob", "name": "owner", "uid": uid,
            "controller": true, "blockOwnerDeletion": true,
        }]},
    });
    kubectl(
        cluster,
        [
            "create",
            "role",
            "maker",
            "--verb=create",
            "--resource=configmaps",
        ],
    )?;
    kubectl(
        cluster,
        ["create", "rolebinding", "maker", "--role=maker", ACCOUNT],
    )?;
    let create = || -> Result<()> {
        let arguments = [
            "create",
            "-f",
            "-",
            "--dry-run=server",
            "--as=system:serviceaccount:default:maker",
        ];
        kubectl_input(cluster, arguments, &owned.to_string()).map(drop)
    };
    until(|| match create() {
        Err(error) if format!("{error:#}").contains("cannot set blockOwnerDeletion") => Ok(()),
        outcome => anyhow::bail!("created without the right: {outcome:?}"),
    })?;
    kubectl(
        cluster,
        [
            "create",
            "role",
            "finalizer",
            "--verb=update",
            "--resource=vittrainingjobs/finalizers",
        ],
    )?;
    kubectl(
        cluster,
        ["create", "rolebinding", "finalizer", "--role=finalizer", ACCOUNT],
    )?;
    until(create)
}

/// The release notes.
pub(crate) fn notes_fit_the_values(cluster: &Cluster, _: usize) -> Result<()> {
    let notes = |values: &[&str]| -> Result<String> {
        let mut helm = cluster.helm();
        helm.args(["install", "mine", "--namespace", "tools", "--dry-run=server"])
            .arg(chart::folder());
        for value in values {
            helm.args(["--set", value]);
        }
        let told = command::run(&mut helm)?;
        let (_, notes) = told.split_once("NOTES:\n").context("no notes")?;
        Ok(notes.to_owned())
    };
    for (values, parts) in [
        (
            &["crds.install=false"][..],
            &[
                "kubectl --namespace tools rollout status deployment/mine-vit-operator",
                "helm test mine --namespace tools --timeout 660s",
                "one nvidia.com/gpu, a claim of 1 GiB and the image\n   vit-trainer:0.1.0 (test.image)",
                "kubectl get vittrainingjobs --all-namespaces --watch",
                "never be older than the operator",
            ][..],
        ),
        (
            &[
                "crds.install=false",
                "namespace=research",
                "test.checkpoints.existingClaim=mine",
                "test.deadlineSeconds=60",
            ],
            &[
                "and runs the jobs in research.",
                "one nvidia.com/gpu and the image",
                "--timeout 120s",
                "kubectl get vittrainingjobs --namespace research --watch",
            ],
        ),
    ] {
        let told = notes(values)?;
        for part in parts {
            ensure!(told.contains(part), "{part:?} is not in:\n{told}");
        }
    }
    Ok(())
}
