//! A cluster's folders, record and index.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use fs_err as fs;
use serde::{Deserialize, Serialize};

use crate::cache;
use crate::config::{ClusterConfig, ClusterName, Gpus};
use crate::network::{Addresses, MAX_CLUSTERS, Namespace, is_taken};

/// Short, because the paths of Unix sockets are limited.
const ROOT: &str = "/run/vit-cluster";

/// A cluster's record, kept between commands.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// Selects the cluster's addresses.
    pub index: u8,
    /// The nodes by position, which selects their addresses.
    pub nodes: Vec<NodeRecord>,
    /// Whether Prometheus is part of it.
    pub prometheus: bool,
    /// Whether NetworkPolicies are enforced.
    pub network_policies: bool,
    /// Users whose requests the API server logs.
    #[serde(default)]
    pub audited: Vec<String>,
    /// The folder on disk with the nodes' images, volumes and pod logs.
    pub data: PathBuf,
    /// Set once everything has started.
    pub complete: bool,
}

/// A node's record, for restarting it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeRecord {
    /// The node's name.
    pub name: String,
    /// The GPUs it advertises.
    pub gpus: Option<Gpus>,
}

/// A cluster's record and the paths of its files.
#[derive(Clone, Debug)]
pub struct State {
    name: ClusterName,
    record: Record,
}

impl State {
    /// Allocates the lowest free index for a new cluster and creates its folders.
    pub fn allocate(config: &ClusterConfig) -> Result<Self> {
        let _lock = cache::lock(&Path::new(ROOT).join(".lock"))?;
        let directory = Self::directory_of(&config.name);
        if directory.exists() {
            bail!("cluster {} already exists: {}", config.name, directory.display());
        }
        let used: Vec<u8> = Self::all()?.iter().map(|state| state.record.index).collect();
        let mut index = None;
        for candidate in (0..MAX_CLUSTERS).filter(|candidate| !used.contains(candidate)) {
            if !is_taken(Addresses::new(candidate))? {
                index = Some(candidate);
                break;
            }
        }
        let Some(index) = index else {
            bail!(
                "no free addresses: the host uses all of 172.31.0.0/24 to 172.31.{}.0/24",
                MAX_CLUSTERS - 1
            )
        };
        let nodes = &config.nodes;
        let record = Record {
            index,
            nodes: nodes
                .iter()
                .map(|n| NodeRecord {
                    name: n.name.clone(),
                    gpus: n.gpus.clone(),
                })
                .collect(),
            prometheus: config.prometheus,
            network_policies: config.network_policies,
            audited: config.audited.clone(),
            data: Self::data_of(&config.name)?,
            complete: false,
        };
        let state = Self {
            name: config.name.clone(),
            record,
        };
        for folder in ["log", "pids", "pki"] {
            fs::create_dir_all(directory.join(folder))?;
        }
        state.save()?;
        Ok(state)
    }

    /// The state of a cluster; `None` if it does not exist.
    pub fn load(name: &ClusterName) -> Result<Option<Self>> {
        let path = Self::directory_of(name).join("cluster.json");
        if !path.exists() {
            return Ok(None);
        }
        let record = serde_json::from_slice(&fs::read(&path)?)
            .with_context(|| format!("{}: not a valid cluster record", path.display()))?;
        Ok(Some(Self {
            name: name.clone(),
            record,
        }))
    }

    /// All clusters of this machine.
    pub fn all() -> Result<Vec<Self>> {
        let mut found = Vec::new();
        if !Path::new(ROOT).exists() {
            return Ok(found);
        }
        for entry in fs::read_dir(ROOT)? {
            if let Some(Ok(name)) = entry?.file_name().to_str().map(str::parse) {
                found.extend(Self::load(&name)?);
            }
        }
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }

    /// Marks that everything has started.
    pub fn set_complete(&mut self) -> Result<()> {
        self.record.complete = true;
        self.save()
    }

    fn save(&self) -> Result<()> {
        let path = self.directory().join("cluster.json");
        let part = self.directory().join("cluster.json.part");
        fs::write(&part, serde_json::to_vec_pretty(&self.record)?)?;
        fs::rename(part, path)?;
        Ok(())
    }

    /// Removes a stopped cluster's folders. After a crash or a reboot its record may be missing.
    pub fn remove(name: &ClusterName, state: Option<&Self>) -> Result<()> {
        let recorded = state.map(|state| state.record.data.clone());
        for folder in recorded
            .into_iter()
            .chain([Self::data_of(name)?, Self::directory_of(name)])
        {
            if folder.exists() {
                fs::remove_dir_all(folder)?;
            }
        }
        Ok(())
    }

    /// The cluster's name.
    pub fn name(&self) -> &ClusterName {
        &self.name
    }

    /// Its record.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// Its addresses.
    pub fn addresses(&self) -> Addresses {
        Addresses::new(self.record.index)
    }

    /// Its network namespace.
    pub fn namespace(&self) -> Namespace {
        Namespace::of(&self.name)
    }

    /// The position of a node by its name.
    pub fn position(&self, node: &str) -> Result<usize> {
        self.record
            .nodes
            .iter()
            .position(|n| n.name == node)
            .with_context(|| {
                let names: Vec<_> = self.record.nodes.iter().map(|n| n.name.as_str()).collect();
                format!(
                    "cluster {} has no node {node:?}; its nodes are {}",
                    self.name,
                    names.join(", ")
                )
            })
    }

    /// The folder of a cluster, which may not exist.
    pub fn directory_of(name: &ClusterName) -> PathBuf {
        Path::new(ROOT).join(name.as_str())
    }

    /// The folder with sockets, keys, logs and process ids.
    pub fn directory(&self) -> PathBuf {
        Self::directory_of(&self.name)
    }

    /// The folder on disk of a cluster, which may not exist.
    pub fn data_of(name: &ClusterName) -> Result<PathBuf> {
        Ok(cache::directory()?.join("clusters").join(name.as_str()))
    }

    /// The administrator's kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.directory().join("admin.conf")
    }

    /// A key or certificate file.
    pub fn pki(&self, file: &str) -> PathBuf {
        self.directory().join("pki").join(file)
    }

    /// The log of a component.
    pub fn log_file(&self, component: &str) -> PathBuf {
        self.directory().join("log").join(format!("{component}.log"))
    }

    /// The file with the process id of a component.
    pub fn pid_file(&self, component: &str) -> PathBuf {
        self.directory().join("pids").join(component)
    }

    /// A node's folder on disk: images, volumes, pod logs.
    pub fn node_data(&self, node: &str) -> PathBuf {
        self.record.data.join(node)
    }

    /// A node's folder with configuration and sockets.
    pub fn node_directory(&self, node: &str) -> PathBuf {
        self.directory().join("nodes").join(node)
    }
}
