//! Builds the cluster's programs and the operator's peers from pinned Go modules, with a cache.

use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use fs_err as fs;

use crate::cache::{self, Key};
use crate::command::{command, run, run_logged};
use crate::progress::step;

/// The oldest supported Go.
const GO: (u32, u32) = (1, 26);

/// A pinned Go module of `tests/binaries`, and its programs.
#[derive(Clone, Copy, Debug)]
struct Module {
    /// `go.mod`, `go.sum`, and our own sources: path and content.
    files: &'static [(&'static str, &'static str)],
    /// Program name and Go package.
    programs: &'static [(&'static str, &'static str)],
}

macro_rules! module {
    ($name:literal, [$($source:literal),*], [$($program:tt)*]) => {
        Module {
            files: &[
                $((
                    $source,
                    include_str!(concat!("../binaries/", $name, "/", $source)),
                ),)*
                ("go.mod", include_str!(concat!("../binaries/", $name, "/go.mod"))),
                ("go.sum", include_str!(concat!("../binaries/", $name, "/go.sum"))),
            ],
            programs: &[$($program)*],
        }
    };
}

/// A cluster's programs in one module, so that common dependencies compile once.
const CLUSTER: Module = module!(
    "cluster",
    ["coredns/main.go", "etcd/main.go"],
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

/// Enforces NetworkPolicies. A separate module: Cyclonus needs older dependencies.
const NETWORK_POLICY: Module = module!("network-policy", ["main.go"], [("network-policy", ".")]);

/// The API servers of older versions of Kubernetes.
const API_SERVERS: [(&str, Module); 2] = [
    (
        "1.30",
        module!(
            "kube-apiserver-1.30",
            [],
            [("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver")]
        ),
    ),
    (
        "1.33",
        module!(
            "kube-apiserver-1.33",
            [],
            [("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver")]
        ),
    ),
];

/// Simulates kubelets, for measurements.
const KWOK: Module = module!("kwok", [], [("kwok", "sigs.k8s.io/kwok/cmd/kwok")]);

/// A peer that the operator is compared with.
const TRAINING_OPERATOR: Module = module!(
    "training-operator",
    [],
    [(
        "training-operator",
        "github.com/kubeflow/training-operator/cmd/training-operator.v1"
    )]
);

/// Programs that read files of this tree: helm-docs writes the chart's README, actionlint checks GitHub's workflows, and
/// glua runs Lua as Argo CD does.
const LINTERS: Module = module!(
    "linters",
    [],
    [
        ("helm-docs", "github.com/norwoodj/helm-docs/cmd/helm-docs"),
        ("actionlint", "github.com/rhysd/actionlint/cmd/actionlint"),
        ("glua", "github.com/yuin/gopher-lua/cmd/glua")
    ]
);

/// Shares quota among jobs. A separate module: it needs older packages of Kubernetes.
const KUEUE: Module = module!("kueue", [], [("kueue", "sigs.k8s.io/kueue/cmd/kueue")]);

/// Only the Prometheus operator's CRDs are used.
const PROMETHEUS_OPERATOR: Module = module!("prometheus-operator", [], []);

/// The folders of built programs.
#[derive(Clone, Debug)]
pub struct Binaries {
    /// The first folder with a program wins.
    folders: Vec<PathBuf>,
}

impl Binaries {
    /// The cluster's programs, built if they are not cached: about six minutes on two cores.
    pub fn build() -> Result<Self> {
        CLUSTER.build()
    }

    /// The same with the program `network-policy`.
    pub fn with_network_policy(mut self) -> Result<Self> {
        self.folders.extend(NETWORK_POLICY.build()?.folders);
        Ok(self)
    }

    /// The same with the API server of a minor version such as `1.30`.
    pub fn with_api_server(mut self, version: &str) -> Result<Self> {
        let Some((_, module)) = API_SERVERS.iter().find(|(minor, _)| *minor == version) else {
            bail!(
                "Kubernetes {version:?}: must be one of {:?}",
                API_SERVERS.map(|(minor, _)| minor)
            )
        };
        self.folders.splice(0..0, module.build()?.folders);
        Ok(self)
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

    /// The programs `helm-docs`, `actionlint` and `glua`.
    pub fn build_linters() -> Result<Self> {
        LINTERS.build()
    }

    /// One program's path.
    pub fn path(&self, program: &str) -> PathBuf {
        let mut paths = self.folders.iter().map(|folder| folder.join(program));
        paths.find(|path| path.exists()).unwrap_or_else(|| program.into())
    }

    /// The folders of these programs, for a `PATH`.
    pub fn folders(&self) -> String {
        let folders: Vec<_> = self
            .folders
            .iter()
            .map(|folder| folder.to_string_lossy())
            .collect();
        folders.join(":")
    }

    /// A `PATH` with these programs first, and with the sbin folders.
    pub fn search_path(&self) -> String {
        format!(
            "{}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            self.folders()
        )
    }
}

impl Module {
    /// Omits debug information, and sets the version that Kubernetes' programs report.
    fn linker_flags(&self) -> Result<String> {
        let mut flags = "-s -w".to_owned();
        if let Some(version) = self.kubernetes() {
            let mut numbers = version.trim_start_matches('v').split('.');
            let (Some(major), Some(minor)) = (numbers.next(), numbers.next()) else {
                bail!("go.mod pins k8s.io/kubernetes {version}: must be like v1.37.2")
            };
            for package in ["k8s.io/component-base/version", "k8s.io/client-go/pkg/version"] {
                flags.push_str(&format!(
                    " -X {package}.gitVersion={version} -X {package}.gitMajor={major} \
                     -X {package}.gitMinor={minor} -X {package}.gitTreeState=clean"
                ));
            }
        }
        Ok(flags)
    }

    /// The version of Kubernetes that the module pins.
    fn kubernetes(&self) -> Option<&'static str> {
        let (_, go_mod) = self.files.iter().find(|(path, _)| *path == "go.mod")?;
        let mut lines = go_mod.lines();
        lines.find_map(|line| line.trim().strip_prefix("k8s.io/kubernetes ")?.split(' ').next())
    }

    fn key(&self, go: &str) -> Result<String> {
        let programs = format!("{:?}", self.programs);
        let key = Key::new()
            .part("go", go.as_bytes())
            .part("ldflags", self.linker_flags()?.as_bytes())
            .part("programs", programs.as_bytes());
        let files = self.files.iter();
        let key = files.fold(key, |key, (path, content)| key.part(path, content.as_bytes()));
        Ok(key.finish())
    }

    /// A temporary folder with the module's files.
    fn pins(&self) -> Result<tempfile::TempDir> {
        let folder = tempfile::tempdir()?;
        for (path, content) in self.files {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap_or(folder.path()))?;
            fs::write(path, content)?;
        }
        Ok(folder)
    }

    /// The folder of a pinned module's source, downloaded if necessary.
    fn source_of(&self, path: &str) -> Result<PathBuf> {
        let pins = self.pins()?;
        let mut download = command("go", ["mod", "download", "-json"]);
        download.arg(path).current_dir(pins.path()).env_remove("GOFLAGS");
        let answer: serde_json::Value = serde_json::from_str(&run(&mut download)?)?;
        let folder = answer["Dir"]
            .as_str()
            .with_context(|| format!("Go reports no folder of the source: {answer}"))?;
        Ok(folder.into())
    }

    /// This module's programs, built if they are not cached.
    fn build(&self) -> Result<Binaries> {
        let go = go_version()?;
        let root = cache::directory()?.join("bin");
        let folder = root.join(self.key(&go)?);
        let built = Binaries {
            folders: vec![folder.clone()],
        };
        if folder.exists() {
            return Ok(built);
        }
        let _lock = cache::lock(&root.join(".lock"))?;
        if folder.exists() {
            return Ok(built);
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
                // `-s -w` only strips debug information; not generating it saves 1/8 of the time.
                let flags = [
                    "-mod=readonly",
                    "-trimpath",
                    "-gcflags=all=-dwarf=false",
                    "-ldflags",
                ];
                let mut build = command("go", ["build"]);
                build
                    .args(flags)
                    .arg(self.linker_flags()?)
                    .current_dir(source.path());
                build
                    .env("CGO_ENABLED", "0")
                    .env_remove("GOFLAGS")
                    .env_remove("GOOS")
                    .env_remove("GOARCH");
                match self.programs {
                    [(program, package)] => build.arg("-o").arg(staging.path().join(program)).arg(package),
                    // One command overlaps linking and compiling; Go uses the folder's name.
                    many => build
                        .arg("-o")
                        .arg(staging.path())
                        .args(many.iter().map(|(_, package)| package)),
                };
                run_logged(&mut build, &log).with_context(|| format!("cannot build {}", names.join(", ")))?;
                for program in &names {
                    ensure!(
                        staging.path().join(program).is_file(),
                        "Go did not build the program {program}"
                    );
                }
                Ok(())
            },
        )?;
        fs::rename(staging.keep(), &folder)?;
        Ok(built)
    }
}

/// The source of the pinned training-operator, with its CRDs.
pub fn training_operator_source() -> Result<PathBuf> {
    TRAINING_OPERATOR.source_of("github.com/kubeflow/training-operator")
}

/// The source of the pinned Kueue, with its chart.
pub fn kueue_source() -> Result<PathBuf> {
    KUEUE.source_of("sigs.k8s.io/kueue")
}

/// The source of the pinned Prometheus operator, with its CRDs.
pub fn prometheus_operator_source() -> Result<PathBuf> {
    PROMETHEUS_OPERATOR.source_of("github.com/prometheus-operator/prometheus-operator")
}

/// The output of `go version`; an error if Go is missing or too old.
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
    use super::{API_SERVERS, CLUSTER, KUEUE, KWOK, LINTERS, TRAINING_OPERATOR, parse_go_version};

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
    fn kubernetes_reports_the_pinned_version() {
        for (minor, module) in API_SERVERS.iter().chain([&("1.37", CLUSTER)]) {
            let pinned = module.kubernetes().unwrap();
            assert!(pinned.starts_with(&format!("v{minor}.")), "{minor}: {pinned}");
            let flag = format!(" -X k8s.io/component-base/version.gitVersion={pinned} ");
            assert!(module.linker_flags().unwrap().contains(&flag), "{flag}");
        }
        assert_eq!(KWOK.linker_flags().unwrap(), "-s -w");
    }

    #[test]
    fn every_program_belongs_to_a_pinned_tool() {
        let modules = [CLUSTER, KWOK, TRAINING_OPERATOR, KUEUE, LINTERS];
        for module in modules.iter().chain(API_SERVERS.iter().map(|(_, module)| module)) {
            let mut files = module.files.iter();
            let (_, go_mod) = files.find(|(path, _)| *path == "go.mod").unwrap();
            let packages = module.programs.iter().map(|(_, package)| package);
            for package in packages.filter(|package| !package.starts_with('.')) {
                assert!(go_mod.contains(package), "{package} is not a tool of its module");
            }
        }
    }

    #[test]
    fn the_key_follows_the_compiler_and_the_pins() {
        let key = |module: super::Module, go| module.key(go).unwrap();
        assert_eq!(key(CLUSTER, "go1"), key(CLUSTER, "go1"));
        assert_ne!(key(CLUSTER, "go1"), key(CLUSTER, "go2"));
        assert_ne!(key(CLUSTER, "go1"), key(KWOK, "go1"));
    }
}
