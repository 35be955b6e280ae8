//! Reconciles one study, in rounds:
//!
//! 1. [`observation`]: the study, its jobs, what its ConfigMap has recorded, and where other studies measure;
//! 2. [`runs`]: the jobs that it needs, or why it cannot be run;
//! 3. [`next`]: what is to be recorded, which jobs go, and which one is created;
//! 4. [`round`] carries that out: first the record, then deletions, the [`status`], and at last the new job.
//!
//! Steps 2 and 3 are pure. A study knows of its jobs no more than their status: gangs, GPUs and failures are theirs. Names of jobs
//! follow from what they measure, so that a round that is repeated does nothing twice.

mod next;
mod observation;
mod round;
mod runs;
mod status;

pub(crate) use round::{GuardedStudy, Studies, error_policy, reconcile};

#[cfg(test)]
mod tests;
