//! When a healthy gang is stopped: `spec.suspend`, another size, an unfit node, or an eviction.

use crds::Phase;

/// Why a gang is to be stopped.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum StopReason {
    Suspend,
    /// The spec no longer allows its size.
    Resize,
    /// More nodes are free for an elastic gang.
    Grow {
        to: usize,
    },
    /// A pod no longer fits its node, for this reason.
    Unfit(String),
    /// Kueue no longer grants the job GPUs, with this message.
    Evict(String),
}

/// Whether to stop a gang in this phase and of this size, given `suspend` and the allowed sizes.
pub(crate) fn stop_wanted(
    phase: Phase,
    gang_size: usize,
    suspend: bool,
    sizes: &[u32],
) -> Option<StopReason> {
    let is_allowed = sizes.iter().any(|nodes| *nodes as usize == gang_size);
    match phase {
        Phase::Starting | Phase::Running | Phase::Restarting | Phase::Pending if suspend => {
            Some(StopReason::Suspend)
        }
        Phase::Starting | Phase::Running if !is_allowed => Some(StopReason::Resize),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_stopped_once_and_never_after_its_end() {
        for (phase, suspend, nodes, expected) in [
            (Phase::Running, true, 2, Some(StopReason::Suspend)),
            (Phase::Pending, true, 2, Some(StopReason::Suspend)),
            (Phase::Restarting, true, 2, Some(StopReason::Suspend)),
            (Phase::Suspending, true, 2, None),
            (Phase::Suspended, true, 2, None),
            (Phase::Succeeded, true, 2, None),
            (Phase::Failed, true, 3, None),
            (Phase::Running, false, 2, None),
            (Phase::Starting, false, 3, Some(StopReason::Resize)),
            // The next gang gets the new size anyway.
            (Phase::Restarting, false, 3, None),
            (Phase::Pending, false, 3, None),
            (Phase::Running, true, 3, Some(StopReason::Suspend)),
        ] {
            assert_eq!(
                stop_wanted(phase, 2, suspend, &[nodes]),
                expected,
                "{phase:?} suspend={suspend} nodes={nodes}"
            );
        }
        assert_eq!(stop_wanted(Phase::Running, 2, false, &[8, 4, 2]), None);
        assert_eq!(
            stop_wanted(Phase::Running, 2, false, &[8, 4]),
            Some(StopReason::Resize)
        );
    }
}
