//! An index of jobs' pods, with the last state of deleted ones.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::watcher::Event;
use planner::facts::pods::{JobKey, Membership};
use tokio::time::Instant;

use super::newest::Newest;
use crate::policy::gang::PodView;

/// Longer grace periods count as this one, a year, with which no clock overflows.
const LONGEST_GRACE: i64 = 365 * 24 * 3600;

/// Pods by job.
#[derive(Debug, Default)]
pub(crate) struct Gangs {
    /// Existing pods, by job and name.
    present: HashMap<JobKey, HashMap<String, PodView>>,
    /// Deleted pods, in their last state.
    departed: HashMap<JobKey, Departed>,
    /// The pods received so far of a list in progress.
    listed: HashMap<JobKey, HashSet<String>>,
    /// When existing pods have to be gone, by uid, as this process sees it: clocks may differ.
    due: HashMap<String, Instant>,
    /// The answers that the watch has not reached.
    pub(super) newest: Newest<Pod>,
}

/// The deleted pods of a job, by name.
#[derive(Debug)]
struct Departed {
    pods: HashMap<String, PodView>,
    /// When the last of them was deleted.
    at: Instant,
}

impl Gangs {
    /// A job's existing pods, with their deletion by the clock that says `now`, and the deleted ones of
    /// one attempt. Forgets those of older attempts.
    pub(crate) fn pods_of(
        &mut self,
        job: &JobKey,
        attempt: i32,
        now: Timestamp,
    ) -> (Vec<PodView>, Vec<PodView>) {
        let present = self.present.get(job).into_iter().flat_map(HashMap::values);
        let by_clock = |pod: &PodView| PodView {
            deletion_timestamp: self.due.get(&pod.uid).map(|due| {
                let left = due.saturating_duration_since(Instant::now());
                now + left - due.elapsed()
            }),
            ..pod.clone()
        };
        let present = present.map(by_clock).collect();
        if let Some(departed) = self.departed.get_mut(job) {
            departed.pods.retain(|_, pod| pod.attempt >= attempt);
        }
        (
            present,
            self.departed
                .get(job)
                .into_iter()
                .flat_map(|departed| departed.pods.values())
                .filter(|pod| pod.attempt == attempt)
                .cloned()
                .collect(),
        )
    }

    pub(crate) fn follow(&mut self, event: &Event<Pod>) {
        match event {
            Event::Init => self.listed.clear(),
            Event::InitApply(pod) => {
                if let Some((job, view)) = self.read(pod) {
                    let listed = self.listed.entry(job.clone()).or_default();
                    listed.insert(view.name.clone());
                    self.put(job, view);
                }
            }
            Event::InitDone => self.keep_listed(),
            Event::Apply(pod) => {
                if let Some((job, view)) = self.read(pod) {
                    self.put(job, view);
                }
            }
            Event::Delete(pod) => {
                if let Some((job, view)) = self.read(pod) {
                    self.depart(job, view);
                }
            }
        }
    }

    /// Forgets the deleted pods of deleted jobs; `exists` takes a job's uid.
    pub(crate) fn retain(&mut self, exists: impl Fn(&str) -> bool) {
        self.departed.retain(|job, _| exists(&job.uid));
    }

    /// Forgets the deleted pods of jobs that lost no pod for this long.
    pub(crate) fn forget_departed(&mut self, after: Duration) {
        self.departed.retain(|_, departed| departed.at.elapsed() < after);
    }

    /// A pod of a job. Notes when it has to be gone if it is being deleted, at the latest.
    fn read(&mut self, pod: &Pod) -> Option<(JobKey, PodView)> {
        let (job, view) = (Membership::of(pod)?.job, PodView::of(pod)?);
        if view.deletion_timestamp.is_some() {
            let grace = pod.metadata.deletion_grace_period_seconds.unwrap_or(0);
            let due = Instant::now() + Duration::from_secs(grace.clamp(0, LONGEST_GRACE).cast_unsigned());
            let known = self.due.entry(view.uid.clone()).or_insert(due);
            *known = due.min(*known);
        }
        Some((job, view))
    }

    fn put(&mut self, job: JobKey, view: PodView) {
        let uid = view.uid.clone();
        let pods = self.present.entry(job).or_default();
        let last = pods.insert(view.name.clone(), view);
        if let Some(replaced) = last.filter(|last| last.uid != uid) {
            self.due.remove(&replaced.uid);
        }
    }

    fn depart(&mut self, job: JobKey, view: PodView) {
        if let Some(pods) = self.present.get_mut(&job) {
            pods.remove(&view.name);
            if pods.is_empty() {
                self.present.remove(&job);
            }
        }
        self.due.remove(&view.uid);
        let view = PodView { lost: true, ..view };
        let at = Instant::now();
        let pods = HashMap::new();
        let departed = self.departed.entry(job).or_insert(Departed { pods, at });
        departed.at = at;
        departed.pods.insert(view.name.clone(), view);
    }

    /// Pods missing in a complete list were deleted while the watch was interrupted.
    fn keep_listed(&mut self) {
        let gone: Vec<(JobKey, PodView)> = self
            .present
            .iter()
            .flat_map(|(job, pods)| pods.values().map(move |pod| (job, pod)))
            .filter(|(job, pod)| {
                !self
                    .listed
                    .get(*job)
                    .is_some_and(|names| names.contains(&pod.name))
            })
            .map(|(job, pod)| (job.clone(), pod.clone()))
            .collect();
        for (job, view) in gone {
            self.depart(job, view);
        }
        self.listed.clear();
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;
    use crate::fixtures;

    fn key() -> JobKey {
        JobKey::of(&fixtures::job())
    }

    fn names(pods: &[PodView]) -> Vec<&str> {
        let mut names: Vec<&str> = pods.iter().map(|pod| pod.name.as_str()).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn a_pod_that_goes_leaves_its_last_state() {
        let mut gangs = Gangs::default();
        let pods = fixtures::pod_objects(1, "Running");
        gangs.follow(&Event::Apply(pods[0].clone()));
        gangs.follow(&Event::Apply(pods[1].clone()));
        gangs.follow(&Event::Delete(fixtures::pod_objects(1, "Failed")[1].clone()));
        let (present, departed) = gangs.pods_of(&key(), 1, fixtures::at(100));
        assert_eq!(
            (names(&present), names(&departed)),
            (vec!["digits-1-0"], vec!["digits-1-1"])
        );
        assert!(departed[0].lost && departed[0].has_ended());
        // Older attempts are forgotten.
        assert_eq!(gangs.pods_of(&key(), 2, fixtures::at(100)).1, []);
        assert_eq!(gangs.pods_of(&key(), 1, fixtures::at(100)).1, []);
    }

    #[test]
    fn a_pod_that_goes_while_the_watch_is_broken_is_noticed() {
        let mut gangs = Gangs::default();
        let pods = fixtures::pod_objects(1, "Running");
        gangs.follow(&Event::Apply(pods[0].clone()));
        gangs.follow(&Event::Apply(pods[1].clone()));
        gangs.follow(&Event::Init);
        gangs.follow(&Event::InitApply(pods[0].clone()));
        // An incomplete list says nothing.
        assert_eq!(gangs.pods_of(&key(), 1, fixtures::at(100)).0.len(), 2);
        gangs.follow(&Event::InitDone);
        let (present, departed) = gangs.pods_of(&key(), 1, fixtures::at(100));
        assert_eq!(
            (names(&present), names(&departed)),
            (vec!["digits-1-0"], vec!["digits-1-1"])
        );
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_gone_is_forgotten_after_a_while_where_nobody_asks() {
        let mut gangs = Gangs::default();
        let [bound, almost, rest] = [600, 599, 1].map(Duration::from_secs);
        for pod in fixtures::pod_objects(1, "Running") {
            gangs.follow(&Event::Delete(pod));
            tokio::time::advance(almost).await;
            gangs.forget_departed(bound);
        }
        assert_eq!(gangs.pods_of(&key(), 1, fixtures::at(100)).1.len(), 2);
        tokio::time::advance(rest).await;
        gangs.forget_departed(bound);
        assert_eq!(gangs.pods_of(&key(), 1, fixtures::at(100)).1, []);
        assert!(gangs.departed.is_empty());
    }

    #[test]
    fn pods_of_others_are_not_indexed() {
        let mut foreign = fixtures::pod_objects(1, "Running").remove(0);
        foreign.metadata.owner_references = None;
        let mut gangs = Gangs::default();
        gangs.follow(&Event::Apply(foreign));
        assert_eq!(gangs.pods_of(&key(), 1, fixtures::at(100)).0, []);
    }

    #[test]
    fn a_pod_of_another_namespace_is_of_no_gang_whatever_owner_it_names() {
        let mut forged = fixtures::pod_objects(1, "Failed").remove(0);
        forged.metadata.namespace = Some("elsewhere".into());
        let mut gangs = Gangs::default();
        gangs.follow(&Event::Apply(forged.clone()));
        assert_eq!(gangs.pods_of(&key(), 1, fixtures::at(100)).0, []);
        gangs.follow(&Event::Delete(forged));
        assert_eq!(gangs.pods_of(&key(), 1, fixtures::at(100)).1, []);
    }

    #[tokio::test(start_paused = true)]
    async fn when_a_pod_has_to_be_gone_is_told_by_this_process() {
        let deleted = |grace: i64| {
            let mut pod = fixtures::pod_objects(1, "Running").remove(0);
            // By a clock that is an hour ahead.
            pod.metadata.deletion_timestamp = Some(Time(fixtures::at(3700 + grace)));
            pod.metadata.deletion_grace_period_seconds = Some(grace);
            Event::Apply(pod)
        };
        let mut gangs = Gangs::default();
        let due = |gangs: &mut Gangs, now| {
            let pods = gangs.pods_of(&key(), 1, fixtures::at(now)).0;
            pods[0].deletion_timestamp
        };
        gangs.follow(&deleted(30));
        assert_eq!(due(&mut gangs, 100), Some(fixtures::at(130)));
        tokio::time::advance(Duration::from_secs(40)).await;
        gangs.follow(&deleted(30));
        assert_eq!(
            due(&mut gangs, 140),
            Some(fixtures::at(130)),
            "as it was seen first"
        );
        gangs.follow(&deleted(0));
        assert_eq!(due(&mut gangs, 140), Some(fixtures::at(130)));
        let mut gangs = Gangs::default();
        let mut for_ever = fixtures::pod_objects(1, "Running").remove(0);
        for_ever.metadata.deletion_timestamp = Some(Time(fixtures::at(100)));
        for_ever.metadata.deletion_grace_period_seconds = Some(i64::MAX);
        gangs.follow(&Event::Apply(for_ever));
        assert_eq!(due(&mut gangs, 100), Some(fixtures::at(100 + LONGEST_GRACE)));
    }
}
