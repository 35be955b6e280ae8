//! Decisions, one file a policy: pure functions over values.

pub(crate) mod failure;
pub(crate) mod gang;
pub(crate) mod homogeneity;
pub(crate) mod placement;
pub(crate) mod restart;
pub(crate) mod suspend;
pub(crate) mod ttl;
