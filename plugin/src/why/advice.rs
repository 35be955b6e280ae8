//! The meaning of each reason, failure class and refusal, and the remedy: docs/operations.md in short.

use contract::{FailureClass, Memory};
use crds::conditions::reasons;
use crds::status::Refusal;

use Advice::{Kubectl, KubectlCluster, Vit, Words};

/// A next step, mostly with a command; `JOB`, `NODE`, `POD` and `CLASS` are placeholders for names.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Advice {
    Words(&'static str),
    /// With a command of this plugin.
    Vit(&'static str, &'static str),
    /// With a command of kubectl in the job's namespace.
    Kubectl(&'static str, &'static str),
    /// With a command of kubectl for cluster-scoped objects.
    KubectlCluster(&'static str, &'static str),
}

impl Advice {
    pub(crate) fn words(self) -> &'static str {
        match self {
            Words(words) | Vit(words, _) | Kubectl(words, _) | KubectlCluster(words, _) => words,
        }
    }
}

/// The meaning of a condition's or Event's reason, with next steps; `None` for an unknown reason.
pub(crate) fn of_reason(reason: &str) -> Option<(&'static str, Vec<Advice>)> {
    let follow = || vec![Vit("follow it", "watch JOB")];
    Some(match reason {
        reasons::GANG_FITS => (
            "A group of identical GPUs that fits the whole gang is chosen.",
            follow(),
        ),
        reasons::MIXED_GPUS => (
            "Its GPUs are of several kinds, as placement.homogeneity allows: every step waits for the slowest, unless training.balance is Weighted.",
            vec![Vit("see what each kind waits for", "status JOB")],
        ),
        reasons::NO_FITTING_GROUP => (
            "It waits for GPUs: no group of identical GPUs fits the whole gang now.",
            vec![Vit(
                "list every node with the reason that this job cannot use it",
                "nodes --job JOB",
            )],
        ),
        reasons::NO_PRIORITY_CLASS => (
            "It waits for a PriorityClass that does not exist; its pods would be refused.",
            vec![
                KubectlCluster(
                    "create the PriorityClass; the job then starts",
                    "create priorityclass CLASS --value=1000",
                ),
                Words("or delete the job and create it with a class that exists"),
            ],
        ),
        reasons::QUOTA_EXCEEDED => (
            "A ResourceQuota of its namespace refused a pod. It holds no GPUs and tries again within 90 seconds.",
            vec![
                Kubectl("compare the quota with its use", "describe resourcequota"),
                Words("raise the quota, or end other jobs of the namespace: the job then starts"),
            ],
        ),
        reasons::START_FAILING => (
            "Its starts fail one after another. It holds no GPUs until the next, at most five minutes later.",
            vec![
                Words(
                    "correct what the message names, such as a registry, a claim or a Secret: the job then starts",
                ),
                Vit("see which pod, and where", "status JOB"),
            ],
        ),
        reasons::IN_QUEUE => (
            "It waits for quota in its Kueue queue.",
            vec![Kubectl(
                "see its Workload's conditions",
                "describe workloads.kueue.x-k8s.io JOB",
            )],
        ),
        reasons::ADMITTED => ("Kueue granted quota; placement within it is next.", follow()),
        reasons::RELEASED => ("It is over and holds no GPUs.", vec![]),
        reasons::ALL_PODS_READY => ("It trains.", follow()),
        reasons::PODS_STARTING => (
            "It has GPUs; its pods are being scheduled and started. The attempt fails after \
             scheduling.startTimeoutSeconds, or sooner if kube-scheduler or volumes do not let a pod start.",
            vec![
                Kubectl(
                    "see what a pod waits for: its image, its volumes, its node",
                    "describe pods -l vit-operator.dev/job-name=JOB",
                ),
                Vit("follow it", "watch JOB"),
            ],
        ),
        reasons::RESTARTING => (
            "An attempt failed; the whole gang is replaced and continues from its last checkpoint.",
            follow(),
        ),
        reasons::RESIZING => (
            "The gang is replaced by one of another size: it was scaled, its bounds were changed, or it grows.",
            follow(),
        ),
        reasons::NODE_UNFIT => (
            "A pod no longer fits its node: another pod was faster, or the node has changed. The gang, which had not \
             started, is placed again at no cost.",
            follow(),
        ),
        reasons::EVICTED => (
            "Kueue reclaims its quota: its pods save a checkpoint and stop, then it waits in its queue again.",
            vec![Kubectl(
                "see which Workload preempts it",
                "describe workloads.kueue.x-k8s.io JOB",
            )],
        ),
        reasons::NO_PODS => ("It has no pods.", vec![]),
        // Of Placed, too.
        reasons::SUSPENDED => (
            "It is suspended: it holds no GPUs, and its state is in its last checkpoint.",
            vec![Vit("resume it from there", "resume JOB")],
        ),
        reasons::SUSPENDING => ("It is suspending: its pods save a checkpoint and stop.", follow()),
        reasons::RESUMED => ("It is no longer suspended, or no longer refused.", follow()),
        reasons::MEASURED => ("It is done; status.measurement has its step times.", vec![]),
        reasons::NOT_MEASURED => ("It is done, but measured nothing; the message says why.", vec![]),
        reasons::MEASUREMENT_LOST => (
            "It is done, but the pod with the result was gone before it was read. A study retries measure.retries times.",
            vec![],
        ),
        reasons::ALL_EPOCHS_DONE => ("It is done: every epoch was trained.", vec![]),
        reasons::INVALID_SPEC => (
            "Its manifest is invalid. The message names field, value and valid values.",
            vec![Kubectl(
                "correct the field that the message names: the operator checks the job again",
                "edit vtj JOB",
            )],
        ),
        reasons::NOT_RETRYABLE => (
            "It failed in a way that a retry would repeat, so it is not tried again.",
            vec![],
        ),
        reasons::RESTARTS_EXHAUSTED => (
            "It failed, and failurePolicy.maxRestarts is used up without a new checkpoint in between, or its starts \
             failed for half an hour.",
            vec![
                Vit(
                    "read the log of the rank that failed, if its pod still exists (failurePolicy.keepFailedPods)",
                    "logs JOB",
                ),
                Words(
                    "once the cause is fixed: suspend the job and resume it; it continues from its last checkpoint",
                ),
            ],
        ),
        reasons::DEADLINE_EXCEEDED => (
            "It held GPUs for spec.activeDeadlineSeconds and was stopped.",
            vec![Words(
                "suspend it, raise or remove the limit, and resume it: it continues from its last checkpoint",
            )],
        ),
        reasons::PENDING_TIMEOUT => (
            "It got no GPUs within spec.scheduling.pendingTimeoutSeconds.",
            vec![Words(
                "suspend it and resume it once GPUs are free, or raise the limit",
            )],
        ),
        reasons::ATTEMPT_FAILED => (
            "An attempt failed.",
            vec![Vit("see which rank, and why", "status JOB")],
        ),
        reasons::RECONCILE_FAILED => (
            "An API call of the operator failed and is retried after 1 to 60 seconds, or the operator cannot read the job.",
            vec![Words(
                "the message names verb, object and answer: look for missing rights of the operator, a missing \
                 ServiceAccount or RuntimeClass, or a webhook that does not answer",
            )],
        ),
        reasons::NOT_RESTARTABLE => (
            "It trains, but this version of the operator would not start it again: its manifest is invalid now.",
            vec![Words(
                "let it finish, or suspend it, correct the field, and resume it: it continues from its checkpoint",
            )],
        ),
        reasons::STRAGGLER_FOUND => (
            "A rank stays slower than the others, which wait for it in every step.",
            vec![KubectlCluster(
                "check its node for other load, a throttled GPU or slow storage",
                "describe node NODE",
            )],
        ),
        reasons::STRAGGLER_GONE => ("A rank that was slow is as fast as the others again.", vec![]),
        reasons::EXPIRED => ("It is deleted, ttlSecondsAfterFinished after its end.", vec![]),
        _ => return None,
    })
}

/// The meaning of an external trainer's failure, for classes that only its author can fix.
pub(crate) fn of_script(class: FailureClass) -> Option<(&'static str, Vec<Advice>)> {
    let log = Vit("read its log, if the pod still exists", "logs JOB");
    match class {
        FailureClass::Crashed => Some(("The trainer that external names failed.", vec![log])),
        FailureClass::OutOfMemory => Some((
            "The trainer that external names ran out of memory, and would again.",
            vec![
                log,
                Words(
                    "make it use less, or suspend the job, and resume it with more memory in workers.resources",
                ),
            ],
        )),
        _ => None,
    }
}

/// The meaning of a failure class, with next steps; `memory` is the kind that ran out, if known.
pub(crate) fn of_class(class: FailureClass, memory: Option<Memory>) -> (&'static str, Vec<Advice>) {
    let node = KubectlCluster("look at the node", "describe node NODE");
    let log = Vit("read the log, if the pod still exists", "logs JOB");
    match class {
        FailureClass::BadConfig => (
            "The run configuration is wrong, or the pod cannot be created.",
            vec![Words(
                "suspend the job, correct what the message names, and resume it",
            )],
        ),
        FailureClass::BadData => (
            "A file of the data set is missing, truncated or does not fit the model; the message names it.",
            vec![Words(
                "repair the file or the path, then suspend and resume the job",
            )],
        ),
        FailureClass::PeerLost => (
            "A rank or the network to it went away, and no other failure explains it.",
            vec![node],
        ),
        FailureClass::DeviceFault => (
            "A GPU is missing or faulty. The next attempt goes elsewhere if it fits there.",
            vec![
                Words("look for Xid in the kernel log of the node"),
                KubectlCluster("keep other pods off it meanwhile", "cordon NODE"),
            ],
        ),
        FailureClass::OutOfMemory => (
            match memory {
                Some(Memory::Gpu) => "A rank ran out of GPU memory, and would again with the same plan.",
                Some(Memory::Host) => {
                    "A rank ran out of its pod's memory, and would again with the same plan."
                }
                None => "A rank ran out of memory, and would again with the same plan.",
            },
            vec![Words(match memory {
                Some(Memory::Host) => {
                    "suspend the job, and resume it with more memory in workers.resources; with workers.device cpu a \
                     smaller training.microBatchSize also helps"
                }
                Some(Memory::Gpu) => {
                    "suspend the job, and resume it with a smaller training.microBatchSize (gradientAccumulationSteps \
                     keeps the global batch), with activationCheckpointing, or with parallelism.strategy Auto if it is \
                     Manual"
                }
                None => {
                    "suspend the job, and resume it with a smaller training.microBatchSize (gradientAccumulationSteps \
                     keeps the global batch), with activationCheckpointing, or with more memory in workers.resources"
                }
            })],
        ),
        FailureClass::Diverged => (
            "The loss or the norm of the gradients was not finite; the same steps would give the same result.",
            vec![Words(
                "suspend the job, and resume it with a lower learning rate, with training.clipGradNorm, or with \
                 bf16 instead of fp16",
            )],
        ),
        FailureClass::Storage => (
            "A checkpoint or data could not be written or read, or ranks saw different data.",
            vec![Kubectl("look at the claim", "describe pvc"), log],
        ),
        FailureClass::Killed => (
            "A signal ended a rank. If the kernel was out of memory, the kubelet may not have reported it. After a \
             stop, checkpoint.stopSeconds was too short.",
            vec![node],
        ),
        FailureClass::Crashed => (
            "A rank ended in a way that no other class names: a defect of the trainer.",
            vec![log, Words("please report it")],
        ),
        FailureClass::PodLost => (
            "A pod was deleted, evicted or preempted, or its node went away.",
            vec![node],
        ),
        FailureClass::StartFailed => (
            "A pod did not start: its image, its volumes, a Secret, an injected container, or no node for it.",
            vec![Kubectl(
                "see its Events",
                "get events --field-selector involvedObject.name=POD",
            )],
        ),
        FailureClass::Stalled => (
            "No rank finished another step, though none had exited.",
            vec![
                Words(
                    "check storage mounts and kernel log of the node in the message; raise \
                     failurePolicy.stallTimeoutSeconds if step times vary that much",
                ),
                node,
            ],
        ),
    }
}

/// The remedy for a node's refusal; `None` if the job intends it.
pub(crate) fn of_refusal(refusal: Refusal) -> Option<Advice> {
    Some(match refusal {
        Refusal::InUse => Vit("wait, or see who holds them", "nodes"),
        Refusal::TooFewGpus => Words("request fewer GPUs per node (workers.gpusPerNode), on more nodes"),
        Refusal::NoCpu | Refusal::NoMemory | Refusal::NoStorage | Refusal::NoPodSlot => {
            Words("lower workers.resources, or free capacity on those nodes")
        }
        Refusal::HostPortsInUse => Words(
            "wait: a node accepts one pod on its network; or omit workers.hostNetwork if a device plugin provides RDMA devices",
        ),
        Refusal::NoOtherResource => Words(
            "lower workers.resources: other resources than cpu and memory, such as network devices or huge pages, are missing or in use",
        ),
        Refusal::NotReady => KubectlCluster("see why the node is not ready", "describe node NODE"),
        Refusal::Cordoned => KubectlCluster("uncordon it when its maintenance is over", "uncordon NODE"),
        Refusal::Tainted => {
            Words("add workers.tolerations for the taint, or wait for the end of maintenance")
        }
        Refusal::Unhealthy => {
            Words("fewer GPUs are allocatable than present: read the device plugin's log on that node")
        }
        Refusal::Shared => Words("set placement.gpu.allowShared, if a share of a GPU is acceptable"),
        Refusal::Mixed => Words(
            "the labeled count and the capacity differ: fix the labels, or do not mix models in one node",
        ),
        Refusal::NoProductLabel => Words(
            "run GPU feature discovery (NVIDIA) or the node labeler (AMD), label the node, or set \
             placement.homogeneity: \"Off\"",
        ),
        Refusal::MemoryUnknown => {
            Words("run GPU feature discovery, or drop the memory request in placement.gpu")
        }
        Refusal::Reserved => {
            Words("wait: it is reserved for a job that waits longer or has a higher priority")
        }
        Refusal::SelectorMismatch
        | Refusal::NoTopologyLabel
        | Refusal::OtherProduct
        | Refusal::TooLittleGpuMemory
        | Refusal::NotNamed
        | Refusal::Excluded => Words("the job's manifest excludes these nodes"),
        Refusal::FailedBefore | Refusal::WasSlow | Refusal::OtherGpus | Refusal::Unknown => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONDITIONS: &str = include_str!("../../../crds/src/conditions.rs");
    const OPERATIONS: &str = include_str!("../../../docs/operations.md");

    #[test]
    fn every_reason_that_there_is_means_something() {
        let constants = CONDITIONS.split("pub mod reasons").nth(1).expect("has reasons");
        let known: Vec<&str> = constants
            .lines()
            .filter(|line| line.trim_start().starts_with("pub const"))
            .filter_map(|line| line.split('"').nth(1))
            .collect();
        assert!(known.len() > 20, "{known:?}");
        for reason in known {
            let (meaning, _) = of_reason(reason).unwrap_or_else(|| panic!("{reason} means nothing"));
            assert!(meaning.ends_with('.'), "{reason}: {meaning}");
        }
        assert_eq!(of_reason("NoSuchReason"), None);
    }

    #[test]
    fn what_needs_someone_has_a_next_step() {
        for reason in [
            reasons::NO_FITTING_GROUP,
            reasons::NO_PRIORITY_CLASS,
            reasons::QUOTA_EXCEEDED,
            reasons::START_FAILING,
            reasons::IN_QUEUE,
            reasons::PODS_STARTING,
            reasons::SUSPENDED,
            reasons::INVALID_SPEC,
            reasons::RESTARTS_EXHAUSTED,
            reasons::DEADLINE_EXCEEDED,
            reasons::PENDING_TIMEOUT,
            reasons::RECONCILE_FAILED,
            reasons::NOT_RESTARTABLE,
            reasons::STRAGGLER_FOUND,
        ] {
            let (_, advice) = of_reason(reason).expect("is known");
            assert!(!advice.is_empty(), "{reason}");
        }
        for class in FailureClass::ALL {
            assert!(!of_class(class, None).1.is_empty(), "{class}");
        }
        let without: Vec<Refusal> = Refusal::ALL
            .into_iter()
            .filter(|refusal| of_refusal(*refusal).is_none())
            .collect();
        assert_eq!(
            without,
            [Refusal::FailedBefore, Refusal::WasSlow, Refusal::OtherGpus]
        );
    }

    #[test]
    fn fields_that_are_named_are_those_of_the_manual() {
        // docs/operations.md must name the same fields.
        let all_words: Vec<&str> = Refusal::ALL
            .into_iter()
            .filter_map(of_refusal)
            .map(Advice::words)
            .collect();
        for field in [
            "workers.tolerations",
            "workers.resources",
            "placement.gpu.allowShared",
            "placement.homogeneity: \"Off\"",
        ] {
            assert!(all_words.iter().any(|words| words.contains(field)), "{field}");
            assert!(OPERATIONS.contains(field), "{field} is not in docs/operations.md");
        }
    }
}
