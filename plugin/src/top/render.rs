//! Jobs and ranks as tables.

use contract::progress_line::significant;

use super::JobLoad;
use super::load::RankLoad;
use crate::paint::Paint;
use crate::summary::HIGH_SYNC_SHARE;
use crate::text::{mebibytes, or_dash, percent, table};

/// Jobs, a line each.
pub(super) fn jobs(jobs: &[JobLoad], has_namespace: bool, paint: Paint) -> String {
    let mut header = vec![
        "NAME",
        "NODES",
        "GPUS",
        "IMAGES/S",
        "SYNC",
        "GPU LOAD",
        "GPU MEMORY",
    ];
    let row = |job: &JobLoad| {
        vec![
            job.name.clone(),
            job.nodes.to_string(),
            job.gpus.to_string(),
            or_dash(job.images_per_second.map(significant)),
            or_dash(job.sync_share.map(|share| sync(share, paint))),
            or_dash(job.gpu_load.map(percent)),
            or_dash(job.gpu_memory_bytes.map(memory)),
        ]
    };
    let mut rows: Vec<Vec<String>> = jobs.iter().map(row).collect();
    if has_namespace {
        header.insert(0, "NAMESPACE");
        for (row, job) in rows.iter_mut().zip(jobs) {
            row.insert(0, job.namespace.clone());
        }
    }
    table(&header, &rows)
}

/// Ranks, a line each.
pub(super) fn ranks(ranks: &[RankLoad], paint: Paint) -> String {
    let header = [
        "RANK",
        "NODE",
        "IMAGES/S",
        "STEP",
        "SYNC",
        "GPU LOAD",
        "GPU MEMORY",
        "TEMPERATURE",
        "POWER",
        "NOTE",
    ];
    let row = |rank: &RankLoad| {
        let mut notes = vec![];
        notes.extend(
            rank.slowdown
                .map(|slowdown| format!("needs {slowdown:.2}x the time of the others")),
        );
        if !rank.throttled_by.is_empty() {
            notes.push(format!("throttled by {}", rank.throttled_by.join(", ")));
        }
        let milliseconds = rank.step_seconds.map(|seconds| seconds * 1e3);
        vec![
            rank.rank.to_string(),
            or_dash(rank.node.clone()),
            or_dash(rank.images_per_second.map(significant)),
            or_dash(milliseconds.map(|time| format!("{} ms", significant(time)))),
            or_dash(rank.sync_share.map(|share| sync(share, paint))),
            or_dash(rank.gpu_load.map(percent)),
            or_dash(rank.gpu_memory_bytes.map(memory)),
            or_dash(rank.temperature_celsius.map(|degrees| format!("{degrees:.0} °C"))),
            or_dash(rank.power_watts.map(|watts| format!("{watts:.0} W"))),
            paint.warning(notes.join("; ")),
        ]
    };
    table(&header, &ranks.iter().map(row).collect::<Vec<_>>())
}

fn sync(share: f64, paint: Paint) -> String {
    match percent(share) {
        words if share > HIGH_SYNC_SHARE => paint.warning(words),
        words => words,
    }
}

fn memory(bytes: f64) -> String {
    mebibytes((bytes / f64::from(1 << 20)) as i64)
}
