//! Decides which job gets which GPUs: the fleet and the jobs, updated by their watches, and one
//! pass over the waiting jobs, which is valid until something changes.
//!
//! No GPU is promised twice. A promise is made under the lock of its decision, to a job of one
//! version, and recorded by a write of the status that the API server stores over this version only.
//! It lasts until the job is known at another version. If that shows it, the status replaces it, so
//! promises survive a restart of the operator. If not, that write will never be stored.

mod cluster_state;
mod jobs;
mod pass;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use crds::StoredJob;
use crds::status::{RejectedGroup, WaitStatus};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::ResourceExt as _;
use kube::runtime::watcher::Event;
use tokio::runtime::{Handle, RuntimeFlavor};

use crate::facts::fleet::Promise;
use crate::facts::inventory::{Inventory, NodeHealth};
use crate::facts::listing::Listing;
use crate::facts::priority::PriorityClasses;
use crate::policy::placement::Placement;
use crate::policy::queue::{Order, Waiter};
use crate::policy::request::{GangRequest, Shape};
use cluster_state::ClusterState;
use jobs::Job;
use pass::{Pass, Wait};

/// The decision about a job that requests GPUs.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Decision {
    /// It is promised these nodes.
    Placed(Placement),
    /// It waits.
    Waits(Waiting),
}

/// Why a job waits.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Waiting {
    /// No group fits.
    NoFit {
        /// The reasons, by group.
        rejected: Vec<RejectedGroup>,
        /// What it waits for, and its place in the queue.
        wait: WaitStatus,
    },
    /// No PriorityClass of this name exists: the API server would refuse the pods.
    NoPriorityClass(String),
}

/// The planner, shared by the watches and all rounds.
#[derive(Clone, Debug, Default)]
pub struct SharedPlanner(Arc<Mutex<Planner>>);

impl SharedPlanner {
    /// Locks the planner briefly. While it is busy, other tasks get the thread.
    pub fn lock(&self) -> MutexGuard<'_, Planner> {
        // Promises change atomically, and an interrupted pass holds too much, not too little.
        match self.0.try_lock() {
            Ok(planner) => planner,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                blocking(|| self.0.lock().unwrap_or_else(PoisonError::into_inner))
            }
        }
    }

    /// Whether a panic interrupted a change of the planner.
    pub fn is_poisoned(&self) -> bool {
        self.0.is_poisoned()
    }

    /// [`Planner::place`].
    pub fn place(&self, uid: &str, version: Option<&str>, attempt: i32, now: Timestamp) -> Option<Decision> {
        blocking(|| self.lock().place(uid, version, attempt, now))
    }

    /// [`Planner::news`].
    pub fn news(&self, now: Timestamp) -> Vec<Arc<str>> {
        blocking(|| self.lock().news(now))
    }

    /// [`Planner::growth`].
    pub fn growth(&self, uid: &str, now: Timestamp) -> Option<usize> {
        blocking(|| self.lock().growth(uid, now))
    }
}

/// Runs work that may take long, such as a pass, and leaves the thread to other tasks. It may be
/// the only thread, and the lease must be renewed.
fn blocking<T>(work: impl FnOnce() -> T) -> T {
    match Handle::try_current() {
        Ok(runtime) if runtime.runtime_flavor() == RuntimeFlavor::CurrentThread => work(),
        _ => tokio::task::block_in_place(work),
    }
}

/// Decides which job gets which GPUs.
#[derive(Debug, Default)]
pub struct Planner {
    cluster: ClusterState,
    classes: PriorityClasses,
    /// By uid.
    jobs: HashMap<String, Job>,
    listed_jobs: Listing<String>,
    /// Promises to jobs that are known at the version to which they were made, by uid.
    open: HashMap<String, Promise>,
    /// Waiting jobs without a promise.
    queue: BTreeMap<Order, Arc<Waiter>>,
    pass: Pass,
    /// What waiting jobs know of their outcome: that they fit, or why not.
    known: HashMap<Order, Result<(), Wait>>,
    /// Whether jobs of the pass have changed.
    is_stale: bool,
}

impl Planner {
    /// The nodes and their use.
    pub fn inventory(&self) -> &Inventory {
        self.cluster.fleet.inventory()
    }

    /// The health of a node; `None` if it does not exist.
    pub fn node_health(&self, name: &str) -> Option<NodeHealth> {
        self.cluster.fleet.node(name).map(|node| node.health)
    }

    /// The priority of a class, or of the cluster's default without one; `None` if the class does not exist.
    pub fn priority(&self, class: Option<&str>) -> Option<i32> {
        self.classes.priority(class)
    }

    /// Handles an event of a node. Returns whether it may matter to waiting jobs.
    pub fn follow_nodes(&mut self, event: &Event<Node>) -> bool {
        self.cluster.fleet.follow_nodes(event)
    }

    /// Handles an event of a pod.
    pub fn follow_pods(&mut self, event: &Event<Pod>) {
        self.cluster.fleet.follow_pods(event);
    }

    /// Handles an event of a PriorityClass. Returns whether it may matter to waiting jobs.
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

    /// Handles an event of a job. Returns whether it may matter to waiting jobs: a job left the
    /// queue, or released GPUs without pods, or nodes that the pass held for it.
    pub fn follow_jobs(&mut self, event: &Event<StoredJob>) -> bool {
        let key = |job: &StoredJob| job.uid().unwrap_or_default();
        let (job, gone) = self.listed_jobs.follow(event, key, self.jobs.keys());
        let is_news = gone.iter().fold(false, |is_news, uid| self.remove(uid) | is_news);
        job.map_or(is_news, |job| self.put(job))
    }

    /// Decides about a job of this version, and promises its nodes to this attempt. `None` if the
    /// job has changed, or may get what it was promised before: it has to request again. A request ends the
    /// pause of a job.
    pub fn place(
        &mut self,
        uid: &str,
        version: Option<&str>,
        attempt: i32,
        now: Timestamp,
    ) -> Option<Decision> {
        let is_current = |job: &&Job| job.version.as_deref() == version && !self.open.contains_key(uid);
        if self.jobs.get(uid).filter(is_current)?.is_paused {
            self.resume(uid);
        }
        let job = self.jobs.get(uid)?;
        if let Some(class) = job.missing_class() {
            return Some(Decision::Waits(Waiting::NoPriorityClass(class.into())));
        }
        let waiter = Arc::clone(job.waiter()?);
        let key = job.key.clone();
        self.replan(now);
        Some(match self.pass.outcome(&waiter.order)? {
            Err(wait) => {
                self.known.insert(waiter.order.clone(), Err(wait.clone()));
                let rejected = wait.reasons.rejections(&waiter.request, &BTreeSet::new());
                Decision::Waits(Waiting::NoFit {
                    rejected: self.cluster.with_taints(rejected, &waiter.request.shape),
                    wait: self.pass.wait_status(&waiter, wait),
                })
            }
            Ok((placement, reasons)) => {
                let mut placement = placement.clone().explained(&waiter.request, reasons);
                let shape = &waiter.request.shape;
                placement.rejected = self.cluster.with_taints(placement.rejected, shape);
                let promise = Promise {
                    job: key,
                    attempt,
                    nodes: placement.nodes.clone(),
                    requests: waiter.request.shape.requests.clone(),
                };
                self.open.insert(uid.into(), promise.clone());
                self.cluster.fleet.promise(uid, Some(promise));
                self.pass.release_for_promise(&waiter.order, &mut self.cluster);
                self.queue.remove(&waiter.order);
                Decision::Placed(placement)
            }
        })
    }

    /// Puts a job into the queue, and ends its pause.
    fn resume(&mut self, uid: &str) {
        if let Some(mut job) = self.jobs.remove(uid) {
            job.is_paused = false;
            self.join(uid, &job);
            self.jobs.insert(uid.into(), job);
        }
    }

    /// The waiting jobs, as `namespace/name`, that fit now or wait for other reasons than the last call,
    /// or their last round, found.
    pub fn news(&mut self, now: Timestamp) -> Vec<Arc<str>> {
        self.replan(now);
        let mut known = std::mem::take(&mut self.known);
        let mut news = Vec::new();
        for (order, waiter) in &self.queue {
            let Some(outcome) = self.pass.outcome(order) else {
                continue;
            };
            let is_known = match (known.remove(order), outcome) {
                (Some(Ok(())), Ok(_)) => true,
                (Some(Err(last)), Err(wait)) => wait.is_like(&last, &waiter.request),
                _ => false,
            };
            if !is_known {
                news.push(Arc::clone(&order.job));
            }
            let outcome = outcome.as_ref().map(|_| ()).map_err(Wait::clone);
            self.known.insert(order.clone(), outcome);
        }
        news
    }

    /// The number of nodes to which a running elastic gang could grow; its nodes count as free.
    /// `None` also if a waiting job could use one of the nodes, now or after other gangs have
    /// ended. Promises nothing.
    pub fn growth(&mut self, uid: &str, now: Timestamp) -> Option<usize> {
        let job = self.jobs.get(uid).filter(|job| job.missing_class().is_none())?;
        let (growth, recorded) = (job.growth.clone()?, job.recorded.as_ref()?);
        let own = recorded.nodes.clone();
        self.replan(now);
        let choice = self.cluster.choose_instead_of(&own, &growth)?;
        let mut asked: Vec<(&Arc<Shape>, usize)> = Vec::new();
        let is_wanted = self.queue.values().any(|waiter| {
            let GangRequest { nodes, shape, .. } = &waiter.request;
            if asked.iter().any(|(known, size)| size == nodes && *known == shape) {
                return false;
            }
            asked.push((shape, *nodes));
            let mut freed = own.iter().chain(&choice.nodes);
            freed.any(|node| self.cluster.can_use(shape, node))
                && self.cluster.view(shape).may_ever_fit(*nodes)
        });
        (!is_wanted).then_some(choice.nodes.len())
    }

    /// Releases a promise that certainly will not be recorded. Returns whether it released GPUs.
    pub fn release(&mut self, uid: &str, attempt: i32) -> bool {
        let promise = self.open.get(uid);
        if promise.is_none_or(|promise| promise.attempt != attempt) {
            return false;
        }
        self.open.remove(uid);
        let is_released = self.promise(uid);
        self.resume(uid);
        is_released
    }

    /// Restarts the pass if anything has changed, or continues it.
    fn replan(&mut self, now: Timestamp) {
        let has_changed = self.cluster.catch_up();
        if has_changed || self.is_stale || self.pass.has_expired(now) {
            self.pass = std::mem::take(&mut self.pass).restart(&mut self.cluster);
            self.is_stale = false;
        }
        let planned = self.pass.last().cloned();
        let next = match &planned {
            Some(last) => (Bound::Excluded(last), Bound::Unbounded),
            None => (Bound::Unbounded, Bound::Unbounded),
        };
        for waiter in self.queue.range::<Order, _>(next).map(|(_, waiter)| waiter) {
            self.pass.plan(waiter, &mut self.cluster, now);
        }
    }

    fn put(&mut self, job: &StoredJob) -> bool {
        let uid = job.uid().unwrap_or_default();
        let Some(job) = job.readable() else {
            return self.set_aside(&uid);
        };
        if !job.is_for_vit_operator() {
            return self.remove(&uid);
        }
        let new = Job::of(job, &self.classes);
        let old = self.jobs.remove(&uid);
        if old.as_ref().is_some_and(|old| old.version != new.version) {
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

    /// A job that cannot be read keeps its promise and leaves the queue. Returns whether it was queued.
    fn set_aside(&mut self, uid: &str) -> bool {
        let Some(mut job) = self.jobs.remove(uid) else {
            return false;
        };
        self.leave(&job);
        let waited = job.waiter().is_some();
        job.drop_requests();
        self.jobs.insert(uid.into(), job);
        waited
    }

    fn remove(&mut self, uid: &str) -> bool {
        self.open.remove(uid);
        let gone = self.jobs.remove(uid);
        let is_released = self.promise(uid);
        let Some(job) = gone else { return is_released };
        self.leave(&job);
        is_released || job.waiter().is_some()
    }

    /// Sends a job's latest promise, or its status's, to the fleet. Returns if GPUs were released.
    fn promise(&mut self, uid: &str) -> bool {
        let recorded = || self.jobs.get(uid)?.recorded.clone();
        let promise = self.open.get(uid).cloned().or_else(recorded);
        self.cluster.fleet.promise(uid, promise)
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
