//! Installs packages for clusters and image builds, and checks that this machine can run a cluster.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use fs_err as fs;

use crate::command::{command, exists, run, run_logged};
use crate::progress::{say, step};
use crate::{cache, cgroup};

/// Folder of the CNI plugins in Debian's containernetworking-plugins.
pub const CNI_PLUGINS: &str = "/usr/lib/cni";

/// Programs and their Debian packages.
const PROGRAMS: [(&str, &str); 9] = [
    ("nsenter", "util-linux"),
    ("mount", "mount"),
    ("ip", "iproute2"),
    ("iptables", "iptables"),
    ("runc", "runc"),
    ("buildah", "buildah"),
    ("mmdebstrap", "mmdebstrap"),
    ("ps", "procps"),
    ("cc", "gcc"),
];

/// Other required files and their packages.
const FILES: [(&str, &str); 2] = [
    ("/usr/lib/cni/bridge", "containernetworking-plugins"),
    ("/usr/include/stdio.h", "libc6-dev"),
];

/// The alternative for users who cannot run a cluster.
const WITHOUT_CLUSTER: &str =
    "without a cluster, `vit-trainer run -f examples/digits.yaml` trains the same job as local processes";

/// Fails with the reason if this user cannot run a cluster on this machine.
pub fn check_machine() -> Result<()> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "a local cluster needs root (network namespaces, mounts, cgroups); {WITHOUT_CLUSTER}"
    );
    if exists("unshare") {
        run(&mut command(
            "unshare",
            ["--net", "--mount", "--propagation", "private", "true"],
        ))
        .with_context(|| {
            format!("root cannot create network or mount namespaces on this machine; {WITHOUT_CLUSTER}")
        })?;
    }
    cgroup::check().with_context(|| format!("root cannot create cgroups on this machine; {WITHOUT_CLUSTER}"))
}

/// The packages that are missing.
pub fn missing() -> Vec<&'static str> {
    let programs = PROGRAMS
        .iter()
        .filter(|(program, _)| !exists(program))
        .map(|(_, package)| *package);
    let files = FILES
        .iter()
        .filter(|(file, _)| !Path::new(file).exists())
        .map(|(_, package)| *package);
    programs.chain(files).collect()
}

/// Installs missing packages with apt.
pub fn install_missing() -> Result<()> {
    if missing().is_empty() {
        return Ok(());
    }
    let _lock = apt_lock()?;
    let missing = missing();
    if missing.is_empty() {
        return Ok(());
    }
    let names = missing.join(" ");
    ensure!(
        exists("apt-get") && rustix::process::geteuid().is_root(),
        "missing system packages (Debian names): {names}; install them, or run as root on Debian or Ubuntu"
    );
    let log = cache::directory()?.join("packages.log");
    step(
        format_args!("installing the packages {names} with apt-get"),
        || {
            run_logged(apt_get(["update"]).env("DEBIAN_FRONTEND", "noninteractive"), &log)?;
            let mut install = apt_get(["install", "--yes", "--no-install-recommends"]);
            run_logged(
                install.args(&missing).env("DEBIAN_FRONTEND", "noninteractive"),
                &log,
            )
        },
    )?;
    let still = self::missing();
    ensure!(
        still.is_empty(),
        "apt-get installed the packages, but files of these are still missing: {still:?}"
    );
    Ok(())
}

/// The Prometheus server: the installed one, or Debian's package unpacked into the cache.
///
/// Installing the package would add a service that starts with the machine.
pub fn prometheus() -> Result<PathBuf> {
    let installed = Path::new("/usr/bin/prometheus");
    if installed.exists() {
        return Ok(installed.to_owned());
    }
    let folder = cache::directory()?.join("prometheus");
    let program = folder.join("usr/bin/prometheus");
    if program.exists() {
        return Ok(program);
    }
    let _lock = apt_lock()?;
    if program.exists() {
        return Ok(program);
    }
    ensure!(
        exists("apt-get") && exists("dpkg-deb"),
        "Prometheus is missing: install it, so that /usr/bin/prometheus exists, or use Debian or Ubuntu"
    );
    let staging = tempfile::Builder::new()
        .prefix(".prometheus-")
        .tempdir_in(cache::directory()?)?;
    step("fetching Debian's prometheus package", || {
        let download = || run(apt_get(["download", "prometheus"]).current_dir(staging.path()));
        if download().is_err() {
            say("the package lists are missing or outdated: running apt-get update");
            run(&mut apt_get(["update"]))?;
            download()?;
        }
        let mut packages = fs::read_dir(staging.path())?;
        let Some(package) = packages.next() else {
            bail!("apt-get download produced no file")
        };
        let unpacked = staging.path().join("unpacked");
        run(command("dpkg-deb", ["--extract"])
            .arg(package?.path())
            .arg(&unpacked))?;
        fs::rename(unpacked, &folder)?;
        Ok(())
    })?;
    ensure!(
        program.exists(),
        "Debian's prometheus package has no /usr/bin/prometheus"
    );
    Ok(program)
}

/// One apt-get at a time: a second one would fail instead of waiting for the lock.
fn apt_lock() -> Result<fs::File> {
    cache::lock(&cache::directory()?.join("packages.lock"))
}

fn apt_get<const N: usize>(arguments: [&str; N]) -> std::process::Command {
    command("apt-get", std::iter::once("-qq").chain(arguments))
}
