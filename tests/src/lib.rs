//! The cluster harness, and tests that span crates
//!
//! [`Cluster`] is a real Kubernetes cluster on one machine: etcd, API server, controller manager,
//! scheduler, kube-proxy, CoreDNS, and any number of nodes, each a real kubelet with its own
//! containerd. The `vit-cluster` binary wraps it, so the demo and the end-to-end tests use the same
//! cluster.
//!
//! ```text
//! host                              network namespace vit-NAME
//! kubectl, tests ── veth pair ──▶  etcd, kube-apiserver, ..., prometheus
//!                                   ├─ node0: containerd, kubelet (own mount namespace) ─ bridge pods0 ─ pods
//!                                   └─ node1: containerd, kubelet (own mount namespace) ─ bridge pods1 ─ pods
//! ```
//!
//! All processes of a cluster are in its network namespace, its nodes' mount namespaces and its
//! cgroups. Teardown kills the processes found there and removes these, so it needs no records that
//! a crash could invalidate, and the host's network and mount table stay clean.

pub mod audit;
pub mod binaries;
pub mod cache;
pub mod cgroup;
pub mod chart;
pub mod cluster;
pub mod command;
pub mod config;
pub mod control_plane;
pub mod demo;
pub mod digits;
pub mod discovery;
pub mod documentation;
pub mod dump;
pub mod exposition;
pub mod image;
pub mod image_store;
pub mod kueue;
pub mod kwok;
pub mod network;
pub mod node;
pub mod operator;
pub mod packages;
pub mod pki;
pub mod plugin;
pub mod process;
pub mod progress;
pub mod prometheus;
pub mod report;
pub mod rights;
pub mod state;
pub mod training_log;
pub mod volumes;

use std::path::{Path, PathBuf};

pub use cluster::Cluster;
pub use config::{ClusterConfig, ClusterName, GpuProduct, Gpus, NodeConfig};

/// Root of the source tree.
pub fn root() -> PathBuf {
    let this = Path::new(env!("CARGO_MANIFEST_DIR"));
    this.parent().unwrap_or(this).to_owned()
}
