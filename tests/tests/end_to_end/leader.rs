//! The operator's replicas: which one leads, and on which node.

use anyhow::{Context as _, Result, ensure};
use vit_tests::{cgroup, process};

use super::context::Suite;
use super::steps::until;

const DEPLOYMENT: &str = "deployment/vit-operator";
const NAMESPACE: &str = "vit-operator";

impl Suite {
    /// The lease's holder: a pod's name and a process suffix.
    pub(crate) fn leader(&self) -> Result<String> {
        let holder = "jsonpath={.spec.holderIdentity}";
        self.kubectl(["-n", NAMESPACE, "get", "lease", "vit-operator", "-o", holder])
    }

    /// The leading pod; an error if the lease was released.
    pub(crate) fn leading_pod(&self) -> Result<String> {
        let leader = self.leader()?;
        let (pod, _) = leader
            .split_once('_')
            .with_context(|| format!("the holder {leader:?} does not name a pod"))?;
        Ok(pod.to_owned())
    }

    /// Kills the leading process, so that its lease must expire. Even a forced deletion of its pod
    /// would first send a signal to end.
    pub(crate) fn kill_leader(&self) -> Result<()> {
        until(|| {
            let leader = self.leading_pod()?;
            let find = || self.processes_of(&leader);
            // A leader that died with its node keeps the lease for a while.
            ensure!(
                !find()?.is_empty(),
                "no process of the leader {leader} is running"
            );
            process::kill_all("the leading operator", find)
        })
    }

    /// The processes of an operator's pod.
    fn processes_of(&self, pod: &str) -> Result<Vec<i32>> {
        let variable = format!("POD_NAME={pod}");
        let is_its = |process: &i32| {
            fs_err::read(format!("/proc/{process}/environ"))
                .is_ok_and(|all| all.split(|byte| *byte == 0).any(|one| one == variable.as_bytes()))
        };
        let processes = cgroup::processes(self.cluster.name(), None)?;
        Ok(processes.into_iter().filter(is_its).collect())
    }

    /// Makes a replica on this node the leader. The other one is on another node.
    pub(crate) fn lead_from(&self, node: &str) -> Result<()> {
        let others: Vec<String> = self
            .cluster
            .nodes()
            .into_iter()
            .filter(|other| other != node)
            .collect();
        self.scale_operator(0)?;
        for other in &others {
            self.kubectl(["cordon", other])?;
        }
        let leads = self.scale_operator(1).and_then(|()| self.wait_leader_on(node));
        for other in &others {
            self.kubectl(["uncordon", other])?;
        }
        leads?;
        self.scale_operator(2)
    }

    fn wait_leader_on(&self, node: &str) -> Result<()> {
        until(|| {
            let pod = self.leading_pod()?;
            let place = "jsonpath={.spec.nodeName}";
            let place = self.kubectl(["-n", NAMESPACE, "get", "pod", &pod, "-o", place])?;
            ensure!(place == node, "{pod} leads, from {place}");
            Ok(())
        })
    }

    /// Replaces both replicas, and returns when a new one leads.
    pub(crate) fn restart_operator(&self) -> Result<()> {
        let before = self.leading_pod()?;
        self.kubectl(["-n", NAMESPACE, "rollout", "restart", DEPLOYMENT])?;
        self.kubectl(["-n", NAMESPACE, "rollout", "status", DEPLOYMENT, "--timeout=120s"])?;
        self.wait_leader_other_than(&before)
    }

    /// Waits until a pod other than `before` leads.
    pub(crate) fn wait_leader_other_than(&self, before: &str) -> Result<()> {
        until(|| {
            let leads = self.leading_pod()?;
            ensure!(leads != before, "{before} still leads");
            Ok(())
        })
    }

    fn scale_operator(&self, replicas: u32) -> Result<()> {
        let replicas = format!("--replicas={replicas}");
        self.kubectl(["-n", NAMESPACE, "scale", DEPLOYMENT, &replicas])?;
        self.kubectl(["-n", NAMESPACE, "rollout", "status", DEPLOYMENT, "--timeout=60s"])?;
        Ok(())
    }
}
