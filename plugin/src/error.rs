//! Errors, as messages for users and exit codes for scripts.

use std::io;

use kube::config::KubeconfigError;

/// Exit codes. They are part of the interface, and `--help` lists them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub(crate) enum Exit {
    Done = 0,
    /// The API server refused a request or is unreachable.
    Error = 1,
    /// The command line or the resulting manifest is invalid. clap uses this code, too.
    Usage = 2,
    /// The job, pod or resource does not exist.
    NotFound = 3,
    /// The job failed.
    Failed = 4,
    /// The job is not finished, or a wait timed out.
    NotYet = 5,
}

impl Exit {
    /// The number.
    pub(crate) fn code(self) -> u8 {
        self as u8
    }

    /// The worse of two outcomes: the smaller code, except for 0.
    pub(crate) fn worse(self, other: Self) -> Self {
        match (self, other) {
            (Self::Done, other) => other,
            (this, Self::Done) => this,
            (this, other) if other.code() < this.code() => other,
            (this, _) => this,
        }
    }
}

/// The end of every `--help`.
pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0  success
  1  the API server refused a request or is unreachable
  2  the command line or the resulting manifest is invalid
  3  the job, pod or resource does not exist
  4  the job failed (status --exit-code, watch, --wait)
  5  the job is not finished (status --exit-code), or a wait exceeded --timeout
With several jobs, the smallest code other than 0 is returned";

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// Arguments that contradict one another.
    #[error("{0}")]
    Usage(String),
    /// The manifest breaks a rule.
    #[error("{0}")]
    Invalid(#[from] crds::InvalidJob),
    /// The kubeconfig cannot be used.
    #[error("cannot use the kubeconfig: {0}")]
    Kubeconfig(#[from] KubeconfigError),
    /// No answer from the API server.
    #[error("cannot reach the API server at {server}: {cause}")]
    Unreachable { server: String, cause: String },
    /// The job or study does not exist.
    #[error("{noun} {name} not found in namespace {namespace}{others}")]
    NoObject {
        noun: &'static str,
        name: String,
        namespace: String,
        /// The names in the namespace instead.
        others: String,
    },
    /// The API server does not serve the resource.
    #[error(
        "the cluster at {server} does not know ViTTrainingJobs: install the operator there \
         (helm install vit-operator charts/vit-operator), or choose another cluster with --context"
    )]
    NoResource { server: String },
    /// Something else that does not exist.
    #[error("{0}")]
    NotFound(String),
    /// The API server refused the call.
    #[error("cannot {doing}: {message}")]
    Refused { doing: String, message: String },
    /// An object that this version cannot read.
    #[error("cannot read the API server's answer ({0}): is this plugin older than the operator?")]
    Unreadable(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A wait that timed out.
    #[error("timed out after {limit} waiting for {what}: {state}")]
    TimedOut {
        what: String,
        limit: String,
        state: String,
    },
    /// The job failed while it was waited for.
    #[error("{0}")]
    Failed(String),
    /// The files of a report cannot be written.
    #[error("cannot write the report: {0}")]
    Report(#[source] io::Error),
    /// The reader of standard output has exited.
    #[error("standard output is closed")]
    ClosedPipe,
    /// Standard output cannot be written for another reason.
    #[error("cannot write to standard output: {0}")]
    Output(#[source] io::Error),
    /// A value cannot be written in the requested format.
    #[error("cannot write as YAML: {0}")]
    Yaml(#[from] serde_saphyr::ser::Error),
}

impl Error {
    /// A refusal with the message of another error.
    pub(crate) fn refused(doing: &str, error: &dyn std::error::Error) -> Self {
        Self::Refused {
            doing: doing.into(),
            message: chain(error),
        }
    }

    /// Whether calls about other objects would fail for the same reason.
    pub(crate) fn concerns_all(&self) -> bool {
        matches!(
            self,
            Self::ClosedPipe | Self::Output(_) | Self::Unreachable { .. } | Self::NoResource { .. }
        )
    }

    /// The exit code. A reader that closes the pipe early is not a failure.
    pub(crate) fn exit(&self) -> Exit {
        match self {
            Self::ClosedPipe => Exit::Done,
            Self::Usage(_) | Self::Invalid(_) => Exit::Usage,
            Self::NoObject { .. } | Self::NoResource { .. } | Self::NotFound(_) => Exit::NotFound,
            Self::Failed(_) => Exit::Failed,
            Self::TimedOut { .. } => Exit::NotYet,
            Self::Kubeconfig(_)
            | Self::Unreachable { .. }
            | Self::Refused { .. }
            | Self::Unreadable(_)
            | Self::Output(_)
            | Self::Report(_)
            | Self::Yaml(_) => Exit::Error,
        }
    }
}

impl From<Box<crds::Unreadable>> for Error {
    fn from(why: Box<crds::Unreadable>) -> Self {
        Self::Unreadable(why)
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::ClosedPipe,
            _ => Self::Output(error),
        }
    }
}

/// The messages of an error and of its causes, each once.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let words = cause.to_string();
        if !text.contains(&words) {
            text = format!("{text}: {words}");
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_lists_every_exit_code() {
        for exit in [
            Exit::Done,
            Exit::Error,
            Exit::Usage,
            Exit::NotFound,
            Exit::Failed,
            Exit::NotYet,
        ] {
            assert!(
                EXIT_CODES.contains(&format!("\n  {}  ", exit.code())),
                "{exit:?} is not in:\n{EXIT_CODES}"
            );
        }
    }

    #[test]
    fn the_worst_outcome_is_the_smallest_code_but_0() {
        let worst = |exits: &[Exit]| exits.iter().copied().fold(Exit::Done, Exit::worse);
        assert_eq!(worst(&[]), Exit::Done);
        assert_eq!(worst(&[Exit::Done, Exit::NotYet, Exit::Done]), Exit::NotYet);
        assert_eq!(
            worst(&[Exit::Failed, Exit::NotFound, Exit::NotYet]),
            Exit::NotFound
        );
    }

    #[test]
    fn a_reader_that_has_seen_enough_is_no_failure() {
        let closed: Error = io::Error::from(io::ErrorKind::BrokenPipe).into();
        assert_eq!(closed.exit(), Exit::Done);
        let full: Error = io::Error::from(io::ErrorKind::StorageFull).into();
        assert_eq!(full.exit(), Exit::Error);
    }
}
