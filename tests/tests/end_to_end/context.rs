//! Shared setup: a cluster with the operator, and a new namespace with data for each test.

use std::future::Future;
use std::ops::Deref;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use crds::{Phase, ViTTrainingJob, ViTTrainingJobStatus};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{EvictParams, ListParams, PostParams};
use kube::{Api, Client, ResourceExt};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::runtime::Runtime;
use vit_tests::{Cluster, ClusterConfig, GpuProduct, cgroup, cluster, command, digits, operator, volumes};

use crate::steps::until;

/// Time limit of a single wait. The speed of equal machines varies by a factor of two.
pub(crate) const DEADLINE: Duration = Duration::from_secs(300);
/// Part of a rank's command line.
pub(crate) const RANK: &str = "vit-trainer\0rank";
/// GPUs of every node.
const GPUS_PER_NODE: u32 = 2;

/// State shared by all tests.
pub(crate) struct Suite {
    pub(crate) cluster: Cluster,
    pub(crate) client: Client,
    runtime: Runtime,
    folder: tempfile::TempDir,
    digits: PathBuf,
    /// Whether all tests run, the longest too.
    pub(crate) is_whole: bool,
    /// Time ranges in which rights were changing.
    unsettled: Mutex<Vec<(Timestamp, Timestamp)>>,
}

/// One test's view of the suite, with the namespaces that it created.
pub(crate) struct Context<'s> {
    suite: &'s Suite,
    namespaces: Mutex<Vec<String>>,
}

/// A namespace of one test, with the claims `digits` and `checkpoints`.
pub(crate) struct Namespace<'c> {
    pub(crate) context: &'c Context<'c>,
    pub(crate) name: String,
    pub(crate) folder: PathBuf,
}

impl Deref for Context<'_> {
    type Target = Suite;

    fn deref(&self) -> &Suite {
        self.suite
    }
}

impl Suite {
    /// Starts the cluster: three nodes of one GPU product and one of another, two GPUs each.
    /// Installs the operator and preloads the images of these archives.
    pub(crate) fn set_up(is_whole: bool, images: &[PathBuf]) -> Result<Self> {
        let runtime = Runtime::new()?;
        let config = ClusterConfig::demo("e2e".parse()?, GPUS_PER_NODE)
            .images(images.iter().cloned())
            .with_network_policies();
        let cluster = runtime.block_on(operator::cluster_with_operator(config))?;
        let client = cluster.client();
        let folder = tempfile::Builder::new().prefix("vit-e2e-").tempdir()?;
        // The trainer's user must be able to read it.
        fs_err::set_permissions(folder.path(), PermissionsExt::from_mode(0o755))?;
        let digits = folder.path().join("digits");
        digits::write(&digits)?;
        Ok(Self {
            cluster,
            client,
            runtime,
            folder,
            digits,
            is_whole,
            unsettled: Mutex::default(),
        })
    }

    /// Removes the cluster, and asserts that nothing is left.
    pub(crate) fn tear_down(&self) -> Result<()> {
        if std::env::var_os("VIT_KEEP_CLUSTER").is_some() {
            return Ok(());
        }
        cluster::down(self.cluster.name())?;
        // The test program ends with exit(), which drops nothing.
        fs_err::remove_dir_all(self.folder.path())?;
        let left = cluster::leftovers(self.cluster.name())?;
        ensure!(left.is_empty(), "the cluster left behind: {}", left.join(", "));
        Ok(())
    }

    /// Runs `kubectl` and returns its standard output.
    pub(crate) fn kubectl<const N: usize>(&self, arguments: [&str; N]) -> Result<String> {
        command::run(self.cluster.kubectl().args(arguments))
    }

    /// Relabels a node as one with this GPU product.
    pub(crate) fn set_gpu_product(&self, node: &str, gpu: &GpuProduct) -> Result<()> {
        let labels = gpu.labels(GPUS_PER_NODE);
        let labels = labels
            .iter()
            .map(|(key, value)| (key.as_str(), Some(value.as_str())));
        self.block_on(self.cluster.set_labels(node, labels))
    }

    /// Records that rights were unsettled until now: a release of the operator was removed, whose
    /// replicas end after their rights, or the API server restarted, which answers before it knows
    /// all roles.
    pub(crate) fn rights_were_unsettled(&self, since: Timestamp) {
        let mut unsettled = self.unsettled.lock().expect("no test panics while holding it");
        unsettled.push((since, Timestamp::now()));
    }

    /// Whether rights were unsettled at that time.
    pub(crate) fn are_rights_unsettled_at(&self, time: Timestamp) -> bool {
        let unsettled = self.unsettled.lock().expect("no test panics while holding it");
        unsettled
            .iter()
            .any(|(since, until)| (*since..=*until).contains(&time))
    }

    pub(crate) fn dump(&self) -> String {
        self.cluster.dump()
    }

    pub(crate) fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    /// A folder for a test's own data.
    pub(crate) fn data_folder(&self, name: &str) -> Result<PathBuf> {
        let folder = self.folder.path().join("data").join(name);
        fs_err::create_dir_all(&folder)?;
        Ok(folder)
    }

    pub(crate) fn digits(&self) -> &Path {
        &self.digits
    }
}

impl<'s> Context<'s> {
    pub(crate) fn new(suite: &'s Suite) -> Self {
        Self {
            suite,
            namespaces: Mutex::default(),
        }
    }

    /// A new namespace whose claim `digits` has the digits.
    pub(crate) fn namespace(&self, name: &str) -> Result<Namespace<'_>> {
        self.namespace_with_data(name, &self.digits)
    }

    /// A new namespace whose claim `digits` is the folder `data`.
    pub(crate) fn namespace_with_data(&self, name: &str, data: &Path) -> Result<Namespace<'_>> {
        let folder = self.folder.path().join(name);
        fs_err::create_dir_all(&folder)?;
        self.namespace_with(name, data, folder)
    }

    /// A new namespace that shares the digits and the checkpoints of another.
    pub(crate) fn namespace_beside(&self, name: &str, other: &Namespace<'_>) -> Result<Namespace<'_>> {
        self.namespace_with(name, &self.digits, other.folder.clone())
    }

    fn namespace_with(&self, name: &str, data: &Path, folder: PathBuf) -> Result<Namespace<'_>> {
        self.namespaces
            .lock()
            .expect("no test panics while holding it")
            .push(name.to_owned());
        self.block_on(async {
            volumes::restricted_namespace(&self.client, name).await?;
            volumes::claim_folder(&self.client, name, "digits", data).await?;
            volumes::claim_folder(&self.client, name, "checkpoints", &folder.join("checkpoints")).await
        })?;
        Ok(Namespace {
            context: self,
            name: name.to_owned(),
            folder,
        })
    }

    /// Deletes the objects of a passed or failed test, and waits until its GPUs are free.
    pub(crate) fn clean_up(&self) -> Result<()> {
        for name in self
            .namespaces
            .lock()
            .expect("no test panics while holding it")
            .drain(..)
        {
            self.kubectl(["-n", &name, "delete", "vits", "--all", "--timeout=150s"])?;
            self.kubectl(["-n", &name, "delete", "vtj", "--all", "--timeout=60s"])?;
            self.kubectl(["-n", &name, "delete", "pod", "--all", "--timeout=150s"])?;
            self.kubectl(["delete", "namespace", &name, "--wait=false", "--ignore-not-found"])?;
        }
        Ok(())
    }
}

impl Namespace<'_> {
    /// Creates the job of `examples/digits.yaml` under another name, with a smaller model and a
    /// merge patch of its spec.
    pub(crate) fn create(&self, name: &str, spec: Value) -> Result<()> {
        let mut job: Value = serde_saphyr::from_str(include_str!("../../../examples/digits.yaml"))?;
        job["metadata"]["name"] = name.into();
        let quicker = serde_json::json!({"model": {"hiddenSize": 64, "depth": 2}, "training": {"schedule": {"warmupEpochs": 1}}});
        json_patch::merge(&mut job["spec"], &quicker);
        json_patch::merge(&mut job["spec"], &spec);
        let job: ViTTrainingJob = serde_json::from_value(job)?;
        self.context
            .block_on(async { self.jobs().create(&PostParams::default(), &job).await })?;
        Ok(())
    }

    /// Runs `kubectl` in this namespace and returns its standard output.
    pub(crate) fn kubectl<const N: usize>(&self, arguments: [&str; N]) -> Result<String> {
        let mut kubectl = self.context.cluster.kubectl();
        command::run(kubectl.args(["-n", &self.name]).args(arguments))
    }

    pub(crate) fn jobs(&self) -> Api<ViTTrainingJob> {
        Api::namespaced(self.context.client.clone(), &self.name)
    }

    pub(crate) fn patch(&self, job: &str, spec: Value) -> Result<()> {
        let patch = serde_json::json!({"spec": spec}).to_string();
        self.kubectl(["patch", "vtj", job, "--type=merge", "-p", &patch])?;
        Ok(())
    }

    /// The job's current status.
    pub(crate) fn status(&self, job: &str) -> Result<ViTTrainingJobStatus> {
        let jobs = self.jobs();
        let job = self.context.block_on(async { jobs.get_status(job).await })?;
        Ok(job.status.unwrap_or_default())
    }

    /// Waits until the job's status is as wanted, and returns it. Fails at the deadline, or when
    /// the job has finished in another state.
    pub(crate) fn wait(
        &self,
        job: &str,
        what: &str,
        mut wanted: impl FnMut(&ViTTrainingJobStatus) -> bool,
    ) -> Result<ViTTrainingJobStatus> {
        let (jobs, began) = (self.jobs(), Instant::now());
        let mut poll = self
            .context
            .block_on(async { tokio::time::interval(Duration::from_millis(250)) });
        let mut last = ViTTrainingJobStatus::default();
        loop {
            let read = self.context.block_on(async {
                poll.tick().await;
                jobs.get_opt(job).await
            })?;
            if let Some(status) = read.and_then(|job| job.status) {
                if wanted(&status) {
                    return Ok(status);
                }
                last = status;
            }
            let over = last.phase.is_some_and(Phase::is_terminal);
            ensure!(
                !over && began.elapsed() < DEADLINE,
                "waiting until {job} {what}: {}; its status is {last:#?}",
                if over {
                    "it has finished".to_owned()
                } else {
                    format!("not after {} s", DEADLINE.as_secs())
                }
            );
        }
    }

    pub(crate) fn wait_phase(&self, job: &str, phase: Phase) -> Result<ViTTrainingJobStatus> {
        self.wait(job, &format!("is {}", phase.as_str()), |status| {
            status.phase == Some(phase)
        })
    }

    /// Waits until the job has saved a checkpoint while running.
    pub(crate) fn wait_checkpoint(&self, job: &str) -> Result<ViTTrainingJobStatus> {
        self.wait_checkpoint_after(job, 0)
    }

    /// Waits until the job has saved a checkpoint of a later step than this one while running.
    pub(crate) fn wait_checkpoint_after(&self, job: &str, step: i64) -> Result<ViTTrainingJobStatus> {
        self.wait(job, &format!("has a checkpoint after step {step}"), |status| {
            let saved = status.last_checkpoint.as_ref();
            status.phase == Some(Phase::Running) && saved.is_some_and(|last| last.step > step)
        })
    }

    pub(crate) fn pods(&self) -> Result<Vec<Pod>> {
        let pods = Api::<Pod>::namespaced(self.context.client.clone(), &self.name);
        Ok(self
            .context
            .block_on(async { pods.list(&ListParams::default()).await })?
            .items)
    }

    /// The host's process id of the rank in the pod of this node rank.
    pub(crate) fn rank_process(&self, job: &str, node_rank: u32) -> Result<i32> {
        self.process(job, node_rank, RANK)
    }

    /// The process in the pod of this node rank whose command line contains `words`, separated by
    /// NUL. Waits for it: a pod is ready before its agent has found the others and starts ranks.
    pub(crate) fn process(&self, job: &str, node_rank: u32, words: &str) -> Result<i32> {
        until(|| self.process_now(job, node_rank, words))
    }

    /// The same, without waiting.
    pub(crate) fn process_now(&self, job: &str, node_rank: u32, words: &str) -> Result<i32> {
        let node_rank = node_rank.to_string();
        let pods = self.pods()?;
        let of_rank = pods.iter().filter(|pod| {
            let has = |label: &str, value: &str| pod.labels().get(label).is_some_and(|found| found == value);
            has("vit-operator.dev/job-name", job) && has("vit-operator.dev/node-rank", &node_rank)
        });
        let uids: Vec<String> = of_rank.filter_map(ResourceExt::uid).collect();
        let is_it = |process: &i32| {
            let about = |file: &str| fs_err::read(format!("/proc/{process}/{file}")).unwrap_or_default();
            let (cgroup, command) = (about("cgroup"), about("cmdline"));
            uids.iter()
                .any(|uid| String::from_utf8_lossy(&cgroup).contains(uid))
                && String::from_utf8_lossy(&command).contains(words)
        };
        let processes = cgroup::processes(self.context.cluster.name(), None)?;
        let rank = processes.into_iter().find(is_it);
        rank.with_context(|| format!("no rank is running in a pod of node rank {node_rank} of {job}"))
    }

    /// Sends a signal to the rank in the pod of this node rank. From the host, because the
    /// container ends with its rank and would kill a command in it.
    pub(crate) fn signal_rank(&self, job: &str, node_rank: u32, signal: Signal) -> Result<()> {
        kill(self.rank_process(job, node_rank)?, signal)
    }

    /// Evicts a pod, like `kubectl drain`.
    pub(crate) fn evict(&self, pod: &str) -> Result<()> {
        let pods = Api::<Pod>::namespaced(self.context.client.clone(), &self.name);
        self.context
            .block_on(async { pods.evict(pod, &EvictParams::default()).await })?;
        Ok(())
    }

    /// Waits until no objects of these kinds exist for a job.
    pub(crate) fn wait_gone(&self, kinds: &str) -> Result<()> {
        until(|| {
            let left = self.kubectl(["get", kinds, "-l", "vit-operator.dev/job-name", "-o", "name"])?;
            ensure!(left.trim().is_empty(), "still present: {left}");
            Ok(())
        })
    }
}

/// Sends a signal to a process of a pod.
pub(crate) fn kill(process: i32, signal: Signal) -> Result<()> {
    let pid = Pid::from_raw(process).context("a process id")?;
    kill_process(pid, signal).with_context(|| format!("cannot send {signal:?} to process {process}"))
}
