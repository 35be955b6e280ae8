//! Metrics of single jobs and of the fleet, rebuilt for each scrape: no series outlives its job,
//! and concurrent scrapes are independent.

use contract::operator_metrics as names;
use crds::conditions::{reasons, types};
use crds::{Phase, ViTTrainingJob};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt as _;
use prometheus::proto::MetricFamily;
use prometheus::{Registry, register_gauge_vec_with_registry, register_int_gauge_vec_with_registry};

use super::gpu_counts::{GpuCounts, GpuState};

/// Reasons of `Placed` for which a job waits.
const WAITING_REASONS: [&str; 6] = [
    reasons::NO_FITTING_GROUP,
    reasons::NO_PRIORITY_CLASS,
    reasons::QUOTA_EXCEEDED,
    reasons::START_FAILING,
    reasons::IN_QUEUE,
    reasons::ADMITTED,
];

/// The metrics of all jobs and of the fleet's GPUs.
pub(super) fn gather<'a>(
    jobs: impl IntoIterator<Item = &'a ViTTrainingJob>,
    gpus: &GpuCounts,
    now: Timestamp,
) -> prometheus::Result<Vec<MetricFamily>> {
    const JOB: [&str; 2] = [names::LABEL_NAMESPACE, names::LABEL_JOB_NAME];
    let registry = Registry::new();
    let counts = |name: &str, help: &str, labels: &[&str]| {
        register_int_gauge_vec_with_registry!(name, help, labels, registry)
    };
    let gauges = |name: &str, help: &str, labels: &[&str]| {
        register_gauge_vec_with_registry!(name, help, labels, registry)
    };
    let phases = counts(names::JOBS, "ViTTrainingJobs, by phase", &[names::LABEL_PHASE])?;
    let help = "Jobs in phase Pending, by the reason of their condition Placed";
    let waiting = counts(names::WAITING_JOBS, help, &[names::LABEL_REASON])?;
    let help = "Seconds the job, in phase Pending, has waited for placement";
    let waiting_seconds = counts(names::JOB_WAITING_SECONDS, help, &JOB)?;
    let attempts = counts(names::JOB_ATTEMPT, "Number of the job's latest attempt", &JOB)?;
    let help = "How often the job's gang was replaced after a failure";
    let restarts = counts(names::JOB_RESTARTS, help, &JOB)?;
    let help = "Share of the time since the job first got GPUs that was spent on useful steps";
    let effective = gauges(names::JOB_EFFECTIVE_TIME_RATIO, help, &JOB)?;
    let help = "Seconds since the job first got GPUs, by what they were spent on";
    let labels = [JOB[0], JOB[1], names::LABEL_PART];
    let times = gauges(names::JOB_TIME_SPENT_SECONDS, help, &labels)?;
    let help = "GPUs of the cluster, by product and state";
    let labels = [names::LABEL_PRODUCT, names::LABEL_RESOURCE, names::LABEL_STATE];
    let states_of_gpus = counts(names::GPUS, help, &labels)?;
    let help = "Compute time of a persistently slow rank divided by the median of the job's other ranks";
    let labels = [JOB[0], JOB[1], names::LABEL_RANK, names::LABEL_NODE];
    let stragglers = gauges(names::STRAGGLER_SLOWDOWN_RATIO, help, &labels)?;
    // Alerts need a series to exist before its first event.
    for phase in Phase::ALL {
        phases.with_label_values(&[phase.as_str()]);
    }
    for reason in WAITING_REASONS.into_iter().chain([names::REASON_UNDECIDED]) {
        waiting.with_label_values(&[reason]);
    }
    for job in jobs {
        let status = job.status.as_ref();
        // A job without a status waits, too.
        let phase = status.and_then(|status| status.phase).unwrap_or(Phase::Pending);
        phases.with_label_values(&[phase.as_str()]).inc();
        let (namespace, name) = (job.namespace().unwrap_or_default(), job.name_any());
        let labels = [namespace.as_str(), &name];
        if phase == Phase::Pending {
            waiting.with_label_values(&[waiting_reason(job)]).inc();
            if let Some(since) = waiting_since(job) {
                let seconds = now.duration_since(since).as_secs().max(0);
                waiting_seconds.with_label_values(&labels).set(seconds);
            }
        }
        let Some(status) = status else { continue };
        attempts.with_label_values(&labels).set(status.attempt.into());
        restarts.with_label_values(&labels).set(status.restarts.into());
        if let Some(spent) = &status.time_spent {
            let spent = spent.until(now, status.phase);
            effective.with_label_values(&labels).set(spent.effective_ratio);
            for (part, seconds) in spent.parts() {
                let labels = [namespace.as_str(), &name, part];
                times.with_label_values(&labels).set(seconds);
            }
        }
        let slow = status.stragglers.iter().filter(|_| phase == Phase::Running);
        for straggler in slow {
            let rank = straggler.rank.to_string();
            let node = straggler.node.as_deref().unwrap_or_default();
            let labels = [namespace.as_str(), &name, &rank, node];
            stragglers.with_label_values(&labels).set(straggler.slowdown);
        }
    }
    for ((product, resource), states) in gpus {
        for state in GpuState::ALL {
            let gpus = states.get(&state).copied().unwrap_or(0);
            let labels = [product.as_str(), resource, state.as_str()];
            states_of_gpus.with_label_values(&labels).set(gpus);
        }
    }
    Ok(registry.gather())
}

/// The condition of a job that waits after a decision.
fn not_placed(job: &ViTTrainingJob) -> Option<&Condition> {
    let placed = job.status.as_ref()?.condition(types::PLACED)?;
    (placed.status == "False").then_some(placed)
}

/// When a waiting job lost its place, or else was created.
fn waiting_since(job: &ViTTrainingJob) -> Option<Timestamp> {
    let lost = not_placed(job).map(|placed| &placed.last_transition_time);
    Some(lost.or(job.metadata.creation_timestamp.as_ref())?.0)
}

/// One of a closed set, because anyone may have written the status.
fn waiting_reason(job: &ViTTrainingJob) -> &'static str {
    let reason = not_placed(job).map(|placed| placed.reason.as_str());
    let mut known = WAITING_REASONS.into_iter();
    known
        .find(|known| reason == Some(known))
        .unwrap_or(names::REASON_UNDECIDED)
}

#[cfg(test)]
mod tests {
    // As expect-test writes them.
    #![allow(clippy::needless_raw_string_hashes)]

    use expect_test::expect;
    use prometheus::{Encoder as _, TextEncoder};

    use super::*;
    use crate::fixtures;

    fn shown(jobs: &[ViTTrainingJob], gpus: &GpuCounts) -> String {
        let mut text = Vec::new();
        let families = gather(jobs, gpus, fixtures::at(100)).expect("metrics");
        TextEncoder::new().encode(&families, &mut text).expect("encodes");
        let text = String::from_utf8(text).expect("text");
        let series = text.lines().filter(|line| !line.starts_with('#'));
        series.map(|line| format!("{line}\n")).collect()
    }

    #[test]
    fn every_job_and_gpu_is_shown_while_it_exists() {
        let mut runs = fixtures::job_in(Phase::Running, 3);
        let status = runs.status.as_mut().expect("a status");
        status.restarts = 2;
        status.stragglers = vec![fixtures::straggler(1, "b", 2.5)];
        status.time_spent = Some(crds::status::TimeSpentStatus {
            useful_seconds: 30.0,
            queue_seconds: 10.0,
            ..crds::status::TimeSpentStatus::default()
        });
        let states = [(GpuState::Gangs, 2), (GpuState::Free, 4)].into();
        let gpus = [(("Tesla-T4".into(), "nvidia.com/gpu".into()), states)].into();
        expect![[r#"
            vit_operator_gpus{product="Tesla-T4",resource="nvidia.com/gpu",state="free"} 4
            vit_operator_gpus{product="Tesla-T4",resource="nvidia.com/gpu",state="gangs"} 2
            vit_operator_gpus{product="Tesla-T4",resource="nvidia.com/gpu",state="others"} 0
            vit_operator_gpus{product="Tesla-T4",resource="nvidia.com/gpu",state="unavailable"} 0
            vit_operator_job_attempt{job_name="digits",namespace="research"} 3
            vit_operator_job_effective_time_ratio{job_name="digits",namespace="research"} 0.75
            vit_operator_job_restarts{job_name="digits",namespace="research"} 2
            vit_operator_job_time_spent_seconds{job_name="digits",namespace="research",part="checkpoint"} 0
            vit_operator_job_time_spent_seconds{job_name="digits",namespace="research",part="evaluation"} 0
            vit_operator_job_time_spent_seconds{job_name="digits",namespace="research",part="other"} 0
            vit_operator_job_time_spent_seconds{job_name="digits",namespace="research",part="queue"} 10
            vit_operator_job_time_spent_seconds{job_name="digits",namespace="research",part="repeated"} 0
            vit_operator_job_time_spent_seconds{job_name="digits",namespace="research",part="restart"} 0
            vit_operator_job_time_spent_seconds{job_name="digits",namespace="research",part="start"} 0
            vit_operator_job_time_spent_seconds{job_name="digits",namespace="research",part="useful"} 30
            vit_operator_jobs{phase="Failed"} 0
            vit_operator_jobs{phase="Pending"} 0
            vit_operator_jobs{phase="Restarting"} 0
            vit_operator_jobs{phase="Running"} 1
            vit_operator_jobs{phase="Starting"} 0
            vit_operator_jobs{phase="Succeeded"} 0
            vit_operator_jobs{phase="Suspended"} 0
            vit_operator_jobs{phase="Suspending"} 0
            vit_operator_straggler_slowdown_ratio{job_name="digits",namespace="research",node="b",rank="1"} 2.5
            vit_operator_waiting_jobs{reason="Admitted"} 0
            vit_operator_waiting_jobs{reason="InQueue"} 0
            vit_operator_waiting_jobs{reason="NoFittingGroup"} 0
            vit_operator_waiting_jobs{reason="PriorityClassNotFound"} 0
            vit_operator_waiting_jobs{reason="QuotaExceeded"} 0
            vit_operator_waiting_jobs{reason="StartFailing"} 0
            vit_operator_waiting_jobs{reason="Undecided"} 0
        "#]].assert_eq(&shown(&[runs.clone()], &gpus));
        // Only a job that runs has stragglers.
        runs.status.as_mut().expect("a status").phase = Some(Phase::Restarting);
        let text = shown(&[runs], &gpus);
        assert!(!text.contains("straggler") && text.contains("digits"), "{text}");
        assert!(!shown(&[], &gpus).contains("digits"), "the job is gone");
    }

    #[test]
    fn waiting_jobs_are_counted_by_a_closed_set_of_reasons() {
        let mut waits = fixtures::job_in(Phase::Pending, 0);
        let condition = fixtures::condition(types::PLACED, false, reasons::NO_FITTING_GROUP);
        waits.status.as_mut().expect("a status").conditions = vec![condition];
        let mut forged = waits.clone();
        forged.status.as_mut().expect("a status").conditions[0].reason = "Surprise".into();
        let mut runs = waits.clone();
        runs.status.as_mut().expect("a status").phase = Some(Phase::Running);
        let text = shown(&[waits, forged, runs, fixtures::job()], &GpuCounts::default());
        let is_of_wait = |line: &&str| line.contains("waiting_jobs") || line.contains("Pending");
        let lines: Vec<&str> = text.lines().filter(is_of_wait).collect();
        expect![[r#"
            vit_operator_jobs{phase="Pending"} 3
            vit_operator_waiting_jobs{reason="Admitted"} 0
            vit_operator_waiting_jobs{reason="InQueue"} 0
            vit_operator_waiting_jobs{reason="NoFittingGroup"} 1
            vit_operator_waiting_jobs{reason="PriorityClassNotFound"} 0
            vit_operator_waiting_jobs{reason="QuotaExceeded"} 0
            vit_operator_waiting_jobs{reason="StartFailing"} 0
            vit_operator_waiting_jobs{reason="Undecided"} 2"#]]
        .assert_eq(&lines.join("\n"));
    }
}
