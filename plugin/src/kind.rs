//! The kinds of objects that the plugin knows, jobs and studies, and their names on the command line.

use std::fmt::{self, Debug, Display};
use std::marker::PhantomData;
use std::str::FromStr;

use crds::conditions::types;
use crds::study::status::StudyPhase;
use crds::{Phase, SpecSchema, ViTScalingStudy, ViTTrainingJob};
use k8s_openapi::NamespaceResourceScope;
use kube::Resource;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Error, Exit};
use crate::summary;

/// A kind of object, for commands that support several kinds.
pub(crate) trait Kind:
    Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + SpecSchema
    + Clone
    + Debug
    + DeserializeOwned
    + Serialize
    + Send
    + Sync
    + 'static
{
    /// The word for one object.
    const NOUN: &'static str;
    /// The word for several objects.
    const NOUNS: &'static str;
    /// kubectl's short name.
    const SHORT: &'static str;
    /// The name of a command line argument.
    const VALUE: &'static str;
    /// The subcommand that lists them.
    const LIST: &'static str;
    /// What happens after `spec.suspend` was set to true, and to false.
    const SUSPENDS: &'static str;
    const RESUMES: &'static str;

    /// The phase; `None` before the operator has processed the object. Studies have some of the phases of jobs.
    fn phase(&self) -> Option<Phase>;
    /// Phase and progress in few words.
    fn summary(&self) -> String;
    /// Whether `spec.suspend` is set.
    fn suspend(&self) -> bool;
    /// The generation of the spec that the status is about.
    fn observed_generation(&self) -> Option<i64>;
    /// What a suspended object keeps, after a comma.
    fn kept(&self) -> String;
    /// What a resumed object continues with, after a comma.
    fn resumed(&self) -> String;
    /// Why a failed object failed.
    fn failure(&self) -> &str;

    /// The phase in one word.
    fn phase_word(&self) -> &'static str {
        self.phase().map_or("New", Phase::as_str)
    }

    /// Whether the status is about the latest spec.
    fn is_observed(&self) -> bool {
        self.observed_generation() >= self.meta().generation
    }

    /// Whether it has succeeded or failed.
    fn is_over(&self) -> bool {
        self.phase().is_some_and(Phase::is_terminal)
    }

    /// Whether `spec.suspend` has an effect.
    fn can_suspend(&self) -> bool {
        !self.is_over()
    }

    /// The kind and group as kubectl prints them before a name.
    fn prefix() -> String {
        format!("{}.{}", Self::kind(&()).to_lowercase(), Self::group(&()))
    }
}

impl Kind for ViTTrainingJob {
    const NOUN: &'static str = "job";
    const NOUNS: &'static str = "jobs";
    const SHORT: &'static str = "vtj";
    const VALUE: &'static str = "JOB";
    const LIST: &'static str = "list";
    const SUSPENDS: &'static str = "its pods save a checkpoint and stop, which releases its GPUs";
    const RESUMES: &'static str = "it waits for GPUs and continues from its last checkpoint";

    fn phase(&self) -> Option<Phase> {
        summary::phase(self)
    }

    fn summary(&self) -> String {
        summary::summary(self)
    }

    fn suspend(&self) -> bool {
        self.spec.suspend
    }

    fn observed_generation(&self) -> Option<i64> {
        self.status.as_ref()?.observed_generation
    }

    /// A failed one can be resumed after it was suspended.
    fn can_suspend(&self) -> bool {
        self.phase() != Some(Phase::Succeeded)
    }

    fn kept(&self) -> String {
        let status = self.status.as_ref();
        match status.and_then(|status| status.last_checkpoint.as_ref()) {
            Some(checkpoint) => format!(", saved at step {} in {}", checkpoint.step, checkpoint.path),
            None => ", without a checkpoint because it had not trained yet".into(),
        }
    }

    fn resumed(&self) -> String {
        let attempt = self.status.as_ref().map_or(0, |status| status.attempt);
        format!(", attempt {attempt}")
    }

    fn failure(&self) -> &str {
        let condition = self.status.as_ref().and_then(summary::main_condition);
        condition.map_or("", |condition| &condition.message)
    }
}

impl Kind for ViTScalingStudy {
    const NOUN: &'static str = "study";
    const NOUNS: &'static str = "studies";
    const SHORT: &'static str = "vits";
    const VALUE: &'static str = "STUDY";
    const LIST: &'static str = "study list";
    const SUSPENDS: &'static str = "its current run stops; measurements are kept";
    const RESUMES: &'static str = "its next run starts when its nodes are free";

    fn phase(&self) -> Option<Phase> {
        Some(match self.status.as_ref()?.phase? {
            StudyPhase::Pending => Phase::Pending,
            StudyPhase::Running => Phase::Running,
            StudyPhase::Suspended => Phase::Suspended,
            StudyPhase::Succeeded => Phase::Succeeded,
            StudyPhase::Failed => Phase::Failed,
        })
    }

    fn summary(&self) -> String {
        let mut words = self.phase_word().to_owned();
        let Some(status) = &self.status else {
            return words;
        };
        if let Some(runs) = &status.runs {
            words += &format!(", {} runs measured", runs.summary);
            if runs.failed > 0 {
                words += &format!(", {} failed", runs.failed);
            }
        }
        if let Some(current) = status.current.as_ref().filter(|_| !self.is_over()) {
            words += &format!(", now {} #{}", current.run, current.repetition);
        }
        words
    }

    fn suspend(&self) -> bool {
        self.spec.suspend
    }

    fn observed_generation(&self) -> Option<i64> {
        self.status.as_ref()?.observed_generation
    }

    fn kept(&self) -> String {
        let runs = self.status.as_ref().and_then(|status| status.runs.as_ref());
        runs.map_or_else(String::new, |runs| format!(", {} runs measured", runs.summary))
    }

    fn resumed(&self) -> String {
        self.kept()
    }

    fn failure(&self) -> &str {
        let status = self.status.as_ref();
        let condition = status.and_then(|status| status.condition(types::FAILED));
        condition.map_or("", |condition| &condition.message)
    }
}

/// The state of an object as an exit code.
pub(crate) fn exit(phase: Option<Phase>) -> Exit {
    match phase {
        Some(Phase::Succeeded) => Exit::Done,
        Some(Phase::Failed) => Exit::Failed,
        _ => Exit::NotYet,
    }
}

/// How an object ended, or that it was deleted; `None` while it is not over.
pub(crate) fn end<K: Kind>(name: &Name<K>, object: Option<&K>) -> Option<Result<(), Error>> {
    let noun = K::NOUN;
    let Some(object) = object else {
        return Some(Err(Error::NotFound(format!("{noun} {name} was deleted"))));
    };
    match object.phase()? {
        Phase::Succeeded => Some(Ok(())),
        // An operator that has not seen a change of the spec may give a refused object a second chance.
        Phase::Failed if object.is_observed() => {
            let why = object.failure();
            Some(Err(Error::Failed(format!("{noun} {name} failed: {why}"))))
        }
        _ => None,
    }
}

/// The name of an object; `vtj/NAME`, as kubectl prints it, means the same.
pub(crate) struct Name<K>(String, PhantomData<fn() -> K>);

pub(crate) type JobName = Name<ViTTrainingJob>;
pub(crate) type StudyName = Name<ViTScalingStudy>;

impl<K: Kind> Name<K> {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// The name of an object that the API server returned.
    pub(crate) fn from_object(object: &K) -> Self {
        Self(object.meta().name.clone().unwrap_or_default(), PhantomData)
    }

    /// The name as kubectl prints it.
    pub(crate) fn qualified(&self) -> String {
        format!("{}/{}", K::prefix(), self.0)
    }
}

impl<K> Clone for Name<K> {
    fn clone(&self) -> Self {
        Self(self.0.clone(), PhantomData)
    }
}

impl<K> Debug for Name<K> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        Debug::fmt(&self.0, formatter)
    }
}

impl<K> Display for Name<K> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl<K: Kind> FromStr for Name<K> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let kind = K::kind(&()).to_lowercase();
        let plural = K::plural(&());
        let name = match text.split_once('/') {
            Some((prefix, name)) if [K::SHORT, &kind, &plural].contains(&prefix) || prefix == K::prefix() => {
                name
            }
            _ => text,
        };
        let is_label = name
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
        if name.is_empty() || !is_label {
            return Err(format!(
                "must be the name of a {}: lower-case letters, digits and '-'",
                K::NOUN
            ));
        }
        Ok(Self(name.into(), PhantomData))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_may_be_named_as_kubectl_prints_it() {
        for text in [
            "digits",
            "vtj/digits",
            "vittrainingjobs/digits",
            "vittrainingjob.vit-operator.dev/digits",
        ] {
            let name: JobName = text.parse().expect("a name");
            assert_eq!(name.as_str(), "digits");
            assert_eq!(name.qualified(), "vittrainingjob.vit-operator.dev/digits");
        }
        for text in ["", "pod/digits", "vits/digits", "Digits", "a b"] {
            text.parse::<JobName>().expect_err(text);
        }
        for text in ["digits", "vits/digits", "vitscalingstudy.vit-operator.dev/digits"] {
            let name: StudyName = text.parse().expect("a name");
            assert_eq!(name.qualified(), "vitscalingstudy.vit-operator.dev/digits");
        }
        for text in ["", "vtj/digits", "a b"] {
            text.parse::<StudyName>().expect_err(text);
        }
    }
}
