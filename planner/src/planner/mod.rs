//! Who gets which GPUs: the fleet and the jobs as their watches tell of them, kept current, and one pass over the jobs
//! that wait, which all of them share until something changes.
//!
//! No GPU is promised twice. A promise is made under one lock with the decision it belongs to, and lasts until the job's
//! cached status shows it; from then on the status stands for it. So promises survive the operator. A promise of which
//! it is not known whether it was recorded is kept, and is the job's only one, until a status without it is written.

mod board;
mod jobs;
mod pass;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use crds::ViTTrainingJob;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::ResourceExt as _;
use kube::core::DeserializeGuard;
use kube::runtime::watcher::Event;

use crate::facts::fleet::Reservation;
use crate::facts::inventory::{Inventory, NodeHealth};
use crate::facts::priority::PriorityClasses;
use crate::policy::placement::{Placement, Unplaceable};
use crate::policy::queue::{Order, Standing, Waiter};
use crate::policy::request::{GangRequest, Shape};
use board::Board;
use jobs::Job;
use pass::{Outcome, Pass};

/// A job as the API server has it, whether it can be read or not.
pub type GuardedJob = DeserializeGuard<ViTTrainingJob>;

/// What becomes of a job that asks for GPUs.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Decision {
    /// It gets them: that is promised now.
    Placed(Placement),
    /// It waits.
    Waits(Waiting),
    /// The job is not what it was when it asked, or its last promise may have been recorded: it is to ask again.
    Outdated,
}

/// Why a job waits.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Waiting {
    /// No group fits.
    NoFit {
        /// Why not, by group.
        why: Unplaceable,
        /// Where it stands in the queue.
        standing: Standing,
    },
    /// There is no PriorityClass of this name: the API server would refuse the pods.
    NoPriorityClass(String),
    /// Kueue has not admitted it, for this reason.
    InQueue(String),
}

/// The planner as the watches and all rounds share it.
#[derive(Clone, Debug, Default)]
pub struct SharedPlanner(Arc<Mutex<Planner>>);

impl SharedPlanner {
    /// Waits for the planner where it is busy, and leaves the thread to other tasks meanwhile: a long pass must not keep the lease
    /// from being renewed.
    pub fn lock(&self) -> MutexGuard<'_, Planner> {
        // Promises are put in and taken out whole, and what is left of a pass holds too much rather than too little.
        match self.0.try_lock() {
            Ok(planner) => planner,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                tokio::task::block_in_place(|| self.0.lock().unwrap_or_else(PoisonError::into_inner))
            }
        }
    }
}

/// All that decides who gets which GPUs.
#[derive(Debug, Default)]
pub struct Planner {
    board: Board,
    classes: PriorityClasses,
    /// By uid.
    jobs: HashMap<String, Job>,
    listed_jobs: Vec<String>,
    /// Promises that no cached status shows yet, by the uid of the job.
    open: HashMap<String, Reservation>,
    /// The jobs that wait and are promised nothing.
    queue: BTreeMap<Order, Arc<Waiter>>,
    pass: Pass,
    /// Whether the pass was made for other jobs than those that wait.
    is_stale: bool,
}

impl Planner {
    /// What the cluster has, and what of it is held.
    pub fn inventory(&self) -> &Inventory {
        self.board.fleet().inventory()
    }

    /// Whether a node's kubelet says it is fine, or since when not; `None` where there is no such node.
    pub fn node_health(&self, name: &str) -> Option<NodeHealth> {
        self.board.fleet().node_health(name)
    }

    /// The priority of a class, `None` where there is no such class; without one, of the cluster's default.
    pub fn priority(&self, class: Option<&str>) -> Option<i32> {
        self.classes.priority(class)
    }

    /// Takes in what the watch of nodes tells; whether it may matter to jobs that wait.
    pub fn follow_nodes(&mut self, event: &Event<Node>) -> bool {
        self.board.fleet_mut().follow_nodes(event)
    }

    /// Takes in what the watch of pods tells.
    pub fn follow_pods(&mut self, event: &Event<Pod>) {
        self.board.fleet_mut().follow_pods(event);
    }

    /// A node that cannot be read is there: it is as it was.
    pub fn keep_node(&mut self, node: &Node) {
        self.board.fleet_mut().keep_node(node);
    }

    /// A pod that cannot be read is there: it is as it was.
    pub fn keep_pod(&mut self, pod: &Pod) {
        self.board.fleet_mut().keep_pod(pod);
    }

    /// A PriorityClass that cannot be read is there: it is as it was.
    pub fn keep_class(&mut self, class: &PriorityClass) {
        self.classes.keep(class);
    }

    /// Takes in what the watch of PriorityClasses tells; whether it may matter to jobs that wait.
    pub fn follow_classes(&mut self, event: &Event<PriorityClass>) -> bool {
        let is_news = self.classes.follow(event);
        if is_news {
            for (uid, mut job) in std::mem::take(&mut self.jobs) {
                self.leave(&job);
                job.rank(&self.classes);
                self.join(&uid, &job);
                self.jobs.insert(uid, job);
            }
        }
        is_news
    }

    /// Takes in what the watch of jobs tells; whether it may matter to jobs that wait: one waits no more, or lets go of
    /// GPUs that no pod of it held, or of nodes that were kept for it until it had its place.
    pub fn follow_jobs(&mut self, event: &Event<GuardedJob>) -> bool {
        match event {
            Event::Init => self.listed_jobs.clear(),
            Event::InitApply(job) => {
                self.listed_jobs.extend(job.uid());
                return self.put(job);
            }
            Event::Apply(job) => return self.put(job),
            Event::Delete(job) => return self.remove(&job.uid().unwrap_or_default()),
            Event::InitDone => {
                let listed: HashSet<String> = self.listed_jobs.drain(..).collect();
                let uids = self.jobs.keys();
                let gone: Vec<String> = uids.filter(|uid| !listed.contains(*uid)).cloned().collect();
                return gone.iter().fold(false, |is_news, uid| self.remove(uid) | is_news);
            }
        }
        false
    }

    /// Decides about a job, and promises it what it gets to this attempt. While it is not known whether its
    /// last promise was recorded, nothing is decided: another would let go of GPUs that a status may give it already.
    pub fn place(&mut self, uid: &str, attempt: i32, now: Timestamp) -> Decision {
        let Some(job) = self.jobs.get(uid).filter(|_| !self.open.contains_key(uid)) else {
            return Decision::Outdated;
        };
        if let Some(class) = job.missing_class() {
            return Decision::Waits(Waiting::NoPriorityClass(class.into()));
        }
        let Some(waiter) = job.waiter().cloned() else {
            return Decision::Outdated;
        };
        let key = job.key.clone();
        self.replan(now);
        match self.pass.outcome(&waiter.order) {
            None => Decision::Outdated,
            Some(Outcome::Waits(wait)) => Decision::Waits(Waiting::NoFit {
                why: Unplaceable::new(&waiter.request, &wait.reasons),
                standing: self.pass.standing(&waiter.order, wait),
            }),
            Some(Outcome::Fits { choice, reasons }) => {
                let placement = choice.explained(&waiter.request, reasons);
                let promise = Reservation {
                    job: key,
                    attempt,
                    nodes: placement.nodes.clone(),
                    requests: waiter.request.shape.requests.clone(),
                };
                self.open.insert(uid.into(), promise.clone());
                self.board.fleet_mut().promise(uid, Some(promise));
                self.pass.hand_over(&waiter.order, &mut self.board);
                self.queue.remove(&waiter.order);
                Decision::Placed(placement)
            }
        }
    }

    /// To how many nodes an elastic gang that runs could grow; those that it has count as free. `None` also while a job
    /// waits that could use one of the nodes, now or once other gangs have ended. Nothing is promised by it.
    pub fn growth(&mut self, uid: &str, now: Timestamp) -> Option<usize> {
        let job = self.jobs.get(uid).filter(|job| job.missing_class().is_none())?;
        let (wish, recorded) = (job.wish.clone()?, job.recorded.as_ref()?);
        let own: Vec<Arc<str>> = recorded.nodes.iter().map(|node| node.as_str().into()).collect();
        self.replan(now);
        let choice = self.board.choose_instead_of(&own, &wish)?;
        let mut asked: Vec<(&Arc<Shape>, usize)> = Vec::new();
        let is_wanted = self.queue.values().any(|waiter| {
            let GangRequest { nodes, shape, .. } = &waiter.request;
            if asked.iter().any(|(known, size)| size == nodes && *known == shape) {
                return false;
            }
            asked.push((shape, *nodes));
            let mut freed = own.iter().chain(&choice.nodes);
            freed.any(|node| self.board.can_use(shape, node)) && self.board.view(shape).may_ever_fit(*nodes)
        });
        (!is_wanted).then_some(choice.nodes.len())
    }

    /// Whether a job was promised something that its status, which is at this attempt, does not show.
    pub fn is_open(&self, uid: &str, attempt: i32) -> bool {
        self.open
            .get(uid)
            .is_some_and(|promise| promise.attempt > attempt)
    }

    /// Takes back what a job was promised and its status, which is at this attempt, does not show; whether that lets go
    /// of GPUs.
    pub fn release_open(&mut self, uid: &str, attempt: i32) -> bool {
        self.release_if(uid, |promise| promise.attempt > attempt)
    }

    /// Takes a promise back, where it could not be recorded; whether that lets go of GPUs.
    pub fn release(&mut self, uid: &str, attempt: i32) -> bool {
        self.release_if(uid, |promise| promise.attempt == attempt)
    }

    fn release_if(&mut self, uid: &str, is_it: impl FnOnce(&Reservation) -> bool) -> bool {
        if !self.open.get(uid).is_some_and(is_it) {
            return false;
        }
        self.open.remove(uid);
        let lets_go = self.promise(uid);
        if let Some(job) = self.jobs.remove(uid) {
            self.join(uid, &job);
            self.jobs.insert(uid.into(), job);
        }
        lets_go
    }

    /// Makes the pass anew if anything has changed, or continues it.
    fn replan(&mut self, now: Timestamp) {
        let has_changed = self.board.catch_up();
        if has_changed || self.is_stale || self.pass.is_over(now) {
            self.pass = std::mem::take(&mut self.pass).again(&mut self.board);
            self.is_stale = false;
        }
        let planned = self.pass.last().cloned();
        let next = match &planned {
            Some(last) => (Bound::Excluded(last), Bound::Unbounded),
            None => (Bound::Unbounded, Bound::Unbounded),
        };
        for waiter in self.queue.range::<Order, _>(next).map(|(_, waiter)| waiter) {
            self.pass.plan(waiter, &mut self.board, now);
        }
    }

    fn put(&mut self, job: &GuardedJob) -> bool {
        let uid = job.uid().unwrap_or_default();
        let Ok(job) = &job.0 else {
            return self.set_aside(&uid);
        };
        if !job.is_for_vit_operator() {
            return self.remove(&uid);
        }
        let new = Job::of(job, &self.classes);
        let old = self.jobs.remove(&uid);
        if self
            .open
            .get(&uid)
            .is_some_and(|promise| promise.attempt <= new.attempt)
        {
            self.open.remove(&uid);
        }
        let queued = |job: &Job| self.queue.get(&job.waiter()?.order).cloned();
        let queued = old.as_ref().and_then(queued);
        let wanted = new.waiter().cloned().filter(|_| !self.open.contains_key(&uid));
        if queued != wanted {
            if let Some(old) = &old {
                self.leave(old);
            }
            self.join(&uid, &new);
        }
        let has_shrunk = old.is_some_and(|old| new.has_shrunk_since(&old));
        self.jobs.insert(uid.clone(), new);
        let waits_no_more = queued.is_some() && wanted.is_none();
        self.promise(&uid) || waits_no_more || has_shrunk
    }

    /// A job that cannot be read any more keeps what it was promised, and waits no longer; whether it did.
    fn set_aside(&mut self, uid: &str) -> bool {
        let Some(mut job) = self.jobs.remove(uid) else {
            return false;
        };
        self.leave(&job);
        let waited = job.waiter().is_some();
        job.rest();
        self.jobs.insert(uid.into(), job);
        waited
    }

    fn remove(&mut self, uid: &str) -> bool {
        self.open.remove(uid);
        let gone = self.jobs.remove(uid);
        let lets_go = self.promise(uid);
        let Some(job) = gone else { return lets_go };
        self.leave(&job);
        lets_go || job.waiter().is_some()
    }

    /// What a job is promised is what was promised last, or what its status records; whether it lets go of any.
    fn promise(&mut self, uid: &str) -> bool {
        let recorded = || self.jobs.get(uid)?.recorded.clone();
        let promise = self.open.get(uid).cloned().or_else(recorded);
        self.board.fleet_mut().promise(uid, promise)
    }

    fn join(&mut self, uid: &str, job: &Job) {
        if let Some(waiter) = job.waiter().filter(|_| !self.open.contains_key(uid)) {
            self.is_stale |= self.pass.last().is_some_and(|last| waiter.order <= *last);
            self.queue.insert(waiter.order.clone(), Arc::clone(waiter));
        }
    }

    fn leave(&mut self, job: &Job) {
        if let Some(waiter) = job.waiter()
            && self.queue.remove(&waiter.order).is_some()
        {
            self.is_stale |= self.pass.outcome(&waiter.order).is_some();
        }
    }
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
