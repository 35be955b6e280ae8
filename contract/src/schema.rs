//! Schemas of the manifest's sections.

use schemars::Schema;
use schemars::transform::transform_subschemas;
use serde_json::{Value, json};

/// Adds CEL rules, each with the message for values that break it.
pub(crate) fn cel(rules: &[(&str, &str)]) -> impl Fn(&mut Schema) {
    let rules: Vec<Value> = rules
        .iter()
        .map(|(rule, message)| json!({"rule": rule, "message": message}))
        .collect();
    move |schema| {
        schema.insert("x-kubernetes-validations".into(), rules.clone().into());
    }
}

/// Replaces formats of unsigned integers, which Kubernetes does not have. Their minimum of 0 stays.
pub fn signed_integers(schema: &mut Schema) {
    let signed = match schema.get("format").and_then(Value::as_str) {
        Some("uint8" | "uint32") => "int32",
        Some("uint64" | "uint") => "int64",
        _ => return transform_subschemas(&mut signed_integers, schema),
    };
    schema.insert("format".into(), signed.into());
}
