//! Commands about several jobs and about studies.

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use vit_tests::Cluster;

use super::super::{kubectl, kubectl_input};
use super::{condition, create, meanwhile, namespace, running, vit, with, write_status};

const STUDY: &str = include_str!("../../../../examples/studies/digits-cluster.yaml");

pub(super) fn jobs(cluster: &Cluster, _: usize) -> Result<()> {
    let place = "vit-several";
    namespace(cluster, place)?;
    for name in ["one", "two", "three", "over"] {
        create(cluster, place, name)?;
        write_status(cluster, place, name, running())?;
    }
    let over = condition("Complete", "True", "AllEpochsDone", "every pod ended well");
    write_status(cluster, place, "over", with(running(), "Succeeded", over))?;
    kubectl(
        cluster,
        ["-n", place, "label", "vtj", "one", "two", "over", "team=vision"],
    )?;
    let suspended = || -> Result<String> {
        let path = "jsonpath={range .items[?(@.spec.suspend==true)]}{.metadata.name} {end}";
        kubectl(cluster, ["-n", place, "get", "vtj", "-o", path])
    };

    // A job that is over is left out, unless it is named.
    let output = vit(cluster, &["suspend", "-n", place, "-l", "team=vision"])?.check(
        0,
        &[
            "one is suspending: its pods save a checkpoint",
            "two is suspending",
        ],
    )?;
    ensure!(!output.stdout.contains("over"), "{}", output.stdout);
    ensure!(
        suspended()?.split_whitespace().eq(["one", "two"]),
        "{}",
        suspended()?
    );
    vit(cluster, &["suspend", "-n", place, "--all"])?
        .check(0, &["one is already suspending", "three is suspending"])?;
    vit(cluster, &["resume", "one", "nobody", "three", "-n", place])?.check(
        3,
        &["one is resuming", "there is no job nobody", "three is resuming"],
    )?;
    vit(cluster, &["suspend", "over", "nobody", "-n", place])?
        .check(2, &["there is nothing left to suspend", "there is no job nobody"])?;
    ensure!(suspended()?.trim() == "two", "{}", suspended()?);
    vit(cluster, &["suspend", "-n", place, "-l", "team=speech"])?
        .check(0, &["No unfinished jobs found in namespace vit-several."])?;
    vit(cluster, &["suspend", "-n", place])?.check(2, &["required"])?;
    vit(cluster, &["suspend", "one", "--all", "-n", place])?.check(2, &["cannot be used with"])?;

    let parked = || {
        let suspended = condition("Suspended", "True", "Suspended", "spec.suspend is set");
        with(running(), "Suspended", suspended)
    };
    let suspending = [
        "suspend",
        "one",
        "three",
        "-n",
        place,
        "--wait",
        "--timeout",
        "1m",
    ];
    meanwhile(cluster, &suspending, "step 700 of 2700", || {
        write_status(cluster, place, "three", parked())?;
        write_status(cluster, place, "one", parked())
    })?
    .check(0, &["one is suspended, saved at step 675", "three is suspended"])?;
    vit(
        cluster,
        &["resume", "one", "-n", place, "--wait", "--timeout", "1s"],
    )?
    .check(
        5,
        &[
            "one is resuming",
            "phase Running did not come within 1s: one: Suspended",
        ],
    )?;
    vit(cluster, &["delete", "nobody", "one", "-n", place])?
        .check(3, &["there is no job nobody", "\"one\" deleted"])?;
    Ok(())
}

pub(super) fn studies(cluster: &Cluster, _: usize) -> Result<()> {
    let place = "vit-studies";
    namespace(cluster, place)?;
    vit(cluster, &["study", "list", "-n", place])?
        .check(0, &["No studies found in namespace vit-studies."])?;
    kubectl_input(cluster, ["-n", place, "create", "-f", "-"], STUDY)?;
    let name = "digits-cluster";
    let write = |status: Value| {
        let patch = json!({"status": status}).to_string();
        let arguments = [
            "-n",
            place,
            "patch",
            "vits",
            name,
            "--subresource=status",
            "--type=merge",
            "-p",
            &patch,
        ];
        kubectl(cluster, arguments).map(drop)
    };
    vit(cluster, &["study", "list", "-n", place])?.check(0, &["digits-cluster", "New"])?;
    let runs = json!({"total": 20, "measured": 3, "failed": 0, "summary": "3/20"});
    let current = json!({"run": "strong-r2-b16", "repetition": 1, "job": "digits-cluster-0a-1"});
    write(json!({"phase": "Running", "observedGeneration": 1, "runs": runs, "current": current}))?;
    vit(cluster, &["study", "list", "-A"])?.check(
        0,
        &[
            "vit-studies",
            "Running",
            "3/20",
            "strong-r2-b16 #1",
            "digits-cluster-0a-1",
        ],
    )?;
    vit(cluster, &["study", "list", "-n", place, "-o", "name"])?
        .check(0, &["vitscalingstudy.vit-operator.dev/digits-cluster\n"])?;
    let suspend = || {
        kubectl(
            cluster,
            ["-n", place, "get", "vits", name, "-o", "jsonpath={.spec.suspend}"],
        )
    };
    vit(cluster, &["study", "suspend", "vits/digits-cluster", "-n", place])?
        .check(0, &["digits-cluster is suspending: its current run stops"])?;
    ensure!(suspend()? == "true", "not suspended");
    vit(cluster, &["study", "resume", "--all", "-n", place])?.check(0, &["digits-cluster is resuming"])?;
    ensure!(suspend()? == "false", "not resumed");
    vit(cluster, &["study", "suspend", "digits", "-n", place])?.check(
        3,
        &["there is no study digits in namespace vit-studies, which has digits-cluster"],
    )?;
    vit(cluster, &["study", "watch", name, "-n", place, "--timeout", "2s"])?.check(
        5,
        &["its end did not come within 2s: digits-cluster: Running, 3/20 runs measured"],
    )?;
    meanwhile(cluster, &["study", "watch", name, "-n", place], "Running", || {
        write(json!({"phase": "Succeeded", "observedGeneration": 9, "current": null}))
    })?
    .check(0, &["digits-cluster: Succeeded, 3/20 runs measured"])?;
    Ok(())
}
