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

/// A pinned Go module of `tests/binaries` and the packages that are built with it.
#[derive(Clone, Copy, Debug)]
struct Module {
    /// The folder's name.
    name: &'static str,
    go_mod: &'static str,
    go_sum: &'static str,
    /// Program name and Go package.
    programs: &'static [(&'static str, &'static str)],
    /// Linker flags beside `-s -w`.
    linker_flags: &'static str,
}

macro_rules! module {
    ($name:literal, $linker_flags:expr, [$($program:tt)*]) => {
        Module {
            name: $name,
            go_mod: include_str!(concat!("../binaries/", $name, "/go.mod")),
            go_sum: include_str!(concat!("../binaries/", $name, "/go.sum")),
            linker_flags: $linker_flags,
            programs: &[$($program)*],
        }
    };
}

/// The Kubernetes version that its programs report; the one in `binaries/kubernetes/go.mod`.
const KUBERNETES_LINKER_FLAGS: &str = concat!(
    "-X k8s.io/component-base/version.gitVersion=v1.36.3 -X k8s.io/component-base/version.gitMajor=1 ",
    "-X k8s.io/component-base/version.gitMinor=36 -X k8s.io/component-base/version.gitTreeState=clean ",
    "-X k8s.io/client-go/pkg/version.gitVersion=v1.36.3 -X k8s.io/client-go/pkg/version.gitMajor=1 ",
    "-X k8s.io/client-go/pkg/version.gitMinor=36 -X k8s.io/client-go/pkg/version.gitTreeState=clean",
);

const MODULES: [Module; 5] = [
    module!(
        "kubernetes",
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
        ]
    ),
    module!(
        "containerd",
        "",
        [
            ("containerd", "github.com/containerd/containerd/v2/cmd/containerd"),
            (
                "containerd-shim-runc-v2",
                "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2"
            ),
            ("ctr", "github.com/containerd/containerd/v2/cmd/ctr"),
        ]
    ),
    module!("etcd", "", [("etcd", "go.etcd.io/etcd/server/v3")]),
    module!("coredns", "", [("coredns", "github.com/coredns/coredns")]),
    module!("helm", "", [("helm", "helm.sh/helm/v3/cmd/helm")]),
];

/// What only measurements need: kubelets that are played, and a peer of the operator. No cluster waits for them.
const MEASURING_MODULES: [Module; 2] = [
    module!("kwok", "", [("kwok", "sigs.k8s.io/kwok/cmd/kwok")]),
    module!(
        "training-operator",
        "",
        [(
            "training-operator",
            "github.com/kubeflow/training-operator/cmd/training-operator.v1"
        )]
    ),
];

/// What writes the chart's README from its values.
const DOCUMENTING_MODULES: [Module; 1] = [module!(
    "helm-docs",
    "",
    [("helm-docs", "github.com/norwoodj/helm-docs/cmd/helm-docs")]
)];

/// Of the Prometheus operator only the definitions of its resources are needed.
const PROMETHEUS_OPERATOR: Module = module!("prometheus-operator", "", []);

/// What shares quota among jobs, where they ask for it.
const QUEUEING_MODULES: [Module; 1] = [module!("kueue", "", [("kueue", "sigs.k8s.io/kueue/cmd/kueue")])];

/// The folder of the built programs.
#[derive(Clone, Debug)]
pub struct Binaries {
    folder: PathBuf,
}

impl Binaries {
    /// The cluster's programs. Builds what is not in the cache: cold this takes about nine minutes on two cores; else
    /// nothing.
    pub fn build() -> Result<Self> {
        Self::build_set(&MODULES)
    }

    /// The programs `kwok` and `training-operator`, which no cluster needs of itself.
    pub fn build_for_measuring() -> Result<Self> {
        Self::build_set(&MEASURING_MODULES)
    }

    /// The program `kueue`, which no cluster needs of itself.
    pub fn build_for_queueing() -> Result<Self> {
        Self::build_set(&QUEUEING_MODULES)
    }

    /// The program `helm-docs`, which no cluster needs.
    pub fn build_for_documenting() -> Result<Self> {
        Self::build_set(&DOCUMENTING_MODULES)
    }

    fn build_set(modules: &[Module]) -> Result<Self> {
        let go = go_version()?;
        let root = cache::directory()?.join("bin");
        let all = modules
            .iter()
            .fold(Key::new().part("go", go.as_bytes()), |key, module| {
                key.part(module.name, module.key(&go).as_bytes())
            });
        // One folder of links for the whole set, so that one PATH entry serves it.
        let folder = root.join(format!("set-{}", all.finish()));
        if folder.exists() {
            return Ok(Self { folder });
        }
        let _lock = cache::lock(&root.join(".lock"))?;
        let staging = tempfile::Builder::new().prefix(".set-").tempdir_in(&root)?;
        for module in modules {
            let built = module.build(&root, &go)?;
            for (program, _) in module.programs {
                fs::hard_link(built.join(program), staging.path().join(program))?;
            }
        }
        if !folder.exists() {
            fs::rename(staging.keep(), &folder)?;
        }
        Ok(Self { folder })
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
        Key::new()
            .part("go.mod", self.go_mod.as_bytes())
            .part("go.sum", self.go_sum.as_bytes())
            .part("go", go.as_bytes())
            .part("ldflags", self.linker_flags().as_bytes())
            .part("programs", programs.as_bytes())
            .finish()
    }

    /// A folder in which Go finds what is pinned.
    fn pins(&self) -> Result<tempfile::TempDir> {
        let folder = tempfile::tempdir()?;
        fs::write(folder.path().join("go.mod"), self.go_mod)?;
        fs::write(folder.path().join("go.sum"), self.go_sum)?;
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

    /// The folder with this module's programs, built if it is not there.
    fn build(&self, root: &Path, go: &str) -> Result<PathBuf> {
        let folder = root.join(self.key(go));
        if folder.exists() {
            return Ok(folder);
        }
        let source = self.pins()?;
        let staging = tempfile::Builder::new().prefix(".build-").tempdir_in(root)?;
        let log = root.join(format!("{}.log", self.name));
        fs::write(&log, "")?;
        let names: Vec<_> = self.programs.iter().map(|(program, _)| *program).collect();
        step(
            format_args!(
                "building {} from Go modules, log {}",
                names.join(", "),
                log.display()
            ),
            || {
                let mut build = command("go", ["build", "-mod=readonly", "-trimpath", "-ldflags"]);
                build
                    .arg(self.linker_flags())
                    .arg("-o")
                    .current_dir(source.path());
                build
                    .env("CGO_ENABLED", "0")
                    .env_remove("GOFLAGS")
                    .env_remove("GOOS")
                    .env_remove("GOARCH");
                match self.programs {
                    [(program, package)] => build.arg(staging.path().join(program)).arg(package),
                    // All at once, so that linking one overlaps compiling the next; Go names each after its folder.
                    many => build
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
        Ok(folder)
    }
}

/// The source of the pinned training-operator, which holds the definitions of its resources.
pub fn training_operator_source() -> Result<PathBuf> {
    let [_, module] = &MEASURING_MODULES;
    module.source_of("github.com/kubeflow/training-operator")
}

/// The source of the pinned Kueue, which holds its chart.
pub fn kueue_source() -> Result<PathBuf> {
    let [module] = &QUEUEING_MODULES;
    module.source_of("sigs.k8s.io/kueue")
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
        DOCUMENTING_MODULES, KUBERNETES_LINKER_FLAGS, MEASURING_MODULES, MODULES, QUEUEING_MODULES,
        parse_go_version,
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
        let kubernetes = MODULES.iter().find(|module| module.name == "kubernetes").unwrap();
        let pinned = kubernetes
            .go_mod
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
        for module in MODULES
            .iter()
            .chain(&MEASURING_MODULES)
            .chain(&QUEUEING_MODULES)
            .chain(&DOCUMENTING_MODULES)
        {
            for (_, package) in module.programs {
                assert!(
                    module.go_mod.contains(package),
                    "{package} is no tool of {}",
                    module.name
                );
            }
        }
    }

    #[test]
    fn the_key_follows_the_compiler_and_the_pins() {
        let key = MODULES[0].key("go1");
        assert_eq!(key, MODULES[0].key("go1"));
        assert_ne!(key, MODULES[0].key("go2"));
        assert_ne!(key, MODULES[1].key("go1"));
    }
}
