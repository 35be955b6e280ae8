//! Errors of a reconcile.

use std::time::Duration;

/// An error of one reconcile, shown in an Event, in the log and, by category, in a metric.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("failed to read the {object}: {why}")]
    Unreadable {
        object: &'static str,
        why: Box<crds::Unreadable>,
    },
    #[error("failed to {verb} {kind} {name}: {}", words(.source))]
    Api {
        verb: &'static str,
        kind: &'static str,
        name: String,
        source: Box<kube::Error>,
    },
    #[error("a reconcile panicked, which is a bug: {0}")]
    Panicked(String),
    /// Someone else's object has the name.
    #[error(
        "failed to create {kind} {name}: an object with this name does not belong to this {owner}; delete it or rename the {owner}"
    )]
    NameTaken {
        kind: &'static str,
        name: String,
        owner: &'static str,
    },
    /// The object of a deleted owner with the same name still exists.
    #[error(
        "failed to create {kind} {name}: the object of a deleted {owner} with the same name still exists; retrying until it is gone"
    )]
    LastOwnersObject {
        kind: &'static str,
        name: String,
        owner: &'static str,
    },
}

impl Error {
    /// A failed call, by verb and object.
    pub(crate) fn api(
        verb: &'static str,
        kind: &'static str,
        name: &str,
    ) -> impl FnOnce(kube::Error) -> Self {
        let name = name.to_owned();
        move |source| Self::Api {
            verb,
            kind,
            name,
            source: Box::new(source),
        }
    }

    /// The closed set of labels for metrics.
    pub(crate) fn category(&self) -> &'static str {
        match self {
            Self::Unreadable { .. } => "InvalidObject",
            Self::Panicked(_) => "Panic",
            Self::NameTaken { .. } | Self::LastOwnersObject { .. } => "NameTaken",
            Self::Api { .. } => match self.code() {
                Some(401 | 403) => "Forbidden",
                Some(404) => "NotFound",
                Some(409) => "Conflict",
                Some(400 | 422) => "Rejected",
                Some(429 | 503 | 504) => "Overloaded",
                Some(_) => "ApiServer",
                None => "Network",
            },
        }
    }

    /// The API server's response.
    fn response(&self) -> Option<&kube::core::Status> {
        match self {
            Self::Api { source, .. } => match &**source {
                kube::Error::Api(status) => Some(status),
                _ => None,
            },
            _ => None,
        }
    }

    fn code(&self) -> Option<u16> {
        self.response().map(|status| status.code)
    }

    pub(crate) const CATEGORIES: [&'static str; 10] = [
        "ApiServer",
        "Conflict",
        "Forbidden",
        "InvalidObject",
        "NameTaken",
        "Network",
        "NotFound",
        "Overloaded",
        "Panic",
        "Rejected",
    ];

    /// Whether the object changed since it was read: not a fault, but a reason to reconcile again.
    pub(crate) fn is_conflict(&self) -> bool {
        self.category() == "Conflict"
    }

    /// Whether the API server was busy, did not answer, or does not know a new kind yet, which may pass
    /// with the next try.
    pub(crate) fn may_pass(&self) -> bool {
        matches!(self.category(), "Overloaded" | "Network") || self.is_of_new_kind()
    }

    /// Whether the API server does not know the kind of the owner yet: it learns of a new CRD within half a
    /// minute.
    pub(crate) fn is_of_new_kind(&self) -> bool {
        self.says(403, "no matches for kind")
    }

    fn says(&self, code: u16, words: &str) -> bool {
        self.response()
            .is_some_and(|status| status.code == code && status.message.contains(words))
    }

    /// Whether the reconciled object was deleted, so that its status cannot be written, or is about to
    /// be with its namespace.
    pub(crate) fn is_of_deleted(&self) -> bool {
        let Self::Api { verb, kind, .. } = self else {
            return false;
        };
        let is_of_status = *verb == WRITE_STATUS && matches!(*kind, "ViTTrainingJob" | "ViTScalingStudy");
        is_of_status && self.is_not_found() || self.says(403, "because it is being terminated")
    }

    /// Whether the object, or the whole kind, does not exist.
    pub(crate) fn is_not_found(&self) -> bool {
        self.category() == "NotFound"
    }

    /// Whether the API server would reject the same object again.
    pub(crate) fn is_final(&self) -> bool {
        let is_denied = |status: &kube::core::Status| {
            matches!(status.code, 400 | 422) || DENIED.iter().any(|words| status.message.contains(words))
        };
        matches!(self, Self::Api { verb: "create", .. })
            && self.is_refusal()
            && self.response().is_some_and(is_denied)
    }

    /// Whether a `ResourceQuota` refused the object.
    pub(crate) fn is_over_quota(&self) -> bool {
        let is_quota = |status: &kube::core::Status| status.message.contains("exceeded quota: ");
        matches!(self, Self::Api { verb: "create", .. })
            && self.code() == Some(403)
            && self.response().is_some_and(is_quota)
    }

    /// Time until the next try, by the consecutive failures before this one.
    pub(crate) fn back_off(&self, failures: u32) -> Duration {
        if self.is_conflict() {
            let doubled = CATCH_UP.saturating_mul(1 << failures.min(6));
            return doubled.min(LONGEST_CATCH_UP);
        }
        if self.is_of_new_kind() {
            return back_off(0);
        }
        back_off(failures)
    }

    /// Whether the call certainly had no effect. A call without a response, or with a server error,
    /// may have had one, except of an object that etcd does not store; a conflict may be with an earlier
    /// call of this operator.
    pub(crate) fn is_refusal(&self) -> bool {
        let is_refused = |status: &kube::core::Status| match status.code {
            408 | 409 | 429 => false,
            500 => status.message.contains(TOO_LARGE),
            code => (400..500).contains(&code),
        };
        match self {
            Self::Api { .. } => self.response().is_some_and(is_refused),
            _ => true,
        }
    }
}

/// The verb of writes to the reconciled object's status.
pub(crate) const WRITE_STATUS: &str = "write the status of";

/// The API server's message if it responded, without kube's dump of the response; otherwise why there
/// was no answer, which is the innermost cause.
fn words(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => status.message.clone(),
        kube::Error::Service(source) => {
            let source: &dyn std::error::Error = &**source;
            let causes = std::iter::successors(Some(source), |cause| cause.source());
            let cause = causes.last().map_or_else(String::new, ToString::to_string);
            format!("the API server did not answer: {cause}")
        }
        error => error.to_string(),
    }
}

/// How Pod Security, webhooks and admission policies deny an object, a `LimitRange`
/// (`plugin/pkg/admission/limitranger`), and security context constraints. Other "forbidden"
/// errors may pass: a service account that does not exist yet, missing permissions of the operator.
const DENIED: [&str; 8] = [
    "violates PodSecurity",
    "denied the request: ",
    "denied request: ",
    // A quota that demands requests or limits.
    "failed quota: ",
    " usage per Container is ",
    " usage per Pod is ",
    " limit to request ratio per ",
    "unable to validate against any security context constraint",
];

/// How etcd refuses an object.
const TOO_LARGE: &str = "request is too large";

/// Until the cache usually shows the last write; doubled by further conflicts ...
pub(crate) const CATCH_UP: Duration = Duration::from_millis(100);
/// ... up to this.
const LONGEST_CATCH_UP: Duration = Duration::from_secs(5);

/// Time until the next try, by the consecutive failures before this one: 1 s, doubled up to 60 s.
pub(crate) fn back_off(failures: u32) -> Duration {
    Duration::from_secs((1_u64 << failures.min(6)).min(60))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(verb: &'static str, kind: &'static str, code: u16) -> Error {
        let status = kube::core::Status::failure("message", "Reason").with_code(code);
        Error::api(verb, kind, "a")(kube::Error::Api(Box::new(status)))
    }

    #[test]
    fn every_category_is_in_the_closed_set() {
        for code in 400..600 {
            let category = error("create", "Pod", code).category();
            assert!(Error::CATEGORIES.contains(&category), "{code}");
        }
    }

    #[test]
    fn only_what_was_certainly_not_done_is_refused() {
        for (code, expected) in [
            (403, true),
            (422, true),
            (408, false),
            (409, false),
            (413, true),
            (429, false),
            (500, false),
            (504, false),
        ] {
            assert_eq!(error("create", "Pod", code).is_refusal(), expected, "{code}");
        }
        let too_large = kube::core::Status::failure("etcdserver: request is too large", "").with_code(500);
        let too_large = kube::Error::Api(Box::new(too_large));
        assert!(Error::api(WRITE_STATUS, "ViTTrainingJob", "a")(too_large).is_refusal());
        let unanswered = Error::api("create", "Pod", "a")(kube::Error::Service("timed out".into()));
        assert!(!unanswered.is_refusal());
    }

    #[test]
    fn only_what_is_to_be_created_is_rejected_for_good() {
        for (verb, expected) in [("create", true), ("delete", false), ("get", false)] {
            assert_eq!(error(verb, "Pod", 422).is_final(), expected, "{verb}");
        }
    }

    #[test]
    fn what_was_deleted_meanwhile_needs_no_status() {
        for (verb, kind, code, expected) in [
            (WRITE_STATUS, "ViTTrainingJob", 404, true),
            (WRITE_STATUS, "Workload", 404, false),
            (WRITE_STATUS, "ViTTrainingJob", 409, false),
            ("create", "ViTTrainingJob", 404, false),
        ] {
            assert_eq!(
                error(verb, kind, code).is_of_deleted(),
                expected,
                "{verb} {kind} {code}"
            );
        }
    }

    #[test]
    fn what_passes_or_ends_by_itself_is_known_by_the_api_servers_words() {
        let refused = |message: &str| {
            let status = kube::core::Status::failure(message, "Forbidden").with_code(403);
            Error::api("create", "Pod", "a")(kube::Error::Api(Box::new(status)))
        };
        let lags = r#"pods "a" is forbidden: cannot set blockOwnerDeletion in this case because cannot find RESTMapping for APIVersion vit-operator.dev/v1alpha1 Kind ViTTrainingJob: no matches for kind "ViTTrainingJob" in version "vit-operator.dev/v1alpha1""#;
        let ends = r#"pods "a" is forbidden: unable to create new content in namespace research because it is being terminated"#;
        let other = r#"pods "a" is forbidden: exceeded quota: gpus"#;
        let found = [lags, ends, other].map(|message| {
            let error = refused(message);
            (error.may_pass(), error.is_of_deleted())
        });
        assert_eq!(found, [(true, false), (false, true), (false, false)]);
        let tries = [lags, other].map(|message| refused(message).back_off(9).as_secs());
        assert_eq!(tries, [1, 60]);
    }

    #[tokio::test]
    async fn an_api_server_that_is_not_there_is_reported_by_the_cause() {
        let config = kube::Config::new("http://127.0.0.1:1".parse().expect("a URL"));
        let client = kube::Client::try_from(config).expect("a client");
        let pods: kube::Api<k8s_openapi::api::core::v1::Pod> = kube::Api::all(client);
        let error = pods
            .list(&kube::api::ListParams::default())
            .await
            .expect_err("nobody listens");
        let words = Error::api("list", "Pod", "")(error).to_string();
        assert_eq!(
            words,
            "failed to list Pod : the API server did not answer: Connection refused (os error 111)"
        );
    }

    #[test]
    fn retries_slow_down_to_one_a_minute() {
        let seconds = [0, 1, 5, 6, 100].map(|failures| back_off(failures).as_secs());
        assert_eq!(seconds, [1, 2, 32, 60, 60]);
    }
}
