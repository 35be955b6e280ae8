//! The configuration of a cluster: name, nodes, advertised GPUs, images.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Result, ensure};

/// The name of a cluster: 1 to 20 lowercase letters, digits and `-`, starting with a letter.
///
/// It is short because the kernel limits paths of Unix sockets to 107 bytes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClusterName(String);

impl ClusterName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ClusterName {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let fits = (1..=20).contains(&text.len())
            && text.starts_with(|first: char| first.is_ascii_lowercase())
            && text
                .chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
        ensure!(
            fits,
            "cluster name {text:?}: must be 1 to 20 lowercase letters, digits or '-', starting with a letter"
        );
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for ClusterName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// A cluster to start.
#[derive(Clone, Debug)]
pub struct ClusterConfig {
    /// Names the cluster's namespace, folders and cgroups; several clusters can run at once.
    pub name: ClusterName,
    /// The nodes. Without nodes there is only the control plane, for tests of the API server.
    pub nodes: Vec<NodeConfig>,
    /// OCI archives preloaded on every node, in addition to the pause image.
    pub images: Vec<PathBuf>,
    /// Whether Prometheus runs in the cluster's network and scrapes its pods.
    pub prometheus: bool,
    /// Whether NetworkPolicies are enforced. The program takes two minutes to build.
    pub network_policies: bool,
    /// Users whose requests the API server logs.
    pub audited: Vec<String>,
    /// Version of the API server, such as `1.30`, if it is older than the rest.
    pub api_server: Option<String>,
}

impl ClusterConfig {
    /// A control plane without nodes.
    pub fn control_plane(name: ClusterName) -> Self {
        Self {
            name,
            nodes: Vec::new(),
            images: Vec::new(),
            prometheus: false,
            network_policies: false,
            audited: Vec::new(),
            api_server: None,
        }
    }

    /// Prometheus, three nodes of one GPU product, and one of another.
    pub fn demo(name: ClusterName, gpus_per_node: u32) -> Self {
        let node = |index: usize, product: &GpuProduct| {
            NodeConfig::with_gpus(format!("node{index}"), product, gpus_per_node)
        };
        Self {
            name,
            nodes: vec![
                node(0, &GpuProduct::TESLA_T4),
                node(1, &GpuProduct::TESLA_T4),
                node(2, &GpuProduct::TESLA_T4),
                node(3, &GpuProduct::H200),
            ],
            images: Vec::new(),
            prometheus: true,
            network_policies: false,
            audited: Vec::new(),
            api_server: None,
        }
    }

    /// Adds images that every node preloads.
    #[must_use]
    pub fn images(mut self, archives: impl IntoIterator<Item = PathBuf>) -> Self {
        self.images.extend(archives);
        self
    }

    /// Enforces NetworkPolicies.
    #[must_use]
    pub fn with_network_policies(mut self) -> Self {
        self.network_policies = true;
        self
    }

    /// Makes the API server log requests of these users, for
    /// [`Cluster::requests`](crate::Cluster::requests).
    #[must_use]
    pub fn audited(mut self, users: impl IntoIterator<Item = String>) -> Self {
        self.audited.extend(users);
        self
    }

    /// Refuses too many nodes, and names that are not distinct host names.
    pub fn validate(&self) -> Result<()> {
        ensure!(
            self.nodes.len() <= crate::network::MAX_NODES,
            "{} nodes: at most {} fit the cluster's addresses",
            self.nodes.len(),
            crate::network::MAX_NODES
        );
        let mut seen = std::collections::BTreeSet::new();
        for node in &self.nodes {
            let name: Result<ClusterName> = node.name.parse();
            ensure!(
                name.is_ok(),
                "node name {:?}: must be 1 to 20 lowercase letters, digits or '-', starting with a letter",
                node.name
            );
            ensure!(
                seen.insert(&node.name),
                "node name {:?} is given twice",
                node.name
            );
        }
        Ok(())
    }
}

/// A node to start.
#[derive(Clone, Debug, Default)]
pub struct NodeConfig {
    /// The node's name in Kubernetes.
    pub name: String,
    /// Labels, in addition to those that the kubelet sets.
    pub labels: BTreeMap<String, String>,
    /// GPUs advertised as an extended resource.
    pub gpus: Option<Gpus>,
}

impl NodeConfig {
    /// A node without GPUs.
    pub fn plain(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            ..Self::default()
        }
    }

    /// A node as NVIDIA's device plugin and GPU feature discovery present it.
    pub fn with_gpus(name: impl Into<String>, product: &GpuProduct, count: u32) -> Self {
        Self {
            name: name.into(),
            labels: product.labels(count),
            gpus: Some(Gpus {
                resource: "nvidia.com/gpu".to_owned(),
                count,
            }),
        }
    }

    /// Sets a label.
    #[must_use]
    pub fn label(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.labels.insert(key.into(), value.into());
        self
    }
}

/// GPUs of a node, as an extended resource.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Gpus {
    /// The resource's name, such as `nvidia.com/gpu`.
    pub resource: String,
    /// Number of GPUs.
    pub count: u32,
}

/// A GPU product as NVIDIA's GPU feature discovery describes it in node labels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuProduct {
    /// `nvidia.com/gpu.product`
    pub product: &'static str,
    /// `nvidia.com/gpu.memory`, in MiB
    pub memory_mib: u32,
    /// `nvidia.com/gpu.family`
    pub family: &'static str,
    /// `nvidia.com/cuda.driver-version.major`
    pub driver_major: u32,
}

impl GpuProduct {
    /// Tesla T4, 15 GiB, Turing.
    pub const TESLA_T4: Self = Self {
        product: "Tesla-T4",
        memory_mib: 15_360,
        family: "turing",
        driver_major: 580,
    };
    /// H200, 140 GiB, Hopper.
    pub const H200: Self = Self {
        product: "NVIDIA-H200",
        memory_mib: 143_771,
        family: "hopper",
        driver_major: 580,
    };

    /// The labels of a node with `count` of this product, neither shared nor partitioned.
    pub fn labels(&self, count: u32) -> BTreeMap<String, String> {
        let Self {
            product,
            memory_mib,
            family,
            driver_major,
        } = self;
        BTreeMap::from(
            [
                ("nvidia.com/gpu.product", (*product).to_owned()),
                ("nvidia.com/gpu.count", count.to_string()),
                ("nvidia.com/gpu.memory", memory_mib.to_string()),
                ("nvidia.com/gpu.family", (*family).to_owned()),
                ("nvidia.com/gpu.replicas", "1".to_owned()),
                ("nvidia.com/gpu.sharing-strategy", "none".to_owned()),
                ("nvidia.com/cuda.driver-version.major", driver_major.to_string()),
            ]
            .map(|(key, value)| (key.to_owned(), value)),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::{ClusterConfig, ClusterName, GpuProduct, NodeConfig};

    fn name(text: &str) -> ClusterName {
        text.parse().unwrap()
    }

    #[test]
    fn a_cluster_name_is_short_and_plain() {
        for good in ["demo", "e2e-1", "a"] {
            assert!(good.parse::<ClusterName>().is_ok(), "{good}");
        }
        for bad in ["", "1a", "Demo", "a/b", "..", "a-name-longer-than-20-characters"] {
            let error = bad.parse::<ClusterName>().unwrap_err().to_string();
            assert!(error.contains(&format!("{bad:?}")), "{error}");
        }
    }

    #[test]
    fn the_demo_has_three_nodes_of_one_product_and_one_of_another() {
        let config = ClusterConfig::demo(name("demo"), 1);
        config.validate().unwrap();
        let products: Vec<_> = config
            .nodes
            .iter()
            .map(|n| n.labels["nvidia.com/gpu.product"].as_str())
            .collect();
        assert_eq!(products, ["Tesla-T4", "Tesla-T4", "Tesla-T4", "NVIDIA-H200"]);
    }

    #[test]
    fn node_names_must_differ() {
        let mut config = ClusterConfig::control_plane(name("demo"));
        config.nodes = vec![NodeConfig::plain("n"), NodeConfig::plain("n")];
        assert!(config.validate().unwrap_err().to_string().contains("given twice"));
    }

    #[test]
    fn a_node_of_two_gpus_says_so_in_label_and_resource() {
        let node = NodeConfig::with_gpus("n", &GpuProduct::TESLA_T4, 2).label("rack", "a");
        assert_eq!(node.labels["nvidia.com/gpu.count"], "2");
        assert_eq!(node.labels["rack"], "a");
        assert_eq!(node.gpus.unwrap().count, 2);
    }
}
