//! What people watch jobs with: the alerts of the chart's rules fire on what they are for, and every panel of the
//! dashboards shows something, on the metrics of real jobs.

mod panels;

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, ensure};
use crds::Phase;
use rustix::process::Signal;
use serde_json::{Value, json};
use vit_tests::prometheus::{self, Alert, AlertState};
use vit_tests::{cgroup, operator};

use crate::context::{Context, Namespace};
use crate::steps::saved_step;

/// The longest that Prometheus may take to see something.
const DEADLINE: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(500);

/// How long a rule's expression must hold here, in place of minutes: so much of the rules is not as shipped, and that a job
/// waits long after two seconds.
const SHORT: &str = "2s";

/// In phases: a rank is killed, a gang cannot be placed, a rank is slowed down. Then alerts fire and panels show it; in
/// the end the alerts are over.
pub(crate) fn alerts_fire_and_panels_show_data(context: &Context<'_>) -> Result<()> {
    let shipped = fs_err::read_to_string(vit_tests::root().join("charts/vit-operator/files/rules.yaml"))?;
    context.cluster.load_rules(&shortened(&shipped)?)?;
    let outcome = watch_jobs(context);
    context.cluster.load_rules(&shipped)?;
    outcome
}

fn watch_jobs(context: &Context<'_>) -> Result<()> {
    let namespace = context.namespace("monitoring")?;
    let from = now();
    namespace.create("digits", json!({"training": {"epochs": 5000}}))?;
    namespace.wait_checkpoint("digits")?;
    // Long enough to be seen at the resolution of the queries: a fast machine gets here within it.
    let attempts = format!(
        "count_over_time(vit_operator_job_attempt{{namespace=\"{}\"}}[1m]) > {}",
        namespace.name,
        2 * panels::STEP.as_secs() / prometheus::INTERVAL.as_secs()
    );
    until("Prometheus has seen the first attempt", || {
        let seen = prometheus::query(&context.cluster.prometheus_url()?, &attempts)?;
        Ok((!seen.is_empty()).then_some(()))
    })?;
    namespace.signal_rank("digits", 1, Signal::KILL)?;
    let again = namespace.wait_attempt("digits", 2)?;
    namespace.wait_checkpoint_after("digits", saved_step(&again)?)?;

    namespace.create(
        "large",
        json!({"workers": {"nodes": 4, "gpusPerNode": 2}, "training": {"epochs": 2, "microBatchSize": 8}}),
    )?;
    namespace.wait_phase("large", Phase::Pending)?;

    let placement = namespace.status("digits")?.placement;
    let nodes = placement.context("placement is told")?.nodes;
    let slow = nodes.last().context("has nodes")?;
    let process = namespace.rank_process("digits", 1)?;
    cgroup::limit_cpu(process, Some(0.25))?;

    let waits = fires(context, "the job that waits", |alert| {
        alert.labels["alertname"] == "ViTJobsWaitLong" && alert.labels["job_name"] == "large"
    })?;
    ensure!(waits.labels["severity"] == "info", "{waits:?}");
    let straggler = fires(context, "the slow rank", |alert| {
        let has = |label: &str, value: &str| alert.labels.get(label).is_some_and(|found| found == value);
        let is_of_job = has("namespace", &namespace.name) && has("job_name", "digits");
        // Others may be slow for a moment on a machine that does more than this.
        has("alertname", "ViTStraggler") && is_of_job && has("rank", "1")
    })?;
    ensure!(straggler.labels["node"] == *slow, "{straggler:?}");
    ensure!(
        straggler.annotations["summary"].starts_with(&format!(
            "rank 1 of {}/digits on {slow} computes ",
            namespace.name
        )),
        "{straggler:?}"
    );

    panels::all_show_data(context, &namespace, "digits", from)?;

    cgroup::limit_cpu(process, None)?;
    namespace.kubectl(["delete", "vtj", "large", "--timeout=60s"])?;
    for over in ["ViTJobsWaitLong", "ViTStraggler"] {
        until(&format!("{over} is over"), || {
            let alerts = prometheus::alerts(&context.cluster.prometheus_url()?)?;
            Ok((!alerts.iter().any(|alert| alert.labels["alertname"] == over)).then_some(()))
        })?;
    }
    lead_by_nobody(context, &namespace)
}

/// Without an operator the alert for that fires, and jobs go on.
fn lead_by_nobody(context: &Context<'_>, namespace: &Namespace<'_>) -> Result<()> {
    let replicas = |count: &str| {
        let replicas = format!("--replicas={count}");
        context.kubectl([
            "-n",
            operator::OPERATOR,
            "scale",
            "deployment",
            operator::OPERATOR,
            &replicas,
        ])
    };
    replicas("0")?;
    let fired = fires(context, "that nobody leads", |alert| {
        alert.labels["alertname"] == "ViTOperatorDoesNotLead"
            && alert.annotations["summary"].starts_with("0 operator replicas")
    });
    replicas("2")?;
    ensure!(
        fired?.labels["severity"] == "critical",
        "it is critical that nobody leads"
    );
    until("somebody leads again", || {
        let alerts = prometheus::alerts(&context.cluster.prometheus_url()?)?;
        let over = !alerts
            .iter()
            .any(|alert| alert.labels["alertname"] == "ViTOperatorDoesNotLead");
        Ok(over.then_some(()))
    })?;
    let status = namespace.status("digits")?;
    ensure!(
        status.attempt == 2,
        "the job did not notice: attempt {}",
        status.attempt
    );
    Ok(())
}

/// The rules with every `for` made short, and expressions, labels and texts as they are.
fn shortened(rules: &str) -> Result<String> {
    let mut rules: Value = serde_saphyr::from_str(rules)?;
    let groups = rules["groups"].as_array_mut().context("there are groups")?;
    let mut waits = 0;
    for rule in groups
        .iter_mut()
        .filter_map(|group| group["rules"].as_array_mut())
        .flatten()
    {
        if let Some(wait) = rule.get_mut("for") {
            *wait = SHORT.into();
            waits += 1;
        }
        if rule["alert"] == "ViTJobsWaitLong" {
            let expression = rule["expr"].as_str().context("an expression")?;
            let sooner = expression.replace("> 86400", "> 2");
            ensure!(sooner != expression, "another threshold: {expression}");
            rule["expr"] = sooner.into();
        }
    }
    ensure!(waits > 5, "only {waits} rules wait");
    // JSON is YAML.
    Ok(rules.to_string())
}

/// Waits until such an alert fires, as Prometheus itself tells.
fn fires(context: &Context<'_>, what: &str, is_it: impl Fn(&Alert) -> bool) -> Result<Alert> {
    until(&format!("an alert tells of {what}"), || {
        let alerts = prometheus::alerts(&context.cluster.prometheus_url()?)?;
        Ok(alerts
            .into_iter()
            .find(|alert| alert.state == AlertState::Firing && is_it(alert)))
    })
}

/// Waits until there is something; the last error, if any, is told.
fn until<T>(what: &str, mut look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let began = Instant::now();
    loop {
        let seen = look();
        if let Ok(Some(found)) = seen {
            return Ok(found);
        }
        if began.elapsed() > DEADLINE {
            seen.with_context(|| format!("waiting until {what}"))?;
            anyhow::bail!("it is not so that {what} after {} s", DEADLINE.as_secs());
        }
        std::thread::sleep(POLL);
    }
}

/// Seconds of Unix time.
fn now() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0.0, |time| time.as_secs_f64())
}
