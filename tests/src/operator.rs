//! The operator on a cluster: images from the shipped Dockerfiles, installed by the real Helm from the shipped chart.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use fs_err as fs;
use serde_json::{Value, json};

use crate::rights::Account;
use crate::{Cluster, ClusterConfig, ClusterName, chart, cluster, image, packages, process, root};

/// Namespace, release and Deployment of the operator.
pub const OPERATOR: &str = "vit-operator";
/// Another namespace that a release may be in.
pub const ELSEWHERE: &str = "elsewhere";

/// Whose requests are logged: the operator's, those of its chart's test, and the operator's where it is elsewhere.
pub fn accounts() -> [Account<'static>; 3] {
    let account = |namespace, name| Account { namespace, name };
    [
        account(OPERATOR, OPERATOR),
        account(OPERATOR, "vit-operator-test"),
        account(ELSEWHERE, OPERATOR),
    ]
}

/// A new cluster with the operator installed from the chart: three nodes of one GPU product and one of another, with so
/// many GPUs each, and Prometheus. One of that name that is there goes first. Operator and trainer must have been
/// built. Nodes hold their images, and those of `more` archives.
pub async fn cluster_with_operator(
    name: &ClusterName,
    gpus_per_node: u32,
    more: &[PathBuf],
) -> Result<Cluster> {
    packages::check_machine()?;
    packages::install_missing()?;
    let images = images()?;
    cluster::down(name)?;
    let config = ClusterConfig::demo(name.clone(), gpus_per_node)
        .images(images.into_iter().chain(more.iter().cloned()))
        .audited(accounts().map(|account| account.user()));
    let cluster = Cluster::up(config).await?;
    install(&cluster, &[])?;
    Ok(cluster)
}

/// Installs the operator from the chart, or upgrades it, and waits until it is ready. `values` are further ones.
pub fn install(cluster: &Cluster, values: &[String]) -> Result<String> {
    install_from(cluster, &chart::folder(), OPERATOR, values)
}

/// The same from another chart, to another namespace. The definition of the resource, which a release leaves behind, becomes
/// part of this one.
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

/// Starts a built operator beside a cluster, as a process with the rights that the [installed](install) chart gives, and no
/// others.
pub fn start(cluster: &Cluster, program: &Path, arguments: &[String]) -> Result<()> {
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

/// Builds the images of operator and trainer from the shipped Dockerfiles and the built binaries: those of `make binaries`, which
/// check their arithmetic, or with `VIT_PROFILE=release` those of `make release`. libtorch, in which training spends its time,
/// is optimised as it comes.
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

/// Builds an image from these files, each of which has a path in the build context; the path of its OCI archive.
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
