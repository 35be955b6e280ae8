//! The API reference as Markdown, generated from the API server's schema, so the two cannot differ.

mod metrics;

use std::collections::BTreeMap;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    JSONSchemaProps, JSONSchemaPropsOrArray,
};
use kube::CustomResourceExt as _;

use crate::spec::{self, sections};
use crate::{ViTScalingStudy, ViTTrainingJob};

pub use metrics::metrics;

/// The job within a study; the job's own reference has its fields and rules.
const TEMPLATE: &str = "spec.template.spec";
/// Types that are documented elsewhere: named, not listed field by field.
const KNOWN_TYPES: [(&str, &str); 13] = [
    (TEMPLATE, "spec of a ViTTrainingJob"),
    ("spec.workers.env", "list of EnvVar of core/v1"),
    ("spec.workers.envFrom", "list of EnvFromSource of core/v1"),
    ("spec.workers.volumes", "list of Volume of core/v1"),
    ("spec.workers.volumeMounts", "list of VolumeMount of core/v1"),
    ("spec.workers.podLabels", "map of label to value"),
    ("spec.workers.podAnnotations", "map of annotation to value"),
    ("spec.workers.tolerations", "list of Toleration of core/v1"),
    ("status.admission.tolerations", "list of Toleration of core/v1"),
    ("status.admittedPod.tolerations", "list of Toleration of core/v1"),
    ("spec.workers.resources", "ResourceRequirements of core/v1"),
    ("status.conditions", "list of Condition of meta/v1"),
    ("spec.workers.nodeSelector", "map of label to value"),
];

/// The reference of `ViTTrainingJob`: all fields with type, bounds and default, and all rules.
pub fn jobs() -> String {
    let schemas = sections(ViTTrainingJob::crd());
    markdown("ViTTrainingJob", "vtj", &schemas)
}

/// The same for `ViTScalingStudy`.
pub fn studies() -> String {
    let schemas = sections(ViTScalingStudy::crd());
    markdown("ViTScalingStudy", "vits", &schemas)
}

fn markdown(kind: &str, short: &str, schemas: &BTreeMap<String, JSONSchemaProps>) -> String {
    let mut page = format!(
        "# {kind} (vit-operator.dev/v1alpha1)\n\nMade from the schema by `make generate`; do not edit. `kubectl \
         explain {short}.spec --recursive` prints the same.\n",
    );
    for section in ["spec", "status"] {
        let schema = &schemas[section];
        let (mut rows, mut rules) = (String::new(), String::new());
        collect(section, schema, &mut rows, &mut rules);
        page += &format!(
            "\n## {section}\n\n{}\n\n| Field | Type | Bounds | Default | Description |\n| --- | --- | --- | --- | --- |\n{rows}",
            text(schema)
        );
        if !rules.is_empty() {
            page += &format!("\nRules over several fields, checked by the API server:\n\n{rules}");
        }
    }
    page
}

fn collect(path: &str, schema: &JSONSchemaProps, rows: &mut String, rules: &mut String) {
    if path == TEMPLATE {
        return;
    }
    for rule in schema.x_kubernetes_validations.iter().flatten() {
        *rules += &format!("- `{path}`: {}\n", spec::text(rule));
    }
    // Fields of known types are not listed.
    if KNOWN_TYPES.iter().any(|(known, _)| *known == path) {
        return;
    }
    let required = schema.required.as_deref().unwrap_or_default();
    for (name, field) in schema.properties.iter().flatten() {
        let path = format!("{path}.{name}");
        let kubernetes = KNOWN_TYPES.iter().find(|(known, _)| *known == path);
        let default = field.default.as_ref();
        *rows += &format!(
            "| `{path}`{} | {} | {} | {} | {} |\n",
            if required.contains(name) {
                " (required)"
            } else {
                ""
            },
            kubernetes.map_or_else(|| type_name(field), |(_, name)| (*name).to_owned()),
            bounds(field),
            default.map_or_else(String::new, |value| format!("`{}`", cell(&value.0.to_string()))),
            text(field),
        );
        collect(&path, field, rows, rules);
    }
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &schema.items {
        collect(&format!("{path}[]"), items, rows, rules);
    }
}

fn type_name(schema: &JSONSchemaProps) -> String {
    if let Some(values) = &schema.enum_ {
        let values = values
            .iter()
            .map(|value| format!("`{}`", cell(&value.0.to_string())));
        return values.collect::<Vec<_>>().join(", ");
    }
    match (&schema.items, schema.type_.as_deref()) {
        (Some(JSONSchemaPropsOrArray::Schema(items)), _) => format!("list of {}", type_name(items)),
        (_, Some(name)) => name.to_owned(),
        (_, None) => "any".to_owned(),
    }
}

fn bounds(schema: &JSONSchemaProps) -> String {
    let mut bounds = Vec::new();
    match (schema.minimum, schema.maximum) {
        (Some(least), Some(most)) => bounds.push(format!("{least} to {most}")),
        (Some(least), None) => bounds.push(format!("at least {least}")),
        (None, Some(most)) => bounds.push(format!("at most {most}")),
        (None, None) => {}
    }
    if let Some(most) = schema.max_length {
        bounds.push(format!("at most {most} characters"));
    }
    if let Some(most) = schema.max_items {
        bounds.push(format!("at most {most} items"));
    }
    if let Some(pattern) = &schema.pattern {
        bounds.push(format!("`{}`", cell(pattern)));
    }
    bounds.join(", ")
}

fn text(schema: &JSONSchemaProps) -> String {
    cell(schema.description.as_deref().unwrap_or_default())
}

/// Text that fits one table cell.
fn cell(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ").replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn undocumented(path: &str, schema: &JSONSchemaProps, found: &mut Vec<String>) {
        if KNOWN_TYPES.iter().any(|(known, _)| *known == path) {
            return;
        }
        for (name, field) in schema.properties.iter().flatten() {
            let path = format!("{path}.{name}");
            let description = field.description.as_deref().unwrap_or_default();
            if !description.starts_with(name.as_str()) && !KNOWN_TYPES.iter().any(|(known, _)| *known == path)
            {
                found.push(path.clone());
            }
            undocumented(&path, field, found);
        }
        if let Some(JSONSchemaPropsOrArray::Schema(items)) = &schema.items {
            undocumented(path, items, found);
        }
    }

    #[test]
    fn every_field_has_a_description_that_starts_with_its_name() {
        let mut found = Vec::new();
        for resource in [ViTTrainingJob::crd(), ViTScalingStudy::crd()] {
            for (section, schema) in sections(resource) {
                undocumented(&section, &schema, &mut found);
            }
        }
        assert!(
            found.is_empty(),
            "without a description that starts with the field's name: {found:?}"
        );
    }

    #[test]
    fn the_reference_names_types_bounds_defaults_and_rules() {
        let page = jobs();
        for part in [
            "| `spec.training.epochs` (required) | integer | 1 to 100000 |",
            "| `spec.workers.env` | list of EnvVar of core/v1 | at most 64 items |",
            "hiddenSize must be a multiple of heads",
            "`\"cifar10\"`, `\"cifar100\"`, `\"imageFolder\"`, `\"webDataset\"`, `\"parquet\"`, `\"numpy\"`, `\"hdf5\"`, `\"synthetic\"`",
        ] {
            assert!(page.contains(part), "{part} is not in:\n{page}");
        }
    }
}
