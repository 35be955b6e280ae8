//! Schemas of sections.

use schemars::Schema;
use schemars::transform::transform_subschemas;
use serde_json::Value;

/// Replaces formats of unsigned integers, which Kubernetes does not have. Their minimum of 0 stays.
pub fn signed_integers(schema: &mut Schema) {
    let signed = match schema.get("format").and_then(Value::as_str) {
        Some("uint8" | "uint32") => "int32",
        Some("uint64") => "int64",
        _ => return transform_subschemas(&mut signed_integers, schema),
    };
    schema.insert("format".into(), signed.into());
}
