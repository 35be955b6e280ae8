//! The termination record, from which the operator reads why a container ended.

use contract::{FailureRecord, TerminationRecord, environment};

use crate::error::TrainError;

/// The record of what failed in a container as a whole, not in one of its ranks.
pub(crate) fn of_error(error: &TrainError) -> TerminationRecord {
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

/// Leaves the record where the environment says; nowhere outside a pod.
pub(crate) fn leave(record: TerminationRecord) {
    let Ok(path) = std::env::var(environment::TERMINATION_LOG) else {
        return;
    };
    let written = serde_json::to_vec(&record.shortened())
        .map_err(std::io::Error::other)
        .and_then(|json| fs_err::write(path, json));
    if let Err(error) = written {
        tracing::error!("failed to leave the termination record: {error}");
    }
}
