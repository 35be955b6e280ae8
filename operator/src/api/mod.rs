//! APIs that k8s-openapi has no types for.

pub(crate) mod kueue;
pub(crate) mod pod_group;
