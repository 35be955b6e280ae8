//! The testbed of every contender: a new, idle cluster with fake nodes.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use crds::ViTTrainingJob;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, PostParams};
use kube::runtime::wait::{await_condition, conditions};
use kube::{Api, Client, ResourceExt as _};
use vit_tests::exposition::Exposition;
use vit_tests::operator::{self, OPERATOR};
use vit_tests::progress::say;
use vit_tests::rights::{Account, Request};
use vit_tests::{Cluster, ClusterConfig, ClusterName, GpuProduct, cluster, kwok, process};

use crate::requests::Requests;
use crate::usage;
use crate::workload::{self, NAMESPACE};

/// GPUs of a node.
pub(crate) const GPUS_PER_NODE: u32 = 8;
/// Time limit for a program to become ready.
const READY_DEADLINE: Duration = Duration::from_secs(120);
/// How often readiness is checked.
const POLL: Duration = Duration::from_millis(200);
/// The operator's service account, with exactly the rights of the shipped chart.
const ACCOUNT: Account<'_> = Account {
    namespace: OPERATOR,
    name: OPERATOR,
};

/// Programs whose CPU time is reported.
const PROGRAMS: [&str; 7] = [
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    kwok::COMPONENT,
    OPERATOR,
    crate::peers::TRAINING_OPERATOR,
];

/// The controller manager's limit of calls per second, and its burst. All other flags are equal.
#[derive(Clone, Copy)]
pub(crate) struct ControllerRate(u32, u32);

/// The controller manager's defaults.
pub(crate) const SHIPPED: ControllerRate = ControllerRate(20, 30);
/// Enough for all measurements here.
pub(crate) const RAISED: ControllerRate = ControllerRate(500, 1_000);

pub(crate) struct Testbed {
    pub(crate) cluster: Cluster,
    pub(crate) client: Client,
}

/// Runs a measurement on a new testbed, and removes it even after a failure.
pub(crate) async fn on_testbed<T>(
    nodes: usize,
    rate: ControllerRate,
    measure: impl AsyncFnOnce(&Testbed) -> Result<T>,
) -> Result<T> {
    let name: ClusterName = "bench".parse()?;
    cluster::down(&name)?;
    let result = async {
        let testbed = Testbed::up(name.clone(), nodes, rate).await?;
        measure(&testbed).await
    }
    .await;
    if result.is_ok() || std::env::var_os("VIT_KEEP_CLUSTER").is_none() {
        cluster::down(&name)?;
    }
    result
}

impl Testbed {
    async fn up(name: ClusterName, nodes: usize, rate: ControllerRate) -> Result<Self> {
        let cluster = Cluster::up(ClusterConfig::control_plane(name).audited([ACCOUNT.user()])).await?;
        let testbed = Self {
            client: cluster.client(),
            cluster,
        };
        testbed.restart_control_plane(rate).await?;
        // Without replicas: the operator runs outside the cluster.
        operator::install(&testbed.cluster, &["replicaCount=0".to_owned()])?;
        testbed.established("vittrainingjobs.vit-operator.dev").await?;
        kwok::add_nodes(&testbed.client, nodes, &GpuProduct::H200, GPUS_PER_NODE).await?;
        kwok::start(&testbed.cluster)?;
        testbed.at_rest().await?;
        say(format_args!(
            "{nodes} fake nodes exist, and the API server is idle"
        ));
        Ok(testbed)
    }

    /// Sets the flags that differ from other test clusters.
    async fn restart_control_plane(&self, rate: ControllerRate) -> Result<()> {
        let manager = [
            format!("--kube-api-qps={}", rate.0),
            format!("--kube-api-burst={}", rate.1),
        ];
        self.cluster
            .restart_with_flags("kube-controller-manager", &manager)
            .await?;
        // Its default of 50 binds per second would dominate the measurement.
        let scheduler = ["--kube-api-qps=2000", "--kube-api-burst=4000"].map(str::to_owned);
        self.cluster
            .restart_with_flags("kube-scheduler", &scheduler)
            .await
    }

    /// Waits until the API server serves a resource.
    pub(crate) async fn established(&self, definition: &str) -> Result<()> {
        let definitions: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        let established = await_condition(definitions, definition, conditions::is_crd_established());
        tokio::time::timeout(READY_DEADLINE, established)
            .await
            .with_context(|| format!("{definition} is not served"))??;
        Ok(())
    }

    /// Starts the built operator as a process, and waits until it leads and has run a job: for half a minute after
    /// a CRD is installed, the API server refuses objects that belong to its kind.
    pub(crate) async fn start_operator(&self) -> Result<()> {
        let program = vit_tests::root().join("target/release/vit-operator");
        operator::start(
            &self.cluster,
            &program,
            None,
            &["--metrics-address=0.0.0.0:8080".to_owned()],
        )?;
        let state = self.cluster.state();
        self.until("the operator did not become the leader", || {
            process::check(state, OPERATOR)?;
            let leads = self.operator_metrics().ok();
            Ok(leads.is_some_and(|metrics| metrics.sum("vit_operator_leader") > 0.0))
        })
        .await?;
        Box::pin(self.run_first_job()).await
    }

    async fn run_first_job(&self) -> Result<()> {
        let jobs: Api<ViTTrainingJob> = Api::namespaced(self.client.clone(), NAMESPACE);
        let first = jobs
            .create(&PostParams::default(), &workload::job(usize::MAX, 1)?)
            .await?;
        self.until_jobs("Running", 1).await?;
        let (name, uid) = (first.name_any(), first.uid().context("a created job has a uid")?);
        jobs.delete(&name, &DeleteParams::default()).await?;
        await_condition(jobs, &name, conditions::is_deleted(&uid)).await?;
        self.at_rest().await
    }

    /// The operator's metrics.
    pub(crate) fn operator_metrics(&self) -> Result<Exposition> {
        operator::metrics(&self.cluster)
    }

    /// Waits until `count` jobs are in a phase, by the operator's metrics.
    pub(crate) async fn until_jobs(&self, phase: &str, count: usize) -> Result<()> {
        self.until(&format!("{count} jobs did not become {phase}"), || {
            let metrics = self.operator_metrics()?;
            let mut of_phase = metrics
                .of("vit_operator_jobs")
                .filter(|sample| sample.labels["phase"] == phase);
            Ok(of_phase.next().map(|sample| sample.value) == Some(count as f64))
        })
        .await
    }

    /// The operator's calls so far, from the server's audit log, without watches.
    pub(crate) fn operator_calls(&self) -> Result<Vec<Request>> {
        let mut calls = self.cluster.requests(ACCOUNT)?;
        calls.retain(|call| call.right.as_ref().is_none_or(|right| right.verb != "watch"));
        Ok(calls)
    }

    /// CPU seconds of every program of the cluster, and of this one.
    pub(crate) fn cpu_seconds(&self) -> Result<BTreeMap<String, f64>> {
        let mut all = BTreeMap::new();
        for program in PROGRAMS {
            if let Some(pid) = process::running(self.cluster.state(), program) {
                all.insert(program.to_owned(), usage::cpu_seconds(pid)?);
            }
        }
        let own = i32::try_from(std::process::id())?;
        all.insert("client".to_owned(), usage::cpu_seconds(own)?);
        Ok(all)
    }

    /// The operator's process.
    pub(crate) fn operator_pid(&self) -> Result<i32> {
        process::running(self.cluster.state(), OPERATOR).context("the operator is not running")
    }

    /// Waits until the API server is nearly idle.
    pub(crate) async fn at_rest(&self) -> Result<()> {
        const SECOND: Duration = Duration::from_secs(1);
        let started = Instant::now();
        let mut ticks = tokio::time::interval(SECOND);
        let mut before = f64::NAN;
        loop {
            ticks.tick().await;
            let now = self.server_metrics().await?.sum("apiserver_request_total");
            if now - before < 50.0 {
                return Ok(());
            }
            before = now;
            ensure!(
                started.elapsed() < READY_DEADLINE,
                "the API server did not become idle"
            );
        }
    }

    /// The requests that the API server has answered so far.
    pub(crate) async fn requests(&self) -> Result<Requests> {
        Ok(Requests::read(&self.server_metrics().await?))
    }

    async fn server_metrics(&self) -> Result<Exposition> {
        let request = http::Request::get("/metrics").body(Vec::new())?;
        Ok(Exposition::parse(&self.client.request_text(request).await?))
    }

    /// Waits until a condition holds; the error is `what_is_not`.
    pub(crate) async fn until(
        &self,
        what_is_not: &str,
        mut is_so: impl FnMut() -> Result<bool>,
    ) -> Result<()> {
        let mut ticks = tokio::time::interval(POLL);
        let waiting = async {
            while !is_so()? {
                ticks.tick().await;
            }
            anyhow::Ok(())
        };
        match tokio::time::timeout(5 * READY_DEADLINE, waiting).await {
            Ok(result) => result,
            Err(_) => anyhow::bail!("{what_is_not}"),
        }
    }
}
