//! The control plane: etcd, API server, controllers, scheduler, DNS, Services, NetworkPolicies.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fs_err as fs;
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};

use crate::audit;
use crate::binaries::Binaries;
use crate::pki::{Authority, Identity};
use crate::process;
use crate::state::State;

/// Time limit for the API server to become ready.
const READY_DEADLINE: Duration = Duration::from_secs(120);

/// etcd's client port on the namespace's loopback address.
const ETCD_PORT: u16 = 2379;

/// Enforces NetworkPolicies, in clusters that ask for it.
const NETWORK_POLICY: &str = "network-policy";

/// The components in start order, and whether a cluster without nodes omits them.
const COMPONENTS: [(&str, bool); 7] = [
    ("etcd", false),
    ("kube-apiserver", false),
    ("kube-controller-manager", false),
    ("kube-scheduler", true),
    ("kube-proxy", true),
    (NETWORK_POLICY, true),
    ("coredns", true),
];

/// Started after the nodes' kubelets.
const MONITORING: [&str; 2] = [crate::prometheus::COMPONENT, crate::discovery::COMPONENT];

/// The names of a cluster's components, except its nodes' parts.
pub fn components(state: &State) -> Vec<&'static str> {
    let mut names: Vec<_> = COMPONENTS
        .iter()
        .filter(|(_, node_side)| !node_side || !state.record().nodes.is_empty())
        .map(|c| c.0)
        .filter(|name| *name != NETWORK_POLICY || state.record().network_policies)
        .collect();
    if state.record().prometheus {
        names.extend(MONITORING);
    }
    names
}

/// Creates the keys, certificates and kubeconfigs of the control plane and all nodes.
pub fn prepare(state: &State) -> Result<()> {
    let addresses = state.addresses();
    let authority = Authority::create(state)?;
    let server = Identity {
        user: "kube-apiserver".to_owned(),
        group: None,
        addresses: vec![
            addresses.api().into(),
            addresses.kubernetes_service().into(),
            IpAddr::from([127, 0, 0, 1]),
        ],
        names: [
            "localhost",
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
        ]
        .map(str::to_owned)
        .to_vec(),
    };
    authority.issue(state, "apiserver", &server)?;
    let admin = Identity::user("admin").group("system:masters");
    authority.kubeconfig(state, "admin", &admin, &state.kubeconfig())?;
    for component in ["kube-controller-manager", "kube-scheduler", "kube-proxy"] {
        let identity = Identity::user(format!("system:{component}"));
        authority.kubeconfig(
            state,
            component,
            &identity,
            &state.directory().join(format!("{component}.conf")),
        )?;
    }
    for (position, node) in state.record().nodes.iter().enumerate() {
        let folder = state.node_directory(&node.name);
        fs::create_dir_all(&folder)?;
        let identity = Identity {
            addresses: vec![addresses.node(position).into()],
            names: vec![node.name.clone()],
            ..Identity::user(format!("system:node:{}", node.name)).group("system:nodes")
        };
        authority.kubeconfig(
            state,
            &format!("node-{}", node.name),
            &identity,
            &folder.join("kubelet.conf"),
        )?;
    }
    Ok(())
}

/// Starts etcd and the API server, waits until it is ready, and starts the other components.
pub async fn start(state: &State, binaries: &Binaries) -> Result<Client> {
    start_component(state, binaries, "etcd", &[])?;
    // The API server retries only every few seconds.
    await_listening(state, "etcd", ETCD_PORT).await?;
    start_component(state, binaries, "kube-apiserver", &[])?;
    let client = client(state).await?;
    await_ready(state, &client).await?;
    for component in components(state) {
        if !["etcd", "kube-apiserver"].contains(&component) && !MONITORING.contains(&component) {
            start_component(state, binaries, component, &[])?;
        }
    }
    if !state.record().nodes.is_empty() {
        publish_dns(state, &client).await?;
    }
    Ok(client)
}

/// Starts or restarts a component of the control plane. `flags` override its usual ones.
pub fn start_component(state: &State, binaries: &Binaries, component: &str, flags: &[String]) -> Result<()> {
    let arguments = arguments(state, component)?;
    let program = binaries.path(component).display().to_string();
    let words: Vec<String> = std::iter::once(program)
        .chain(arguments)
        .chain(flags.iter().cloned())
        .collect();
    process::start(state, component, None, &words, &binaries.search_path())?;
    Ok(())
}

/// Starts another API server with the same etcd, and returns its address.
pub fn start_second_api_server(state: &State, binaries: &Binaries) -> Result<SocketAddr> {
    let address = SocketAddr::from((state.addresses().api(), 6444));
    let mut words = vec![binaries.path("kube-apiserver").display().to_string()];
    words.extend(arguments(state, "kube-apiserver")?);
    words.push(format!("--secure-port={}", address.port()));
    // It leaves the Service of API servers alone.
    words.push("--endpoint-reconciler-type=none".to_owned());
    process::start(
        state,
        "second-kube-apiserver",
        None,
        &words,
        &binaries.search_path(),
    )?;
    Ok(address)
}

/// A client with the administrator's rights.
pub async fn client(state: &State) -> Result<Client> {
    let kubeconfig = Kubeconfig::read_from(state.kubeconfig())?;
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}

async fn await_listening(state: &State, component: &str, port: u16) -> Result<()> {
    let started = Instant::now();
    while !process::listens_on(state, component, port) {
        process::check(state, component)?;
        ensure!(
            started.elapsed() < READY_DEADLINE,
            "{component} is not listening on port {port}"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

/// Waits until the API server is ready.
pub async fn await_ready(state: &State, client: &Client) -> Result<()> {
    let started = Instant::now();
    loop {
        let answer = client
            .request_text(http::Request::get("/readyz").body(Vec::new())?)
            .await;
        if answer.is_ok() {
            return Ok(());
        }
        process::check(state, "etcd")?;
        process::check(state, "kube-apiserver")?;
        ensure!(
            started.elapsed() < READY_DEADLINE,
            "the API server is not ready after {READY_DEADLINE:?}: {answer:?}; tail of its log:\n{}",
            crate::command::tail_of_file(&state.log_file("kube-apiserver"), 20)
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn arguments(state: &State, component: &str) -> Result<Vec<String>> {
    let addresses = state.addresses();
    let pki = |file: &str| state.pki(file).display().to_string();
    let kubeconfig = state
        .directory()
        .join(format!("{component}.conf"))
        .display()
        .to_string();
    let mut flags: BTreeMap<&str, String> = match component {
        "etcd" => BTreeMap::from([
            ("data-dir", state.directory().join("etcd").display().to_string()),
            // This cluster need not survive a power cut.
            ("unsafe-no-fsync", "true".to_owned()),
            ("listen-client-urls", format!("http://127.0.0.1:{ETCD_PORT}")),
            ("advertise-client-urls", format!("http://127.0.0.1:{ETCD_PORT}")),
            ("listen-peer-urls", "http://127.0.0.1:2380".to_owned()),
            ("log-level", "warn".to_owned()),
            // In milliseconds: the only member wins the election after the timeout.
            ("heartbeat-interval", "20".to_owned()),
            ("election-timeout", "200".to_owned()),
        ]),
        "kube-apiserver" => BTreeMap::from([
            ("etcd-servers", format!("http://127.0.0.1:{ETCD_PORT}")),
            ("bind-address", addresses.api().to_string()),
            ("advertise-address", addresses.api().to_string()),
            ("service-cluster-ip-range", addresses.services()),
            ("tls-cert-file", pki("apiserver.crt")),
            ("tls-private-key-file", pki("apiserver.key")),
            ("client-ca-file", pki("ca.crt")),
            (
                "service-account-issuer",
                "https://kubernetes.default.svc".to_owned(),
            ),
            ("service-account-key-file", pki("sa.pub")),
            ("service-account-signing-key-file", pki("sa.key")),
            ("authorization-mode", "Node,RBAC".to_owned()),
            // As on OpenShift: blockOwnerDeletion needs the right to set the owner's finalizers.
            (
                "enable-admission-plugins",
                "NodeRestriction,OwnerReferencesPermissionEnforcement".to_owned(),
            ),
            ("kubelet-client-certificate", pki("admin.crt")),
            ("kubelet-client-key", pki("admin.key")),
            ("kubelet-preferred-address-types", "InternalIP".to_owned()),
            ("allow-privileged", "true".to_owned()),
        ]),
        "kube-controller-manager" => BTreeMap::from([
            ("kubeconfig", kubeconfig),
            ("leader-elect", "false".to_owned()),
            ("node-monitor-grace-period", "20s".to_owned()),
            // With the default of 20, its controllers wait four seconds for their tokens.
            ("kube-api-qps", "500".to_owned()),
            ("kube-api-burst", "1000".to_owned()),
            ("root-ca-file", pki("ca.crt")),
            ("service-account-private-key-file", pki("sa.key")),
            ("use-service-account-credentials", "true".to_owned()),
        ]),
        "kube-scheduler" => {
            BTreeMap::from([("kubeconfig", kubeconfig), ("leader-elect", "false".to_owned())])
        }
        "kube-proxy" => BTreeMap::from([
            ("kubeconfig", kubeconfig),
            ("proxy-mode", "iptables".to_owned()),
            ("cluster-cidr", addresses.pods()),
            // All nodes share a network namespace, so a pod and its Service's endpoint may be on
            // the same bridge. Without masquerading, replies would bypass the address translation.
            ("masquerade-all", "true".to_owned()),
            ("conntrack-max-per-core", "0".to_owned()),
            (
                "hostname-override",
                state
                    .record()
                    .nodes
                    .first()
                    .context("kube-proxy needs a node")?
                    .name
                    .clone(),
            ),
        ]),
        NETWORK_POLICY => BTreeMap::from([("kubeconfig", state.kubeconfig().display().to_string())]),
        "coredns" => {
            let corefile = state.directory().join("Corefile");
            fs::write(&corefile, corefile_text(state))?;
            return Ok(vec!["-conf".to_owned(), corefile.display().to_string()]);
        }
        other => anyhow::bail!("there is no component {other:?}"),
    };
    // In a cluster without kubelets, nodes are only objects without heartbeats.
    match component {
        _ if !state.record().nodes.is_empty() => None,
        "kube-apiserver" => flags.insert("disable-admission-plugins", "TaintNodesByCondition".to_owned()),
        "kube-controller-manager" => flags.insert("controllers", "*,-node-lifecycle-controller".to_owned()),
        _ => None,
    };
    let audited = &state.record().audited;
    if component == "kube-apiserver" && !audited.is_empty() {
        flags.extend(audit::flags(state, audited)?);
    }
    Ok(flags
        .into_iter()
        .map(|(name, value)| format!("--{name}={value}"))
        .collect())
}

fn corefile_text(state: &State) -> String {
    format!(
        ".:53 {{\n bind {}\n errors\n kubernetes cluster.local in-addr.arpa {{\n  kubeconfig {}\n  pods insecure\n  ttl 1\n }}\n}}\n",
        state.addresses().api(),
        state.kubeconfig().display()
    )
}

/// Creates the usual DNS Service, with CoreDNS outside a pod as its endpoint.
async fn publish_dns(state: &State, client: &Client) -> Result<()> {
    let ports = |protocols: [(&str, &str); 2]| -> Vec<Value> {
        protocols
            .iter()
            .map(|(name, protocol)| json!({"name": name, "port": 53, "protocol": protocol}))
            .collect()
    };
    let ports = ports([("dns", "UDP"), ("dns-tcp", "TCP")]);
    let service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "kube-dns", "namespace": "kube-system"},
        "spec": {"clusterIP": state.addresses().dns(), "ports": ports},
    });
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": "kube-dns", "namespace": "kube-system",
            "labels": {"kubernetes.io/service-name": "kube-dns"}},
        "addressType": "IPv4", "ports": ports,
        "endpoints": [{"addresses": [state.addresses().api()]}],
    });
    let services: kube::Api<k8s_openapi::api::core::v1::Service> =
        kube::Api::namespaced(client.clone(), "kube-system");
    let slices: kube::Api<k8s_openapi::api::discovery::v1::EndpointSlice> =
        kube::Api::namespaced(client.clone(), "kube-system");
    let create = kube::api::PostParams::default();
    // The API server creates the namespace kube-system some time after it is ready.
    let started = Instant::now();
    let service = serde_json::from_value(service)?;
    while let Err(error) = services.create(&create, &service).await {
        ensure!(
            started.elapsed() < READY_DEADLINE,
            "cannot create the DNS Service: {error}"
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    slices
        .create(&create, &serde_json::from_value(slice)?)
        .await
        .context("cannot create the DNS endpoint")?;
    Ok(())
}

/// Waits for the default service account of the namespace `default`, which every pod needs.
pub async fn await_service_account(client: &Client) -> Result<()> {
    let accounts: kube::Api<k8s_openapi::api::core::v1::ServiceAccount> =
        kube::Api::namespaced(client.clone(), "default");
    let started = Instant::now();
    while accounts.get_opt("default").await?.is_none() {
        ensure!(
            started.elapsed() < READY_DEADLINE,
            "the service account default/default does not appear"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}
