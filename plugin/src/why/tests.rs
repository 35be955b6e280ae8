use crds::ViTTrainingJob;
use serde_json::{Value, json};

use super::*;
use crate::fixtures::{
    assert_contains, done, job, now, out_of_memory, place, queued, suspended, training, waiting,
};

fn explained(job: &ViTTrainingJob) -> Why {
    explain(job, &place(" --context gpu"), now())
}

fn shown(job: &ViTTrainingJob) -> String {
    render(job, &explained(job), Paint::plain(110))
}

/// A status with one decisive condition.
fn saying(phase: &str, condition: &str, message: &str) -> Value {
    let [type_, status, reason] = condition.split(' ').collect::<Vec<_>>()[..] else {
        panic!("{condition}: must be type, status and reason");
    };
    json!({"phase": phase, "attempt": 1, "conditions": [{"type": type_, "status": status, "reason": reason,
        "message": message, "lastTransitionTime": "2026-11-22T11:59:00Z"}]})
}

#[test]
fn jobs_in_every_state() {
    insta::assert_snapshot!("a_job_that_waits_for_gpus", shown(&job(waiting())));
    insta::assert_snapshot!("a_job_that_waits_for_quota", shown(&queued()));
    insta::assert_snapshot!("a_job_that_failed_for_good", shown(&job(out_of_memory())));
    insta::assert_snapshot!("a_job_that_is_suspended", shown(&job(suspended())));
    insta::assert_snapshot!("a_job_that_is_done", shown(&job(done())));
}

#[test]
fn a_job_that_restarts() {
    let mut status = saying(
        "Restarting",
        "Running False Restarting",
        "attempt 1: Killed: rank 1 was ended by signal 9 (SIGKILL)",
    );
    status["lastFailure"] = training()["lastFailure"].clone();
    status["restarts"] = 3.into();
    status["restartsSinceCheckpoint"] = 2.into();
    insta::assert_snapshot!(shown(&job(status)));
}

#[test]
fn what_the_operator_cannot_do_for_a_job_is_said_once() {
    let refusal = "failed to delete Pod digits-1-0: forbidden";
    let hindered = |phase: &str, reason: &str, message: &str| {
        let mut status = saying(phase, &format!("Running False {reason}"), message);
        let condition = saying(phase, "Reconciled False ReconcileFailed", refusal)["conditions"][0].clone();
        status["conditions"]
            .as_array_mut()
            .expect("conditions")
            .push(condition);
        shown(&job(status))
    };
    let restarting = hindered("Restarting", "Restarting", "attempt 1: Killed");
    let words = restarting.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_contains(
        &words,
        &format!("cannot complete all its work and retries: {refusal}"),
    );
    let starting = hindered("Starting", "ReconcileFailed", refusal);
    assert_eq!(starting.matches(refusal).count(), 1, "{starting}");
}

#[test]
fn a_job_that_trains_with_a_straggler() {
    let mut status = training();
    status["progress"]["syncShare"] = json!(0.47);
    insta::assert_snapshot!(shown(&job(status)));
}

#[test]
fn a_manifest_that_cannot_be_run() {
    let status = saying(
        "Failed",
        "Failed True InvalidSpec",
        "spec.model.name is vit_mega: must be timm's or torchvision's name of a supported model",
    );
    insta::assert_snapshot!(shown(&job(status)));
}

#[test]
fn a_priority_class_that_is_missing_is_named_in_the_command() {
    let mut waits = job(saying(
        "Pending",
        "Placed False PriorityClassNotFound",
        "no such PriorityClass exists",
    ));
    waits.spec.workers.priority_class_name = Some("urgent".into());
    let why = explained(&waits);
    assert_eq!(
        why.next[0].command.as_deref(),
        Some("kubectl create priorityclass urgent --value=1000 --context gpu")
    );
}

#[test]
fn a_missing_resource_is_explained() {
    let mut status = saying(
        "Pending",
        "Placed False NoFittingGroup",
        "needs 2 x 1 identical nvidia.com/gpu: no node has nvidia.com/gpu",
    );
    status["placement"] = json!({"wait": {"nodes": 2, "position": 1, "waiting": 1, "reservedNodes": 0}});
    let text = shown(&job(status));
    assert_contains(&text, "no node has nvidia.com/gpu: install the device plugin");
}

#[test]
fn what_admission_adds_is_named_while_a_job_waits() {
    let mut status = waiting();
    status["admittedPod"] = json!({"requests": {"cpu": "1500m"}, "containers": ["mesh"]});
    let message = explained(&job(status)).message.unwrap_or_default();
    assert_contains(
        &message,
        "; admission adds to each pod: container mesh, 1500m more cpu",
    );
}

#[test]
fn a_job_that_no_operator_looks_at_is_explained() {
    let mut new = job(json!({}));
    new.status = None;
    assert_contains(&explained(&new).meaning, "No operator has processed it");
    new.metadata.creation_timestamp = serde_json::from_value(json!("2026-11-22T11:59:58Z")).ok();
    assert_contains(&explained(&new).meaning, "It was just created");
    new.spec.managed_by = Some("kueue.x-k8s.io/multikueue".into());
    assert_contains(&explained(&new).meaning, "managed by kueue.x-k8s.io/multikueue");
    new.metadata.deletion_timestamp = serde_json::from_value(json!("2026-11-22T11:59:00Z")).ok();
    assert_eq!(explained(&new).meaning, "It is being deleted, since 60s.");
}

#[test]
fn a_change_that_no_operator_has_seen_is_a_finding() {
    let mut changed = job(training());
    changed.metadata.generation = Some(2);
    let why = explained(&changed);
    assert_eq!(why.reason.as_deref(), Some("AllPodsReady"));
    assert!(why.findings[0].contains("its spec was changed"), "{why:?}");
}

#[test]
fn a_reason_of_a_newer_operator_is_passed_on() {
    let why = explained(&job(saying("Pending", "Placed False Meditates", "for a while")));
    assert_eq!(
        why.meaning,
        "The operator reports Meditates, a reason that is newer than this plugin."
    );
    assert_eq!(why.message.as_deref(), Some("for a while"));
}

#[test]
fn a_job_that_starts_again_says_why() {
    let mut status = saying("Starting", "Running False PodsStarting", "1 of 2 pods are ready");
    status["lastFailure"] = training()["lastFailure"].clone();
    assert_eq!(explained(&job(status.clone())).findings, [] as [&str; 0]);
    for counted in ["restartsSinceCheckpoint", "failedStarts"] {
        let mut status = status.clone();
        status[counted] = 1.into();
        assert_eq!(
            explained(&job(status)).findings,
            [
                "last failure: Killed in attempt 1, rank 1 on node3 (exit code 137): rank 1 was ended by signal 9 (SIGKILL)"
            ]
        );
    }
}

#[test]
fn an_api_server_that_does_not_answer_is_not_a_refusal() {
    let next = |message: &str| {
        let why = explained(&job(saying("Starting", "Running False ReconcileFailed", message)));
        why.next
            .into_iter()
            .map(|step| step.words)
            .collect::<Vec<_>>()
            .join("; ")
    };
    for message in [
        "failed to create Pod digits-1-0: the API server did not answer: client error (SendRequest)",
        "failed to list Pod digits: request timed out",
        "failed to create Pod digits-1-0: connection closed before message completed",
    ] {
        assert_contains(&next(message), "the API server did not answer");
    }
    for message in [
        "failed to create Pod digits-1-0: pods is forbidden: User \"operator\" cannot create resource \"pods\"",
        "failed to create Pod digits-1-0: failed calling webhook \"a\": connection refused",
    ] {
        assert_contains(&next(message), "look for missing rights of the operator");
    }
}

#[test]
fn figures_that_nobody_updates_are_doubted() {
    let mut status = training();
    status["progress"]["updatedAt"] = "2026-11-22T11:55:00Z".into();
    let why = explained(&job(status));
    let words = "last report of rank 0 was 5m ago: it evaluates, saves or is stuck, or no operator runs";
    assert!(why.findings.contains(&words.into()), "{why:?}");
    let is_check = |step: &Step| step.words.starts_with("check that the operator runs");
    assert!(why.next.iter().any(is_check), "{why:?}");
}

#[test]
fn a_gang_larger_than_the_cluster_needs_new_nodes() {
    let mut status = waiting();
    let words = "no autoscaler";
    assert!(
        !shown(&job(status.clone())).contains(words),
        "4 of 4 nodes would do"
    );
    status["placement"]["wait"]["nodes"] = 5.into();
    assert_contains(&shown(&job(status.clone())), words);
    let mut mixed = job(status);
    mixed.spec.placement.homogeneity = crds::spec::Homogeneity::Off;
    assert!(!shown(&mixed).contains(words), "it may use all 5 nodes");
}

#[test]
fn a_driver_label_that_is_missing_is_advised() {
    let words = "no label names the driver";
    let mut status = waiting();
    let mut groups = |names: [&str; 2]| {
        for (index, name) in names.into_iter().enumerate() {
            status["placement"]["rejectedGroups"][index]["group"] = name.into();
        }
        shown(&job(status.clone()))
    };
    let labeled = "Tesla-T4 (1 a node, 15360 MiB, driver 580)";
    for bare in [
        "Tesla-T4 (1 a node, 15360 MiB)",
        "Tesla-T4 (1 a node, driver unknown: no label a/b)",
    ] {
        assert_contains(&groups([bare, labeled]), words);
    }
    for other in ["Tesla-T4 (1 a node, driver 570)", "NVIDIA-H200"] {
        assert!(!groups([other, labeled]).contains(words), "{other}");
    }
}

#[test]
fn a_deletion_that_is_held_names_who_holds_it() {
    let mut held = job(training());
    held.metadata.deletion_timestamp = serde_json::from_value(json!("2026-11-22T11:59:00Z")).ok();
    held.metadata.finalizers = Some(vec!["trial.io/hold".into()]);
    let words = "it waits for its finalizers: trial.io/hold; its pods are being stopped";
    assert_eq!(explained(&held).message.as_deref(), Some(words));
    let screen = crate::status::tests::plain(held.clone());
    assert_contains(&screen, "It is being deleted, since 60s.");
    assert_contains(&screen, words);
    assert_eq!(
        crate::summary::note(&held, Paint::plain(80)),
        "is being deleted, waits for trial.io/hold"
    );
}
