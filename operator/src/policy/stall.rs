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
    let is_stuck = |(_, rank): &(usize, &Heartbeat)| {
        rank.activity.is_counted() && rank.idle_seconds >= bound.as_secs_f64()
    };
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
    use crate::fixtures::{assert_contains, at, gang, pod};
    use crate::policy::gang::PodState;

    const MINUTE: Duration = Duration::from_secs(60);

    fn rank(rank: u32, step: u64, idle_seconds: f64) -> Heartbeat {
        Heartbeat {
            rank,
            activity: Activity::Training,
            step: Some(step),
            moves: step,
            idle_seconds,
            median_step_seconds: Some(0.25),
            process: ProcessState::Running,
        }
    }

    /// Signs of a stall of 70 s, with one rank per pod.
    fn stall_signs(ranks: impl IntoIterator<Item = Heartbeat>) -> StallSigns {
        let answer = |rank: Heartbeat| {
            let heartbeats = Heartbeats {
                attempt: 1,
                ranks: vec![rank],
            };
            (heartbeats.ranks[0].rank as usize, heartbeats)
        };
        StallSigns {
            lasted: Duration::from_secs(70),
            bound: MINUTE,
            answers: ranks.into_iter().map(answer).collect(),
        }
    }

    fn judged(signs: &StallSigns) -> Option<Failure> {
        stalled(signs, &gang(1), 1, at(1000))
    }

    #[test]
    fn the_bound_is_the_jobs_own_or_ten_of_its_steps_and_five_minutes_at_least() {
        let given = Duration::from_secs(5);
        assert_eq!(bound(Some(given), Some(100.0)), Some(given));
        assert_eq!(bound(Some(given), None), Some(given));
        assert_eq!(bound(None, Some(0.1)), Some(LEAST));
        assert_eq!(bound(None, Some(90.0)), Some(Duration::from_secs(900)));
        assert_eq!(bound(None, None), None);
        assert_eq!(bound(None, Some(f64::NAN)), None);
    }

    #[test]
    fn a_stopped_rank_is_named_with_its_pod_and_node() {
        let stopped = Heartbeat {
            process: ProcessState::Stopped,
            ..rank(1, 7, 71.0)
        };
        let failure = judged(&stall_signs([rank(0, 7, 70.5), stopped])).expect("stalled");
        assert_eq!(failure.class, FailureClass::Stalled);
        assert_eq!(
            (failure.rank, failure.pod.as_str(), failure.node.as_deref()),
            (Some(1), "digits-1-1", Some("b"))
        );
        let since = at(930);
        assert_eq!(
            failure.message,
            format!(
                "no rank has finished a step for 70 s, since {since} at step 7 (limit 60 s, median step 0.250 s; \
                 failurePolicy.stallTimeoutSeconds): rank 1: its process is stopped by a signal or a debugger"
            )
        );
    }

    #[test]
    fn the_rank_with_the_fewest_steps_is_to_blame_before_one_that_waits() {
        let waiting = Heartbeat {
            process: ProcessState::Uninterruptible,
            ..rank(0, 7, 70.5)
        };
        let failure = judged(&stall_signs([waiting, rank(1, 6, 70.5)])).expect("stalled");
        assert_eq!(failure.rank, Some(1));
        assert_contains(&failure.message, "rank 1 is at step 6: its process runs or waits");
    }

    #[test]
    fn where_nothing_tells_ranks_apart_no_node_is_blamed() {
        let failure = judged(&stall_signs([rank(0, 7, 70.0), rank(1, 7, 70.0)])).expect("stalled");
        assert_eq!((failure.rank, failure.node), (None, None));
        assert_contains(&failure.message, "no rank is behind the others");
    }

    #[test]
    fn either_sign_alone_is_no_stall() {
        let both = stall_signs([rank(0, 7, 70.0), rank(1, 7, 70.0)]);
        assert!(judged(&both).is_some());
        let early = StallSigns {
            lasted: Duration::from_secs(59),
            ..both.clone()
        };
        assert_eq!(
            judged(&early),
            None,
            "the operator has not looked for long enough"
        );
        let moving = stall_signs([rank(0, 7, 70.0), rank(1, 7, 0.2)]);
        assert_eq!(judged(&moving), None, "rank 1 has finished a step");
        let alone = stall_signs([rank(0, 7, 70.0)]);
        assert_eq!(judged(&alone), None, "nobody but rank 0's own agent says so");
        let others = stall_signs([rank(1, 7, 70.0)]);
        assert_eq!(judged(&others), None, "rank 0's agent does not answer");
        assert_eq!(judged(&stall_signs([])), None, "nobody answers");
        let other_attempt = stalled(&both, &gang(2), 2, at(1000));
        assert_eq!(other_attempt, None, "it was the gang before");
    }

    #[test]
    fn an_agent_of_rank_0_that_does_not_answer_is_a_stall_where_its_kubelet_finds_the_same() {
        let mut gang = gang(1);
        gang[0].ready = false;
        let silence = |seconds| SilentAgent {
            lasted: Duration::from_secs(seconds),
            bound: MINUTE,
        };
        assert_eq!(silent(silence(59), &gang), None);
        let failure = silent(silence(60), &gang).expect("stalled");
        assert_eq!(
            (failure.class, failure.pod.as_str(), failure.node.as_deref()),
            (FailureClass::Stalled, "digits-1-0", Some("a"))
        );
        assert_eq!(
            failure.message,
            "the agent of pod digits-1-0 has not answered for 60 s (limit 60 s; failurePolicy.stallTimeoutSeconds), and its \
             kubelet reports it as not ready"
        );
        gang[0].ready = true;
        gang[1].ready = false;
        assert_eq!(
            silent(silence(600), &gang),
            None,
            "only the operator cannot reach it"
        );
        gang[0].ready = false;
        gang[0].state = PodState::Succeeded;
        assert_eq!(silent(silence(600), &gang), None, "it is done");
    }

    #[test]
    fn starting_and_checkpoints_may_take_any_time() {
        for activity in [Activity::Starting, Activity::Checkpointing] {
            for busy in [0, 1] {
                let mut ranks = [rank(0, 7, 700.0), rank(1, 7, 700.0)];
                ranks[busy].activity = activity;
                assert_eq!(judged(&stall_signs(ranks)), None, "{activity:?} on rank {busy}");
            }
        }
    }

    #[test]
    fn an_evaluation_that_gets_on_may_take_any_time_and_one_that_hangs_is_a_stall() {
        let evaluating = |number, idle_seconds| Heartbeat {
            activity: Activity::Evaluating,
            ..rank(number, 7, idle_seconds)
        };
        let busy = stall_signs([evaluating(0, 70.0), evaluating(1, 3.0)]);
        assert_eq!(judged(&busy), None, "rank 0 has done its share, rank 1 not yet");
        let failure = judged(&stall_signs([evaluating(0, 70.0), evaluating(1, 71.0)])).expect("stalled");
        assert_contains(
            &failure.message,
            "no rank has finished a batch of the evaluation for 70 s",
        );
    }

    #[test]
    fn a_gang_of_one_pod_has_its_agent_as_the_second_sign() {
        let alone = stall_signs([rank(0, 7, 70.0)]);
        let failure = stalled(&alone, &[pod(1, 0)], 1, at(1000)).expect("stalled");
        assert_eq!((failure.rank, failure.node.as_deref()), (Some(0), Some("a")));
    }

    #[test]
    fn of_three_pods_the_one_that_does_not_answer_is_named_where_no_rank_is_behind() {
        let mut gang = gang(1);
        gang.push(PodView {
            name: "digits-1-2".into(),
            node_rank: 2,
            node: Some("c".into()),
            ..pod(1, 0)
        });
        let two = stall_signs([rank(0, 7, 70.0), rank(1, 7, 70.0)]);
        let failure = stalled(&two, &gang, 1, at(1000)).expect("stalled");
        assert_eq!((failure.rank, failure.node.as_deref()), (None, Some("c")));
        assert_contains(&failure.message, "the agent of pod digits-1-2 does not answer");
    }
}
