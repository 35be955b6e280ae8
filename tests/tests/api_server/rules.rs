//! Every validation rule of the CRDs on a real API server: a manifest that violates only this rule
//! is refused with its message. The rules are read from the CRD, so rules without a test case are
//! found.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use anyhow::{Context as _, Result, ensure};
use crds::{ViTScalingStudy, ViTTrainingJob};
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::response::StatusCause;
use serde_json::{Value, json};
use vit_tests::Cluster;

use super::{CRD, STUDY_CRD, VALID};

/// A rule of the schema.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct Rule {
    /// Path of its field; `[0]` and `.key` stand for the elements of lists and maps.
    field: String,
    /// Its message; `%d` stands for a number of the manifest.
    says: String,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Kind {
    /// A CEL rule on the object.
    State,
    /// A CEL transition rule (`oldSelf`).
    Change,
    /// A pattern of a string, or the key of a list.
    Text,
}

impl Rule {
    /// Replaces each number in a text by 0 if this rule's message has numbers.
    fn words(&self, text: &str) -> String {
        if !self.says.contains("%d") {
            return text.to_owned();
        }
        let mut words = String::new();
        for letter in text.replace("%d", "0").chars() {
            if !letter.is_ascii_digit() {
                words.push(letter);
            } else if !words.ends_with('0') {
                words.push('0');
            }
        }
        words
    }
}

/// A resource whose rules are tested.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Subject {
    Job,
    Study,
}

impl Subject {
    const ALL: [Self; 2] = [Self::Job, Self::Study];

    /// The CRD's file, a valid manifest, and the cases of each rule.
    fn files(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Job => (CRD, VALID, include_str!("rules.yaml")),
            Self::Study => (
                STUDY_CRD,
                include_str!("../../../examples/studies/digits.yaml"),
                include_str!("study_rules.yaml"),
            ),
        }
    }

    fn resource(self) -> ApiResource {
        match self {
            Self::Job => ApiResource::erase::<ViTTrainingJob>(&()),
            Self::Study => ApiResource::erase::<ViTScalingStudy>(&()),
        }
    }

    /// Whether this project's own validation accepts a manifest.
    fn accepts(self, manifest: &Value) -> Result<bool> {
        Ok(match self {
            Self::Job => crds::validate(&serde_json::from_value(manifest.clone())?).is_ok(),
            Self::Study => {
                let study: ViTScalingStudy = serde_json::from_value(manifest.clone())?;
                study::plan(&study.spec).is_ok()
            }
        })
    }
}

/// A manifest that violates a rule.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    subject: Subject,
    field: String,
    /// A part of the message, with its numbers.
    says: String,
    /// A merge patch of the valid manifest's `spec` or metadata.
    change: Value,
}

impl fmt::Display for Case {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = match self.subject {
            Subject::Job => "",
            Subject::Study => "study: ",
        };
        write!(formatter, "{of}{}: {}: {}", self.field, self.says, self.change)
    }
}

/// The cases of all rules.
pub(crate) fn cases() -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    for subject in Subject::ALL {
        let (_, _, text) = subject.files();
        let by_field: BTreeMap<String, BTreeMap<String, Vec<Value>>> = serde_saphyr::from_str(text)?;
        for (field, by_words) in by_field {
            for (says, changes) in by_words {
                for change in changes {
                    let (field, says) = (field.clone(), says.clone());
                    cases.push(Case {
                        subject,
                        field,
                        says,
                        change,
                    });
                }
            }
        }
    }
    Ok(cases)
}

/// The rules of a CRD.
fn rules(subject: Subject) -> Result<BTreeSet<Rule>> {
    let (definition, ..) = subject.files();
    let crd: Value = serde_saphyr::from_str(&fs_err::read_to_string(definition)?)?;
    let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    let mut rules = BTreeSet::new();
    collect("", schema, &mut rules);
    // Only the operator writes the status.
    rules.retain(|rule| !rule.field.starts_with("status."));
    // A study's template has the rules of a job.
    rules.retain(|rule| !rule.field.starts_with("spec.template.spec"));
    let least = if subject == Subject::Job { 60 } else { 8 };
    ensure!(rules.len() > least, "only {} rules", rules.len());
    Ok(rules)
}

fn collect(field: &str, schema: &Value, rules: &mut BTreeSet<Rule>) {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut add = |says: String, kind: Kind| {
        let field = field.to_owned();
        rules.insert(Rule { field, says, kind });
    };
    for rule in schema["x-kubernetes-validations"]
        .as_array()
        .into_iter()
        .flatten()
    {
        let is_change = text(&rule["rule"]).contains("oldSelf");
        let expression = text(&rule["messageExpression"]);
        let format = expression
            .strip_prefix('\'')
            .and_then(|text| text.split_once("'.format("));
        add(
            format.map_or_else(|| text(&rule["message"]), |(format, _)| format.to_owned()),
            if is_change { Kind::Change } else { Kind::State },
        );
    }
    if let Some(pattern) = schema["pattern"].as_str() {
        add(format!("should match '{pattern}'"), Kind::Text);
    }
    if schema["x-kubernetes-list-type"] == "map" {
        add("Duplicate value".into(), Kind::Text);
    }
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let dot = if field.is_empty() { "" } else { "." };
        collect(&format!("{field}{dot}{name}"), property, rules);
    }
    for (suffix, inner) in [("[0]", "items"), (".key", "additionalProperties")] {
        if schema[inner].is_object() {
            collect(&format!("{field}{suffix}"), &schema[inner], rules);
        }
    }
}

/// The rule that a case must violate.
fn rule_of<'a>(rules: &'a BTreeSet<Rule>, Case { field, says, .. }: &Case) -> Result<&'a Rule> {
    let fit: Vec<&Rule> = rules
        .iter()
        .filter(|rule| rule.field == *field && rule.words(&rule.says).contains(&rule.words(says)))
        .collect();
    match fit[..] {
        [rule] => Ok(rule),
        _ => anyhow::bail!(
            "{} rules of the CRD are about {field:?} with the message {says:?}",
            fit.len()
        ),
    }
}

pub(crate) fn every_rule_has_a_case(_: &Cluster, _: usize) -> Result<()> {
    for subject in Subject::ALL {
        let rules = rules(subject)?;
        let mut without = rules.clone();
        for case in cases()?.iter().filter(|case| case.subject == subject) {
            without.remove(rule_of(&rules, case)?);
        }
        ensure!(without.is_empty(), "no case of {subject:?} violates {without:#?}");
    }
    Ok(())
}

/// Invariant G1.
pub(crate) fn is_refused(cluster: &Cluster, index: usize) -> Result<()> {
    let case = cases()?.swap_remove(index);
    let rules = rules(case.subject)?;
    let rule = rule_of(&rules, &case)?;
    let (_, valid, _) = case.subject.files();
    let mut valid: Value = serde_saphyr::from_str(valid)?;
    if rule.kind == Kind::Change {
        valid["metadata"]["name"] = json!(format!("rule-{index}"));
        if case.subject == Subject::Job {
            // Changes of dependent fields need these.
            valid["spec"]["workers"]["volumes"] = json!([{"name": "before", "emptyDir": {}}]);
            valid["spec"]["workers"]["runAsUser"] = json!(0);
        }
    }
    let mut manifest = valid.clone();
    let is_of_name = rule.field.is_empty() && rule.kind != Kind::Change;
    let part = if is_of_name { "metadata" } else { "spec" };
    json_patch::merge(&mut manifest[part], &case.change);
    if rule.kind == Kind::State && !rule.field.is_empty() {
        ensure!(
            !case.subject.accepts(&manifest)?,
            "our own validation accepts what the schema refuses: {manifest}"
        );
    }
    let before = (rule.kind == Kind::Change).then_some(valid);
    let causes = tokio::runtime::Handle::current().block_on(causes(
        cluster.client(),
        case.subject,
        before,
        manifest,
    ))?;
    let [cause] = &causes[..] else {
        anyhow::bail!("not one cause: {causes:#?}")
    };
    let field = if rule.field.is_empty() {
        "<nil>"
    } else {
        &rule.field
    };
    ensure!(
        is_at(&cause.field, field)
            && cause.message.contains(&case.says)
            && rule.words(&cause.message).contains(&rule.words(&rule.says)),
        "{rule:#?} does not match the cause {cause:#?}"
    );
    Ok(())
}

/// Whether a cause is about a field. For duplicates in a list, the server names the second element.
fn is_at(cause: &str, field: &str) -> bool {
    cause == field || cause.strip_prefix(field) == Some("[1]")
}

/// Why the API server refuses a manifest, or its change.
async fn causes(
    client: Client,
    subject: Subject,
    before: Option<Value>,
    manifest: Value,
) -> Result<Vec<StatusCause>> {
    let api: Api<DynamicObject> = Api::namespaced_with(client, "default", &subject.resource());
    let result = if let Some(before) = before {
        let before = api
            .create(&PostParams::default(), &serde_json::from_value(before)?)
            .await?;
        let name = before.metadata.name.context("the object has no name")?;
        let parameters = PatchParams {
            dry_run: true,
            ..PatchParams::default()
        };
        api.patch(&name, &parameters, &Patch::Merge(&manifest)).await
    } else {
        let parameters = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        api.create(&parameters, &serde_json::from_value(manifest)?).await
    };
    match result {
        Err(kube::Error::Api(status)) => Ok(status.details.map(|details| details.causes).unwrap_or_default()),
        Err(error) => Err(error.into()),
        Ok(_) => anyhow::bail!("the API server accepted it"),
    }
}
