//! Metrics of single jobs and of the fleet, rebuilt for each scrape: no series outlives its job,
//! and concurrent scrapes are independent.

use contract::operator_metrics as names;
use crds::conditions::{reasons, types};
use crds::{Phase, ViTTrainingJob};
use jiff::Timestamp;
use kube::ResourceExt as _;
use prometheus::proto::MetricFamily;
use prometheus::{Registry, register_gauge_vec_with_registry, register_int_gauge_vec_with_registry};

use super::gpu_counts::{GpuCounts, GpuState};

/// Reasons of `Placed` for which a job waits.
const WAITING_REASONS: [&str; 4] = [
    reasons::NO_FITTING_GROUP,
    reasons::NO_PRIORITY_CLASS,
    reasons::IN_QUEUE,
    reasons::ADMITTED,
];

/// The metrics of all jobs and of the fleet's GPUs.
pub(super) fn gather<'a>(
    jobs: impl IntoIterator<Item = &'a ViTTrainingJob>,
    gpus: &GpuCounts,
) -> prometheus::Result<Vec<MetricFamily>> {
    const JOB: [&str; 2] = [names::LABEL_NAMESPACE, names::LABEL_JOB_NAME];
    let registry = Registry::new();
    let gauges = |name: &str, help: &str, labels: &[&str]| {
        register_int_gauge_vec_with_registry!(name, help, labels, registry)
    };
    let phases = gauges(names::JOBS, "ViTTrainingJobs, by phase", &[names::LABEL_PHASE])?;
    let help = "Jobs in phase Pending, by the reason of their condition Placed";
    let waiting = gauges(names::WAITING_JOBS, help, &[names::LABEL_REASON])?;
    let help = "Seconds the job, in phase Pending, has waited for placement";
    let waiting_seconds = gauges(names::JOB_WAITING_SECONDS, help, &JOB)?;
    let attempts = gauges(names::JOB_ATTEMPT, "Number of the job's latest attempt", &JOB)?;
    let help = "How often the job's gang was replaced after a failure";
    let restarts = gauges(names::JOB_RESTARTS, help, &JOB)?;
    let effective = register_gauge_vec_with_registry!(
        names::JOB_EFFECTIVE_TIME_RATIO,
        "Share of the time since the job first got GPUs that was spent on useful steps",
        &JOB,
        registry
    )?;
    let times = register_gauge_vec_with_registry!(
        names::JOB_TIME_SPENT_SECONDS,
        "Seconds since the job first got GPUs, by what they were spent on",
        &[JOB[0], JOB[1], names::LABEL_PART],
        registry
    )?;
    let help = "GPUs of the cluster, by product and state";
    let labels = [names::LABEL_PRODUCT, names::LABEL_RESOURCE, names::LABEL_STATE];
    let states_of_gpus = gauges(names::GPUS, help, &labels)?;
    let stragglers = register_gauge_vec_with_registry!(
        names::STRAGGLER_SLOWDOWN_RATIO,
        "Compute time of a persistently slow rank divided by the median of the job's other ranks",
        &[JOB[0], JOB[1], names::LABEL_RANK, names::LABEL_NODE],
        registry
    )?;
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
                let seconds = Timestamp::now().duration_since(since).as_secs().max(0);
                waiting_seconds.with_label_values(&labels).set(seconds);
            }
        }
        let Some(status) = status else { continue };
        attempts.with_label_values(&labels).set(status.attempt.into());
        restarts.with_label_values(&labels).set(status.restarts.into());
        if let Some(spent) = &status.time_spent {
            let spent = spent.until(Timestamp::now(), status.phase);
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

/// When a waiting job lost its place, or else was created.
fn waiting_since(job: &ViTTrainingJob) -> Option<Timestamp> {
    let placed = job
        .status
        .as_ref()
        .and_then(|status| status.condition(types::PLACED));
    let lost = placed.filter(|placed| placed.status == "False");
    let created = job.metadata.creation_timestamp.as_ref();
    lost.map(|placed| &placed.last_transition_time)
        .or(created)
        .map(|time| time.0)
}

/// One of a closed set, because anyone may have written the status.
fn waiting_reason(job: &ViTTrainingJob) -> &'static str {
    let placed = job
        .status
        .as_ref()
        .and_then(|status| status.condition(types::PLACED))
        .filter(|placed| placed.status == "False")
        .map(|placed| placed.reason.as_str());
    WAITING_REASONS
        .into_iter()
        .find(|reason| placed == Some(reason))
        .unwrap_or(names::REASON_UNDECIDED)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use prometheus::{Encoder as _, TextEncoder};

    use super::*;
    use crate::fixtures;

    fn shown(jobs: &[&ViTTrainingJob], gpus: &GpuCounts) -> String {
        let families = gather(jobs.iter().copied(), gpus).expect("metrics");
        let mut text = Vec::new();
        TextEncoder::new().encode(&families, &mut text).expect("encodes");
        String::from_utf8(text).expect("text")
    }

    fn check(text: &str, lines: &[&str]) {
        for line in lines {
            assert!(
                text.lines().any(|found| found == *line),
                "{line} is not in:\n{text}"
            );
        }
    }

    #[test]
    fn what_time_went_into_is_shown_by_part() {
        let mut job = fixtures::job_in(Phase::Running, 1);
        job.status.as_mut().expect("a status").time_spent = Some(crds::status::TimeSpentStatus {
            useful_seconds: 30.0,
            queue_seconds: 10.0,
            ..crds::status::TimeSpentStatus::default()
        });
        let text = shown(&[&job], &GpuCounts::default());
        check(
            &text,
            &[
                r#"vit_operator_job_effective_time_ratio{job_name="digits",namespace="research"} 0.75"#,
                r#"vit_operator_job_time_spent_seconds{job_name="digits",namespace="research",part="queue"} 10"#,
                r#"vit_operator_job_time_spent_seconds{job_name="digits",namespace="research",part="repeated"} 0"#,
            ],
        );
    }

    #[test]
    fn a_straggler_is_shown_while_its_job_runs() {
        let none = GpuCounts::default();
        let mut job = fixtures::job_in(Phase::Running, 1);
        let series = r#"vit_operator_straggler_slowdown_ratio{job_name="digits",namespace="research",node="b",rank="1"} 2.5"#;
        let is_shown = |job: &ViTTrainingJob| shown(&[job], &none).contains(series);
        assert!(!is_shown(&job));
        job.status.as_mut().expect("a status").stragglers = vec![fixtures::straggler(1, "b", 2.5)];
        assert!(is_shown(&job));
        job.status.as_mut().expect("a status").phase = Some(Phase::Restarting);
        assert!(!is_shown(&job));
    }

    #[test]
    fn a_job_that_is_gone_leaves_no_series() {
        let mut job = fixtures::job_in(Phase::Running, 3);
        let status = job.status.as_mut().expect("a status");
        status.restarts = 2;
        status.stragglers = vec![fixtures::straggler(1, "b", 2.5)];
        let none = GpuCounts::default();
        check(
            &shown(&[&job], &none),
            &[
                r#"vit_operator_job_attempt{job_name="digits",namespace="research"} 3"#,
                r#"vit_operator_job_restarts{job_name="digits",namespace="research"} 2"#,
                r#"vit_operator_jobs{phase="Running"} 1"#,
            ],
        );
        let text = shown(&[], &none);
        assert!(!text.contains("digits"), "the job is gone: {text}");
        check(&text, &[r#"vit_operator_jobs{phase="Running"} 0"#]);
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
        let new = fixtures::job();
        check(
            &shown(&[&waits, &forged, &runs, &new], &GpuCounts::default()),
            &[
                r#"vit_operator_waiting_jobs{reason="NoFittingGroup"} 1"#,
                r#"vit_operator_waiting_jobs{reason="PriorityClassNotFound"} 0"#,
                r#"vit_operator_waiting_jobs{reason="InQueue"} 0"#,
                r#"vit_operator_waiting_jobs{reason="Admitted"} 0"#,
                r#"vit_operator_waiting_jobs{reason="Undecided"} 2"#,
                r#"vit_operator_jobs{phase="Pending"} 3"#,
            ],
        );
    }

    #[test]
    fn every_state_of_a_product_is_shown() {
        let states = BTreeMap::from([(GpuState::Gangs, 2), (GpuState::Free, 4)]);
        let gpus = GpuCounts::from([(("Tesla-T4".into(), "nvidia.com/gpu".into()), states)]);
        let of = |state: &str, gpus: u8| {
            format!(
                r#"vit_operator_gpus{{product="Tesla-T4",resource="nvidia.com/gpu",state="{state}"}} {gpus}"#
            )
        };
        let lines = [
            of("gangs", 2),
            of("others", 0),
            of("free", 4),
            of("unavailable", 0),
        ];
        check(&shown(&[], &gpus), &lines.each_ref().map(String::as_str));
    }
}
