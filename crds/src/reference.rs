//! The API reference as Markdown, made from the schema that the API server gets, so that the two cannot differ.

mod metrics;

use std::fmt::Write as _;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray,
};

pub use metrics::metrics;

/// Types that Kubernetes documents itself: told by name, not field by field.
const KUBERNETES_TYPES: [(&str, &str); 11] = [
    ("spec.workers.env", "list of EnvVar of core/v1"),
    ("spec.workers.envFrom", "list of EnvFromSource of core/v1"),
    ("spec.workers.volumes", "list of Volume of core/v1"),
    ("spec.workers.volumeMounts", "list of VolumeMount of core/v1"),
    ("spec.workers.podLabels", "map of label to value"),
    ("spec.workers.podAnnotations", "map of annotation to value"),
    ("spec.workers.tolerations", "list of Toleration of core/v1"),
    ("status.admission.tolerations", "list of Toleration of core/v1"),
    ("spec.workers.resources", "ResourceRequirements of core/v1"),
    ("status.conditions", "list of Condition of meta/v1"),
    ("spec.workers.nodeSelector", "map of label to value"),
];

/// The reference of one custom resource: a table of every field with its type, bounds and default, and its rules.
pub fn markdown(crd: &CustomResourceDefinition) -> String {
    let mut page = format!(
        "# {} ({}/{})\n\nMade from the schema by `make generate`; do not edit. `kubectl explain {}.spec --recursive` \
         tells the same.\n",
        crd.spec.names.kind,
        crd.spec.group,
        crd.spec.versions[0].name,
        crd.spec
            .names
            .short_names
            .as_ref()
            .map_or(crd.spec.names.plural.as_str(), |names| names[0].as_str()),
    );
    let schema = crd.spec.versions[0]
        .schema
        .as_ref()
        .and_then(|schema| schema.open_api_v3_schema.as_ref());
    let properties = schema.and_then(|schema| schema.properties.as_ref());
    for section in ["spec", "status"] {
        let Some(schema) = properties.and_then(|properties| properties.get(section)) else {
            continue;
        };
        let mut rows = String::new();
        let mut rules = String::new();
        collect(section, schema, &mut rows, &mut rules);
        let _ = write!(
            page,
            "\n## {section}\n\n{}\n\n| Field | Type | Bounds | Default | Description |\n| --- | --- | --- | --- | --- |\n{rows}",
            text(schema)
        );
        if !rules.is_empty() {
            let _ = write!(
                page,
                "\nRules over several fields, checked by the API server:\n\n{rules}"
            );
        }
    }
    page
}

fn collect(path: &str, schema: &JSONSchemaProps, rows: &mut String, rules: &mut String) {
    for rule in schema.x_kubernetes_validations.iter().flatten() {
        let _ = writeln!(
            rules,
            "- `{path}`: {}",
            rule.message.as_deref().unwrap_or(&rule.rule)
        );
    }
    let required = schema.required.as_deref().unwrap_or_default();
    for (name, field) in schema.properties.iter().flatten() {
        let path = format!("{path}.{name}");
        let kubernetes = KUBERNETES_TYPES
            .iter()
            .find(|(known, _)| *known == path)
            .map(|(_, name)| *name);
        let _ = writeln!(
            rows,
            "| `{path}`{} | {} | {} | {} | {} |",
            if required.contains(name) {
                " (required)"
            } else {
                ""
            },
            kubernetes.map_or_else(|| type_name(field), str::to_owned),
            bounds(field),
            field
                .default
                .as_ref()
                .map_or_else(String::new, |value| format!("`{}`", cell(&value.0.to_string()))),
            text(field),
        );
        if kubernetes.is_none() {
            collect(&path, field, rows, rules);
            if let Some(JSONSchemaPropsOrArray::Schema(items)) = &field.items {
                collect(&format!("{path}[]"), items, rows, rules);
            }
        } else {
            for rule in field.x_kubernetes_validations.iter().flatten() {
                let _ = writeln!(
                    rules,
                    "- `{path}`: {}",
                    rule.message.as_deref().unwrap_or(&rule.rule)
                );
            }
        }
    }
}

fn type_name(schema: &JSONSchemaProps) -> String {
    if let Some(values) = &schema.enum_ {
        return values
            .iter()
            .map(|value| format!("`{}`", cell(&value.0.to_string())))
            .collect::<Vec<_>>()
            .join(", ");
    }
    match (&schema.items, schema.type_.as_deref()) {
        (Some(JSONSchemaPropsOrArray::Schema(items)), _) => format!("list of {}", type_name(items)),
        (_, Some(name)) => name.to_owned(),
        (_, None) => "any".to_owned(),
    }
}

fn bounds(schema: &JSONSchemaProps) -> String {
    let number = |value: f64| format!("{value}");
    let mut bounds = Vec::new();
    match (schema.minimum, schema.maximum) {
        (Some(least), Some(most)) => bounds.push(format!("{} to {}", number(least), number(most))),
        (Some(least), None) => bounds.push(format!("at least {}", number(least))),
        (None, Some(most)) => bounds.push(format!("at most {}", number(most))),
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

/// Text that stays within one cell of a table.
fn cell(text: &str) -> String {
    text.split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
        .replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use kube::CustomResourceExt as _;

    use super::*;
    use crate::ViTTrainingJob;

    fn undocumented(path: &str, schema: &JSONSchemaProps, found: &mut Vec<String>) {
        for (name, field) in schema.properties.iter().flatten() {
            let path = format!("{path}.{name}");
            if KUBERNETES_TYPES.iter().any(|(known, _)| *known == path) {
                continue;
            }
            if !field
                .description
                .as_deref()
                .is_some_and(|description| description.starts_with(name.as_str()))
            {
                found.push(path.clone());
            }
            undocumented(&path, field, found);
            if let Some(JSONSchemaPropsOrArray::Schema(items)) = &field.items {
                undocumented(&path, items, found);
            }
        }
    }

    #[test]
    fn every_field_has_a_description_that_starts_with_its_name() {
        let crd = ViTTrainingJob::crd();
        let schema = crd.spec.versions[0]
            .schema
            .as_ref()
            .and_then(|schema| schema.open_api_v3_schema.as_ref());
        let mut found = Vec::new();
        for section in ["spec", "status"] {
            undocumented(
                section,
                &schema
                    .and_then(|s| s.properties.as_ref())
                    .expect("has properties")[section],
                &mut found,
            );
        }
        assert!(
            found.is_empty(),
            "without a description that starts with the field's name: {found:?}"
        );
    }

    #[test]
    fn the_reference_names_types_bounds_defaults_and_rules() {
        let page = markdown(&ViTTrainingJob::crd());
        for part in [
            "| `spec.training.epochs` (required) | integer | 1 to 100000 |",
            "| `spec.workers.env` | list of EnvVar of core/v1 | at most 64 items |",
            "hiddenSize must be a multiple of heads",
            "`\"cifar10\"`, `\"cifar100\"`, `\"imageFolder\"`, `\"webDataset\"`, `\"numpy\"`, `\"synthetic\"`",
        ] {
            assert!(page.contains(part), "{part} is not in:\n{page}");
        }
    }
}
