//! Trainers of others: what is told of them is what they write to their log.

use anyhow::{Context as _, Result, ensure};
use crds::Phase;
use crds::study::status::StudyPhase;
use rustix::process::Signal;
use serde_json::json;

use crate::context::{Context, kill};
use crate::steps::{check_attempts, check_told, nodes_of, saved_step};

/// Takes steps of an eighth of a second up to the one that its first word names, and keeps the number of them as its checkpoint.
/// It ends where rank 0 cannot be found, as torchrun would.
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

/// As the host sees the trainer's process.
const COMMAND: &str = "sh\0-c";

fn trainer(steps: u32) -> serde_json::Value {
    json!({"external": {"command": ["sh", "-c", TRAINER, "trainer", steps.to_string()]}})
}

/// All on the way from a log in a pod to the status: the agent beside the trainer, the kubelet that ends it last, and the
/// operator, which knows neither the trainer's processes nor its exit codes.
pub(crate) fn another_trainer_is_followed_through_faults_and_measured(context: &Context<'_>) -> Result<()> {
    let namespace = context.namespace("external")?;
    let mut endless = trainer(1_000_000);
    endless["failurePolicy"] = json!({"stallTimeoutSeconds": 10});
    namespace.create("script", endless)?;
    let status = namespace.wait_checkpoint("script")?;
    let progress = status.progress.as_ref().context("progress is told")?;
    ensure!(
        progress.total_steps == 1_000_000 && progress.images_per_second == Some(256.0),
        "{progress:?}"
    );

    // A rank is killed: both begin anew, from the last step that was kept.
    let nodes = nodes_of(&status)?;
    kill(namespace.process("script", 1, COMMAND)?, Signal::KILL)?;
    let status = namespace.wait_attempt("script", 2)?;
    let failure = status.last_failure.as_ref().context("the failure is told")?;
    ensure!(
        failure.class == "Killed" && failure.exit_code == Some(137) && failure.node.as_ref() == nodes.last(),
        "{failure:?}"
    );
    let saved = saved_step(&status)?;
    ensure!(saved > 0, "the checkpoint of the first attempt is remembered");
    namespace.wait_checkpoint_after("script", saved)?;

    // Rank 0 hangs. No rank is named: the log tells of rank 0 alone, which may wait for the other.
    kill(namespace.process("script", 0, COMMAND)?, Signal::STOP)?;
    let status = namespace.wait_attempt("script", 3)?;
    check_attempts(&status, 3, 2)?;
    let failure = status.last_failure.as_ref().context("the failure is told")?;
    ensure!(
        failure.class == "Stalled" && failure.rank.is_none() && failure.node.is_none(),
        "{failure:?}"
    );
    check_told(
        &failure.message,
        &[
            "no rank has finished a step",
            "which rank is waited for is not known",
        ],
    )?;

    namespace.wait_checkpoint_after("script", saved_step(&status)?)?;
    namespace.patch("script", json!({"suspend": true}))?;
    let suspended = namespace.wait_phase("script", Phase::Suspended)?;
    check_attempts(&suspended, 3, 2)?;
    namespace.kubectl(["delete", "vtj", "script"])?;

    // What it printed last is what is told of its failure.
    let mut failing = json!({"external": {"command": ["sh", "-c", "echo no such optimizer >&2; exit 2"]}});
    failing["workers"] = json!({"nodes": 1});
    namespace.create("failing", failing)?;
    let status = namespace.wait_phase("failing", Phase::Failed)?;
    let failure = status.last_failure.context("the failure is told")?;
    ensure!(
        failure.class == "BadConfig" && failure.exit_code == Some(2),
        "{failure:?}"
    );
    check_told(&failure.message, &["no such optimizer"])?;

    // A study measures it beside vit-trainer, by its log, which rank 0's pod leaves in its last message.
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
    let failed = status.condition("Failed").context("it says which run failed")?;
    check_told(
        &failed.message,
        &[
            "1 of 3 runs failed: contenders-r2-b",
            "-silent",
            "No such file or directory",
        ],
    )
}
