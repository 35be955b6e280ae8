//! GPUs that are promised but not yet held by pods in the cache, so that no GPU is promised twice.
//!
//! A promise is made under one lock with the decision it belongs to, and lasts until the job's cached status shows it;
//! from then on the status stands for it. So promises survive the operator. A promise of which it is not known whether
//! it was recorded is kept, until the job makes another or a status without it is written.

use std::collections::HashMap;

use crds::{Phase, ViTTrainingJob, validate};
use kube::ResourceExt as _;

use crate::cluster::inventory::{Inventory, Reservation};
use crate::policy::placement::{GangRequest, place};

/// Promises by the uid of their job.
#[derive(Debug, Default)]
pub(crate) struct Ledger(HashMap<String, Reservation>);

impl Ledger {
    /// Makes a promise.
    pub(crate) fn reserve(&mut self, reservation: Reservation) {
        self.0.insert(reservation.job.clone(), reservation);
    }

    /// Whether a job was promised something that its status, which is at this attempt, does not show.
    pub(crate) fn is_open(&self, job: &str, attempt: i32) -> bool {
        self.0.get(job).is_some_and(|promise| promise.attempt > attempt)
    }

    /// Takes back what a job was promised and its status, which is at this attempt, does not show.
    pub(crate) fn release_open(&mut self, job: &str, attempt: i32) {
        if self.is_open(job, attempt) {
            self.0.remove(job);
        }
    }

    /// Takes a promise back, where it could not be recorded.
    pub(crate) fn release(&mut self, job: &str, attempt: i32) {
        if self.0.get(job).is_some_and(|promise| promise.attempt == attempt) {
            self.0.remove(job);
        }
    }

    /// All promises: those of this process, and those that the status of jobs records. Drops what has been overtaken.
    pub(crate) fn reservations<'a>(
        &mut self,
        jobs: impl IntoIterator<Item = &'a ViTTrainingJob>,
    ) -> HashMap<String, Reservation> {
        let mut recorded = HashMap::new();
        let mut exists = HashMap::new();
        for job in jobs {
            let uid = job.uid().unwrap_or_default();
            let attempt = job.status.as_ref().map_or(0, |status| status.attempt);
            if let Some(reservation) = of_status(job) {
                recorded.insert(uid.clone(), reservation);
            }
            exists.insert(uid, attempt);
        }
        self.0
            .retain(|uid, promise| exists.get(uid).is_some_and(|attempt| *attempt < promise.attempt));
        recorded.extend(self.0.clone());
        recorded
    }
}

/// What a job's status promises to its gang.
fn of_status(job: &ViTTrainingJob) -> Option<Reservation> {
    let status = job.status.as_ref()?;
    if !matches!(status.phase, Some(Phase::Starting | Phase::Running)) {
        return None;
    }
    let valid = validate(job).ok()?;
    Some(Reservation {
        job: job.uid()?,
        attempt: status.attempt,
        nodes: status.placement.as_ref()?.nodes.clone(),
        requests: GangRequest::from(&valid).requests,
    })
}

/// Takes out of the inventory what older jobs that wait for GPUs would get, so that a job does not overtake them. Those
/// that restart, change their size or resume wait, too. A job that does not fit holds nothing back: younger ones that
/// fit elsewhere go ahead.
pub(crate) fn give_way_to_older<'a>(
    inventory: &mut Inventory,
    job: &ViTTrainingJob,
    jobs: impl IntoIterator<Item = &'a ViTTrainingJob>,
    has_promise: impl Fn(&str) -> bool,
) {
    let age = |job: &ViTTrainingJob| (job.creation_timestamp(), job.namespace(), job.name_any());
    let own_age = age(job);
    let mut older: Vec<&ViTTrainingJob> = jobs
        .into_iter()
        .filter(|other| is_waiting(other) && age(other) < own_age)
        .filter(|other| !has_promise(&other.uid().unwrap_or_default()))
        .collect();
    older.sort_by_key(|other| age(other));
    for other in older {
        let Ok(valid) = validate(other) else { continue };
        let request = GangRequest::from(&valid);
        let nodes = match place(&request, inventory) {
            Ok(placement) => placement.nodes,
            // What is in its way may be its own pods that are still stopping: it keeps at least what it had.
            Err(_) => nodes_of_restarting(other).to_vec(),
        };
        for node in &nodes {
            inventory.hold(node, &request.requests);
        }
    }
}

fn is_waiting(job: &ViTTrainingJob) -> bool {
    let phase = job.status.as_ref().and_then(|status| status.phase);
    matches!(
        phase,
        None | Some(Phase::Pending | Phase::Restarting | Phase::Suspended)
    ) && !job.spec.suspend
        && job.metadata.deletion_timestamp.is_none()
}

/// Where the gang was that is being replaced; nowhere for a job that is not restarting.
fn nodes_of_restarting(job: &ViTTrainingJob) -> &[String] {
    job.status
        .as_ref()
        .filter(|status| status.phase == Some(Phase::Restarting))
        .and_then(|status| status.placement.as_ref())
        .map_or(&[], |placement| &placement.nodes)
}

#[cfg(test)]
mod tests;
