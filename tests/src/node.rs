//! A node: a kubelet and a containerd in a mount namespace, with a bridge for the node's pods.
//!
//! The mount namespace gives every node its own `/var/lib/kubelet`, `/var/log/pods`, `/var/lib/cni`
//! and `/run/containerd`, so that nodes do not clean up each other's files. All mounts of its pods
//! disappear with its last process. A sleeping process, the holder, keeps it open while kubelet and
//! containerd restart.

use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fs_err as fs;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use rustix::process::Signal;
use serde_json::json;

use crate::binaries::Binaries;
use crate::config::Gpus;
use crate::state::State;
use crate::{cgroup, image, process};

/// Time limit for a node's part to become ready.
const READY_DEADLINE: Duration = Duration::from_secs(120);

/// A node's own folders: name, mount point, and whether it is on disk (true) or with the sockets in
/// memory (false).
const MOUNTS: [(&str, &str, bool); 5] = [
    ("kubelet", "/var/lib/kubelet", true),
    ("log-pods", "/var/log/pods", true),
    ("log-containers", "/var/log/containers", true),
    ("cni-state", "/var/lib/cni", false),
    ("run-containerd", "/run/containerd", false),
];

/// The parts of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Keeps the mount namespace open.
    Holder,
    /// The container runtime.
    Containerd,
    /// The node agent.
    Kubelet,
}

impl Part {
    /// All parts, in start order.
    pub const ALL: [Self; 3] = [Self::Holder, Self::Containerd, Self::Kubelet];

    /// The component's name, under which its process and log are recorded.
    pub fn component(self, node: &str) -> String {
        let part = match self {
            Self::Holder => "mounts",
            Self::Containerd => "containerd",
            Self::Kubelet => "kubelet",
        };
        format!("{part}-{node}")
    }
}

/// Starts the parts of a node that are not running: mount namespace, containerd, and kubelet.
///
/// containerd's root folder must already contain the node's images.
pub fn start(state: &State, binaries: &Binaries, node: &str) -> Result<()> {
    start_containerd(state, binaries, node)?;
    start_kubelet(state, binaries, node)
}

/// Starts a node's containerd, and waits until it listens.
pub fn start_containerd(state: &State, binaries: &Binaries, node: &str) -> Result<()> {
    let holder = match process::running(state, &Part::Holder.component(node)) {
        Some(pid) => pid,
        None => start_holder(state, binaries, node)?,
    };
    let component = Part::Containerd.component(node);
    if process::running(state, &component).is_some() {
        return Ok(());
    }
    let folder = state.node_directory(node);
    let config = folder.join("containerd.toml");
    fs::write(&config, containerd_toml(state, node))?;
    let cni = folder.join("cni");
    fs::create_dir_all(&cni)?;
    fs::write(
        cni.join("10-pods.conflist"),
        serde_json::to_vec_pretty(&cni_config(state, node)?)?,
    )?;
    let words = [
        binaries.path("containerd").display().to_string(),
        "--config".into(),
        config.display().to_string(),
    ];
    process::start(state, &component, Some(holder), &words, &binaries.search_path())?;
    let socket = folder.join("containerd.sock");
    let started = Instant::now();
    while UnixStream::connect(&socket).is_err() {
        process::check(state, &component)?;
        ensure!(
            started.elapsed() < READY_DEADLINE,
            "{component} is not listening on {}",
            socket.display()
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Starts a node's kubelet; its containerd must be running.
pub fn start_kubelet(state: &State, binaries: &Binaries, node: &str) -> Result<()> {
    let component = Part::Kubelet.component(node);
    if process::running(state, &component).is_some() {
        return Ok(());
    }
    let holder = process::running(state, &Part::Holder.component(node))
        .with_context(|| format!("node {node}: start its containerd before its kubelet"))?;
    cgroup::create(state.name(), node)?;
    let folder = state.node_directory(node);
    let config = folder.join("kubelet.json");
    fs::write(&config, serde_json::to_vec_pretty(&kubelet_config(state, node)?)?)?;
    let words = [
        binaries.path("kubelet").display().to_string(),
        format!("--config={}", config.display()),
        format!("--kubeconfig={}", folder.join("kubelet.conf").display()),
        format!("--hostname-override={node}"),
        format!("--node-ip={}", state.addresses().node(state.position(node)?)),
    ];
    process::start(state, &component, Some(holder), &words, &binaries.search_path())?;
    Ok(())
}

/// Kills a node like a power cut: its pods' network, kubelet, containerd, and all its pods'
/// processes. The network goes first, so that peers do not see connections close.
///
/// Its disk stays, so [`start`] restarts the same node.
pub fn kill(state: &State, node: &str) -> Result<()> {
    state.namespace().cut(&bridge(state.position(node)?))?;
    // The runtime first, so that it restarts nothing.
    for part in [Part::Kubelet, Part::Containerd] {
        process::end(state, &part.component(node), Signal::KILL)?;
    }
    if let Some(holder) = process::running(state, &Part::Holder.component(node)) {
        process::kill_all(node, || process::in_mount_namespace_of(holder))?;
    }
    process::kill_all(node, || {
        Ok(process::living(cgroup::processes(state.name(), Some(node))?))
    })?;
    for folder in ["containerd-state", "run-containerd"] {
        let path = state.node_directory(node).join(folder);
        if path.exists() {
            fs::remove_dir_all(path)?;
        }
    }
    Ok(())
}

fn start_holder(state: &State, binaries: &Binaries, node: &str) -> Result<i32> {
    let mut script = String::from("set -e\n");
    for (folder, target, on_disk) in MOUNTS {
        let source = if on_disk {
            state.node_data(node)
        } else {
            state.node_directory(node)
        }
        .join(folder);
        fs::create_dir_all(&source)?;
        fs::create_dir_all(target)?;
        script.push_str(&format!("mount --bind '{}' {target}\n", source.display()));
    }
    let ready = state.node_directory(node).join("mounted");
    if ready.exists() {
        fs::remove_file(&ready)?;
    }
    script.push_str(&format!("touch '{}'\nexec sleep infinity\n", ready.display()));
    let words = [
        "unshare",
        "--mount",
        "--propagation",
        "private",
        "sh",
        "-c",
        &script,
    ]
    .map(str::to_owned);
    let component = Part::Holder.component(node);
    let pid = process::start(state, &component, None, &words, &binaries.search_path())?;
    let started = Instant::now();
    while !ready.exists() {
        process::check(state, &component)?;
        ensure!(
            started.elapsed() < READY_DEADLINE,
            "{component} did not mount its folders"
        );
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(pid)
}

fn containerd_toml(state: &State, node: &str) -> String {
    let folder = state.node_directory(node);
    let folder = folder.display();
    let root = state.node_data(node).join("containerd");
    let root = root.display();
    let pause = image::PAUSE;
    // `restrict_oom_score_adj`: without CAP_SYS_RESOURCE, runc otherwise fails with "can't get
    // final child's PID from pipe". The pause image needs its full name, or the CRI tries to pull
    // it.
    format!(
        r#"version = 3
root = "{root}"
state = "{folder}/containerd-state"
disabled_plugins = ["io.containerd.internal.v1.opt"]
[grpc]
  address = "{folder}/containerd.sock"
[plugins.'io.containerd.nri.v1.nri']
  disable = true
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ["{cni}"]
    conf_dir = "{folder}/cni"
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
    SystemdCgroup = false
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "{pause}"
"#,
        cni = crate::packages::CNI_PLUGINS,
    )
}

fn cni_config(state: &State, node: &str) -> Result<serde_json::Value> {
    let position = state.position(node)?;
    Ok(json!({
        "cniVersion": "1.0.0",
        "name": "pods",
        "plugins": [
            {
                "type": "bridge", "bridge": bridge(position), "isGateway": true, "hairpinMode": true,
                // Pods see each other's true addresses, on all nodes.
                "ipMasq": false,
                "ipam": {
                    "type": "host-local",
                    "ranges": [[{"subnet": state.addresses().pods_of_node(position)}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": true}},
        ],
    }))
}

/// The bridge of a node's pods. The CNI plugin sets it up for every pod.
fn bridge(position: usize) -> String {
    format!("pods{position}")
}

fn kubelet_config(state: &State, node: &str) -> Result<serde_json::Value> {
    let socket = state.node_directory(node).join("containerd.sock");
    Ok(json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        // Each kubelet has its own address, so that all can listen on port 10250.
        "address": state.addresses().node(state.position(node)?),
        "healthzPort": 0,
        // Renewed every two seconds, so that a dead node is detected sooner than the default 40 s.
        "nodeLeaseDurationSeconds": 8,
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": true},
            "x509": {"clientCAFile": state.pki("ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": cgroup::node_root(state.name(), node),
        "failCgroupV1": false,
        "failSwapOn": false,
        "containerRuntimeEndpoint": format!("unix://{}", socket.display()),
        "clusterDNS": [state.addresses().dns()],
        "clusterDomain": "cluster.local",
        "resolvConf": "/dev/null",
        "tlsCertFile": state.pki(&format!("node-{node}.crt")),
        "tlsPrivateKeyFile": state.pki(&format!("node-{node}.key")),
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "serializeImagePulls": false,
        // No registry has the images: never collect them.
        "imageGCHighThresholdPercent": 100,
    }))
}

/// Waits until a node is Ready.
pub async fn await_ready(state: &State, client: &Client, node: &str) -> Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    let started = Instant::now();
    loop {
        let seen = nodes.get_opt(node).await?;
        if seen.as_ref().is_some_and(is_ready) {
            return Ok(());
        }
        for part in Part::ALL {
            process::check(state, &part.component(node))?;
        }
        ensure!(
            started.elapsed() < READY_DEADLINE,
            "node {node} is not Ready after {READY_DEADLINE:?}: {:?}; tail of its kubelet's log:\n{}",
            seen.and_then(|node| node.status)
                .and_then(|status| status.conditions),
            crate::command::tail_of_file(&state.log_file(&Part::Kubelet.component(node)), 20)
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions
        .into_iter()
        .flatten()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Sets labels of a node; `None` removes a label.
pub async fn set_labels<'a>(
    client: &Client,
    node: &str,
    labels: impl IntoIterator<Item = (&'a str, Option<&'a str>)>,
) -> Result<()> {
    let labels: serde_json::Map<_, _> = labels
        .into_iter()
        .map(|(key, value)| (key.to_owned(), json!(value)))
        .collect();
    let patch = Patch::Merge(json!({"metadata": {"labels": labels}}));
    Api::<Node>::all(client.clone())
        .patch(node, &PatchParams::default(), &patch)
        .await
        .with_context(|| format!("cannot label node {node}"))?;
    Ok(())
}

/// Makes a node advertise GPUs as capacity and allocatable, which the kubelet preserves.
pub async fn set_gpus(client: &Client, node: &str, gpus: &Gpus) -> Result<()> {
    let count = gpus.count.to_string();
    let resources = json!({gpus.resource.as_str(): count});
    let patch = Patch::Merge(json!({"status": {"capacity": resources, "allocatable": resources}}));
    Api::<Node>::all(client.clone())
        .patch_status(node, &PatchParams::default(), &patch)
        .await
        .with_context(|| format!("cannot set {} of node {node}", gpus.resource))?;
    Ok(())
}
