//! Reconciles one study, in rounds:
//!
//! 1. [`observation`]: the study, its jobs, and the study of the same namespace that goes first;
//! 2. [`runs`]: the jobs that it needs, or why it cannot run;
//! 3. [`next`]: the jobs to delete, and the job to create;
//! 4. [`round`] applies that and writes the [`status`].
//!
//! Steps 2 and 3 are pure. A study stores nothing: its finished jobs are its results. Jobs are named
//! after their runs, so that a repeated round changes nothing.

mod next;
mod observation;
mod round;
mod runs;
mod status;

pub(crate) use round::{Studies, error_policy, reconcile};

#[cfg(test)]
mod tests;
