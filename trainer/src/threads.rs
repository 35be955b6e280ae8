//! Threads of a rank's matrix products, and how they wait for one another.
//!
//! Each rank gets an equal share of this container's processors, instead of a thread per processor
//! of the machine. If the processors are the ranks' own, waiting threads spin briefly: waking up
//! would cost as much as many tasks of a small model. If other pods may share them, threads sleep
//! at once: spinning would delay the thread they wait for.

use std::os::unix::process::CommandExt as _;
use std::process::Command;

use nix::unistd::{SysconfVar, sysconf};

/// Spins of libgomp's threads before they sleep, tens of microseconds. On two cores ViT-Ti trains
/// 14 % faster than without, a model of 128 channels twice as fast. Ten times as many add little,
/// and cost three times as much on shared processors.
const SPINS_ON_OWN: u32 = 3000;

/// libgomp's environment variables, by name.
type Variables = [(&'static str, String); 3];

fn variables(threads: usize, spins: u32) -> Variables {
    [
        ("OMP_NUM_THREADS", threads.to_string()),
        // Threads sleep after the given number of spins.
        ("OMP_WAIT_POLICY", "PASSIVE".into()),
        ("GOMP_SPINCOUNT", spins.to_string()),
    ]
}

/// Sets the variables that the user has not set, so that this process uses all processors. libgomp
/// reads them before `main`, so the program is executed again. Returns if nothing is missing.
pub(crate) fn use_all() -> std::io::Result<()> {
    let missing: Vec<_> = of_machine(1, is_set).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let mut anew = Command::new(std::env::current_exe()?);
    Err(anew.args(std::env::args_os().skip(1)).envs(missing).exec())
}

/// The variables for `ranks` ranks that have this machine to themselves, except those that are
/// given.
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

/// The variables for the `ranks` ranks of this container.
pub(crate) fn of_container(ranks: u32) -> Variables {
    let usable = usable();
    variables(share(usable, ranks), spins(usable, online()))
}

/// A container has its processors to itself if it may use only some of the machine's: by a CPU
/// limit, or by the kubelet's static CPU manager.
fn spins(usable: usize, online: usize) -> u32 {
    if usable < online { SPINS_ON_OWN } else { 0 }
}

/// Processors that this process may use, by its affinity mask and cgroup quota.
fn usable() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Processors of the machine; 1 if unknown, so that the container does not count them as its own.
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
