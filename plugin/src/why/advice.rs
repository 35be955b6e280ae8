//! What each reason, failure class and refusal means, and what to do about it: docs/operations.md in short.

use contract::{FailureClass, Memory};
use crds::conditions::reasons;
use planner::policy::node_fit::Refusal;

use Advice::{Kubectl, KubectlCluster, Vit, Words};

/// What to do next: in words, mostly with a command, in which `JOB`, `NODE`, `POD` and `CLASS` stand for names.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Advice {
    Words(&'static str),
    /// With a command of this plugin.
    Vit(&'static str, &'static str),
    /// With a command of kubectl in the job's namespace.
    Kubectl(&'static str, &'static str),
    /// With a command of kubectl about what is in no namespace.
    KubectlCluster(&'static str, &'static str),
}

impl Advice {
    pub(crate) fn words(self) -> &'static str {
        match self {
            Words(words) | Vit(words, _) | Kubectl(words, _) | KubectlCluster(words, _) => words,
        }
    }
}

/// What a reason of a condition or an Event means, with what to do about it; `None` for a word that no version had when
/// this was written.
pub(crate) fn of_reason(reason: &str) -> Option<(&'static str, Vec<Advice>)> {
    let follow = || vec![Vit("follow it", "watch JOB")];
    Some(match reason {
        reasons::GANG_FITS => ("A set of like GPUs that fits the whole gang is chosen.", follow()),
        reasons::MIXED_GPUS => (
            "Its GPUs are of several kinds, as placement.homogeneity allows: every step waits for the slowest, unless training.balance is Weighted.",
            vec![Vit("see what each kind waits for", "status JOB")],
        ),
        reasons::NO_FITTING_GROUP => (
            "It waits for GPUs: no group of like GPUs fits the whole gang now.",
            vec![Vit(
                "see every node with the reason for which this job cannot have it",
                "nodes --job JOB",
            )],
        ),
        reasons::NO_PRIORITY_CLASS => (
            "It waits for a PriorityClass that does not exist; its pods would be refused.",
            vec![
                KubectlCluster(
                    "create the PriorityClass, and the job starts by itself",
                    "create priorityclass CLASS --value=1000",
                ),
                Words("or delete the job and create it with a class that exists"),
            ],
        ),
        reasons::IN_QUEUE => (
            "It waits for quota in its queue of Kueue.",
            vec![Kubectl(
                "see what Kueue says of its Workload",
                "describe workloads.kueue.x-k8s.io JOB",
            )],
        ),
        reasons::ADMITTED => (
            "Kueue has granted it quota; GPUs within that quota are being looked for.",
            follow(),
        ),
        reasons::RELEASED => ("It is over and holds no GPUs.", vec![]),
        reasons::ALL_PODS_READY => ("It trains: every pod of the gang is ready.", follow()),
        reasons::PODS_STARTING => (
            "It has GPUs; its pods are being scheduled and started. After scheduling.startTimeoutSeconds they are given up.",
            vec![
                Kubectl(
                    "see what a pod waits for: its image, its volumes, its node",
                    "describe pods -l vit-operator.dev/job-name=JOB",
                ),
                Vit("follow it", "watch JOB"),
            ],
        ),
        reasons::RESTARTING => (
            "An attempt failed; the gang is being replaced as one, and continues from its last checkpoint.",
            follow(),
        ),
        reasons::RESIZING => (
            "The gang is being replaced by one of another size: it was scaled, its bounds were changed, or it grows.",
            follow(),
        ),
        reasons::NODE_UNFIT => (
            "A pod no longer fits its node: another pod was faster, or the node has changed. The gang, which had not \
             started, is placed again at no cost.",
            follow(),
        ),
        reasons::EVICTED => (
            "Kueue takes its quota back: its pods save a checkpoint and stop, then it waits in its queue again.",
            vec![Kubectl("see for whom", "describe workloads.kueue.x-k8s.io JOB")],
        ),
        reasons::NO_PODS => ("It has no pods.", vec![]),
        // Of Placed, too.
        reasons::SUSPENDED => (
            "It is suspended: it holds no GPUs, and its state is in its last checkpoint.",
            vec![Vit("let it go on from there", "resume JOB")],
        ),
        reasons::SUSPENDING => (
            "It was told to suspend: its pods save a checkpoint and stop.",
            follow(),
        ),
        reasons::RESUMED => ("It is no longer suspended, or no longer refused.", follow()),
        reasons::MEASURED => (
            "It is done, and status.measurement tells what its steps took.",
            vec![],
        ),
        reasons::NOT_MEASURED => (
            "It is done, but it has measured nothing; the message says why.",
            vec![],
        ),
        reasons::MEASUREMENT_LOST => (
            "It is done, but the pod that measured was gone before it was read. A study tries again, as often as measure.retries says.",
            vec![],
        ),
        reasons::ALL_EPOCHS_DONE => ("It is done: every epoch was trained.", vec![]),
        reasons::INVALID_SPEC => (
            "Its manifest cannot be run. The message names field, value and what would be right.",
            vec![
                Words("delete it, and create it again with what would be right"),
                Kubectl(
                    "where that is workers.nodes or elastic, edit it: it gets a second chance",
                    "edit vtj JOB",
                ),
            ],
        ),
        reasons::NOT_RETRYABLE => (
            "It failed in a way that the same again would repeat, so it is not tried again.",
            vec![],
        ),
        reasons::RESTARTS_EXHAUSTED => (
            "It failed, and failurePolicy.maxRestarts is used up without a new checkpoint in between.",
            vec![
                Vit(
                    "read the log of the rank that failed, if its pod is still there",
                    "logs JOB",
                ),
                Words(
                    "once the cause is gone, create the job again under its name: it continues from its last checkpoint",
                ),
            ],
        ),
        reasons::DEADLINE_EXCEEDED => (
            "It has had GPUs for spec.activeDeadlineSeconds, and was stopped.",
            vec![Words(
                "create it again under its name, with a longer deadline or none: it continues from its last checkpoint",
            )],
        ),
        reasons::ATTEMPT_FAILED => (
            "An attempt failed.",
            vec![Vit("see which rank, and why", "status JOB")],
        ),
        reasons::RECONCILE_FAILED => (
            "A call of the operator to the API server failed, and is tried again after 1 to 60 seconds; or it cannot read the job.",
            vec![Words(
                "the message names verb, object and answer: look for a quota, a missing PriorityClass, or a policy that \
                 refuses its pods",
            )],
        ),
        reasons::STRAGGLER_FOUND => (
            "A rank stays slower than the others, which wait for it in every step.",
            vec![KubectlCluster(
                "look on its node for other load, a throttled or ailing GPU, slow data",
                "describe node NODE",
            )],
        ),
        reasons::STRAGGLER_GONE => ("A rank that was slow is as fast as the others again.", vec![]),
        reasons::EXPIRED => ("It is deleted, ttlSecondsAfterFinished after its end.", vec![]),
        _ => return None,
    })
}

/// What a failure of another trainer means: only its author knows.
pub(crate) fn of_script(class: FailureClass) -> Option<(&'static str, Vec<Advice>)> {
    let log = Vit("read its log, if the pod is still there", "logs JOB");
    match class {
        FailureClass::Crashed => Some(("The trainer that external names failed.", vec![log])),
        FailureClass::OutOfMemory => Some((
            "The trainer that external names ran out of memory; the same again would, too.",
            vec![
                log,
                Words("have it take less, or create the job again with more memory in workers.resources"),
            ],
        )),
        _ => None,
    }
}

/// What a class of failures means, with what to do about it; `memory` is what ran out, where that is known.
pub(crate) fn of_class(class: FailureClass, memory: Option<Memory>) -> (&'static str, Vec<Advice>) {
    let node = KubectlCluster("look at the node", "describe node NODE");
    let log = Vit("read the log, if the pod is still there", "logs JOB");
    match class {
        FailureClass::BadConfig => (
            "The run configuration is wrong, or the container cannot be made.",
            vec![Words("correct what the message names, and create the job again")],
        ),
        FailureClass::BadData => (
            "A file of the data set is missing, truncated or does not fit the model; the message names it.",
            vec![Words("repair the file or the path, and create the job again")],
        ),
        FailureClass::PeerLost => (
            "A rank or the network to it went away, and no other failure explains it.",
            vec![node],
        ),
        FailureClass::DeviceFault => (
            "A GPU is missing or faulty. The next attempt goes elsewhere if it fits there.",
            vec![
                Words("look for Xid in the kernel log of the node"),
                KubectlCluster("keep others away from it meanwhile", "cordon NODE"),
            ],
        ),
        FailureClass::OutOfMemory => (
            match memory {
                Some(Memory::Gpu) => "A rank ran out of the memory of its GPU; the same plan would again.",
                Some(Memory::Host) => "A rank ran out of the memory of its pod; the same plan would again.",
                None => "A rank ran out of memory; the same plan would again.",
            },
            vec![Words(match memory {
                Some(Memory::Host) => {
                    "create the job again with more memory in workers.resources; with workers.device cpu a smaller \
                     training.microBatchSize helps, too"
                }
                Some(Memory::Gpu) => {
                    "create the job again with a smaller training.microBatchSize (gradientAccumulationSteps keeps the \
                     global batch), with activationCheckpointing, or with parallelism.strategy Auto if it is Manual"
                }
                None => {
                    "create the job again with a smaller training.microBatchSize (gradientAccumulationSteps keeps the \
                     global batch), with activationCheckpointing, or with more memory in workers.resources"
                }
            })],
        ),
        FailureClass::Diverged => (
            "The loss or the norm of the gradients was not finite; the same steps would give the same again.",
            vec![Words(
                "create the job again with a lower learning rate, with training.clipGradNorm, or with bf16 in place of fp16",
            )],
        ),
        FailureClass::Storage => (
            "A checkpoint could not be written or read: a full or slow volume.",
            vec![Kubectl("look at the claim", "describe pvc"), log],
        ),
        FailureClass::Killed => (
            "A signal ended a rank. Where that was the kernel for want of memory, the kubelet may not have said so.",
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
            "A pod could not be started in time: its image, its volumes, or its node.",
            vec![Kubectl(
                "see what is in its way",
                "get events --field-selector involvedObject.name=POD",
            )],
        ),
        FailureClass::Stalled => (
            "No rank finished a step any more, though none had ended.",
            vec![
                Words(
                    "look at storage mounts and kernel log of the node that the message names; raise \
                     failurePolicy.stallTimeoutSeconds where steps are that uneven",
                ),
                node,
            ],
        ),
    }
}

/// What to do where nodes are refused for a reason; `None` where that is as the job wants it.
pub(crate) fn of_refusal(refusal: Refusal) -> Option<Advice> {
    Some(match refusal {
        Refusal::InUse => Vit("wait, or see who holds them", "nodes"),
        Refusal::TooFewGpus => Words("ask for fewer GPUs a node (workers.gpusPerNode), on more nodes"),
        Refusal::NoCpu | Refusal::NoMemory | Refusal::NoStorage | Refusal::NoPodSlot => {
            Words("lower workers.resources, or free some on those nodes")
        }
        Refusal::HostPortsInUse => Words(
            "wait: a node takes one pod on its network; or leave out workers.hostNetwork, where pods get RDMA devices from a device plugin",
        ),
        Refusal::NoOtherResource => Words(
            "see what workers.resources asks for beside cpu and memory: network devices and huge pages are missing or in use there",
        ),
        Refusal::NotReady => KubectlCluster("see why the node is not ready", "describe node NODE"),
        Refusal::Cordoned => KubectlCluster("uncordon it, when its maintenance is over", "uncordon NODE"),
        Refusal::Tainted => {
            Words("add workers.tolerations for the taint, or wait for the end of maintenance")
        }
        Refusal::Unhealthy => Words(
            "fewer GPUs are allocatable than there are: the log of the device plugin on that node says why",
        ),
        Refusal::Shared => Words("set placement.gpu.allowShared, if a share of a GPU will do"),
        Refusal::Mixed => Words(
            "the labelled count and the capacity differ: correct the labels, or do not mix models in one node",
        ),
        Refusal::NoProductLabel => Words(
            "run GPU feature discovery (NVIDIA) or the node labeller (AMD), label the node, or set \
             placement.homogeneity: \"Off\"",
        ),
        Refusal::MemoryUnknown => {
            Words("run GPU feature discovery, or do not ask for memory in placement.gpu")
        }
        Refusal::Reserved => {
            Words("wait: it is reserved for a job that waits longer or has a higher priority")
        }
        Refusal::SelectorMismatch
        | Refusal::NoTopologyLabel
        | Refusal::OtherProduct
        | Refusal::TooLittleGpuMemory
        | Refusal::NotNamed
        | Refusal::Excluded => Words("the job's own manifest leaves these nodes out"),
        Refusal::FailedBefore | Refusal::WasSlow | Refusal::OtherGpus => return None,
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
            reasons::IN_QUEUE,
            reasons::PODS_STARTING,
            reasons::SUSPENDED,
            reasons::INVALID_SPEC,
            reasons::RESTARTS_EXHAUSTED,
            reasons::DEADLINE_EXCEEDED,
            reasons::RECONCILE_FAILED,
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
        // Of what is proposed here, what the page for operators does not know would be a contradiction.
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
