//! A cluster's addresses and network namespace.
//!
//! A veth pair connects the namespace to the host. Its inner end has the addresses of nodes and API
//! server, and the host routes pods and Services through it. Bridges, packet filters and the pods'
//! veth ends are inside, so they disappear with the namespace.

use std::net::Ipv4Addr;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::command::{command, run};
use crate::config::ClusterName;

/// Most clusters at the same time: pod networks are 10.244.0.0/16 to 10.255.0.0/16.
pub const MAX_CLUSTERS: u8 = 12;
/// Most nodes whose addresses fit a cluster's /24.
pub const MAX_NODES: usize = 200;

/// The addresses of the cluster with an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    index: u8,
}

impl Addresses {
    /// Addresses of the cluster at `index`, which is below [`MAX_CLUSTERS`].
    pub fn new(index: u8) -> Self {
        assert!(
            index < MAX_CLUSTERS,
            "cluster index {index} is not below {MAX_CLUSTERS}"
        );
        Self { index }
    }

    /// The host's end of the veth pair.
    pub fn host(self) -> Ipv4Addr {
        Ipv4Addr::new(172, 31, self.index, 1)
    }

    /// The API server, CoreDNS and Prometheus.
    pub fn api(self) -> Ipv4Addr {
        Ipv4Addr::new(172, 31, self.index, 2)
    }

    /// The node at a position.
    pub fn node(self, position: usize) -> Ipv4Addr {
        Ipv4Addr::new(
            172,
            31,
            self.index,
            u8::try_from(10 + position).expect("at most MAX_NODES nodes"),
        )
    }

    /// All pods of the cluster, in CIDR notation.
    pub fn pods(self) -> String {
        format!("10.{}.0.0/16", 244 + self.index)
    }

    /// The pods of the node at a position, in CIDR notation.
    pub fn pods_of_node(self, position: usize) -> String {
        format!("10.{}.{position}.0/24", 244 + self.index)
    }

    /// All Services of the cluster, in CIDR notation.
    pub fn services(self) -> String {
        format!("10.{}.0.0/16", 96 + self.index)
    }

    /// The Service of the API server: the first address.
    pub fn kubernetes_service(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 96 + self.index, 0, 1)
    }

    /// The Service of the cluster's DNS.
    pub fn dns(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 96 + self.index, 0, 10)
    }

    /// The API server's URL.
    pub fn api_url(self) -> String {
        format!("https://{}:6443", self.api())
    }

    /// Prometheus's URL.
    pub fn prometheus_url(self) -> String {
        format!("http://{}:9090", self.api())
    }

    /// The name of the host's end of the veth pair.
    pub fn host_interface(self) -> String {
        format!("vitc{}", self.index)
    }
}

/// The network namespace of a cluster.
#[derive(Clone, Debug)]
pub struct Namespace {
    name: String,
}

impl Namespace {
    /// The namespace of a cluster, which may not exist.
    pub fn of(cluster: &ClusterName) -> Self {
        Self {
            name: format!("vit-{cluster}"),
        }
    }

    /// The file that holds the namespace open.
    pub fn path(&self) -> PathBuf {
        PathBuf::from("/run/netns").join(&self.name)
    }

    /// The namespace's inode, as in `/proc/PID/ns/net`; `None` if it does not exist.
    pub fn inode(&self) -> Option<u64> {
        // A leftover file without a mounted namespace is on the same device as its folder.
        let file = fs_err::metadata(self.path()).ok()?;
        let folder = fs_err::metadata("/run/netns").ok()?;
        (file.dev() != folder.dev()).then(|| file.ino())
    }

    /// Creates the namespace, its link to the host, its addresses and the host's routes into it.
    pub fn create(&self, addresses: Addresses, nodes: usize) -> Result<()> {
        let outer = addresses.host_interface();
        // Not `ip netns exec`: it mounts a new /sys, which hides the cgroups.
        ip(&["netns", "add", &self.name])?;
        ip(&[
            "link", "add", &outer, "type", "veth", "peer", "name", "eth0", "netns", &self.name,
        ])?;
        ip(&["addr", "add", &format!("{}/24", addresses.host()), "dev", &outer])?;
        ip(&["link", "set", &outer, "up"])?;
        self.ip(&["link", "set", "lo", "up"])?;
        self.ip(&["addr", "add", &format!("{}/24", addresses.api()), "dev", "eth0"])?;
        for position in 0..nodes {
            self.ip(&[
                "addr",
                "add",
                &format!("{}/24", addresses.node(position)),
                "dev",
                "eth0",
            ])?;
        }
        self.ip(&["link", "set", "eth0", "up"])?;
        self.ip(&["route", "add", "default", "via", &addresses.host().to_string()])?;
        self.run("sh", &["-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"])?;
        for network in [addresses.pods(), addresses.services()] {
            ip(&[
                "route",
                "replace",
                &network,
                "via",
                &addresses.api().to_string(),
                "dev",
                &outer,
            ])?;
        }
        Ok(())
    }

    /// Removes the namespace and, with `addresses`, the host's end of its link, if they exist.
    pub fn delete(&self, addresses: Option<Addresses>) -> Result<()> {
        // The kernel also removes the link with the namespace, but later.
        if let Some(outer) = addresses
            .map(Addresses::host_interface)
            .filter(|outer| link_exists(outer))
        {
            ip(&["link", "del", &outer])?;
        }
        if self.path().exists() {
            ip(&["netns", "del", &self.name])?;
        }
        Ok(())
    }

    /// Takes an interface down, if it exists.
    pub fn cut(&self, interface: &str) -> Result<()> {
        if self.ip(&["link", "show", interface]).is_ok() {
            self.ip(&["link", "set", interface, "down"])?;
        }
        Ok(())
    }

    /// Runs a program inside, in the caller's mount namespace, and returns its standard output.
    pub fn run(&self, program: &str, arguments: &[&str]) -> Result<String> {
        let net = format!("--net={}", self.path().display());
        run(command("nsenter", [net.as_str(), program]).args(arguments))
            .with_context(|| format!("in network namespace {}", self.name))
    }

    fn ip(&self, arguments: &[&str]) -> Result<String> {
        self.run("ip", arguments)
    }
}

/// Whether the host already uses a cluster's addresses.
pub fn is_taken(addresses: Addresses) -> Result<bool> {
    let host = format!("{}/", addresses.host());
    let links = run(&mut command("ip", ["-o", "-4", "addr", "show"]))?;
    let routes = run(&mut command("ip", ["-4", "route", "show"]))?;
    let networks = [addresses.pods(), addresses.services()];
    Ok(links.split_whitespace().any(|word| word.starts_with(&host))
        || routes
            .lines()
            .filter_map(|line| line.split_whitespace().next())
            .any(|to| networks.iter().any(|n| n == to)))
}

/// The existing host ends of the veth pairs of clusters with these indices.
pub fn host_interfaces(indices: impl IntoIterator<Item = u8>) -> Vec<String> {
    indices
        .into_iter()
        .map(|index| Addresses::new(index).host_interface())
        .filter(|link| link_exists(link))
        .collect()
}

fn link_exists(name: &str) -> bool {
    std::path::Path::new("/sys/class/net").join(name).exists()
}

fn ip(arguments: &[&str]) -> Result<String> {
    run(&mut command("ip", arguments))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{Addresses, MAX_CLUSTERS, MAX_NODES};

    #[test]
    fn clusters_share_no_address() {
        let mut seen = BTreeSet::new();
        for index in 0..MAX_CLUSTERS {
            let a = Addresses::new(index);
            assert!(seen.insert(a.pods()));
            assert!(seen.insert(a.services()));
            assert!(seen.insert(a.host().to_string()));
            assert!(seen.insert(a.api().to_string()));
        }
    }

    #[test]
    fn nodes_share_no_address_with_the_host_or_the_api_server() {
        let a = Addresses::new(1);
        let nodes: BTreeSet<_> = (0..MAX_NODES).map(|position| a.node(position)).collect();
        assert_eq!(nodes.len(), MAX_NODES);
        assert!(!nodes.contains(&a.host()) && !nodes.contains(&a.api()));
        assert_eq!(a.pods_of_node(3), "10.245.3.0/24");
    }
}
