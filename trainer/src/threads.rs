//! How many threads a rank's matrix products get, and what they do while they wait for one another.
//!
//! Each rank gets an equal share of the processors this container may use; left to itself it would start a thread for
//! each processor of the machine. Where those processors are the ranks' own, a thread that waits spins for a moment:
//! to be woken from sleep takes as long as much of what a small model has to do. Where they may be shared with other
//! pods it sleeps at once: spinning would take the processor from the very thread that is waited for.

use std::os::unix::process::CommandExt as _;
use std::process::Command;

use nix::unistd::{SysconfVar, sysconf};

/// How many times libgomp's threads look again before they sleep: tens of microseconds. On two cores ViT-Ti trains 14 %
/// faster than without, a model of 128 channels twice as fast; ten times as many spins add little, and take three times
/// as much where the processors turn out to be shared.
const SPINS_ON_OWN: u32 = 3000;

/// What tells libgomp, by its name in the environment of a process.
type Variables = [(&'static str, String); 3];

fn variables(threads: usize, spins: u32) -> Variables {
    [
        ("OMP_NUM_THREADS", threads.to_string()),
        // They sleep, where the number of spins does not say otherwise.
        ("OMP_WAIT_POLICY", "PASSIVE".into()),
        ("GOMP_SPINCOUNT", spins.to_string()),
    ]
}

/// Gives this process all processors by those variables, where the user has not set them. libgomp reads them before
/// `main` begins, so the program is started anew in its own place; returns where nothing is missing.
pub(crate) fn use_all() -> std::io::Result<()> {
    let missing: Vec<_> = of_machine(1, is_set).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let mut anew = Command::new(std::env::current_exe()?);
    Err(anew.args(std::env::args_os().skip(1)).envs(missing).exec())
}

/// What tells `ranks` ranks, which have this machine for themselves, how many threads they get and how those wait: the variables
/// that are not given.
pub(crate) fn of_machine(
    ranks: u32,
    is_given: impl Fn(&str) -> bool,
) -> impl Iterator<Item = (&'static str, String)> {
    variables(per_rank(ranks), SPINS_ON_OWN)
        .into_iter()
        .filter(move |(name, _)| !is_given(name))
}

/// Whether the user has set a variable.
pub(crate) fn is_set(name: &str) -> bool {
    std::env::var_os(name).is_some()
}

/// What tells the `ranks` ranks of this container the same.
pub(crate) fn of_container(ranks: u32) -> Variables {
    let usable = usable();
    variables(share(usable, ranks), spins(usable, online()))
}

/// Processors are a container's own where it may use fewer than there are: a limit says how many, or the kubelet's static
/// CPU manager which.
fn spins(usable: usize, online: usize) -> u32 {
    if usable < online { SPINS_ON_OWN } else { 0 }
}

/// Processors that this process may use, by its affinity mask and the quota of its control group.
fn usable() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Processors of the machine; where that cannot be told, one, which is nobody's own.
fn online() -> usize {
    let online = sysconf(SysconfVar::_NPROCESSORS_ONLN).ok().flatten();
    online
        .and_then(|online| usize::try_from(online).ok())
        .unwrap_or(1)
}

/// Threads for each of `ranks` ranks on this machine, at least one.
pub(crate) fn per_rank(ranks: u32) -> usize {
    share(usable(), ranks)
}

fn share(processors: usize, ranks: u32) -> usize {
    (processors / ranks.max(1) as usize).max(1)
}

#[cfg(test)]
mod tests {
    use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
    use nix::unistd::Pid;

    use super::*;

    #[test]
    fn what_the_user_has_set_stays() {
        let names = |set: &[&str]| -> Vec<&str> {
            let missing = of_machine(1, |name| set.contains(&name));
            missing.map(|(name, _)| name).collect()
        };
        assert_eq!(
            names(&[]),
            ["OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT"]
        );
        assert_eq!(names(&["OMP_NUM_THREADS", "GOMP_SPINCOUNT"]), ["OMP_WAIT_POLICY"]);
        assert_eq!(
            names(&["OMP_WAIT_POLICY", "OMP_NUM_THREADS", "GOMP_SPINCOUNT"]),
            [""; 0]
        );
    }

    #[test]
    fn threads_spin_where_a_limit_or_an_affinity_mask_makes_processors_their_own() {
        assert_eq!((spins(4, 4), spins(4, 8)), (0, SPINS_ON_OWN));
        let (usable, online) = std::thread::spawn(|| {
            let this = Pid::from_raw(0);
            let allowed = sched_getaffinity(this).expect("a mask");
            let is_allowed = |processor: &usize| allowed.is_set(*processor).unwrap_or(false);
            let mut one = CpuSet::new();
            let first = (0..CpuSet::count()).find(is_allowed).expect("a processor");
            one.set(first).expect("in the mask");
            sched_setaffinity(this, &one).expect("allowed");
            (usable(), online())
        })
        .join()
        .expect("told");
        assert_eq!(usable, 1);
        assert_eq!(spins(usable, online) > 0, online > 1);
    }

    #[test]
    fn processors_are_shared_and_nobody_goes_without() {
        assert_eq!(
            [share(16, 4), share(2, 2), share(2, 8), share(3, 2)],
            [4, 1, 1, 1]
        );
        assert!(per_rank(1) >= 1);
    }
}
