//! Classifies each pod's failure and finds the root cause of the attempt's.

use contract::exit::ExitCode;
use contract::{FailureClass, FailureRecord, Memory};
use jiff::Timestamp;

use super::gang::{CannotStart, End, PodView, Trainer};

/// One pod's failure.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Failure {
    pub(crate) class: FailureClass,
    pub(crate) blame: Blame,
    /// Whether it may only be the echo of another rank's failure.
    pub(crate) is_echo: bool,
    /// The exhausted memory, if known.
    pub(crate) memory: Option<Memory>,
    pub(crate) rank: Option<u32>,
    pub(crate) pod: String,
    pub(crate) node: Option<String>,
    /// 128 + n if signal n ended it; `None` if no container ended.
    pub(crate) exit_code: Option<u8>,
    pub(crate) message: String,
    /// `None` if no container ended.
    pub(crate) finished_at: Option<Timestamp>,
}

/// When a failure blames its node.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Blame {
    /// The node is at fault, such as its hardware.
    AtOnce,
    /// The node may be at fault if it fails again.
    WhenRepeated,
    /// It would have failed anywhere.
    Never,
}

impl Blame {
    /// Unless more is known.
    pub(crate) fn of(class: FailureClass) -> Self {
        match class {
            FailureClass::DeviceFault => Self::AtOnce,
            FailureClass::Killed
            | FailureClass::Crashed
            | FailureClass::PodLost
            | FailureClass::StartFailed
            | FailureClass::Stalled => Self::WhenRepeated,
            FailureClass::BadConfig
            | FailureClass::BadData
            | FailureClass::PeerLost
            | FailureClass::OutOfMemory
            | FailureClass::Diverged
            | FailureClass::Storage => Self::Never,
        }
    }
}

impl Failure {
    /// The failure of a pod without an ended container.
    pub(crate) fn from_pod(pod: &PodView, class: FailureClass, message: String) -> Self {
        Self {
            class,
            blame: Blame::of(class),
            is_echo: is_echo(class, None, pod.trainer),
            memory: None,
            rank: None,
            pod: pod.name.clone(),
            node: pod.node.clone(),
            exit_code: None,
            message: truncated(message),
            finished_at: None,
        }
    }
}

/// Exit code after SIGABRT.
const ABORTED: u8 = 134;
/// The kubelet's reason if a container reached its memory limit.
const OOM_KILLED: &str = "OOMKilled";
/// Longest message in bytes, to keep the status readable.
const MESSAGE_BYTES: usize = 1500;

/// Whether a failure may only be the echo of another rank's. Another trainer does not distinguish a
/// lost peer from other errors, and NCCL's watchdog aborts a rank that waited for one.
pub(crate) fn is_echo(class: FailureClass, exit_code: Option<u8>, trainer: Trainer) -> bool {
    let may_be_any = || class == FailureClass::Crashed || exit_code == Some(ABORTED);
    class.is_echo() || (trainer == Trainer::External && may_be_any())
}

/// The root failure of the attempt: the earliest that is not an echo, then a pod that disappeared
/// without an ended container, then an echo.
pub(crate) fn root_cause<'a>(gang: impl IntoIterator<Item = &'a PodView>) -> Option<Failure> {
    gang.into_iter().filter_map(failure_of).min_by_key(|failure| {
        let time = failure.finished_at;
        (failure.is_echo, time.is_none(), time, failure.pod.clone())
    })
}

/// How one pod failed; `None` if it did not.
pub(crate) fn failure_of(pod: &PodView) -> Option<Failure> {
    if pod.is_done() {
        return None;
    }
    if !(pod.deletion_timestamp.is_some() || pod.lost || pod.has_failed()) {
        return start_failure(pod);
    }
    let was_ended = pod.deletion_timestamp.is_some() || pod.disruption.is_some() || pod.lost;
    let Some(end) = pod.end.as_deref().filter(|end| end.exit != ExitCode::Done) else {
        let (class, words) = match &pod.failed_other {
            Some(words) if !was_ended => (FailureClass::StartFailed, words.clone()),
            _ => (FailureClass::PodLost, lost(pod)),
        };
        return Some(Failure::from_pod(pod, class, words));
    };
    let record = end.record.as_ref().and_then(|record| record.failure.clone());
    let record = record.unwrap_or_else(|| kubelet_record(pod, end));
    // Ranks stop together: of a gang, only the one whose pod was ended is the cause.
    let followed = end.exit == ExitCode::Stopped && !was_ended;
    Some(Failure {
        memory: record.memory,
        is_echo: followed || is_echo(record.class, Some(record.exit_code), pod.trainer),
        rank: record.rank,
        exit_code: Some(record.exit_code),
        finished_at: end.finished_at,
        ..Failure::from_pod(pod, record.class, record.message)
    })
}

/// Why a pod will not start, with the kubelet's message.
fn start_failure(pod: &PodView) -> Option<Failure> {
    let (class, blame) = match pod.cannot_start? {
        CannotStart::Misconfigured => (FailureClass::BadConfig, Blame::Never),
        CannotStart::Absent | CannotStart::Unavailable => (FailureClass::StartFailed, Blame::Never),
        CannotStart::Refused => (FailureClass::StartFailed, Blame::WhenRepeated),
    };
    Some(Failure {
        blame,
        ..Failure::from_pod(pod, class, pod.stuck.clone().unwrap_or_default())
    })
}

/// What the kubelet knows of an end without a trainer's record.
fn kubelet_record(pod: &PodView, end: &End) -> FailureRecord {
    let exit_code = end.exit.code();
    let is_out_of_memory = end.reason == OOM_KILLED;
    let own_words = |otherwise: String| end.message.clone().unwrap_or(otherwise);
    let (class, message) = match (end.exit.failure_class(), end.exit) {
        _ if is_out_of_memory => {
            let words = "killed: the container reached its memory limit";
            (FailureClass::OutOfMemory, own_words(words.into()))
        }
        _ if pod.disruption.is_some() => (FailureClass::PodLost, lost(pod)),
        (Some(class), ExitCode::Signal(signal)) => (class, own_words(format!("ended by signal {signal}"))),
        (Some(class), _) => (class, own_words(format!("exited with code {exit_code}"))),
        (None, _) => {
            let words = "the trainer stopped on a SIGTERM that the operator did not send";
            (FailureClass::PodLost, own_words(words.into()))
        }
    };
    FailureRecord {
        rank: None,
        exit_code,
        class,
        memory: is_out_of_memory.then_some(Memory::Host),
        message,
    }
}

fn lost(pod: &PodView) -> String {
    match &pod.disruption {
        Some(words) => words.clone(),
        None => format!("pod {} went away", pod.name),
    }
}

fn truncated(mut message: String) -> String {
    if message.len() > MESSAGE_BYTES {
        message.truncate(message.floor_char_boundary(MESSAGE_BYTES));
        message.push_str("...");
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::gang::PodState;

    /// A pod whose trainer exited at this second without a record.
    fn ended(name: &str, code: u8, second: i64) -> PodView {
        PodView {
            name: name.into(),
            state: PodState::Failed,
            end: Some(Box::new(End {
                exit: ExitCode::from_code(code),
                reason: "Error".into(),
                finished_at: Timestamp::from_second(second).ok(),
                record: None,
                message: None,
            })),
            ..PodView::default()
        }
    }

    fn words(failure: Option<Failure>) -> String {
        failure.map_or_else(String::new, |failure| {
            format!("{}: {}", failure.class, failure.message)
        })
    }

    #[test]
    fn the_first_cause_is_to_blame_before_a_pod_that_went_away_and_that_before_an_echo() {
        let gone = PodView {
            lost: true,
            end: None,
            state: PodState::Running,
            ..ended("c", 0, 0)
        };
        let mut pods = vec![ended("a", 75, 5), gone, ended("b", 139, 20), ended("d", 137, 19)];
        for (expected, blamed) in [
            ("Killed: ended by signal 9", 3),
            ("Killed: ended by signal 11", 2),
            ("PodLost: pod c went away", 1),
            ("PeerLost: exited with code 75", 0),
        ] {
            assert_eq!(words(root_cause(&pods)), expected);
            pods.remove(blamed);
        }
    }

    #[test]
    fn a_trainer_that_stopped_untold_followed_a_peer_that_was_told() {
        let stopped = ended("survivor", 143, 5);
        let told = PodView {
            deletion_timestamp: Some(Timestamp::UNIX_EPOCH),
            ..ended("told", 143, 9)
        };
        let gone = PodView {
            lost: true,
            end: None,
            ..ended("gone", 0, 0)
        };
        for other in [told, gone] {
            let failure = root_cause(&[stopped.clone(), other.clone()]).expect("a failure");
            assert_eq!((failure.pod, failure.is_echo), (other.name, false));
        }
        let failure = root_cause(&[stopped]).expect("a failure");
        assert_eq!((&*failure.pod, failure.is_echo), ("survivor", true));
    }

    #[test]
    fn kubelet_reasons_stand_in_for_a_record_that_is_missing() {
        for (code, reason, disruption, expected) in [
            (
                137,
                "OOMKilled",
                None,
                "OutOfMemory: killed: the container reached its memory limit",
            ),
            (
                137,
                "Error",
                Some("Evicted: low on disk"),
                "PodLost: Evicted: low on disk",
            ),
            (
                143,
                "Error",
                None,
                "PodLost: the trainer stopped on a SIGTERM that the operator did not send",
            ),
        ] {
            let mut pod = ended("a", code, 1);
            pod.end.as_mut().expect("ended").reason = reason.into();
            pod.disruption = disruption.map(Into::into);
            assert_eq!(words(failure_of(&pod)), expected);
            // A pod without a container.
            pod.end = None;
            let lost = disruption.unwrap_or("pod a went away");
            assert_eq!(words(failure_of(&pod)), format!("PodLost: {lost}"));
        }
    }

    #[test]
    fn a_pod_that_runs_or_is_done_has_not_failed_and_one_that_cannot_start_has() {
        let done = PodView {
            state: PodState::Succeeded,
            deletion_timestamp: Some(Timestamp::UNIX_EPOCH),
            ..ended("a", 0, 1)
        };
        assert_eq!(failure_of(&done), None);
        let failed = "StartFailed: ImagePullBackOff: not found";
        for (cannot_start, expected, blame) in [
            (None, "", None),
            (
                Some(CannotStart::Misconfigured),
                "BadConfig: ImagePullBackOff: not found",
                Some(Blame::Never),
            ),
            (Some(CannotStart::Absent), failed, Some(Blame::Never)),
            (Some(CannotStart::Unavailable), failed, Some(Blame::Never)),
            (Some(CannotStart::Refused), failed, Some(Blame::WhenRepeated)),
        ] {
            let pulling = PodView {
                stuck: Some("ImagePullBackOff: not found".into()),
                cannot_start,
                ..PodView::default()
            };
            assert_eq!(words(failure_of(&pulling)), expected);
            assert_eq!(failure_of(&pulling).map(|failure| failure.blame), blame);
        }
    }

    #[test]
    fn a_container_of_others_that_failed_is_named_unless_its_pod_was_ended() {
        let failed = PodView {
            end: None,
            failed_other: Some("init container gpu-check exited with code 3".into()),
            ..ended("a", 0, 0)
        };
        let expected = "StartFailed: init container gpu-check exited with code 3";
        assert_eq!(words(failure_of(&failed)), expected);
        let deleted = PodView {
            deletion_timestamp: Some(Timestamp::UNIX_EPOCH),
            ..failed.clone()
        };
        let lost = PodView {
            lost: true,
            ..failed.clone()
        };
        for pod in [deleted, lost] {
            assert_eq!(words(failure_of(&pod)), "PodLost: pod a went away");
        }
        let runs = PodView {
            state: PodState::Running,
            ..failed
        };
        assert_eq!(failure_of(&runs), None);
    }

    #[test]
    fn a_long_message_is_cut_between_characters() {
        let mut pod = ended("a", 1, 1);
        pod.end.as_mut().expect("ended").message = Some("é".repeat(2000));
        let message = failure_of(&pod).expect("failed").message;
        assert!(message.len() <= MESSAGE_BYTES + 3 && message.ends_with("..."));
    }
}
