//! When a running gang counts as stalled.
//!
//! Two signs have to agree. The first is the operator's: for the bound's duration, every answer of
//! rank 0's agent showed the same step or evaluation batch. The second is the agents', by their own
//! clocks: no rank of any pod that answers made progress for as long. Ranks step together, so ranks
//! of a pod that does not answer cannot be further; an unreachable pod alone proves nothing.
//!
//! If rank 0's agent does not answer, steps are unknown. Then its silence for the bound's duration
//! is the first sign, and the second is that its kubelet reports the pod as not ready.

use std::fmt::Write as _;
use std::time::Duration;

use contract::{Activity, FailureClass, Heartbeat, Heartbeats, ProcessState};
use jiff::Timestamp;

use super::failure::Failure;
use super::gang::{PodView, Trainer};

/// The default bound in median steps,
const MEDIAN_STEPS: f64 = 10.0;
/// and at least this long: a failover of shared storage delays all ranks for minutes.
pub(crate) const LEAST: Duration = Duration::from_secs(300);

/// How long a gang may make no progress: as given, or by its median step, if it has one.
pub(crate) fn bound(given: Option<Duration>, median_step_seconds: Option<f64>) -> Option<Duration> {
    given.or_else(|| {
        let seconds = MEDIAN_STEPS * median_step_seconds?;
        Some(LEAST.max(Duration::try_from_secs_f64(seconds).ok()?))
    })
}

/// The first sign, and the agents' answers for the second.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct StallSigns {
    /// How long the operator has seen no progress of rank 0.
    pub(crate) lasted: Duration,
    /// The longest allowed.
    pub(crate) bound: Duration,
    /// The heartbeats of every pod that answered, by node rank.
    pub(crate) answers: Vec<(usize, Heartbeats)>,
}

/// Rank 0's agent does not answer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct SilentAgent {
    /// How long the operator has been asking.
    pub(crate) lasted: Duration,
    /// The longest allowed.
    pub(crate) bound: Duration,
}

/// The failure of a gang whose rank 0 answers neither the operator nor its kubelet.
pub(crate) fn silent(silence: SilentAgent, gang: &[PodView]) -> Option<Failure> {
    let pod = gang.iter().find(|pod| pod.node_rank == 0)?;
    if silence.lasted < silence.bound || pod.ready || pod.has_ended() {
        return None;
    }
    let message = format!(
        "the agent of pod {} has not answered for {} s (limit {} s; failurePolicy.stallTimeoutSeconds), and its kubelet \
         reports it as not ready",
        pod.name,
        silence.lasted.as_secs(),
        silence.bound.as_secs(),
    );
    Some(Failure::from_pod(pod, FailureClass::Stalled, message))
}

/// The failure of a gang if both signs say that it is stuck.
pub(crate) fn stalled(signs: &StallSigns, gang: &[PodView], attempt: i32, now: Timestamp) -> Option<Failure> {
    let StallSigns {
        lasted,
        bound,
        answers,
    } = signs;
    let of_this_attempt = |heartbeats: &Heartbeats| i64::from(heartbeats.attempt) == i64::from(attempt);
    if lasted < bound || !answers.iter().all(|(_, heartbeats)| of_this_attempt(heartbeats)) {
        return None;
    }
    let ranks: Vec<(usize, &Heartbeat)> = answers
        .iter()
        .flat_map(|(node_rank, heartbeats)| heartbeats.ranks.iter().map(|rank| (*node_rank, rank)))
        .collect();
    // A stopped process does not save either.
    let is_counted = |rank: &Heartbeat| rank.activity.is_counted() || rank.process == ProcessState::Stopped;
    let is_stuck =
        |(_, rank): &(usize, &Heartbeat)| is_counted(rank) && rank.idle_seconds >= bound.as_secs_f64();
    // Including rank 0: the others wait in a step while it saves.
    let is_confirmed = ranks.iter().any(|(_, rank)| rank.rank == 0)
        && (answers.len() > 1 || gang.len() == 1)
        && ranks.iter().all(is_stuck);
    if !is_confirmed {
        return None;
    }
    let silent = gang
        .iter()
        .find(|pod| answers.iter().all(|(node_rank, _)| *node_rank != pod.node_rank));
    // Another trainer's log is rank 0's, which may wait for any rank.
    let is_external = gang.iter().any(|pod| pod.trainer == Trainer::External);
    let behind = behind(&ranks).filter(|_| !is_external);
    let to_blame = match behind {
        Some((node_rank, _)) => gang.iter().find(|pod| pod.node_rank == node_rank),
        None if is_external && gang.len() == 1 => gang.first(),
        None => silent,
    };
    let step = ranks.iter().filter_map(|(_, rank)| rank.step).max();
    let is_evaluating = ranks
        .iter()
        .any(|(_, rank)| rank.activity == Activity::Evaluating);
    let mut message = format!(
        "no rank has finished a {} for {} s, since {} at step {} (limit {} s",
        if is_evaluating {
            "batch of the evaluation"
        } else {
            "step"
        },
        lasted.as_secs(),
        since(now, *lasted),
        step.unwrap_or(0),
        bound.as_secs(),
    );
    if let Some(median) = ranks.iter().find_map(|(_, rank)| rank.median_step_seconds) {
        let _ = write!(message, ", median step {median:.3} s");
    }
    message.push_str("; failurePolicy.stallTimeoutSeconds): ");
    message.push_str(&match (behind, silent) {
        (Some((_, rank)), _) => describe(rank, step),
        (None, Some(pod)) => format!("the agent of pod {} does not answer", pod.name),
        (None, None) if is_external => "the rank that blocks the others is unknown".into(),
        (None, None) => "no rank is behind the others".into(),
    });
    Some(Failure {
        rank: behind.map(|(_, rank)| rank.rank),
        // Without a pod to blame, no node is at fault.
        node: to_blame.and_then(|pod| pod.node.clone()),
        ..Failure::from_pod(to_blame.or(gang.first())?, FailureClass::Stalled, message)
    })
}

/// The rank that blocks the others: the one with the fewest steps, then the one whose process
/// cannot run. `None` if no rank differs.
fn behind<'a>(ranks: &[(usize, &'a Heartbeat)]) -> Option<(usize, &'a Heartbeat)> {
    let obstacle = |rank: &Heartbeat| match rank.process {
        ProcessState::Stopped => 0,
        ProcessState::Ended => 1,
        ProcessState::Uninterruptible => 2,
        ProcessState::Running => 3,
    };
    let key = |rank: &Heartbeat| (rank.step, obstacle(rank));
    let first = ranks.iter().min_by_key(|(_, rank)| key(rank))?;
    let is_alone = ranks.len() == 1 || ranks.iter().any(|(_, rank)| key(rank) != key(first.1));
    is_alone.then_some(*first)
}

/// In whole seconds, for display.
fn since(now: Timestamp, lasted: Duration) -> Timestamp {
    let seconds = i64::try_from(lasted.as_secs()).unwrap_or(0);
    Timestamp::from_second(now.as_second() - seconds).unwrap_or(now)
}

fn describe(rank: &Heartbeat, step: Option<u64>) -> String {
    let state = match rank.process {
        ProcessState::Stopped => "its process is stopped by a signal or a debugger",
        ProcessState::Ended => "its process has ended",
        ProcessState::Uninterruptible => "its process waits for storage or a driver",
        ProcessState::Running => "its process runs or waits",
    };
    let number = rank.rank;
    match rank.step {
        own if own == step => format!("rank {number}: {state}"),
        own => format!("rank {number} is at step {}: {state}", own.unwrap_or(0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{at, gang, pod};
    use crate::policy::gang::PodState;

    const MINUTE: Duration = Duration::from_secs(60);

    /// A pod per rank, given as `RANK@STEP IDLE_SECONDS STATE`, after this time.
    fn judged(ranks: &str, gang: &[PodView], lasted: u64) -> Option<Failure> {
        let answers = ranks.split(", ").filter(|rank| !rank.is_empty()).map(|rank| {
            let words: Vec<&str> = rank.split(' ').collect();
            let (rank, step) = words[0].split_once('@').expect("a rank and a step");
            let state = words.get(2).copied().unwrap_or_default();
            let heartbeat = Heartbeat {
                rank: rank.parse().expect("a number"),
                activity: match state {
                    "starting" => Activity::Starting,
                    "checkpointing" | "stopped-checkpointing" => Activity::Checkpointing,
                    "evaluating" => Activity::Evaluating,
                    _ => Activity::Training,
                },
                step: step.parse().ok(),
                moves: 0,
                idle_seconds: words[1].parse().expect("a number"),
                median_step_seconds: Some(0.25),
                process: match state {
                    "stopped" | "stopped-checkpointing" => ProcessState::Stopped,
                    "uninterruptible" => ProcessState::Uninterruptible,
                    _ => ProcessState::Running,
                },
            };
            let heartbeats = Heartbeats {
                attempt: 1,
                ranks: vec![heartbeat],
            };
            (heartbeats.ranks[0].rank as usize, heartbeats)
        });
        let signs = StallSigns {
            lasted: Duration::from_secs(lasted),
            bound: MINUTE,
            answers: answers.collect(),
        };
        stalled(&signs, gang, gang[0].attempt, at(1000))
    }

    #[test]
    fn the_bound_is_the_jobs_own_or_ten_of_its_steps_and_five_minutes_at_least() {
        let given = Duration::from_secs(5);
        for (given, median, expected) in [
            (Some(given), Some(100.0), Some(given)),
            (Some(given), None, Some(given)),
            (None, Some(0.1), Some(LEAST)),
            (None, Some(90.0), Some(Duration::from_secs(900))),
            (None, None, None),
            (None, Some(f64::NAN), None),
        ] {
            assert_eq!(bound(given, median), expected, "{given:?} {median:?}");
        }
    }

    #[test]
    fn a_gang_that_both_signs_call_stuck_is_blamed_on_the_rank_that_blocks_the_others() {
        let silent = PodView {
            name: "digits-1-2".into(),
            node_rank: 2,
            node: Some("c".into()),
            ..pod(1, 0)
        };
        let (one, two) = (vec![pod(1, 0)], gang(1));
        let three = [gang(1), vec![silent]].concat();
        let gangs = [one, two, three];
        for case in "
2 pods: 0@7 70.5, 1@7 71 stopped -> Some(1) on b: rank 1: its process is stopped by a signal or a debugger
2 pods: 0@7 70, 1@7 71 stopped-checkpointing -> Some(1) on b: rank 1: its process is stopped by a signal or a debugger
2 pods: 0@7 70 uninterruptible, 1@6 70 -> Some(1) on b: rank 1 is at step 6: its process runs or waits
2 pods: 0@7 70, 1@7 70 -> None on no node: no rank is behind the others
2 pods: 0@7 70 evaluating, 1@7 71 evaluating -> None on no node: no rank is behind the others
3 pods: 0@7 70, 1@7 70 -> None on c: the agent of pod digits-1-2 does not answer
1 pods: 0@7 70 -> Some(0) on a: rank 0: its process runs or waits
2 pods: 0@7 70, 1@7 0.2 -> rank 1 has finished a step
2 pods: 0@7 70 -> nobody but rank 0's own agent says so
2 pods: 1@7 70 -> rank 0's agent does not answer
2 pods:  -> nobody answers
2 pods: 0@7 700 starting, 1@7 700 -> starting may take any time
2 pods: 0@7 700, 1@7 700 starting -> starting may take any time
2 pods: 0@7 700 checkpointing, 1@7 700 -> so may saving
2 pods: 0@7 700, 1@7 700 checkpointing -> so may saving
2 pods: 0@7 70 evaluating, 1@7 3 evaluating -> rank 0 has done its share, rank 1 not yet
"
        .trim()
        .lines()
        {
            let (pods, case) = case.split_once(" pods: ").expect("pods");
            let (ranks, expected) = case.split_once(" -> ").expect("a case");
            let gang = &gangs[pods.parse::<usize>().expect("a number") - 1];
            let Some(failure) = judged(ranks, gang, 70) else {
                assert!(!expected.contains(" on "), "{ranks}: not a stall");
                continue;
            };
            let node = failure.node.as_deref().unwrap_or("no node");
            let (_, why) = failure.message.split_once("): ").expect("a reason");
            assert_eq!(
                format!("{:?} on {node}: {why}", failure.rank),
                expected,
                "{ranks}"
            );
            assert_eq!(
                judged(ranks, gang, 59),
                None,
                "the operator has not looked for long enough"
            );
        }
        let both = "0@7 70 evaluating, 1@7 70 evaluating";
        assert_eq!(judged(both, &gang(2), 70), None, "it was the gang before");
        let since = at(930);
        for (state, what) in [("training", "step"), ("evaluating", "batch of the evaluation")] {
            let failure = judged(&format!("0@7 70 {state}, 1@7 70 {state}"), &gang(1), 70).expect("stalled");
            assert_eq!(
                (failure.class, failure.pod.as_str()),
                (FailureClass::Stalled, "digits-1-0")
            );
            let message = format!(
                "no rank has finished a {what} for 70 s, since {since} at step 7 (limit 60 s, median step 0.250 s; \
                 failurePolicy.stallTimeoutSeconds): no rank is behind the others"
            );
            assert_eq!(failure.message, message);
        }
    }

    #[test]
    fn an_agent_of_rank_0_that_does_not_answer_is_a_stall_where_its_kubelet_finds_the_same() {
        let message = "the agent of pod digits-1-0 has not answered for 60 s (limit 60 s; failurePolicy.stallTimeoutSeconds), \
                       and its kubelet reports it as not ready";
        for (seconds, ready, state, expected) in [
            (59, [false, true], PodState::Running, None),
            (60, [false, true], PodState::Running, Some(message)),
            // Only the operator cannot reach it.
            (600, [true, false], PodState::Running, None),
            // It is done.
            (600, [false, false], PodState::Succeeded, None),
        ] {
            let mut gang = gang(1);
            (gang[0].ready, gang[1].ready, gang[0].state) = (ready[0], ready[1], state);
            let lasted = Duration::from_secs(seconds);
            let bound = MINUTE;
            let failure = silent(SilentAgent { lasted, bound }, &gang);
            assert_eq!(failure.as_ref().map(|failure| &*failure.message), expected);
            if let Some(failure) = failure {
                assert_eq!(
                    (failure.class, failure.node.as_deref()),
                    (FailureClass::Stalled, Some("a"))
                );
            }
        }
    }
}
