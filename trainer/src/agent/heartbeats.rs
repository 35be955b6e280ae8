//! The activity of this pod's ranks as seen by their agent, which answers even if they hang.

use std::sync::{Mutex, MutexGuard, PoisonError};

use contract::{Activity, Heartbeat, Heartbeats, ProcessState};
use nix::unistd::Pid;

use ::agent::pulse::Pulse;

#[derive(Debug)]
pub(crate) struct Pulses {
    attempt: u32,
    first_rank: u32,
    ranks: Vec<Mutex<Rank>>,
}

/// The latest reports of one rank.
#[derive(Debug, Default)]
struct Rank {
    /// `None` until its process is started.
    pid: Option<Pid>,
    pulse: Pulse,
}

impl Pulses {
    /// For `count` ranks from `first_rank` on, none of which has started.
    pub(super) fn new(attempt: u32, first_rank: u32, count: u32) -> Self {
        Self {
            attempt,
            first_rank,
            ranks: (0..count).map(|_| Mutex::default()).collect(),
        }
    }

    fn lock(&self, local: usize) -> Option<MutexGuard<'_, Rank>> {
        // The value is valid after every single assignment.
        let rank = self.ranks.get(local)?;
        Some(rank.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The `local`-th rank has started as this process.
    pub(super) fn started(&self, local: usize, pid: Pid) {
        if let Some(mut rank) = self.lock(local) {
            rank.pid = Some(pid);
        }
    }

    /// The `local`-th rank has finished a step that lasted `seconds`.
    pub(super) fn stepped(&self, local: usize, step: u64, seconds: f64) {
        if let Some(mut rank) = self.lock(local) {
            rank.pulse.stepped(step, seconds);
        }
    }

    /// The `local`-th rank starts an activity, or makes progress in it.
    pub(super) fn turned_to(&self, local: usize, activity: Activity) {
        if let Some(mut rank) = self.lock(local) {
            rank.pulse.turned_to(activity);
        }
    }

    pub(super) fn heartbeats(&self) -> Heartbeats {
        Heartbeats {
            attempt: self.attempt,
            ranks: (0..self.ranks.len())
                .filter_map(|local| self.heartbeat(local))
                .collect(),
        }
    }

    /// The current state of the `local`-th rank.
    pub(super) fn heartbeat(&self, local: usize) -> Option<Heartbeat> {
        let rank = self.lock(local)?;
        let pulse = &rank.pulse;
        Some(Heartbeat {
            rank: self.first_rank + local as u32,
            activity: pulse.activity,
            step: pulse.step,
            moves: pulse.moves,
            idle_seconds: pulse.idle().as_secs_f64(),
            median_step_seconds: pulse.median_step(),
            process: rank.pid.map_or(ProcessState::Running, state_of),
        })
    }
}

fn state_of(pid: Pid) -> ProcessState {
    fs_err::read_to_string(format!("/proc/{pid}/stat"))
        .ok()
        .as_deref()
        .and_then(state_letter)
        .map_or(ProcessState::Ended, ProcessState::from_letter)
}

/// The third field of `/proc/PID/stat`. The second is the program's name; it may have parentheses.
fn state_letter(stat: &str) -> Option<char> {
    let (_, rest) = stat.rsplit_once(')')?;
    rest.trim_start().chars().next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_is_starting_until_its_first_step_and_each_step_starts_its_age_anew() {
        let pulses = Pulses::new(3, 4, 2);
        let begun = pulses.heartbeats();
        assert_eq!((begun.attempt, begun.ranks.len()), (3, 2));
        assert_eq!(
            (begun.ranks[1].rank, begun.ranks[1].activity, begun.ranks[1].step),
            (5, Activity::Starting, None)
        );
        let make_old = || {
            let mut rank = pulses.lock(1).expect("a rank");
            rank.pulse.age(std::time::Duration::from_secs(90));
        };
        let age = || pulses.heartbeat(1).expect("a rank").idle_seconds;
        make_old();
        assert!(age() >= 90.0);
        pulses.stepped(1, 7, 0.5);
        let moved = pulses.heartbeat(1).expect("a rank");
        assert_eq!(
            (moved.activity, moved.step, moved.moves),
            (Activity::Training, Some(7), 1)
        );
        assert!(moved.idle_seconds < 90.0);
        make_old();
        pulses.turned_to(1, Activity::Evaluating);
        assert!(age() < 90.0);
        pulses.turned_to(1, Activity::Evaluating);
        let moves = pulses.heartbeat(1).expect("a rank").moves;
        assert_eq!(moves, 3, "another batch of the evaluation");
        assert_eq!(pulses.heartbeat(2), None);
    }

    #[test]
    fn the_kernel_tells_how_a_process_is() {
        assert_eq!(state_letter("7 (a) b) T 1 7"), Some('T'));
        assert_eq!(ProcessState::from_letter('T'), ProcessState::Stopped);
        assert_eq!(state_of(Pid::this()), ProcessState::Running);
        // Above the largest process id.
        assert_eq!(state_of(Pid::from_raw(1 << 23)), ProcessState::Ended);
    }
}
