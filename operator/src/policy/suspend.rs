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
        for (phase, suspend, sizes, expected) in [
            (Phase::Running, true, vec![3], Some(StopReason::Suspend)),
            (Phase::Pending, true, vec![2], Some(StopReason::Suspend)),
            (Phase::Restarting, true, vec![2], Some(StopReason::Suspend)),
            (Phase::Suspending, true, vec![2], None),
            (Phase::Suspended, true, vec![2], None),
            (Phase::Succeeded, true, vec![2], None),
            (Phase::Failed, true, vec![3], None),
            (Phase::Running, false, vec![8, 4, 2], None),
            (Phase::Running, false, vec![8, 4], Some(StopReason::Resize)),
            (Phase::Starting, false, vec![3], Some(StopReason::Resize)),
            // The next gang gets the new size anyway.
            (Phase::Restarting, false, vec![3], None),
            (Phase::Pending, false, vec![3], None),
        ] {
            let found = stop_wanted(phase, 2, suspend, &sizes);
            assert_eq!(found, expected, "{phase:?} suspend={suspend} {sizes:?}");
        }
    }
}
