//! Polls agents in the background: one round starts a poll, a later one observes the answer. Rank
//! 0's agent is polled for progress every two seconds; if it is stuck, all agents for heartbeats.

use std::sync::Arc;
use std::time::Duration;

use crds::Phase;
use kube::ResourceExt as _;

use super::agents::Poll;
use super::context::Context;
use super::observation::Observation;
use crate::watch::trigger::Trigger;

/// Time between polls of a job's progress.
pub(super) const PROGRESS_INTERVAL: Duration = Duration::from_secs(2);

/// Starts the next poll if due. The answer triggers a reconcile.
pub(super) fn poll(context: &Context, observation: &Observation) {
    let Some((poll, interval)) = next(observation) else {
        return;
    };
    let job = &observation.job;
    let (uid, status) = (job.uid().unwrap_or_default(), observation.status());
    if !context.memory.begin_poll(&uid, status.attempt, interval) {
        return;
    }
    let (agents, memory) = (context.agents.clone(), Arc::clone(&context.memory));
    let (clock, triggers) = (context.settings.clock.clone(), context.triggers.clone());
    let trigger = Trigger::Job {
        namespace: job.namespace().unwrap_or_default(),
        name: job.name_any(),
    };
    tokio::spawn(async move {
        let answer = agents.poll(poll).await;
        let is_answered = answer.is_some();
        memory.end_poll(&uid, answer, &status.stragglers, clock.now());
        if is_answered {
            // The receiver lives as long as the process.
            let _ = triggers.send(trigger);
        }
    });
}

/// The next poll of a running gang's agents, and the least time since the last.
fn next(observation: &Observation) -> Option<(Poll, Duration)> {
    let status = observation.job.status.as_ref()?;
    let gang = || observation.gang(status.attempt);
    let coordinator = gang().find(|pod| pod.node_rank == 0 && pod.end.is_none())?;
    let agent = coordinator.agent.clone()?;
    if status.phase != Some(Phase::Running) {
        return None;
    }
    if !observation.is_stall_suspected {
        return Some((Poll::Progress(agent), PROGRESS_INTERVAL));
    }
    let agents = gang().filter_map(|pod| Some((pod.node_rank, pod.agent.clone()?)));
    Some((Poll::Heartbeats(agents.collect()), Duration::ZERO))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{gang, job_in, observation};

    #[test]
    fn rank_0_is_asked_for_progress_and_all_agents_once_it_stands_still() {
        let mut pods = gang(1);
        for pod in &mut pods {
            pod.agent = Some(format!("http://{}", pod.name));
        }
        let mut observed = observation(job_in(Phase::Running, 1), pods.clone());
        let (poll, interval) = next(&observed).expect("a poll");
        assert!(matches!(poll, Poll::Progress(agent) if agent == "http://digits-1-0"));
        assert_eq!(interval, PROGRESS_INTERVAL);
        observed.is_stall_suspected = true;
        let (poll, interval) = next(&observed).expect("a poll");
        assert!(matches!(poll, Poll::Heartbeats(agents) if agents.len() == 2));
        assert_eq!(interval, Duration::ZERO, "at once");
        assert!(next(&observation(job_in(Phase::Starting, 1), pods)).is_none());
    }
}
