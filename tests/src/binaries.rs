//! The cluster's programs, and those that are measured beside the operator, built from pinned Go modules and cached by
//! what they are built from.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use fs_err as fs;

use crate::cache::{self, Key};
use crate::command::{command, run, run_logged};
use crate::progress::step;

/// The oldest Go that the pinned modules accept.
const GO: (u32, u32) = (1, 26);

/// A pinned Go module of `tests/binaries`, and the programs that are built with it.
#[derive(Clone, Copy, Debug)]
struct Module {
    /// `go.mod`, `go.sum`, and the sources of programs of our own: path and content.
    files: &'static [(&'static str, &'static str)],
    /// Program name and Go package.
    programs: &'static [(&'static str, &'static str)],
    /// Linker flags beside `-s -w`.
    linker_flags: &'static str,
}

macro_rules! module {
    ($name:literal, [$($source:literal),*], $linker_flags:expr, [$($program:tt)*]) => {
        Module {
            files: &[
                $((
                    $source,
                    include_str!(concat!("../binaries/", $name, "/", $source)),
                ),)*
                ("go.mod", include_str!(concat!("../binaries/", $name, "/go.mod"))),
                ("go.sum", include_str!(concat!("../binaries/", $name, "/go.sum"))),
            ],
            linker_flags: $linker_flags,
            programs: &[$($program)*],
        }
    };
}

/// The Kubernetes version that its programs report; the one in `binaries/cluster/go.mod`.
const KUBERNETES_LINKER_FLAGS: &str = concat!(
    "-X k8s.io/component-base/version.gitVersion=v1.36.3 -X k8s.io/component-base/version.gitMajor=1 ",
    "-X k8s.io/component-base/version.gitMinor=36 -X k8s.io/component-base/version.gitTreeState=clean ",
    "-X k8s.io/client-go/pkg/version.gitVersion=v1.36.3 -X k8s.io/client-go/pkg/version.gitMajor=1 ",
    "-X k8s.io/client-go/pkg/version.gitMinor=36 -X k8s.io/client-go/pkg/version.gitTreeState=clean",
);

/// All that a cluster runs, in one module: what its programs have in common, Kubernetes' client above all, is then of one
/// version and compiled once.
const CLUSTER: Module = module!(
    "cluster",
    ["coredns/main.go", "etcd/main.go"],
    KUBERNETES_LINKER_FLAGS,
    [
        ("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
        (
            "kube-controller-manager",
            "k8s.io/kubernetes/cmd/kube-controller-manager"
        ),
        ("kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"),
        ("kubelet", "k8s.io/kubernetes/cmd/kubelet"),
        ("kube-proxy", "k8s.io/kubernetes/cmd/kube-proxy"),
        ("kubectl", "k8s.io/kubernetes/cmd/kubectl"),
        ("containerd", "github.com/containerd/containerd/v2/cmd/containerd"),
        (
            "containerd-shim-runc-v2",
            "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2"
        ),
        ("ctr", "github.com/containerd/containerd/v2/cmd/ctr"),
        ("etcd", "./etcd"),
        ("helm", "helm.sh/helm/v3/cmd/helm"),
        ("coredns", "./coredns"),
    ]
);

/// Kubelets that are played, for measurements.
const KWOK: Module = module!("kwok", [], "", [("kwok", "sigs.k8s.io/kwok/cmd/kwok")]);

/// A peer that the operator is measured beside.
const TRAINING_OPERATOR: Module = module!(
    "training-operator",
    [],
    "",
    [(
        "training-operator",
        "github.com/kubeflow/training-operator/cmd/training-operator.v1"
    )]
);

/// What writes the chart's README from its values.
const HELM_DOCS: Module = module!(
    "helm-docs",
    [],
    "",
    [("helm-docs", "github.com/norwoodj/helm-docs/cmd/helm-docs")]
);

/// What shares quota among jobs, where they ask for it. Compiled with what Kubernetes has left in Go's cache, it takes seconds.
const KUEUE: Module = Module {
    programs: &[("kueue", "sigs.k8s.io/kueue/cmd/kueue")],
    ..CLUSTER
};

/// Of the Prometheus operator only the definitions of its resources are needed.
const PROMETHEUS_OPERATOR: Module = module!("prometheus-operator", [], "", []);

/// The folder of a module's built programs.
#[derive(Clone, Debug)]
pub struct Binaries {
    folder: PathBuf,
}

impl Binaries {
    /// The cluster's programs. Builds what is not in the cache: cold this takes about six minutes on two cores; else
    /// nothing.
    pub fn build() -> Result<Self> {
        CLUSTER.build()
    }

    /// The program `kwok`.
    pub fn build_kwok() -> Result<Self> {
        KWOK.build()
    }

    /// The program `training-operator`.
    pub fn build_training_operator() -> Result<Self> {
        TRAINING_OPERATOR.build()
    }

    /// The program `kueue`.
    pub fn build_kueue() -> Result<Self> {
        KUEUE.build()
    }

    /// The program `helm-docs`.
    pub fn build_helm_docs() -> Result<Self> {
        HELM_DOCS.build()
    }

    /// The folder with all programs.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// One program's path.
    pub fn path(&self, program: &str) -> PathBuf {
        self.folder.join(program)
    }

    /// A `PATH` with these programs first and the system's folders for administrators in it.
    pub fn search_path(&self) -> String {
        format!(
            "{}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            self.folder.display()
        )
    }
}

impl Module {
    fn linker_flags(&self) -> String {
        format!("-s -w {}", self.linker_flags).trim_end().to_owned()
    }

    fn key(&self, go: &str) -> String {
        let programs = format!("{:?}", self.programs);
        let key = Key::new()
            .part("go", go.as_bytes())
            .part("ldflags", self.linker_flags().as_bytes())
            .part("programs", programs.as_bytes());
        let files = self.files.iter();
        files
            .fold(key, |key, (path, content)| key.part(path, content.as_bytes()))
            .finish()
    }

    /// A folder in which Go finds what is pinned.
    fn pins(&self) -> Result<tempfile::TempDir> {
        let folder = tempfile::tempdir()?;
        for (path, content) in self.files {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap_or(folder.path()))?;
            fs::write(path, content)?;
        }
        Ok(folder)
    }

    /// The folder of a pinned module's source, downloaded if it is not there.
    fn source_of(&self, path: &str) -> Result<PathBuf> {
        let pins = self.pins()?;
        let mut download = command("go", ["mod", "download", "-json"]);
        download.arg(path).current_dir(pins.path()).env_remove("GOFLAGS");
        let answer: serde_json::Value = serde_json::from_str(&run(&mut download)?)?;
        let folder = answer["Dir"]
            .as_str()
            .with_context(|| format!("Go tells no folder of the source: {answer}"))?;
        Ok(folder.into())
    }

    /// This module's programs, built if they are not in the cache.
    fn build(&self) -> Result<Binaries> {
        let go = go_version()?;
        let root = cache::directory()?.join("bin");
        let folder = root.join(self.key(&go));
        if folder.exists() {
            return Ok(Binaries { folder });
        }
        let _lock = cache::lock(&root.join(".lock"))?;
        if folder.exists() {
            return Ok(Binaries { folder });
        }
        let source = self.pins()?;
        let staging = tempfile::Builder::new().prefix(".build-").tempdir_in(&root)?;
        let names: Vec<_> = self.programs.iter().map(|(program, _)| *program).collect();
        let log = root.join(format!("{}.log", names[0]));
        fs::write(&log, "")?;
        step(
            format_args!(
                "building {} from Go modules, log {}",
                names.join(", "),
                log.display()
            ),
            || {
                // `-s -w` leaves debug information out of the programs; that it is not made at all saves an eighth.
                let flags = [
                    "-mod=readonly",
                    "-trimpath",
                    "-gcflags=all=-dwarf=false",
                    "-ldflags",
                ];
                let mut build = command("go", ["build"]);
                build
                    .args(flags)
                    .arg(self.linker_flags())
                    .current_dir(source.path());
                build
                    .env("CGO_ENABLED", "0")
                    .env_remove("GOFLAGS")
                    .env_remove("GOOS")
                    .env_remove("GOARCH");
                match self.programs {
                    [(program, package)] => build.arg("-o").arg(staging.path().join(program)).arg(package),
                    // All at once, so that linking one overlaps compiling the next; Go names each after its folder.
                    many => build
                        .arg("-o")
                        .arg(staging.path())
                        .args(many.iter().map(|(_, package)| package)),
                };
                run_logged(&mut build, &log).with_context(|| format!("cannot build {}", names.join(", ")))?;
                for program in &names {
                    ensure!(
                        staging.path().join(program).is_file(),
                        "Go built no program called {program}"
                    );
                }
                Ok(())
            },
        )?;
        fs::rename(staging.keep(), &folder)?;
        Ok(Binaries { folder })
    }

    #[cfg(test)]
    fn go_mod(&self) -> &'static str {
        let mut files = self.files.iter();
        files
            .find(|(path, _)| *path == "go.mod")
            .expect("every module has one")
            .1
    }
}

/// The source of the pinned training-operator, which holds the definitions of its resources.
pub fn training_operator_source() -> Result<PathBuf> {
    TRAINING_OPERATOR.source_of("github.com/kubeflow/training-operator")
}

/// The source of the pinned Kueue, which holds its chart.
pub fn kueue_source() -> Result<PathBuf> {
    KUEUE.source_of("sigs.k8s.io/kueue")
}

/// The source of the pinned Prometheus operator, which holds the definitions of its resources.
pub fn prometheus_operator_source() -> Result<PathBuf> {
    PROMETHEUS_OPERATOR.source_of("github.com/prometheus-operator/prometheus-operator")
}

/// The output of `go version`, refused if there is no Go or it is too old.
fn go_version() -> Result<String> {
    let (major, minor) = GO;
    let Ok(text) = run(&mut command("go", ["version"])) else {
        bail!("Go is missing: building the cluster's programs needs Go {major}.{minor} or newer on the PATH");
    };
    let found = parse_go_version(&text).with_context(|| format!("cannot read Go's version from {text:?}"))?;
    ensure!(
        found >= GO,
        "Go {}.{} is too old: building the cluster's programs needs Go {major}.{minor} or newer",
        found.0,
        found.1
    );
    Ok(text.trim().to_owned())
}

/// `go version go1.26.8 linux/amd64` -> (1, 26)
fn parse_go_version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text
        .split_whitespace()
        .nth(2)?
        .strip_prefix("go")?
        .split(['.', 'r', 'b', '-']);
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::{
        CLUSTER, HELM_DOCS, KUBERNETES_LINKER_FLAGS, KUEUE, KWOK, TRAINING_OPERATOR, parse_go_version,
    };

    #[test]
    fn a_go_version_is_read() {
        assert_eq!(parse_go_version("go version go1.26.8 linux/amd64"), Some((1, 26)));
        assert_eq!(
            parse_go_version("go version go1.27rc1 linux/amd64"),
            Some((1, 27))
        );
        assert_eq!(parse_go_version("nonsense"), None);
    }

    #[test]
    fn the_reported_kubernetes_version_is_the_pinned_one() {
        let pinned = CLUSTER
            .go_mod()
            .lines()
            .find_map(|line| line.trim().strip_prefix("k8s.io/kubernetes "))
            .unwrap();
        let pinned = pinned.split_whitespace().next().unwrap();
        assert_eq!(
            KUBERNETES_LINKER_FLAGS
                .matches(&format!("gitVersion={pinned}"))
                .count(),
            2,
            "{pinned}"
        );
    }

    #[test]
    fn every_program_belongs_to_a_pinned_tool() {
        for module in [CLUSTER, KWOK, TRAINING_OPERATOR, KUEUE, HELM_DOCS] {
            let packages = module.programs.iter().map(|(_, package)| package);
            for package in packages.filter(|package| !package.starts_with("./")) {
                assert!(
                    module.go_mod().contains(package),
                    "{package} is no tool of its module"
                );
            }
        }
    }

    #[test]
    fn the_key_follows_the_compiler_and_the_pins() {
        let key = CLUSTER.key("go1");
        assert_eq!(key, CLUSTER.key("go1"));
        assert_ne!(key, CLUSTER.key("go2"));
        assert_ne!(key, KWOK.key("go1"));
    }
}
