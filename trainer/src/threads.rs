//! How many threads a rank's matrix products get: an equal share of the processors this container may use. Left to
//! itself every rank would start a thread for each processor of the machine.

/// Read by libgomp in each rank.
pub(crate) const COUNT: &str = "OMP_NUM_THREADS";
/// Whether libgomp's idle threads spin, which takes processors from other ranks and pods on the machine: a step of a
/// small model takes many times as long where they do and processors are short.
pub(crate) const WAIT_POLICY: &str = "OMP_WAIT_POLICY";
/// They sleep.
pub(crate) const PASSIVE: &str = "PASSIVE";

/// Threads for each of `ranks` ranks on this machine, at least one.
pub(crate) fn per_rank(ranks: u32) -> usize {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    share(processors, ranks)
}

fn share(processors: usize, ranks: u32) -> usize {
    (processors / ranks.max(1) as usize).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_shared_and_nobody_goes_without() {
        assert_eq!(
            [share(16, 4), share(2, 2), share(2, 8), share(3, 2)],
            [4, 1, 1, 1]
        );
        assert!(per_rank(1) >= 1);
    }
}
