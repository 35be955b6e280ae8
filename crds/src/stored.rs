//! Jobs and studies as the API server stores them: another version may have written them.

use std::borrow::Cow;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use kube::Resource;
use kube::core::DynamicObject;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::spec::is_for_vit_operator;
use crate::{ViTScalingStudy, ViTTrainingJob, spec, study};

/// A job of the API server.
pub type StoredJob = Stored<ViTTrainingJob>;

/// A resource of the API server, or why this version cannot read it. Fields of the spec that this
/// version's schema lacks are left out, as by an API server with that schema. In a manifest they are
/// errors.
#[derive(Clone, Debug)]
pub struct Stored<K>(pub Result<K, Box<Unreadable>>);

/// A resource that this version cannot read: a field has a value of a later version.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{why}")]
pub struct Unreadable {
    /// The resource.
    pub object: DynamicObject,
    /// The first such field, and what is known instead.
    why: String,
}

/// A resource with a schema of its spec.
pub trait SpecSchema {
    /// The API server's schema of the spec.
    fn spec_schema() -> &'static JSONSchemaProps;
}

impl SpecSchema for ViTTrainingJob {
    fn spec_schema() -> &'static JSONSchemaProps {
        spec::schema("spec")
    }
}

impl SpecSchema for ViTScalingStudy {
    fn spec_schema() -> &'static JSONSchemaProps {
        study::schema()
    }
}

impl<K> Stored<K> {
    /// The resource, if this version can read it.
    pub fn readable(&self) -> Option<&K> {
        self.0.as_ref().ok()
    }
}

impl<K> From<K> for Stored<K> {
    fn from(object: K) -> Self {
        Self(Ok(object))
    }
}

impl Unreadable {
    /// The conditions, if they can be read.
    pub fn conditions(&self) -> Vec<Condition> {
        let conditions = &self.object.data["status"]["conditions"];
        Deserialize::deserialize(conditions).unwrap_or_default()
    }

    /// Whether this project's operator is responsible for it.
    pub fn is_for_vit_operator(&self) -> bool {
        is_for_vit_operator(self.object.data["spec"]["managedBy"].as_str())
    }
}

impl<'de, K: SpecSchema + DeserializeOwned> Deserialize<'de> for Stored<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut object = Value::deserialize(deserializer)?;
        if let Some(spec) = object.get_mut("spec") {
            prune(K::spec_schema(), spec);
        }
        let read =
            serde_path_to_error::deserialize(&object).map_err(|error| match error.path().iter().len() {
                0 => error.inner().to_string(),
                _ => format!("{}: {}", error.path(), error.inner()),
            });
        Ok(Self(match read {
            Ok(object) => Ok(object),
            Err(why) => {
                let object = DynamicObject::deserialize(object).map_err(D::Error::custom)?;
                Err(Box::new(Unreadable { object, why }))
            }
        }))
    }
}

/// Removes the fields that a schema lacks. Objects without known properties take any.
fn prune(schema: &JSONSchemaProps, value: &mut Value) {
    match (
        value,
        &schema.properties,
        &schema.additional_properties,
        &schema.items,
    ) {
        (Value::Object(fields), Some(known), ..) => {
            fields.retain(|name, _| known.contains_key(name));
            for (name, value) in fields {
                if let Some(schema) = known.get(name) {
                    prune(schema, value);
                }
            }
        }
        (Value::Object(fields), None, Some(JSONSchemaPropsOrBool::Schema(schema)), _) => {
            for value in fields.values_mut() {
                prune(schema, value);
            }
        }
        (Value::Array(values), .., Some(JSONSchemaPropsOrArray::Schema(schema))) => {
            for value in values {
                prune(schema, value);
            }
        }
        _ => {}
    }
}

impl<K: Serialize> Serialize for Stored<K> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0 {
            Ok(object) => object.serialize(serializer),
            Err(unreadable) => unreadable.object.serialize(serializer),
        }
    }
}

impl<K: Resource> Resource for Stored<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(of: &Self::DynamicType) -> Cow<'_, str> {
        K::kind(of)
    }

    fn group(of: &Self::DynamicType) -> Cow<'_, str> {
        K::group(of)
    }

    fn version(of: &Self::DynamicType) -> Cow<'_, str> {
        K::version(of)
    }

    fn plural(of: &Self::DynamicType) -> Cow<'_, str> {
        K::plural(of)
    }

    fn meta(&self) -> &ObjectMeta {
        match &self.0 {
            Ok(object) => object.meta(),
            Err(unreadable) => &unreadable.object.metadata,
        }
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        match &mut self.0 {
            Ok(object) => object.meta_mut(),
            Err(unreadable) => &mut unreadable.object.metadata,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::validate::tests::manifest;

    fn read<K: SpecSchema + DeserializeOwned>(object: &Value) -> Stored<K> {
        Deserialize::deserialize(object).expect("it has metadata")
    }

    #[test]
    fn unknown_fields_of_any_depth_are_left_out() {
        let known: ViTTrainingJob = serde_json::from_value(manifest([])).expect("a job");
        let mut later = manifest([
            "later = {a: 1}",
            "training.optimizer.later = 1",
            "data.volume.later = [1]",
            "workers.volumes = [{name: a, hostPath: {path: /a}, later: 1}]",
            "workers.nodeSelector = {later: a}",
        ]);
        later["status"] = json!({"attempt": 1, "restarts": 0, "restartsSinceCheckpoint": 0, "later": 1});
        let job = read::<ViTTrainingJob>(&later).0.expect("a job");
        assert_eq!(job.spec.training, known.spec.training);
        assert_eq!(
            (job.spec.data, job.spec.workers.volumes.len()),
            (known.spec.data, 1)
        );
        assert_eq!(job.spec.workers.node_selector["later"], "a", "labels are kept");
        assert_eq!(job.status.expect("a status").attempt, 1);
        serde_json::from_value::<ViTTrainingJob>(later).expect_err("a manifest must not have them");
    }

    #[test]
    fn what_a_variant_of_a_study_changes_is_kept() {
        let mut study = json!({"metadata": {}, "spec": {
            "template": {"spec": manifest(["later = 1"])["spec"]},
            "sweeps": [{"name": "a", "mode": "Variants", "variants": [{"name": "b", "spec": {"later": 1}}]}],
        }});
        let spec = read::<ViTScalingStudy>(&study).0.expect("a study").spec;
        assert_eq!(spec.sweeps[0].variants[0].spec, json!({"later": 1}));
        study["spec"]["sweeps"][0]["mode"] = "Later".into();
        let why = read::<ViTScalingStudy>(&study)
            .0
            .expect_err("unreadable")
            .to_string();
        assert!(
            why.starts_with("spec.sweeps[0].mode: unknown variant `Later`, expected"),
            "{why}"
        );
    }

    #[test]
    fn a_value_of_a_later_version_is_named_and_the_rest_is_kept() {
        let condition = json!({"type": "Later", "status": "True", "reason": "A", "message": "b",
            "lastTransitionTime": "2026-11-28T00:00:00Z"});
        let status =
            json!({"attempt": 1, "restarts": 0, "restartsSinceCheckpoint": 0, "conditions": [condition]});
        for (place, value, expected) in [
            (
                "/spec/parallelism",
                json!({"strategy": "Later"}),
                "spec.parallelism.strategy: unknown variant `Later`, ",
            ),
            (
                "/spec/workers/nodes",
                json!("all"),
                "spec.workers.nodes: invalid type: string \"all\", ",
            ),
            ("/spec", json!("words"), "spec: invalid type: string \"words\", "),
            (
                "/status/phase",
                json!("Later"),
                "status.phase: unknown variant `Later`, ",
            ),
        ] {
            let mut object = manifest(["parallelism = {}", "managedBy = a.b/c"]);
            object["status"] = status.clone();
            object["status"]["phase"] = "Running".into();
            *object.pointer_mut(place).expect(place) = value;
            let stored = read::<ViTTrainingJob>(&object);
            assert_eq!(stored.meta().name.as_deref(), Some("digits"));
            assert_eq!(serde_json::to_value(&stored).expect("JSON"), object);
            let unreadable = stored.0.expect_err("unreadable");
            assert!(unreadable.to_string().starts_with(expected), "{unreadable}");
            assert_eq!(unreadable.conditions()[0].type_, "Later");
            assert_eq!(unreadable.is_for_vit_operator(), place == "/spec");
        }
        for status in [Value::Null, json!("words"), json!({"conditions": "none"})] {
            let object = json!({"metadata": {}, "spec": 1, "status": status});
            let unreadable = read::<ViTTrainingJob>(&object).0.expect_err("unreadable");
            assert_eq!(unreadable.conditions(), []);
        }
    }
}
