//! The chart's README, schema, and metadata for catalogs.

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use crds::ViTTrainingJob;
use serde_json::{Value, json};
use vit_tests::binaries::Binaries;
use vit_tests::{chart, command, root};

fn read(path: &str) -> Result<String> {
    Ok(fs_err::read_to_string(chart::folder().join(path))?)
}

fn metadata() -> Result<Value> {
    Ok(serde_saphyr::from_str(&read("Chart.yaml")?)?)
}

/// The value of an Artifact Hub annotation.
fn annotation<'a>(metadata: &'a Value, name: &str) -> Result<&'a str> {
    metadata["annotations"][format!("artifacthub.io/{name}")]
        .as_str()
        .with_context(|| format!("there is no annotation {name}"))
}

#[test]
fn workflows_of_github_are_sound() -> Result<()> {
    let mut actionlint = Command::new(Binaries::build_linters()?.path("actionlint"));
    actionlint.args(["-shellcheck=", "-pyflakes="]);
    let workflows = fs_err::read_dir(root().join(".github/workflows"))?;
    for workflow in workflows {
        actionlint.arg(workflow?.path());
    }
    command::run(&mut actionlint)?;
    Ok(())
}

#[test]
fn the_workspaces_repository_is_named_everywhere() -> Result<()> {
    let workspace = fs_err::read_to_string(root().join("Cargo.toml"))?;
    let repository = workspace
        .lines()
        .find_map(|line| line.strip_prefix("repository = "))
        .context("Cargo.toml has a repository")?
        .trim_matches('"');
    let metadata = metadata()?;
    ensure!(
        metadata["home"] == repository && metadata["sources"] == json!([repository]),
        "Chart.yaml should have home and sources {repository}"
    );
    Ok(())
}

/// Paths of all leaf values, including empty objects.
fn leaves(path: &str, values: &Value, found: &mut BTreeSet<String>) {
    match values {
        Value::Object(fields) if !fields.is_empty() => {
            for (name, value) in fields {
                leaves(&format!("{path}/{name}"), value, found);
            }
        }
        _ => {
            found.insert(path.to_owned());
        }
    }
}

#[test]
fn the_readme_is_fresh_and_explains_every_value() -> Result<()> {
    let (is, should_be) = (read("README.md")?, chart::readme()?);
    ensure!(
        is == should_be,
        "charts/vit-operator/README.md is outdated: run `make generate` and commit the result"
    );
    let rows: Vec<&str> = is.lines().filter(|line| line.starts_with("| ")).skip(1).collect();
    ensure!(rows.len() > 40, "{} rows", rows.len());
    for row in rows {
        let description = row.trim_end_matches('|').rsplit(" | ").next().unwrap_or_default();
        ensure!(description.trim().len() > 10, "not explained: {row}");
    }
    Ok(())
}

#[test]
fn the_schema_knows_every_value() -> Result<()> {
    let values: Value = serde_saphyr::from_str(&read("values.yaml")?)?;
    let schema: Value = serde_json::from_str(&read("values.schema.json")?)?;
    let mut paths = BTreeSet::new();
    leaves("", &values, &mut paths);
    ensure!(paths.len() > 40, "{paths:?}");
    for path in paths {
        let mut node = &schema;
        for name in path.split('/').skip(1) {
            let reference = node["$ref"]
                .as_str()
                .map(|reference| reference.trim_start_matches('#'));
            if let Some(pointer) = reference {
                node = schema
                    .pointer(pointer)
                    .with_context(|| format!("{path}: no {pointer}"))?;
            }
            // Kubernetes validates these.
            if *node == json!({"type": "object"}) {
                break;
            }
            node = match &node["properties"][name] {
                Value::Null => &node["additionalProperties"],
                property => property,
            };
            ensure!(node.is_object(), "{path} is not in values.schema.json");
        }
    }
    Ok(())
}

#[test]
fn another_chart_includes_this_one_on_a_condition() -> Result<()> {
    let parent = tempfile::tempdir()?;
    let version = &metadata()?["version"];
    let dependency = json!({"name": "vit-operator", "version": version, "condition": "vit-operator.enabled"});
    let chart =
        json!({"apiVersion": "v2", "name": "parent", "version": "1.0.0", "dependencies": [dependency]});
    fs_err::write(parent.path().join("Chart.yaml"), chart.to_string())?;
    let helm = Binaries::build()?.path("helm");
    let mut package = command::command(&helm, ["package", "--destination"]);
    package.arg(parent.path().join("charts")).arg(chart::folder());
    command::run(&mut package)?;
    for (enabled, operators) in [("true", 1), ("false", 0)] {
        let mut template = command::command(&helm, ["template", "parent", "--kube-version", "1.30.0"]);
        template.arg(parent.path());
        template.args(["--set", &format!("vit-operator.enabled={enabled}")]);
        let objects = chart::manifests(&command::run(&mut template)?)?;
        let found = crate::of_kind(&objects, "Deployment").len();
        ensure!(found == operators, "enabled={enabled}: {found} Deployments");
    }
    Ok(())
}

#[test]
fn the_icon_is_the_one_in_the_tree() -> Result<()> {
    let icon = read("icon.svg")?;
    let url = format!("data:image/svg+xml;base64,{}", BASE64_STANDARD.encode(&icon));
    ensure!(metadata()?["icon"] == *url, "Chart.yaml should have icon: {url}");
    Ok(())
}

#[test]
fn catalogues_are_told_what_there_is() -> Result<()> {
    let metadata = metadata()?;
    let license = fs_err::read_to_string(root().join("LICENSE"))?;
    ensure!(
        annotation(&metadata, "license")? == "Apache-2.0" && license.contains("Apache License"),
        "the license is not Apache-2.0"
    );
    let home = metadata["home"].as_str().context("a home page")?;
    ensure!(
        metadata["sources"] == json!([home]) && metadata["maintainers"][0]["url"] == home,
        "the project: {metadata}"
    );
    let version = metadata["appVersion"].as_str().context("a version")?;
    ensure!(version == env!("CARGO_PKG_VERSION"), "appVersion {version}");
    let values: Value = serde_saphyr::from_str(&read("values.yaml")?)?;
    let images: Value = serde_saphyr::from_str(annotation(&metadata, "images")?)?;
    let told: BTreeSet<&str> = images
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|image| image["image"].as_str())
        .collect();
    let used = ["/image", "/test/image"].map(|pointer| {
        let repository = values
            .pointer(pointer)
            .and_then(|image| image["repository"].as_str());
        format!("{}:{version}", repository.unwrap_or_default())
    });
    ensure!(
        told == used.iter().map(String::as_str).collect(),
        "{told:?} and {used:?}"
    );
    let changes: Value = serde_saphyr::from_str(annotation(&metadata, "changes")?)?;
    for change in changes.as_array().context("a list")? {
        let kind = change["kind"].as_str().unwrap_or_default();
        ensure!(
            ["added", "changed", "deprecated", "removed", "fixed", "security"].contains(&kind)
                && change["description"].is_string(),
            "{change}"
        );
    }
    Ok(())
}

#[test]
fn catalogues_show_the_resource_and_a_job_that_can_be_run() -> Result<()> {
    let metadata = metadata()?;
    let crds: Value = serde_saphyr::from_str(annotation(&metadata, "crds")?)?;
    for (place, file) in ["vittrainingjobs", "vitscalingstudies"].iter().enumerate() {
        let definition: Value = serde_saphyr::from_str(&read(&format!("files/{file}.yaml"))?)?;
        let told = &crds[place];
        ensure!(
            told["kind"] == definition["spec"]["names"]["kind"]
                && told["name"] == definition["metadata"]["name"]
                && told["version"] == definition["spec"]["versions"][0]["name"],
            "{told}"
        );
    }
    let examples: Vec<ViTTrainingJob> = serde_saphyr::from_str(annotation(&metadata, "crdsExamples")?)?;
    let [example] = &examples[..] else {
        anyhow::bail!("{} examples", examples.len())
    };
    crds::validate(example)?;
    let shipped = fs_err::read_to_string(root().join("examples/synthetic.yaml"))?;
    let mut shipped: ViTTrainingJob = serde_saphyr::from_str(&shipped)?;
    shipped.spec.image.clone_from(&example.spec.image);
    ensure!(
        shipped.spec == example.spec,
        "the example is not examples/synthetic.yaml"
    );
    Ok(())
}

#[test]
fn the_resource_is_kept_when_the_release_goes() -> Result<()> {
    for file in ["files/vittrainingjobs.yaml", "files/vitscalingstudies.yaml"] {
        let definition: Value = serde_saphyr::from_str(&read(file)?)?;
        ensure!(
            definition["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep",
            "{}",
            definition["metadata"]
        );
    }
    Ok(())
}
