//! A cluster's cgroups: a root per node under `/vit-CLUSTER`, in the v1 hierarchies or the v2 tree.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};
use fs_err as fs;

use crate::config::ClusterName;

static PROBES: AtomicU32 = AtomicU32::new(0);

const MOUNT: &str = "/sys/fs/cgroup";

/// The cgroup path of a node, for the kubelet's `cgroupRoot`.
pub fn node_root(cluster: &ClusterName, node: &str) -> String {
    format!("{}/{node}", cluster_root(cluster))
}

fn cluster_root(cluster: &ClusterName) -> String {
    format!("/vit-{cluster}")
}

/// The root folders of cgroups: the v2 tree, or a hierarchy per v1 controller.
fn hierarchies() -> Result<Vec<PathBuf>> {
    if is_v2() {
        return Ok(vec![PathBuf::from(MOUNT)]);
    }
    let mut found = Vec::new();
    for entry in fs::read_dir(MOUNT)? {
        let path = entry?.path();
        // Skip links, such as cpu,cpuacct -> cpu.
        if fs::symlink_metadata(&path)?.is_dir() && path.join("cgroup.procs").exists() {
            found.push(path);
        }
    }
    Ok(found)
}

fn is_v2() -> bool {
    Path::new(MOUNT).join("cgroup.controllers").exists()
}

/// Creates a node's cgroup in every hierarchy, for a kubelet.
pub fn create(cluster: &ClusterName, node: &str) -> Result<()> {
    for hierarchy in hierarchies()? {
        let mut folder = hierarchy;
        for part in [format!("vit-{cluster}"), node.to_owned()] {
            if is_v2() {
                delegate_controllers(&folder)?;
            }
            let parent = folder.clone();
            folder = folder.join(part);
            fs::create_dir_all(&folder).context("cannot create a cgroup")?;
            // On v1 a cpuset starts empty, and no process can run in an empty one.
            for file in ["cpuset.cpus", "cpuset.mems"] {
                if !is_v2() && folder.join(file).exists() {
                    fs::write(folder.join(file), fs::read(parent.join(file))?)?;
                }
            }
        }
    }
    Ok(())
}

fn delegate_controllers(folder: &Path) -> Result<()> {
    for controller in fs::read_to_string(folder.join("cgroup.controllers"))?.split_whitespace() {
        fs::write(folder.join("cgroup.subtree_control"), format!("+{controller}")).with_context(|| {
            format!(
                "cannot delegate the {controller} controller to cgroups below {}",
                folder.display()
            )
        })?;
    }
    Ok(())
}

/// Checks that cgroups can be created, by a probe in every hierarchy.
pub fn check() -> Result<()> {
    let found = hierarchies().context("no cgroups at /sys/fs/cgroup")?;
    anyhow::ensure!(!found.is_empty(), "no cgroup hierarchy is mounted below {MOUNT}");
    for hierarchy in found {
        // Threads of one process may probe at the same time.
        let count = PROBES.fetch_add(1, Ordering::Relaxed);
        let probe = hierarchy.join(format!("vit-probe-{}-{count}", std::process::id()));
        fs::create_dir(&probe)?;
        fs::remove_dir(&probe)?;
    }
    Ok(())
}

/// All cgroup folders of a cluster or, with `node`, of one of its nodes, deepest first.
fn folders(cluster: &ClusterName, node: Option<&str>) -> Result<Vec<PathBuf>> {
    let root = node.map_or_else(|| cluster_root(cluster), |node| node_root(cluster, node));
    let mut found = Vec::new();
    for hierarchy in hierarchies()? {
        collect(&hierarchy.join(root.trim_start_matches('/')), &mut found);
    }
    Ok(found)
}

fn collect(folder: &Path, found: &mut Vec<PathBuf>) {
    // A cgroup may disappear during the walk.
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            collect(&entry.path(), found);
        }
    }
    found.push(folder.to_owned());
}

/// The processes in a cluster's cgroups or, with `node`, in those of one of its nodes.
pub fn processes(cluster: &ClusterName, node: Option<&str>) -> Result<Vec<i32>> {
    let mut found = Vec::new();
    for folder in folders(cluster, node)? {
        if let Ok(text) = fs::read_to_string(folder.join("cgroup.procs")) {
            found.extend(text.lines().filter_map(|line| line.parse::<i32>().ok()));
        }
    }
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

/// Limits the cgroup of a process to a share of one CPU; `None` removes the limit.
pub fn limit_cpu(process: i32, share: Option<f64>) -> Result<()> {
    const PERIOD_MICROSECONDS: f64 = 100_000.0;
    let quota = share.map(|share| (share * PERIOD_MICROSECONDS) as u64);
    let memberships = fs::read_to_string(format!("/proc/{process}/cgroup"))?;
    let (file, text) = if is_v2() {
        let quota = quota.map_or_else(|| "max".to_owned(), |quota| quota.to_string());
        ("cpu.max", format!("{quota} {PERIOD_MICROSECONDS}"))
    } else {
        let quota = quota.map_or_else(|| "-1".to_owned(), |quota| quota.to_string());
        ("cpu.cfs_quota_us", quota)
    };
    let (hierarchy, path) = cpu_membership(&memberships)
        .with_context(|| format!("process {process} has no cgroup with the cpu controller: {memberships}"))?;
    let folder = Path::new(MOUNT)
        .join(hierarchy)
        .join(path.trim_start_matches('/'));
    Ok(fs::write(folder.join(file), text)?)
}

/// From `/proc/PID/cgroup`: the hierarchy with the cpu controller, and the cgroup in it.
fn cpu_membership(memberships: &str) -> Option<(&str, &str)> {
    let parts = |line| {
        let mut parts = str::splitn(line, 3, ':').skip(1);
        Some((parts.next()?, parts.next()?))
    };
    let lines = || memberships.lines().filter_map(parts);
    lines()
        .find(|(controllers, _)| controllers.split(',').any(|controller| controller == "cpu"))
        .or_else(|| lines().find(|(controllers, _)| controllers.is_empty()))
}

/// Removes all cgroups of a cluster, which must be empty.
pub fn remove(cluster: &ClusterName) -> Result<()> {
    for folder in folders(cluster, None)? {
        fs::remove_dir(folder)?;
    }
    Ok(())
}

/// Descriptions of a cluster's existing cgroups.
pub fn leftovers(cluster: &ClusterName) -> Result<Vec<String>> {
    Ok(folders(cluster, None)?
        .into_iter()
        .map(|folder| format!("cgroup {}", folder.display()))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::cpu_membership;

    #[test]
    fn the_cgroup_that_limits_cpu_is_found_on_v1_and_on_v2() {
        let v1 = "3:cpuset:/a\n2:cpu,cpuacct:/kubepods/pod1\n0::/\n";
        assert_eq!(cpu_membership(v1), Some(("cpu,cpuacct", "/kubepods/pod1")));
        assert_eq!(
            cpu_membership("0::/kubepods.slice\n"),
            Some(("", "/kubepods.slice"))
        );
        assert_eq!(cpu_membership(""), None);
    }
}
