//! Dashboards: what their panels show, and how Grafana finds them.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use vit_tests::{chart, command, packages, root};

use crate::{NAMESPACE, objects, text};

/// Series of a job on two GPUs, one of them throttled: the first value, and its increase per minute.
const GPU_SERIES: [(&str, f64, f64); 18] = [
    (r#"vit_device_utilization_ratio{rank="0"}"#, 0.98, 0.0),
    (r#"vit_device_utilization_ratio{rank="1"}"#, 0.61, 0.0),
    (r#"vit_device_memory_used_bytes{rank="0"}"#, 11.8e9, 0.0),
    (r#"vit_device_memory_used_bytes{rank="1"}"#, 11.9e9, 0.0),
    (r#"vit_device_memory_peak_bytes{rank="0"}"#, 10.2e9, 0.0),
    (r#"vit_device_memory_peak_bytes{rank="1"}"#, 10.3e9, 0.0),
    (r#"vit_device_power_watts{rank="0"}"#, 655.0, 0.0),
    (r#"vit_device_power_watts{rank="1"}"#, 310.0, 0.0),
    (r#"vit_device_temperature_celsius{rank="0"}"#, 54.0, 0.0),
    (r#"vit_device_temperature_celsius{rank="1"}"#, 87.0, 0.0),
    (r#"vit_device_throttled{rank="0",reason="thermal"}"#, 0.0, 0.0),
    (r#"vit_device_throttled{rank="1",reason="thermal"}"#, 1.0, 0.0),
    (r#"vit_device_peak_flops{rank="0"}"#, 1e15, 0.0),
    (r#"vit_device_peak_flops{rank="1"}"#, 1e15, 0.0),
    (r#"vit_model_flops_per_image{rank="0"}"#, 1e11, 0.0),
    (r#"vit_model_flops_per_image{rank="1"}"#, 1e11, 0.0),
    (r#"vit_images_total{rank="0"}"#, 0.0, 300_000.0),
    (r#"vit_images_total{rank="1"}"#, 0.0, 300_000.0),
];
/// Title and legend of a panel's query, and samples by their labels.
type Shown = (&'static str, &'static str, &'static [(&'static str, f64)]);

/// What panels show of them: title, legend, and samples by their labels.
const GPU_PANELS: [Shown; 7] = [
    (
        "GPU load",
        "rank {{rank}}",
        &[(r#"{rank="0"}"#, 0.98), (r#"{rank="1"}"#, 0.61)],
    ),
    (
        "GPU memory",
        "rank {{rank}}: in use",
        &[(r#"{rank="0"}"#, 11.8e9), (r#"{rank="1"}"#, 11.9e9)],
    ),
    (
        "GPU memory",
        "rank {{rank}}: tensors, peak",
        &[(r#"{rank="0"}"#, 10.2e9), (r#"{rank="1"}"#, 10.3e9)],
    ),
    (
        "GPU power",
        "rank {{rank}}",
        &[(r#"{rank="0"}"#, 655.0), (r#"{rank="1"}"#, 310.0)],
    ),
    (
        "GPU temperature",
        "rank {{rank}}",
        &[(r#"{rank="0"}"#, 54.0), (r#"{rank="1"}"#, 87.0)],
    ),
    ("GPUs throttled", "{{reason}}", &[(r#"{reason="thermal"}"#, 1.0)]),
    // 5,000 images a second of each, of 0.1 TFLOP, by 1,000 TFLOP/s.
    ("Model FLOPs utilization", "utilization", &[("{}", 0.5)]),
];

/// Asserts what panels show of [`GPU_SERIES`], which have further labels, if this cluster is chosen.
fn check_gpu_panels(further: &[&str], cluster: &str) -> Result<()> {
    let folder = chart::folder().join("files/dashboards/training-job.json");
    let dashboard: Value = serde_json::from_str(&fs_err::read_to_string(folder)?)?;
    let series = further.iter().enumerate().flat_map(|(number, further)| {
        let of_job = format!(r#"{{{further}namespace="a",job_name="digits","#);
        GPU_SERIES.map(|(series, value, rise)| {
            let scale = f64::from(u32::try_from(number).unwrap_or(0)) + 1.0;
            let values = format!("{}{:+}x30", value * scale, rise * scale);
            json!({"series": series.replace('{', &of_job), "values": values})
        })
    });
    let series: Vec<Value> = series.collect();
    let mut asked = Vec::new();
    for (title, legend, samples) in GPU_PANELS {
        let panels = dashboard["panels"].as_array().context("panels")?;
        let panel = panels
            .iter()
            .find(|panel| panel["title"] == title)
            .context(title)?;
        let targets = panel["targets"].as_array().context("queries")?;
        let query = targets.iter().find(|target| target["legendFormat"] == legend);
        let mut expression = query
            .and_then(|target| target["expr"].as_str())
            .context(legend)?
            .to_owned();
        for (name, value) in [
            ("$__rate_interval", "5m"),
            ("$__range", "10m"),
            ("$namespace", "a"),
            ("$job", "digits"),
            ("$rank", ".*"),
            ("$cluster", cluster),
        ] {
            expression = expression.replace(name, value);
        }
        let samples = samples
            .iter()
            .map(|(labels, value)| json!({"labels": labels, "value": value}));
        asked.push(
            json!({"expr": expression, "eval_time": "20m", "exp_samples": samples.collect::<Vec<_>>()}),
        );
    }
    let tests = json!({"tests": [{"interval": "1m", "input_series": series, "promql_expr_test": asked}]});
    let file = tempfile::Builder::new().suffix(".yaml").tempfile()?;
    fs_err::write(file.path(), tests.to_string())?;
    let mut promtool = Command::new(packages::prometheus()?.with_file_name("promtool"));
    command::run(promtool.args(["test", "rules"]).arg(file.path()))?;
    Ok(())
}

#[test]
fn panels_of_gpus_show_what_ranks_report_of_them() -> Result<()> {
    check_gpu_panels(&[""], ".*")
}

#[test]
fn panels_show_the_job_of_the_chosen_cluster() -> Result<()> {
    check_gpu_panels(&[r#"cluster="near","#, r#"cluster="far","#], "near")
}

#[test]
fn dashboards_are_config_maps_that_a_sidecar_finds() -> Result<()> {
    let config_maps = |values: &[&str]| -> Result<Vec<Value>> {
        let objects = objects(values)?.into_iter();
        Ok(objects
            .filter(|object| text(object, "/kind") == "ConfigMap")
            // The ConfigMap of `helm test` exists only during the test.
            .filter(|object| object.pointer("/metadata/annotations/helm.sh~1hook").is_none())
            .collect())
    };
    ensure!(config_maps(&[])?.is_empty(), "dashboards are on by default");
    let values = [
        "metrics.dashboards.enabled=true",
        "metrics.dashboards.namespace=monitoring",
        "metrics.dashboards.labels.team=vision",
        "metrics.dashboards.annotations.grafana_folder=Training",
    ];
    let found = config_maps(&values)?;
    let folder = root().join("charts/vit-operator/files/dashboards");
    let files: Vec<_> = fs_err::read_dir(folder)?.collect::<Result<_, _>>()?;
    ensure!(files.len() == 2 && found.len() == 2, "{} ConfigMaps", found.len());
    for file in files {
        let name = file.file_name().to_string_lossy().into_owned();
        let map = found
            .iter()
            .find(|map| map["data"].get(&name).is_some())
            .with_context(|| format!("no ConfigMap has {name}"))?;
        ensure!(
            text(map, &format!("/data/{name}")) == fs_err::read_to_string(file.path())?,
            "{name} is not the file"
        );
        for (pointer, expected) in [
            ("/metadata/namespace", "monitoring"),
            ("/metadata/labels/grafana_dashboard", "1"),
            ("/metadata/labels/team", "vision"),
            ("/metadata/annotations/grafana_folder", "Training"),
        ] {
            ensure!(text(map, pointer) == expected, "{pointer} of {map}");
        }
    }
    let own = config_maps(&["metrics.dashboards.enabled=true"])?;
    ensure!(
        own.iter()
            .all(|map| text(map, "/metadata/namespace") == NAMESPACE),
        "{own:?}"
    );
    Ok(())
}
