//! The termination record, from which the operator reads why a container ended.

use contract::{FailureRecord, TerminationRecord, environment};

use crate::error::TrainError;

/// The record of a failure of the container as a whole, not of one of its ranks.
pub(crate) fn from_error(error: &TrainError) -> TerminationRecord {
    TerminationRecord {
        failure: Some(FailureRecord {
            rank: None,
            exit_code: error.exit_code().code(),
            class: error.class(),
            memory: error.memory(),
            message: error.to_string(),
        }),
        ..TerminationRecord::default()
    }
}

/// Writes the record to the path in the environment; does nothing outside a pod.
pub(crate) fn leave(record: TerminationRecord) {
    let Ok(path) = std::env::var(environment::TERMINATION_LOG) else {
        return;
    };
    let written = serde_json::to_vec(&record.shortened())
        .map_err(std::io::Error::other)
        .and_then(|json| fs_err::write(path, json));
    if let Err(error) = written {
        tracing::error!("failed to write the termination record: {error}");
    }
}
