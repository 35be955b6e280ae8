//! PyTorch trainers under torchrun, in the image of `contenders/Dockerfile`.

use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use crds::Phase;
use crds::study::ViTScalingStudy;
use crds::study::status::{StudyPhase, ViTScalingStudyStatus};
use rustix::process::Signal;
use serde_json::{Value, json};
use vit_tests::{image, operator, packages, root};

use crate::context::{Context, kill};
use crate::steps::check_attempts;

/// The command line of a torchrun rank on the host.
const RANK: &str = "-u\0contenders/contender.py";

/// Whether `VIT_CONTENDERS` requests these tests: building their image needs five minutes and 6 GB.
pub(crate) fn wanted() -> bool {
    std::env::var_os("VIT_CONTENDERS").is_some()
}

/// The image's archive.
pub(crate) fn images() -> Result<Vec<PathBuf>> {
    packages::install_missing()?;
    let folder = root().join("contenders");
    let mut files = Vec::new();
    for entry in fs_err::read_dir(&folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        // Skips Python's caches.
        if entry.file_type()?.is_file() {
            files.push((entry.path(), name));
        }
    }
    let image = operator::build(image::CONTENDERS, &folder.join("Dockerfile"), &files)?;
    Ok(vec![image])
}

/// Two ranks on each of two nodes, started by torchrun.
pub(crate) fn torchrun_is_restarted_after_a_killed_rank(context: &Context<'_>) -> Result<()> {
    let namespace = context.namespace("torchrun")?;
    namespace.create(
        "ddp",
        json!({
            "image": image::CONTENDERS,
            "external": {"command": ["torchrun", "contenders/contender.py", "ddp"]},
            "data": {"augmentation": null},
            "training": {"epochs": 24},
            "workers": {"nodes": 2, "gpusPerNode": 2},
        }),
    )?;
    namespace.wait("ddp", "trains", |status| {
        status
            .progress
            .as_ref()
            .is_some_and(|progress| progress.step > 10)
    })?;
    kill(namespace.process("ddp", 1, RANK)?, Signal::KILL)?;
    let status = namespace.wait_attempt("ddp", 2)?;
    let failure = status.last_failure.as_ref().context("no lastFailure")?;
    // torchrun always exits with 1 and reports the first failed rank, which may have lost its peer.
    ensure!(
        failure.class == "Crashed" && failure.exit_code == Some(1),
        "{failure:?}"
    );
    let status = namespace.wait_phase("ddp", Phase::Succeeded)?;
    check_attempts(&status, 2, 1)?;
    let accuracy = status
        .progress
        .as_ref()
        .and_then(|progress| progress.validation_accuracy);
    ensure!(accuracy > Some(0.5), "it does not learn: {:?}", status.progress);
    Ok(())
}

/// The example with fewer images, and one trainer of each kind.
pub(crate) fn study_of_the_example_measures_each_kind_of_trainer(context: &Context<'_>) -> Result<()> {
    let namespace = context.namespace("contenders")?;
    let mut study: Value = serde_saphyr::from_str(include_str!("../../../examples/studies/contenders.yaml"))?;
    study["metadata"]["namespace"] = namespace.name.clone().into();
    let spec = &mut study["spec"];
    spec["template"]["spec"]["data"]["syntheticImages"] = 320.into();
    spec["measure"] = json!({"epochs": 1, "warmupSteps": 2, "repetitions": 1});
    let variants = spec["sweeps"][0]["variants"].as_array_mut().context("variants")?;
    variants.retain(|variant| {
        !["ZeRO 0", "ZeRO 1", "ZeRO 3", "vit-trainer tensor"]
            .iter()
            .any(|left_out| {
                variant["name"]
                    .as_str()
                    .is_some_and(|name| name.contains(left_out))
            })
    });
    let count = variants.len();
    let study: ViTScalingStudy = serde_json::from_value(study)?;
    namespace.create_study(&study)?;
    for measured in 1..=count {
        let is_measured = |status: &ViTScalingStudyStatus| {
            status.points.iter().filter(|point| point.measured > 0).count() >= measured
        };
        let status = namespace.wait_study("contenders", "has measured more", |status| {
            is_measured(status) || status.phase.is_some_and(StudyPhase::is_terminal)
        })?;
        ensure!(is_measured(&status), "{status:#?}");
    }
    Ok(())
}
