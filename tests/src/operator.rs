//! Installs the operator on a cluster: the shipped Dockerfiles and chart, with the real Helm.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use fs_err as fs;
use serde_json::{Value, json};

use crate::exposition::Exposition;
use crate::rights::Account;
use crate::{Cluster, ClusterConfig, chart, cluster, image, packages, process, root};

/// Namespace, release and Deployment of the operator.
pub const OPERATOR: &str = "vit-operator";
/// Another namespace for a release.
pub const ELSEWHERE: &str = "elsewhere";

/// The audited accounts: the operator, its chart's test, and an operator in [`ELSEWHERE`].
pub fn accounts() -> [Account<'static>; 3] {
    let account = |namespace, name| Account { namespace, name };
    [
        account(OPERATOR, OPERATOR),
        account(OPERATOR, "vit-operator-test"),
        account(ELSEWHERE, OPERATOR),
    ]
}

/// Starts this cluster with the operator, and removes an existing one of its name. Operator and
/// trainer must be built; nodes also have their images.
pub async fn cluster_with_operator(config: ClusterConfig) -> Result<Cluster> {
    packages::check_machine()?;
    packages::install_missing()?;
    let images = images()?;
    cluster::down(&config.name)?;
    let config = config
        .images(images)
        .audited(accounts().map(|account| account.user()));
    let cluster = Cluster::up(config).await?;
    install(&cluster, &[])?;
    Ok(cluster)
}

/// Installs or upgrades the operator with additional `values`, and waits until it is ready.
pub fn install(cluster: &Cluster, values: &[String]) -> Result<String> {
    install_from(cluster, &chart::folder(), OPERATOR, values)
}

/// The same from another chart or into another namespace. The release takes over existing CRDs.
pub fn install_from(cluster: &Cluster, chart: &Path, namespace: &str, values: &[String]) -> Result<String> {
    let mut all = Vec::new();
    for (value, image) in [("image", image::OPERATOR), ("test.image", image::TRAINER)] {
        let (repository, tag) = image.rsplit_once(':').context("the image has a tag")?;
        all.extend([
            format!("{value}.repository={repository}"),
            format!("{value}.tag={tag}"),
        ]);
    }
    all.extend_from_slice(values);
    let flags = ["--take-ownership", "--wait", "--timeout", "2m"];
    cluster.helm_upgrade(OPERATOR, namespace, chart, &all, &flags)
}

/// Starts a built operator as a process outside the cluster, with exactly the rights of the
/// [installed](install) chart, perhaps through a proxy before the API server.
pub fn start(
    cluster: &Cluster,
    program: &Path,
    proxy: Option<SocketAddr>,
    arguments: &[String],
) -> Result<()> {
    ensure!(
        program.exists(),
        "{} is missing: build it first",
        program.display()
    );
    let token = cluster.kubectl_output(&[
        "create",
        "token",
        OPERATOR,
        "--namespace",
        OPERATOR,
        "--duration=24h",
    ])?;
    let mut kubeconfig: Value = serde_json::from_slice(&fs::read(cluster.kubeconfig())?)?;
    kubeconfig["users"][0]["user"] = json!({"token": token.trim()});
    if let Some(proxy) = proxy {
        let server = &mut kubeconfig["clusters"][0]["cluster"];
        server["server"] = format!("https://{proxy}").into();
        server["tls-server-name"] = "kubernetes".into();
    }
    let path = cluster.state().directory().join("operator.conf");
    fs::write(&path, kubeconfig.to_string())?;
    let mut words = vec![
        "env".to_owned(),
        format!("KUBECONFIG={}", path.display()),
        program.display().to_string(),
        "run".to_owned(),
        format!("--leader-election-namespace={OPERATOR}"),
    ];
    words.extend_from_slice(arguments);
    let search_path = cluster.binaries().search_path();
    process::start(cluster.state(), OPERATOR, None, &words, &search_path)?;
    Ok(())
}

/// The metrics of an operator that was [started](start).
pub fn metrics(cluster: &Cluster) -> Result<Exposition> {
    let address = cluster.state().addresses().api();
    let mut answer = ureq::get(format!("http://{address}:8080/metrics")).call()?;
    Ok(Exposition::parse(&answer.body_mut().read_to_string()?))
}

/// Builds the images of operator and trainer from the shipped Dockerfiles and the binaries of `make
/// binaries`, which check for overflow, or of `make release` with `VIT_PROFILE=release`. libtorch,
/// where training spends its time, is optimized in both.
pub fn images() -> Result<[PathBuf; 2]> {
    let profile = std::env::var("VIT_PROFILE").unwrap_or_else(|_| "debug".to_owned());
    let built = root().join("target").join(profile);
    let libtorch = std::env::var_os("LIBTORCH")
        .context("LIBTORCH is not set: export LIBTORCH=$(scripts/fetch-libtorch)")?;
    let mut trainer = vec![(built.join("vit-trainer"), "vit-trainer".to_owned())];
    for entry in fs::read_dir(Path::new(&libtorch).join("lib"))? {
        let entry = entry?;
        trainer.push((
            entry.path(),
            format!("lib/{}", entry.file_name().to_string_lossy()),
        ));
    }
    let operator = ["vit-operator", "kubectl-vit"].map(|binary| (built.join(binary), binary.to_owned()));
    Ok([
        build(image::OPERATOR, &root().join("operator/Dockerfile"), &operator)?,
        build(image::TRAINER, &root().join("trainer/Dockerfile"), &trainer)?,
    ])
}

/// Builds an image from files and their paths in the build context, and returns its OCI archive.
pub fn build(name: &str, dockerfile: &Path, files: &[(PathBuf, String)]) -> Result<PathBuf> {
    for (file, _) in files {
        ensure!(
            file.exists(),
            "{} is missing: run `make binaries` first",
            file.display()
        );
    }
    let context = tempfile::tempdir_in(root().join("target"))?;
    image::stage(
        context.path(),
        files
            .iter()
            .map(|(file, target)| (file.as_path(), target.as_str())),
    )?;
    image::build(name, dockerfile, context.path())
}
