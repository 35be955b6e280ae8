//! A cluster: starting, attaching, removing, and the operations that tests need.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use fs_err as fs;
use kube::Client;
use rustix::process::Signal;

use crate::binaries::Binaries;
use crate::config::{ClusterConfig, ClusterName, Gpus};
use crate::image_store::{self, Store};
use crate::network::{MAX_CLUSTERS, Namespace};
use crate::node::Part;
use crate::progress::{say, step};
use crate::prometheus::Sample;
use crate::rights::{Account, Request};
use crate::state::State;
use crate::{
    audit, cgroup, command, control_plane, dump, image, network, node, packages, process, prometheus,
};

/// A running cluster. It outlives this value: only [`down`](Cluster::down) removes it.
pub struct Cluster {
    state: State,
    binaries: Binaries,
    client: Client,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Cluster")
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

impl Cluster {
    /// Starts a cluster and waits until its nodes are Ready, labeled, and advertise their GPUs.
    ///
    /// Removes the remains of an unhealthy cluster of this name first.
    ///
    /// # Errors
    /// A healthy cluster of this name exists, or a part did not start. The parts then stay for
    /// their logs, until the next `up` or `down`.
    pub async fn up(config: ClusterConfig) -> Result<Self> {
        config.validate()?;
        packages::check_machine()?;
        packages::install_missing()?;
        let mut binaries = Binaries::build()?;
        if let Some(version) = &config.api_server {
            binaries = binaries.with_api_server(version)?;
        }
        if config.network_policies {
            binaries = binaries.with_network_policy()?;
        }
        if let Some(state) = State::load(&config.name)? {
            ensure!(
                !is_healthy(&state),
                "cluster {name} is already running; remove it with `vit-cluster down --name {name}`",
                name = config.name
            );
            say(format_args!(
                "removing the remains of an earlier cluster {}",
                config.name
            ));
        }
        remove(&config.name)?;
        let archives = if config.nodes.is_empty() {
            Vec::new()
        } else {
            std::iter::once(image::pause()?)
                .chain(config.images.iter().cloned())
                .collect()
        };
        if config.prometheus {
            packages::prometheus()?;
        }
        let started = std::time::Instant::now();
        let mut state = State::allocate(&config)?;
        let client = start(&state, &binaries, &config, &archives)
            .await
            .with_context(|| format!("cluster {} failed to start", config.name))?;
        state.set_complete()?;
        say(format_args!(
            "cluster {} started in {:.1} s: {} nodes, kubeconfig {}",
            config.name,
            started.elapsed().as_secs_f64(),
            config.nodes.len(),
            state.kubeconfig().display()
        ));
        Ok(Self {
            state,
            binaries,
            client,
        })
    }

    /// The running cluster of this name.
    pub async fn attach(name: &ClusterName) -> Result<Self> {
        let Some(state) = State::load(name)? else {
            bail!("there is no cluster {name}")
        };
        ensure!(
            is_healthy(&state),
            "cluster {name} is unhealthy, not running: {}",
            ended(&state).join(", ")
        );
        let client = control_plane::client(&state).await?;
        Ok(Self {
            state,
            binaries: Binaries::build()?,
            client,
        })
    }

    /// Stops the cluster and removes everything that belongs to it.
    pub fn down(self) -> Result<()> {
        down(self.state.name())
    }

    /// The cluster's name.
    pub fn name(&self) -> &ClusterName {
        self.state.name()
    }

    /// The cluster's paths and addresses.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The built programs.
    pub fn binaries(&self) -> &Binaries {
        &self.binaries
    }

    /// A client with the administrator's rights, bound to the async runtime that created it.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// The administrator's kubeconfig, valid on the host.
    pub fn kubeconfig(&self) -> PathBuf {
        self.state.kubeconfig()
    }

    /// Prometheus' URL, valid on the host.
    pub fn prometheus_url(&self) -> Result<String> {
        ensure!(
            self.state.record().prometheus,
            "cluster {} has no Prometheus",
            self.name()
        );
        Ok(self.state.addresses().prometheus_url())
    }

    /// An account's requests to the API server, if it is [`audited`](ClusterConfig::audited).
    pub fn requests(&self, account: Account<'_>) -> Result<Vec<Request>> {
        ensure!(
            self.state.record().audited.contains(&account.user()),
            "cluster {} does not audit {}",
            self.name(),
            account.user()
        );
        audit::requests(&self.state, account)
    }

    /// Evaluates a `PromQL` expression in the cluster's Prometheus.
    pub fn query(&self, expression: &str) -> Result<Vec<Sample>> {
        prometheus::query(&self.prometheus_url()?, expression)
    }

    /// Replaces the rules of the cluster's Prometheus.
    pub fn load_rules(&self, rules: &str) -> Result<()> {
        prometheus::load_rules(&self.state, rules)
    }

    /// `kubectl` with the cluster's kubeconfig, without arguments yet.
    pub fn kubectl(&self) -> Command {
        program(&self.state, &self.binaries, "kubectl")
    }

    /// This machine's address as seen from pods.
    pub fn host_address(&self) -> std::net::Ipv4Addr {
        self.state.addresses().host()
    }

    /// Runs `kubectl` and returns its standard output.
    pub fn kubectl_output(&self, arguments: &[&str]) -> Result<String> {
        command::run(self.kubectl().args(arguments))
    }

    /// `helm` with the cluster's kubeconfig, without arguments yet.
    pub fn helm(&self) -> Command {
        program(&self.state, &self.binaries, "helm")
    }

    /// Installs a chart, or upgrades the release. `values` are `path=value` pairs for `helm --set`;
    /// `flags` are others, such as `--wait`.
    pub fn helm_upgrade(
        &self,
        release: &str,
        namespace: &str,
        chart: &Path,
        values: &[String],
        flags: &[&str],
    ) -> Result<String> {
        let mut helm = self.helm();
        helm.args(["upgrade", "--install", release]).arg(chart);
        helm.args(["--namespace", namespace, "--create-namespace"])
            .args(flags);
        for value in values {
            helm.args(["--set", value]);
        }
        command::run(&mut helm)
    }

    /// Uninstalls a release and waits until its objects are gone.
    pub fn helm_uninstall(&self, release: &str, namespace: &str) -> Result<String> {
        command::run(
            self.helm()
                .args(["uninstall", release, "--namespace", namespace, "--wait"]),
        )
    }

    /// The names of all nodes.
    pub fn nodes(&self) -> Vec<String> {
        self.state
            .record()
            .nodes
            .iter()
            .map(|node| node.name.clone())
            .collect()
    }

    /// Imports an OCI archive into these running nodes, all at once.
    pub fn load_image(&self, archive: &Path, nodes: &[String]) -> Result<()> {
        std::thread::scope(|scope| {
            let imports: Vec<_> = nodes
                .iter()
                .map(|node| {
                    scope.spawn(move || {
                        self.state.position(node)?;
                        let socket = self.state.node_directory(node).join("containerd.sock");
                        image_store::import(&self.binaries, &socket, archive)
                            .with_context(|| format!("node {node}"))
                    })
                })
                .collect();
            imports
                .into_iter()
                .try_for_each(|import| import.join().expect("importing does not panic"))
        })
    }

    /// Kills a node like a power cut: kubelet, containerd and all its pods' processes.
    pub fn kill_node(&self, node: &str) -> Result<()> {
        node::kill(&self.state, node)
    }

    /// Kills a node's kubelet; its pods keep running.
    pub fn kill_kubelet(&self, node: &str) -> Result<()> {
        process::end(&self.state, &Part::Kubelet.component(node), Signal::KILL)
    }

    /// Kills a node's containerd; its pods keep running.
    pub fn kill_containerd(&self, node: &str) -> Result<()> {
        process::end(&self.state, &Part::Containerd.component(node), Signal::KILL)
    }

    /// Starts the stopped parts of a node, and waits until it is Ready with its GPUs.
    ///
    /// A node whose kubelet was just killed still counts as Ready.
    pub async fn start_node(&self, node: &str) -> Result<()> {
        let position = self.state.position(node)?;
        node::start(&self.state, &self.binaries, node)?;
        node::await_ready(&self.state, &self.client, node).await?;
        if let Some(gpus) = &self.state.record().nodes[position].gpus {
            self.set_gpus(node, gpus).await?;
        }
        Ok(())
    }

    /// Kills a component of the control plane, restarts it, and waits for the API server.
    pub async fn restart_control_plane(&self, component: &str) -> Result<()> {
        self.restart_with_flags(component, &[]).await
    }

    /// The same, with flags that extend or override its usual ones. Also starts components that a
    /// cluster without nodes lacks, such as the scheduler.
    pub async fn restart_with_flags(&self, component: &str, flags: &[String]) -> Result<()> {
        process::end(&self.state, component, Signal::KILL)?;
        control_plane::start_component(&self.state, &self.binaries, component, flags)?;
        control_plane::await_ready(&self.state, &self.client).await
    }

    /// Starts another API server of this cluster, beside its usual one, and returns its address.
    pub fn start_second_api_server(&self) -> Result<SocketAddr> {
        control_plane::start_second_api_server(&self.state, &self.binaries)
    }

    /// Pauses a component until the returned value is dropped.
    pub fn pause(&self, component: &str) -> Result<process::Paused> {
        process::pause(&self.state, component)
    }

    /// Sets labels of a node; `None` removes a label.
    pub async fn set_labels<'a>(
        &self,
        node: &str,
        labels: impl IntoIterator<Item = (&'a str, Option<&'a str>)>,
    ) -> Result<()> {
        node::set_labels(&self.client, node, labels).await
    }

    /// Makes a node advertise this many GPUs, until it restarts.
    pub async fn set_gpus(&self, node: &str, gpus: &Gpus) -> Result<()> {
        node::set_gpus(&self.client, node, gpus).await
    }

    /// Debugging output: objects, events, pods' logs, and the tails of components' logs.
    pub fn dump(&self) -> String {
        dump::dump(&self.state, &self.binaries, &components(&self.state))
    }
}

/// Stops the cluster of this name, if any, and removes everything that belongs to it.
pub fn down(name: &ClusterName) -> Result<()> {
    packages::check_machine()?;
    step(format_args!("removing cluster {name}"), || remove(name))
}

/// Descriptions of everything on this machine that belongs to a cluster; empty after [`down`].
///
/// The search does not use the cluster's record, so it also finds leftovers of a wrong teardown.
pub fn leftovers(name: &ClusterName) -> Result<Vec<String>> {
    let mut left = cgroup::leftovers(name)?;
    let folder = State::directory_of(name);
    for path in [Namespace::of(name).path(), folder.clone(), State::data_of(name)?] {
        if path.exists() {
            left.push(path.display().to_string());
        }
    }
    if let Some(inode) = Namespace::of(name).inode() {
        left.extend(
            process::in_network_namespace(inode)?
                .into_iter()
                .map(|pid| format!("process {pid}")),
        );
    }
    left.extend(
        process::mentioning(&folder)?
            .into_iter()
            .map(|pid| format!("process {pid}")),
    );
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    let mounted = mounts.lines().filter_map(|line| line.split(' ').nth(1));
    left.extend(
        mounted
            .filter(|at| Path::new(at).starts_with(&folder))
            .map(|at| format!("mount {at}")),
    );
    // An interface has only an index: it is a leftover if no other cluster has this index.
    let others: Vec<u8> = State::all()?
        .iter()
        .filter(|state| state.name() != name)
        .map(|state| state.record().index)
        .collect();
    let indices = (0..MAX_CLUSTERS).filter(|index| !others.contains(index));
    left.extend(
        network::host_interfaces(indices)
            .into_iter()
            .map(|link| format!("network interface {link}")),
    );
    Ok(left)
}

/// The components of a cluster that should be running but are not.
pub fn ended(state: &State) -> Vec<String> {
    components(state)
        .into_iter()
        .filter(|component| process::running(state, component).is_none())
        .collect()
}

/// Every component of a cluster, including its nodes' parts.
pub fn components(state: &State) -> Vec<String> {
    let nodes = &state.record().nodes;
    let parts = nodes
        .iter()
        .flat_map(|node| Part::ALL.map(|part| part.component(&node.name)));
    control_plane::components(state)
        .into_iter()
        .map(str::to_owned)
        .chain(parts)
        .collect()
}

fn is_healthy(state: &State) -> bool {
    state.record().complete && ended(state).is_empty()
}

async fn start(
    state: &State,
    binaries: &Binaries,
    config: &ClusterConfig,
    archives: &[PathBuf],
) -> Result<Client> {
    say(format_args!("starting cluster {} ...", config.name));
    control_plane::prepare(state)?;
    state.namespace().create(state.addresses(), config.nodes.len())?;
    let images = if archives.is_empty() {
        None
    } else {
        Some(Store::prepare(binaries, archives)?)
    };
    // The nodes' runtimes start in parallel with the API server.
    let runtimes = tokio::task::spawn_blocking({
        let (state, binaries) = (state.clone(), binaries.clone());
        move || start_runtimes(&state, &binaries, images.as_ref())
    });
    let client = control_plane::start(state, binaries).await;
    // Wait for both before returning an error, so that nothing starts after a failed `up`.
    let runtimes = runtimes.await?;
    let client = client?;
    runtimes?;
    for node in &config.nodes {
        node::start_kubelet(state, binaries, &node.name)?;
    }
    if config.prometheus {
        prometheus::start(state, binaries)?;
    }
    for node in &config.nodes {
        node::await_ready(state, &client, &node.name).await?;
        let labels = node
            .labels
            .iter()
            .map(|(key, value)| (key.as_str(), Some(value.as_str())));
        node::set_labels(&client, &node.name, labels).await?;
        if let Some(gpus) = &node.gpus {
            node::set_gpus(&client, &node.name, gpus).await?;
        }
    }
    control_plane::await_service_account(&client).await?;
    Ok(client)
}

fn start_runtimes(state: &State, binaries: &Binaries, images: Option<&Store>) -> Result<()> {
    for node in &state.record().nodes {
        if let Some(images) = images {
            images.copy_to(&state.node_data(&node.name).join("containerd"))?;
        }
        node::start_containerd(state, binaries, &node.name)?;
    }
    Ok(())
}

/// Stops and removes everything that exists of a cluster. Any part may be missing.
fn remove(name: &ClusterName) -> Result<()> {
    let state = State::load(name)?;
    let namespace = Namespace::of(name);
    if let Some(state) = &state {
        for node in &state.record().nodes {
            // Kubelet and runtime first, so that they restart nothing.
            for part in [Part::Kubelet, Part::Containerd] {
                process::end(state, &part.component(&node.name), Signal::KILL)?;
            }
        }
    }
    if let Some(inode) = namespace.inode() {
        process::kill_all(name.as_str(), || process::in_network_namespace(inode))?;
    }
    process::kill_all(name.as_str(), || {
        Ok(process::living(cgroup::processes(name, None)?))
    })?;
    cgroup::remove(name)?;
    namespace.delete(state.as_ref().map(State::addresses))?;
    State::remove(name, state.as_ref())
}

fn program(state: &State, binaries: &Binaries, name: &str) -> Command {
    let mut program = command::command::<&str>(binaries.path(name), []);
    program.env("KUBECONFIG", state.kubeconfig());
    // Later clusters reuse the addresses: kubectl must not mix up their caches.
    program.env("KUBECACHEDIR", state.directory().join("kubectl-cache"));
    program
}
