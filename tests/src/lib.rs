//! The real-cluster harness, and every test that needs more than its own crate
//!
//! [`Cluster`] is a real Kubernetes on this one machine: etcd, API server, controller manager, scheduler,
//! kube-proxy, CoreDNS, and any number of nodes, each a real kubelet with a containerd of its own. The
//! `vit-cluster` binary is a thin command line over it, so the demonstration and the end-to-end tests run
//! on the same cluster.
//!
//! ```text
//! host                              network namespace vit-NAME
//! kubectl, tests ── veth pair ──▶  etcd, kube-apiserver, ..., prometheus
//!                                   ├─ node0: containerd, kubelet (own mount namespace) ─ bridge pods0 ─ pods
//!                                   └─ node1: containerd, kubelet (own mount namespace) ─ bridge pods1 ─ pods
//! ```
//!
//! Everything a cluster starts lives in its network namespace, its nodes' mount namespaces and its
//! cgroups. Teardown ends what is found there and removes them, so it needs no bookkeeping that a crash
//! could falsify, and nothing is left in the host's network or mount table.

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

/// Top of the source tree.
pub fn root() -> PathBuf {
    let this = Path::new(env!("CARGO_MANIFEST_DIR"));
    this.parent().unwrap_or(this).to_owned()
}
