//! `kubectl vit study list`: the studies of one namespace or of all, one line each.

use crds::ViTScalingStudy;
use jiff::Timestamp;
use kube::ResourceExt as _;

use crate::cluster::Cluster;
use crate::error::{Error, Exit};
use crate::kind::Kind as _;
use crate::output::{self, Format};
use crate::paint::Paint;
use crate::text::{age, or_dash, table};

/// List studies: how many runs are measured, and the current run
#[derive(Debug, clap::Args)]
#[command(visible_alias = "ls", after_help = "Example: kubectl vit study list -A")]
pub(crate) struct Arguments {
    /// Studies of all namespaces; --namespace is ignored
    #[arg(short = 'A', long)]
    all_namespaces: bool,
    /// Only studies with these labels
    #[arg(short = 'l', long, value_name = "LABELS")]
    selector: Option<String>,
    /// Output format
    #[arg(short, long, value_enum)]
    output: Option<Format>,
}

pub(super) async fn run(cluster: &Cluster, arguments: &Arguments) -> Result<Exit, Error> {
    let all = arguments.all_namespaces;
    let studies: Vec<ViTScalingStudy> = cluster.list_readable(all, arguments.selector.as_deref()).await?;
    match arguments.output {
        Some(format) if format.is_object() => output::many(studies, format)?,
        _ if studies.is_empty() => cluster.report_none("studies", all),
        _ => output::print(&render(&studies, all, Timestamp::now(), Paint::of_stdout()))?,
    }
    Ok(Exit::Done)
}

/// The studies as a table.
fn render(studies: &[ViTScalingStudy], has_namespace: bool, now: Timestamp, paint: Paint) -> String {
    let mut header = vec!["NAME", "PHASE", "MEASURED", "FAILED", "RUN", "JOB", "AGE"];
    let mut rows: Vec<Vec<String>> = studies.iter().map(|study| row(study, now, paint)).collect();
    if has_namespace {
        header.insert(0, "NAMESPACE");
        for (row, study) in rows.iter_mut().zip(studies) {
            row.insert(0, study.namespace().unwrap_or_default());
        }
    }
    table(&header, &rows)
}

fn row(study: &ViTScalingStudy, now: Timestamp, paint: Paint) -> Vec<String> {
    let status = study.status.clone().unwrap_or_default();
    let (runs, current) = (status.runs.as_ref(), status.current.as_ref());
    let current = current.filter(|_| !study.is_over());
    let failed = runs.map(|runs| match runs.failed {
        0 => "0".into(),
        failed => paint.bad(failed),
    });
    vec![
        study.name_any(),
        paint.phase(study.phase()),
        or_dash(runs.map(|runs| runs.summary.clone())),
        or_dash(failed),
        or_dash(current.map(|current| format!("{} #{}", current.run, current.repetition))),
        or_dash(current.map(|current| current.job.clone())),
        or_dash(study.creation_timestamp().map(|time| age(time.0, now))),
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fixtures::{now, study};

    #[test]
    fn studies_with_their_current_runs() {
        let current = json!({"run": "strong-r4-b16", "repetition": 2, "job": "digits-0a1b2c3d-2"});
        let mut studies = vec![
            study(json!({"phase": "Running", "current": current,
                "runs": {"total": 48, "measured": 3, "failed": 1, "summary": "3/48"}})),
            study(
                json!({"phase": "Failed", "runs": {"total": 6, "measured": 5, "failed": 1, "summary": "5/6"}}),
            ),
            study(json!({})),
        ];
        for (study, name) in studies.iter_mut().zip(["digits", "short", "new"]) {
            study.metadata.name = Some(name.into());
            study.metadata.creation_timestamp = serde_json::from_value(json!("2026-11-22T11:00:00Z")).ok();
        }
        insta::assert_snapshot!(render(&studies, false, now(), Paint::plain(120)));
        let all = render(&studies[..1], true, now(), Paint::plain(120));
        assert!(all.contains("\nresearch    digits "), "{all}");
    }
}
