//! Reconciles one study, in rounds:
//!
//! 1. [`observation`]: the study, its jobs, the records in its ConfigMap, and other studies' nodes;
//! 2. [`runs`]: the jobs that it needs, or why it cannot run;
//! 3. [`next`]: the records to write, the jobs to delete, and the job to create;
//! 4. [`round`] applies that: records, then deletions, the [`status`], and last the new job.
//!
//! Steps 2 and 3 are pure. A study only reads its jobs' status. Jobs are named after their runs, so
//! that a repeated round changes nothing.

mod next;
mod observation;
mod round;
mod runs;
mod status;

pub(crate) use round::{GuardedStudy, Studies, error_policy, reconcile};

#[cfg(test)]
mod tests;
