//! The defaults that apply to a manifest, from the schema that the API server has.

use crds::ViTTrainingJob;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::JSONSchemaProps;
use kube::CustomResourceExt as _;
use serde_json::Value;

/// A field that was not given.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Defaulted {
    /// Its path below `spec`.
    pub(super) field: String,
    /// Its default, as JSON.
    pub(super) value: String,
    /// What it means: the first sentence of its description.
    pub(super) meaning: String,
}

/// The defaults that apply, in the order of the schema.
pub(super) fn of(manifest: &Value) -> Vec<Defaulted> {
    let crd = ViTTrainingJob::crd();
    let schema = crd.spec.versions[0]
        .schema
        .as_ref()
        .and_then(|schema| schema.open_api_v3_schema.as_ref())
        .and_then(|schema| schema.properties.as_ref()?.get("spec"));
    let mut found = vec![];
    if let Some(schema) = schema {
        collect("", schema, Some(&manifest["spec"]), &mut found);
    }
    found
}

/// `given` is `None` for an object of which nothing was given, and that is there by its default.
fn collect(path: &str, schema: &JSONSchemaProps, given: Option<&Value>, found: &mut Vec<Defaulted>) {
    for (name, field) in schema.properties.iter().flatten() {
        let value = given.and_then(|given| given.get(name));
        let path = if path.is_empty() {
            name.clone()
        } else {
            format!("{path}.{name}")
        };
        let has_fields = field.properties.as_ref().is_some_and(|fields| !fields.is_empty());
        match &field.default {
            // Fields of Kubernetes' own types have no defaults of ours.
            _ if has_fields && (value.is_some() || field.default.is_some()) => {
                collect(&path, field, value, found);
            }
            Some(default) if value.is_none() && !is_empty(&default.0) => found.push(Defaulted {
                field: path,
                value: default.0.to_string(),
                meaning: first_sentence(field.description.as_deref().unwrap_or_default()),
            }),
            _ => {}
        }
    }
}

/// Nothing, by default, needs no words.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

fn first_sentence(text: &str) -> String {
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let end = words.find(". ").unwrap_or(words.len());
    words[..end].trim_end_matches('.').to_owned()
}
