//! A job and a cluster in which its steps take effect at once, and the story of both: each event,
//! when the job is looked at again, and between them each step, until one changes nothing. `!` marks
//! urgent steps.

use std::fmt::Write as _;
use std::sync::Arc;

use contract::exit::ExitCode;
use contract::{CheckpointRecord, FailureRecord, Progress, TerminationRecord};
use crds::conditions::types;
use crds::status::{AdmittedPod, ViTTrainingJobStatus};
use crds::{Phase, ViTTrainingJob};
use expect_test::Expect;
use jiff::SignedDuration;
use kube::ResourceExt as _;
use kube::runtime::watcher::Event;
use planner::facts::fleet::Fleet;
use planner::policy::placement::place;
use planner::policy::request::GangRequest;
use planner::{Decision, Waiting};

use super::super::super::observation::{Isolation, Observation};
use super::super::super::step::{Object, Step, Write};
use super::super::decide;
use crate::fixtures::{self, at, gang, job_in, observation, uid_of};
use crate::policy::gang::{End, PodState, PodView};

/// Most steps after one event.
const STEPS: usize = 9;

pub(super) struct World {
    pub(super) seen: Observation,
    /// Ready nodes with one free GPU each.
    pub(super) nodes: Vec<&'static str>,
    /// Foreign and other pods that hold GPUs.
    pub(super) holders: Vec<k8s_openapi::api::core::v1::Pod>,
    /// What a dry run shows.
    pub(super) admitted: AdmittedPod,
    /// What the last step with writes wrote.
    pub(super) writes: Vec<Write>,
    story: String,
}

impl World {
    /// A job that no round has seen.
    pub(super) fn new(job: ViTTrainingJob) -> Self {
        Self {
            seen: observation(job, vec![]),
            nodes: vec!["a", "b"],
            holders: vec![],
            admitted: AdmittedPod::default(),
            writes: vec![],
            story: String::new(),
        }
    }

    /// Attempt 1 of the job in this phase, with two running pods.
    pub(super) fn in_phase(phase: Phase, change: impl FnOnce(&mut ViTTrainingJob)) -> Self {
        let mut job = job_in(phase, 1);
        change(&mut job);
        let mut world = Self::new(job);
        world.seen.pods = gang(1);
        world.seen.config_maps = ["digits-1".to_owned()].into();
        world
    }

    pub(super) fn running() -> Self {
        Self::in_phase(Phase::Running, |_| ())
    }

    pub(super) fn status(&self) -> ViTTrainingJobStatus {
        self.seen.status()
    }

    /// Reason and message of a condition.
    pub(super) fn condition(&self, type_: &str) -> (String, String) {
        let status = self.status();
        let condition = status.condition(type_).expect("a condition");
        (condition.reason.clone(), condition.message.clone())
    }

    /// Something happens, and steps follow.
    pub(super) fn on(&mut self, event: &str, happens: impl FnOnce(&mut Observation)) -> &mut Self {
        happens(&mut self.seen);
        let mut steps = String::new();
        for _ in 0..STEPS {
            let step = self.decide();
            let (again, mark) = (step.look_again, if step.is_urgent { "!" } else { " " });
            let words = self.take(step);
            if words.is_empty() {
                let _ = write!(self.story, "{event}; again in {again:?}\n{steps}");
                return self;
            }
            let _ = writeln!(steps, "{mark} {words}");
            if self.writes.contains(&Write::DeleteJob) {
                let _ = write!(self.story, "{event}\n{steps}");
                return self;
            }
        }
        panic!("the steps do not end:\n{steps}");
    }

    pub(super) fn begin(&mut self) -> &mut Self {
        self.on("begin", |_| ())
    }

    pub(super) fn edit(&mut self, event: &str, change: impl FnOnce(&mut ViTTrainingJob)) -> &mut Self {
        self.on(event, |seen| change(Arc::make_mut(&mut seen.job)))
    }

    pub(super) fn pass(&mut self, seconds: i64) -> &mut Self {
        self.on(&format!("{seconds} s pass"), |seen| {
            seen.now += SignedDuration::from_secs(seconds);
        })
    }

    /// All pods start, and get ready.
    pub(super) fn start(&mut self) -> &mut Self {
        self.on("pods are ready", |seen| {
            for pod in seen.pods.iter_mut().filter(|pod| !pod.has_ended()) {
                (pod.state, pod.ready) = (PodState::Running, true);
            }
        })
    }

    /// The trainer of a node rank exits.
    pub(super) fn exit(&mut self, node_rank: usize, code: u8) -> &mut Self {
        self.on(&format!("rank {node_rank} exits with {code}"), |seen| {
            let (attempt, now) = (seen.status().attempt, seen.now);
            let is_it = |pod: &&mut PodView| (pod.attempt, pod.node_rank) == (attempt, node_rank);
            let pod = seen.pods.iter_mut().find(is_it).expect("the pod");
            *pod = ended(pod.clone(), code, now);
        })
    }

    /// The pods that were deleted end, and go.
    pub(super) fn go(&mut self) -> &mut Self {
        self.on("deleted pods are gone", |seen| {
            let (gone, stay): (Vec<_>, Vec<_>) = std::mem::take(&mut seen.pods)
                .into_iter()
                .partition(|pod| pod.deletion_timestamp.is_some());
            seen.pods = stay;
            let gone = gone.into_iter().map(|pod| PodView { lost: true, ..pod });
            seen.departed.extend(gone);
        })
    }

    /// The story since the last call.
    pub(super) fn story(&mut self) -> String {
        std::mem::take(&mut self.story)
    }

    /// Compares the story since the last call.
    pub(super) fn story_is(&mut self, expected: Expect) -> &mut Self {
        expected.assert_eq(&self.story());
        self
    }

    /// The next step, which has no effect.
    pub(super) fn decide(&self) -> Step {
        let valid = crds::validate(&self.seen.job);
        let mut fleet = Fleet::default();
        for name in &self.nodes {
            fleet.follow_nodes(&Event::Apply(fixtures::node(name, "Tesla-T4", 1)));
        }
        for pod in &self.holders {
            fleet.follow_pods(&Event::Apply(pod.clone()));
        }
        let place = |_| {
            let request = GangRequest::from(valid.as_ref().expect("valid"));
            let request = request.admitted(self.status().admitted_pod.as_ref());
            Some(match place(&request, fleet.inventory()) {
                Ok(placement) => Decision::Placed(placement),
                Err(rejected) => Decision::Waits(Waiting::NoFit {
                    rejected,
                    wait: fixtures::alone(),
                }),
            })
        };
        let growth = || self.seen.job.spec.elastic.as_ref().map(|_| 4);
        decide(&self.seen, &valid, place, growth)
    }

    /// Takes a step and describes it.
    fn take(&mut self, step: Step) -> String {
        let mut words = changes(&self.status(), &step.status);
        if !step.writes.is_empty() {
            self.writes.clone_from(&step.writes);
        }
        for write in step.writes {
            words.push(self.apply(write));
        }
        Arc::make_mut(&mut self.seen.job).status = Some(*step.status);
        words.join(", ")
    }

    fn apply(&mut self, write: Write) -> String {
        let seen = &mut self.seen;
        match write {
            Write::DeletePods(pods) => {
                let mut words = "delete".to_owned();
                for (id, grace) in pods {
                    let _ = write!(words, " {}", id.name);
                    if let Some(seconds) = grace {
                        let _ = write!(words, "/{seconds}s");
                    }
                    if grace == Some(0) {
                        seen.pods.retain(|pod| pod.name != id.name);
                    }
                    let due = seen.now + SignedDuration::from_secs(grace.unwrap_or(30).into());
                    for pod in &mut seen.pods {
                        if pod.name == id.name {
                            pod.deletion_timestamp = Some(due);
                        }
                    }
                }
                words
            }
            Write::DryRun(_) => {
                seen.dry_run = Some(self.admitted.clone());
                "dry run".into()
            }
            Write::DeleteAttempt(name, _) => {
                seen.config_maps.remove(&name);
                format!("delete {name}")
            }
            Write::DeleteService => {
                seen.has_service = false;
                "delete the Service".into()
            }
            Write::DeleteNetworkPolicy => {
                seen.network_policy = Isolation::Missing;
                "delete the NetworkPolicy".into()
            }
            Write::CreateWorkload(workload) => {
                seen.queue.workload = Some(Arc::new(*workload));
                "create the Workload".into()
            }
            Write::DeleteWorkload(_) => {
                seen.queue.workload = None;
                "delete the Workload".into()
            }
            Write::UpdateWorkload(workload) => {
                seen.queue.workload = Some(Arc::new(*workload));
                "update the Workload".into()
            }
            Write::TryUpdateWorkload(workload) => {
                seen.queue.workload = Some(Arc::new(*workload));
                "try to update the Workload".into()
            }
            Write::Create(objects, pods) => {
                let mut words = "create".to_owned();
                for object in objects {
                    let name = match object {
                        Object::PodGroup(_, group) => format!("PodGroup {}", group.name_any()),
                        Object::ConfigMap(config_map) => {
                            seen.config_maps.insert(config_map.name_any());
                            format!("ConfigMap {}", config_map.name_any())
                        }
                        Object::Service(_) => {
                            seen.has_service = true;
                            "Service".into()
                        }
                        Object::NetworkPolicy(_) => {
                            seen.network_policy = Isolation::Present;
                            "NetworkPolicy".into()
                        }
                    };
                    let _ = write!(words, " {name}");
                }
                let nodes = seen.status().nodes().to_vec();
                for pod in pods {
                    let name = pod.name_any();
                    let node_rank = name.rsplit('-').next().and_then(|rank| rank.parse().ok());
                    let node_rank: usize = node_rank.expect("a rank");
                    let _ = write!(words, " {name}");
                    seen.pods.push(PodView {
                        uid: uid_of(&name),
                        name,
                        attempt: seen.status().attempt,
                        node_rank,
                        gang_size: nodes.len(),
                        node: nodes.get(node_rank).cloned(),
                        ..PodView::default()
                    });
                }
                words
            }
            Write::DeleteJob => "delete the job".into(),
        }
    }
}

/// What changes in a status, in words.
fn changes(last: &ViTTrainingJobStatus, next: &ViTTrainingJobStatus) -> Vec<String> {
    let mut words = Vec::new();
    if let Some(phase) = next.phase.filter(|phase| last.phase != Some(*phase)) {
        words.push(phase.as_str().to_owned());
    }
    if last.attempt != next.attempt {
        words.push(format!("attempt {} on {}", next.attempt, next.nodes().join(" ")));
    }
    if last.last_failure != next.last_failure {
        let failure = next.last_failure.as_ref().expect("a failure");
        let pod = failure.pod.as_deref().unwrap_or("no pod");
        let node = failure.node.as_deref().unwrap_or("no node");
        words.push(format!("{} of {pod} on {node}", failure.class));
    }
    let restarts = |status: &ViTTrainingJobStatus| (status.restarts, status.restarts_since_checkpoint);
    if restarts(last) != restarts(next) {
        words.push(format!(
            "restarts {} ({} without progress)",
            next.restarts, next.restarts_since_checkpoint
        ));
    }
    if last.failed_starts != next.failed_starts {
        words.push(format!("failed starts {}", next.failed_starts));
    }
    for condition in &next.conditions {
        // Running only says the same as the phase.
        let known = last.condition(&condition.type_).map(|known| &known.reason);
        if condition.type_ != types::RUNNING && known != Some(&condition.reason) {
            let not = if condition.status == "True" { "" } else { "not " };
            words.push(format!("{not}{}: {}", condition.type_, condition.reason));
        }
    }
    if words.is_empty() && last != next {
        words.push("update the status".into());
    }
    words
}

/// A pod whose trainer exited.
pub(super) fn ended(pod: PodView, code: u8, now: jiff::Timestamp) -> PodView {
    let exit = ExitCode::from_code(code);
    let failure = exit.failure_class().map(|class| FailureRecord {
        rank: u32::try_from(pod.node_rank).ok(),
        exit_code: code,
        class,
        memory: None,
        message: format!("reported by rank {}", pod.node_rank),
    });
    PodView {
        state: if code == 0 {
            PodState::Succeeded
        } else {
            PodState::Failed
        },
        ready: false,
        end: Some(Box::new(End {
            exit,
            reason: "Error".into(),
            finished_at: Some(now),
            record: Some(TerminationRecord {
                failure,
                ..TerminationRecord::default()
            }),
            message: None,
        })),
        ..pod
    }
}

/// Progress of attempt 1 with a checkpoint at this step.
pub(super) fn saved_at(step: u64) -> Progress {
    Progress {
        attempt: 1,
        last_checkpoint: Some(CheckpointRecord {
            step,
            path: format!("/checkpoints/digits/{step}"),
            time: at(50).to_string(),
        }),
        ..Progress::default()
    }
}
