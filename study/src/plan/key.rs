//! The identity of a run.

use std::sync::OnceLock;

use crds::ViTTrainingJobSpec;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// Lower-case base32 (RFC 4648), which is valid in names of objects.
const LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// 64 bits that identify a job and the speeds of its ranks, in 13 letters and digits.
///
/// Values that equal a default do not count, so that a new field with a default changes no key, and
/// a study continues after an upgrade.
pub(super) fn key(spec: &ViTTrainingJobSpec, speeds: &[f64]) -> String {
    let mut spec = json!(spec);
    remove_defaults(&mut spec, defaults());
    let digest = Sha256::digest(json!([spec, speeds]).to_string());
    let bits = digest[..8]
        .iter()
        .fold(0u64, |bits, byte| bits << 8 | u64::from(*byte));
    (0..13)
        .map(|place| char::from(LETTERS[(bits >> (5 * place) & 31) as usize]))
        .collect()
}

/// A job with only the required fields, and all defaults.
fn defaults() -> &'static Value {
    static DEFAULTS: OnceLock<Value> = OnceLock::new();
    DEFAULTS.get_or_init(|| {
        let required = json!({
            "image": "",
            "model": {"numClasses": 0},
            "data": {"format": "synthetic"},
            "training": {"epochs": 0, "microBatchSize": 0},
            "workers": {"nodes": 0, "gpusPerNode": 0},
            "checkpoint": {},
        });
        let spec: ViTTrainingJobSpec = serde_json::from_value(required).expect("all required fields");
        json!(spec)
    })
}

/// Removes equal fields, at any depth. What is missing, but has a default, becomes null: the result
/// stays different for different jobs.
fn remove_defaults(value: &mut Value, defaults: &Value) {
    let (Value::Object(fields), Value::Object(defaults)) = (value, defaults) else {
        return;
    };
    for (name, default) in defaults {
        match fields.get_mut(name) {
            Some(field) if field == default => drop(fields.remove(name)),
            Some(field) => remove_defaults(field, default),
            None => drop(fields.insert(name.clone(), Value::Null)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_differs_from_the_defaults_counts() {
        let mut new =
            json!({"image": "a", "training": {"epochs": 3, "new": {"field": 1}}, "elastic": {"minNodes": 1}});
        let defaults = json!({"image": "", "training": {"epochs": 0, "new": {"field": 1}}, "suspend": false});
        remove_defaults(&mut new, &defaults);
        assert_eq!(
            new,
            json!({"image": "a", "training": {"epochs": 3}, "elastic": {"minNodes": 1}, "suspend": null})
        );
    }
}
