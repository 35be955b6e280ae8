//! Polls agents in the background: one round starts a poll, a later one observes the answer. Rank
//! 0's agent is polled for progress every two seconds; if it is stuck, all agents for heartbeats.

use std::sync::Arc;
use std::time::Duration;

use crds::{Phase, labels};
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
        let save_after = save_wanted(observation);
        return Some((Poll::Progress { agent, save_after }, PROGRESS_INTERVAL));
    }
    let agents = gang().filter_map(|pod| Some((pod.node_rank, pod.agent.clone()?)));
    Some((Poll::Heartbeats(agents.collect()), Duration::ZERO))
}

/// The step after which a checkpoint is wanted, until there is one.
fn save_wanted(observation: &Observation) -> Option<u64> {
    let wanted = observation.job.annotations().get(labels::SAVE_AFTER_STEP)?;
    let wanted: i64 = wanted.parse().ok()?;
    let saved = observation.job.status.as_ref()?.last_checkpoint.as_ref();
    let is_saved = saved.is_some_and(|checkpoint| checkpoint.step > wanted);
    u64::try_from(wanted).ok().filter(|_| !is_saved)
}

#[cfg(test)]
mod tests {
    use crds::status::CheckpointStatus;

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
        assert!(matches!(poll, Poll::Progress { agent, save_after: None } if agent == "http://digits-1-0"));
        assert_eq!(interval, PROGRESS_INTERVAL);
        observed.is_stall_suspected = true;
        let (poll, interval) = next(&observed).expect("a poll");
        assert!(matches!(poll, Poll::Heartbeats(agents) if agents.len() == 2));
        assert_eq!(interval, Duration::ZERO, "at once");
        assert!(next(&observation(job_in(Phase::Starting, 1), pods)).is_none());
    }

    #[test]
    fn a_checkpoint_is_asked_for_until_it_is_there() {
        let asked = |wanted: &str, saved: Option<i64>| {
            let mut job = job_in(Phase::Running, 1);
            let annotation = (labels::SAVE_AFTER_STEP.to_owned(), wanted.to_owned());
            job.metadata.annotations = Some([annotation].into());
            job.status.as_mut().expect("a status").last_checkpoint = saved.map(|step| CheckpointStatus {
                step,
                path: "/checkpoints/digits".into(),
                time: None,
            });
            save_wanted(&observation(job, gang(1)))
        };
        assert_eq!(asked("7", None), Some(7));
        assert_eq!(asked("7", Some(7)), Some(7));
        assert_eq!(asked("7", Some(8)), None);
        for invalid in ["", "now", "-1"] {
            assert_eq!(asked(invalid, None), None, "{invalid}");
        }
    }
}
