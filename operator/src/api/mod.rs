//! API types that k8s-openapi lacks.

pub(crate) mod kueue;
pub(crate) mod pod_group;
