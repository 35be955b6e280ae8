//! The defaults that apply to a manifest, from the CRD's schema.

use crds::spec::schema;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::JSONSchemaProps;
use serde_json::Value;

/// A field that was not given.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Defaulted {
    /// Its path below `spec`.
    pub(super) field: String,
    /// Its default, as JSON.
    pub(super) value: String,
    /// The first sentence of its description.
    pub(super) meaning: String,
}

/// The defaults that apply, in the order of the schema.
pub(super) fn of(manifest: &Value) -> Vec<Defaulted> {
    let mut found = vec![];
    collect("", schema("spec"), Some(&manifest["spec"]), &mut found);
    found
}

/// `given` is `None` for an object that exists only by its default.
fn collect(path: &str, schema: &JSONSchemaProps, given: Option<&Value>, found: &mut Vec<Defaulted>) {
    for (name, field) in schema.properties.iter().flatten() {
        let value = given.and_then(|given| given.get(name));
        let path = format!("{path}.{name}").trim_start_matches('.').to_owned();
        let has_fields = field.properties.as_ref().is_some_and(|fields| !fields.is_empty());
        match &field.default {
            // Fields of Kubernetes' own types have no defaults of ours.
            _ if has_fields && (value.is_some() || field.default.is_some()) => {
                collect(&path, field, value, found);
            }
            Some(default) if value.is_none() && !matches!(default.0.to_string().as_str(), "[]" | "{}") => {
                found.push(Defaulted {
                    field: path,
                    value: default.0.to_string(),
                    meaning: first_sentence(field.description.as_deref().unwrap_or_default()),
                });
            }
            _ => {}
        }
    }
}

fn first_sentence(text: &str) -> String {
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let end = words.find(". ").unwrap_or(words.len());
    words[..end].trim_end_matches('.').to_owned()
}
