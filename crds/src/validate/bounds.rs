//! The schema's bounds of numbers and lists, for use outside a cluster, where no API server
//! checks them.

use contract::ConfigError;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    JSONSchemaProps, JSONSchemaPropsOrArray,
};
use serde_json::Value;

use crate::spec::schema;

/// Every value of a job's spec, or of a run configuration, that is out of bounds: their fields have
/// the same names.
pub fn out_of_bounds(spec: &impl serde::Serialize) -> Vec<ConfigError> {
    outside(schema("spec"), spec)
}

pub(crate) fn outside(schema: &JSONSchemaProps, spec: &impl serde::Serialize) -> Vec<ConfigError> {
    let mut errors = Vec::new();
    // Only a map with keys that are not strings could fail here, and a spec has none.
    let value = serde_json::to_value(spec).unwrap_or_default();
    check(schema, &value, "", &mut errors);
    errors
}

fn check(schema: &JSONSchemaProps, value: &Value, path: &str, errors: &mut Vec<ConfigError>) {
    let mut refuse = |value: String, expected: String| {
        errors.push(ConfigError {
            field: path.to_owned().into(),
            value,
            expected,
        });
    };
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let field = schema.properties.as_ref().and_then(|fields| fields.get(name));
                if let Some(schema) = field {
                    let path = format!("{path}.{name}");
                    check(schema, value, path.trim_start_matches('.'), errors);
                }
            }
        }
        Value::Array(values) => {
            let most = schema.max_items.filter(|most| values.len() as i64 > *most);
            if let Some(most) = most {
                refuse(
                    format!("a list of {}", values.len()),
                    format!("must have at most {most}"),
                );
            }
            if let Some(JSONSchemaPropsOrArray::Schema(items)) = &schema.items {
                // Elements of a map are named by their key.
                let key = schema
                    .x_kubernetes_list_map_keys
                    .as_ref()
                    .and_then(|keys| keys.first());
                for (index, value) in values.iter().enumerate() {
                    let name = key.and_then(|key| value[key].as_str());
                    let name = name.map_or_else(|| index.to_string(), str::to_owned);
                    check(items, value, &format!("{path}[{name}]"), errors);
                }
            }
        }
        Value::Number(number) => {
            let value = number.as_f64();
            if let Some(least) = schema.minimum.filter(|least| value < Some(*least)) {
                refuse(number.to_string(), format!("must be at least {least}"));
            } else if let Some(most) = schema.maximum.filter(|most| value > Some(*most)) {
                refuse(number.to_string(), format!("must be at most {most}"));
            }
        }
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validate;
    use crate::validate::tests::manifest;

    /// Types of Kubernetes, which the API server checks when a pod is created.
    const FOREIGN: [&str; 3] = ["workers.resources", "workers.tolerations", "workers.env"];

    /// Paths of all integers in a schema, with minimum and maximum.
    fn counts(schema: &JSONSchemaProps, path: &str, found: &mut Vec<(String, Option<f64>, Option<f64>)>) {
        if schema.type_.as_deref() == Some("integer") {
            found.push((path.into(), schema.minimum, schema.maximum));
        }
        for (name, field) in schema.properties.iter().flatten() {
            let path = format!("{path}.{name}");
            if !FOREIGN.contains(&path.trim_start_matches('.')) {
                counts(field, &path, found);
            }
        }
    }

    fn refusal(path: &str, number: f64) -> String {
        let path = path.trim_start_matches('.');
        let needed = match path {
            "data.syntheticImages" => "data = {format: synthetic}",
            _ => "training.precision = fp16",
        };
        match serde_json::from_value(manifest([needed, &format!("{path} = {number}")])) {
            Ok(job) => validate(&job).expect_err(path).to_string(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn every_count_has_a_bound_and_is_refused_beyond_it_as_it_was_written() {
        let mut found = Vec::new();
        counts(schema("spec"), "", &mut found);
        assert!(found.len() > 30, "{found:?}");
        for (path, least, most) in found {
            let least = least.unwrap_or_else(|| panic!("the schema lets spec{path} be negative"));
            assert!(least >= 0.0, "the schema lets spec{path} be negative");
            for number in [-1.0, least - 1.0] {
                let refusal = refusal(&path, number);
                assert!(
                    refusal == format!("spec{path} is {number}: must be at least {least}")
                        || refusal.starts_with(&format!("invalid value: integer `{number}`, expected u")),
                    "spec{path}: {refusal}"
                );
            }
            if let Some(most) = most {
                assert_eq!(
                    refusal(&path, most + 1.0),
                    format!("spec{path} is {}: must be at most {most}", most + 1.0)
                );
            }
        }
    }
}
