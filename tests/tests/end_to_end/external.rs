//! External trainers: progress and results come from their log.

use anyhow::{Context as _, Result, ensure};
use crds::Phase;
use crds::study::status::StudyPhase;
use rustix::process::Signal;
use serde_json::json;

use crate::context::{Context, kill};
use crate::steps::{check_attempts, check_contains, nodes_of, saved_step};

/// Trains as many steps as its first argument, 0.125 s each, and stores their number as its
/// checkpoint. Like torchrun, it fails if rank 0 cannot be found.
const TRAINER: &str = r#"
trap 'exit 143' TERM
getent hosts "$MASTER_ADDR" || exit 9
log() { [ "$RANK" = 0 ] && echo "$1" >> "$VIT_LOG"; }
step=$(cat /checkpoints/step 2>/dev/null || echo 0)
log '{"kind":"start","step":'$step',"totalSteps":'$1',"worldSize":'$WORLD_SIZE',"globalBatchSize":32,"trainImages":320}'
while [ "$step" -lt "$1" ]; do
  sleep 0.25
  step=$((step + 2))
  log '{"kind":"train","epoch":'$((step / 11))',"step":'$step',"steps":2,"loss":0.5,"accuracy":0.25,"stepSeconds":0.125}'
  if [ "$RANK" = 0 ]; then echo $step > /checkpoints/step; fi
  log '{"kind":"checkpoint","step":'$step',"path":"/checkpoints/step"}'
done
exit 0
"#;

/// The trainer's command line on the host.
const COMMAND: &str = "sh\0-c";

fn trainer(steps: u32) -> serde_json::Value {
    json!({"external": {"command": ["sh", "-c", TRAINER, "trainer", steps.to_string()]}})
}

/// Covers the path from a log in a pod to the status: the agent next to the trainer, the kubelet
/// that stops it last, and the operator, which knows neither the trainer's processes nor its exit
/// codes.
///
/// Invariant G16.
pub(crate) fn another_trainer_is_followed_through_faults_and_measured(context: &Context<'_>) -> Result<()> {
    let namespace = context.namespace("external")?;
    let mut endless = trainer(1_000_000);
    endless["failurePolicy"] = json!({"stallTimeoutSeconds": 10});
    namespace.create("script", endless)?;
    let status = namespace.wait_checkpoint("script")?;
    let progress = status.progress.as_ref().context("no progress")?;
    ensure!(
        progress.total_steps == 1_000_000 && progress.images_per_second == Some(256.0),
        "{progress:?}"
    );

    // A rank is killed: both restart from the last saved step.
    let nodes = nodes_of(&status)?;
    kill(namespace.process("script", 1, COMMAND)?, Signal::KILL)?;
    let status = namespace.wait_attempt("script", 2)?;
    let failure = status.last_failure.as_ref().context("no lastFailure")?;
    ensure!(
        failure.class == "Killed" && failure.exit_code == Some(137) && failure.node.as_ref() == nodes.last(),
        "{failure:?}"
    );
    let saved = saved_step(&status)?;
    ensure!(saved > 0, "the first attempt's checkpoint is lost");
    namespace.wait_checkpoint_after("script", saved)?;

    // Rank 0 hangs. No rank is blamed: the log covers only rank 0, which may wait for the other.
    kill(namespace.process("script", 0, COMMAND)?, Signal::STOP)?;
    let status = namespace.wait_attempt("script", 3)?;
    check_attempts(&status, 3, 2)?;
    let failure = status.last_failure.as_ref().context("no lastFailure")?;
    ensure!(
        failure.class == "Stalled" && failure.rank.is_none() && failure.node.is_none(),
        "{failure:?}"
    );
    check_contains(
        &failure.message,
        &[
            "no rank has finished a step",
            "the rank that blocks the others is unknown",
        ],
    )?;

    namespace.wait_checkpoint_after("script", saved_step(&status)?)?;
    namespace.patch("script", json!({"suspend": true}))?;
    let suspended = namespace.wait_phase("script", Phase::Suspended)?;
    check_attempts(&suspended, 3, 2)?;
    namespace.kubectl(["delete", "vtj", "script"])?;

    // Its last output becomes the failure's message.
    let mut failing = json!({"external": {"command": ["sh", "-c", "echo no such optimizer >&2; exit 2"]}});
    failing["workers"] = json!({"nodes": 1});
    namespace.create("failing", failing)?;
    let status = namespace.wait_phase("failing", Phase::Failed)?;
    let failure = status.last_failure.context("no lastFailure")?;
    ensure!(
        failure.class == "BadConfig" && failure.exit_code == Some(2),
        "{failure:?}"
    );
    check_contains(&failure.message, &["no such optimizer"])?;

    // A study measures it and vit-trainer, by the log in the termination message of rank 0's pod.
    let study = namespace.study(
        "contenders",
        json!({
            "measure": {"epochs": 1, "warmupSteps": 4, "repetitions": 1},
            "sweeps": [{"name": "contenders", "mode": "Variants", "ranks": [2], "variants": [
                {"name": "vit-trainer"},
                {"name": "script", "spec": trainer(20)},
                {"name": "silent", "spec": {"external": {"command": ["sh", "-c", "exit 0"]}}},
            ]}],
        }),
    )?;
    namespace.create_study(&study)?;
    let status = namespace.wait_study("contenders", "is over", |status| {
        status.phase.is_some_and(StudyPhase::is_terminal)
    })?;
    let rates: Vec<Option<f64>> = status
        .points
        .iter()
        .map(|point| point.images_per_second)
        .collect();
    ensure!(
        matches!(rates[..], [Some(_), Some(script), None] if script.to_bits() == 256.0_f64.to_bits()),
        "{:#?}",
        status.points
    );
    let failed = status.condition("Failed").context("no condition Failed")?;
    check_contains(
        &failed.message,
        &[
            "1 of 3 runs failed: contenders-r2-b",
            "-silent",
            "No such file or directory",
        ],
    )
}
