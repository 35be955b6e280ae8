//! What can go wrong, in words for whoever typed the command, and the exit code that scripts see.

use std::io;

use kube::config::KubeconfigError;

/// Exit codes. They are part of the interface, and `--help` lists them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub(crate) enum Exit {
    Done = 0,
    /// The API server refused, or could not be asked.
    Error = 1,
    /// The command line, or the manifest it makes, is wrong. clap uses it, too.
    Usage = 2,
    /// There is no such job, pod or resource.
    NotFound = 3,
    /// The job that was asked for or waited for has failed.
    Failed = 4,
    /// The job is not there yet: it is not over, or was not what was waited for in time.
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
  0  done
  1  the API server refused, or could not be asked
  2  the command line, or the manifest it makes, is wrong
  3  there is no such job, pod or resource
  4  the job has failed (status --exit-code, watch, and wherever it is waited for)
  5  the job is not over (status --exit-code), or was not what was waited for within --timeout
With several jobs, the smallest code other than 0 is returned";

/// Why a command did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// Words on the command line that do not go together.
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
    /// The API server knows no such job or study.
    #[error("there is no {noun} {name} in namespace {namespace}{others}")]
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
    /// Something else that is not there.
    #[error("{0}")]
    NotFound(String),
    /// The API server said no.
    #[error("cannot {doing}: {message}")]
    Refused { doing: String, message: String },
    /// An object that this version cannot read.
    #[error("cannot read what the API server has ({0}): is this plugin older than the operator?")]
    Unreadable(#[source] serde_json::Error),
    /// A wait that ended without what was waited for.
    #[error("{what} did not come within {limit}: {state}")]
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
    /// Nobody reads standard output any more.
    #[error("standard output is closed")]
    ClosedPipe,
    /// Standard output cannot be written for another reason.
    #[error("cannot write to standard output: {0}")]
    Output(#[source] io::Error),
    /// A value cannot be written in the format that was asked for.
    #[error("cannot write as YAML: {0}")]
    Yaml(#[from] serde_saphyr::ser::Error),
}

impl Error {
    /// A refusal whose words are those of another error.
    pub(crate) fn refused(doing: &str, error: &dyn std::error::Error) -> Self {
        Self::Refused {
            doing: doing.into(),
            message: chain(error),
        }
    }

    /// Whether the next call would fail for the same reason, whatever it is about.
    pub(crate) fn concerns_all(&self) -> bool {
        matches!(
            self,
            Self::ClosedPipe | Self::Output(_) | Self::Unreachable { .. } | Self::NoResource { .. }
        )
    }

    /// The exit code for it. A reader that has seen enough is no failure.
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
