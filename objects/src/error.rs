//! Why files could not be listed or fetched.

use std::io::ErrorKind;
use std::path::PathBuf;

use object_store::Error as StoreError;

/// What is wrong, where, and what would be right.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A text that names no place.
    #[error("{text} names no files: {expected}")]
    Location {
        /// What was given.
        text: String,
        /// What it must be.
        expected: String,
    },
    /// Nothing is there.
    #[error("{place} is not there, or holds no files")]
    Missing {
        /// What was asked for.
        place: String,
    },
    /// The store knows who asks, or does not, and refuses.
    #[error("{place} may not be read ({reason}): {how}")]
    Denied {
        /// What was asked for.
        place: String,
        /// The store's words.
        reason: String,
        /// What gives credentials.
        how: &'static str,
    },
    /// The store does not take the question.
    #[error("{place} cannot be read as it is asked for: {reason}")]
    Refused {
        /// What was asked for.
        place: String,
        /// The store's words.
        reason: String,
    },
    /// The store did not answer, or not in time, or told to come back later, until patience ended.
    #[error("{place} could not be read: {reason}")]
    Unavailable {
        /// What was asked for.
        place: String,
        /// The last of what went wrong.
        reason: String,
    },
    /// A file is another one than when it was listed.
    #[error("{place} has changed since it was listed: run again to read the new version")]
    Changed {
        /// What was asked for.
        place: String,
    },
    /// A name that would lead out of the folder.
    #[error("{name} is not a valid file name: its path must stay within the folder")]
    Name {
        /// As the store has it.
        name: String,
    },
    /// Two files of one name.
    #[error("{name} is at several of the places that are fetched: fetch them into folders of their own")]
    Twice {
        /// Below the folder.
        name: String,
    },
    /// A file that is in the way, and not from here.
    #[error(
        "{path} has {found} bytes, and the file to fetch {expected}: it is not what was fetched from there; remove it, or give another folder"
    )]
    InTheWay {
        /// The file.
        path: PathBuf,
        /// Its size.
        found: u64,
        /// That of the one to fetch.
        expected: u64,
    },
    /// A file that was fetched and is not there any more.
    #[error("{path} was fetched, and is not there any more: remove it, or give another folder")]
    Leftover {
        /// The file.
        path: PathBuf,
    },
    /// Too little space, seen before anything is fetched.
    #[error("{folder} has {free} bytes free, and {needed} are to be fetched")]
    NoSpace {
        /// Where to.
        folder: PathBuf,
        /// Free.
        free: u64,
        /// Of all files that are not there yet.
        needed: u64,
    },
    /// The folder's file system failed.
    #[error("failed to write {path}: {error}")]
    Write {
        /// File or folder.
        path: PathBuf,
        /// What the system said.
        #[source]
        error: std::io::Error,
    },
}

impl Error {
    /// Whether another attempt may find it mended by itself: the store, or the folder's file system, failed.
    pub fn is_of_storage(&self) -> bool {
        match self {
            Self::Unavailable { .. } | Self::Changed { .. } | Self::NoSpace { .. } => true,
            Self::Write { error, .. } => !matches!(
                error.kind(),
                ErrorKind::NotADirectory | ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem
            ),
            _ => false,
        }
    }

    /// What a store's error means.
    pub(crate) fn of_store(place: String, how: &'static str, error: &StoreError) -> Self {
        match error {
            StoreError::NotFound { .. } => Self::Missing { place },
            StoreError::InvalidPath { .. } => Self::Refused {
                place,
                reason: innermost(error),
            },
            StoreError::Precondition { .. } => Self::Changed { place },
            StoreError::Unauthenticated { .. } | StoreError::PermissionDenied { .. } => Self::Denied {
                place,
                reason: innermost(error),
                how,
            },
            _ => {
                let reason = innermost(error);
                let has_any = |statuses: &[&str]| statuses.iter().any(|status| reason.contains(status));
                // Errors of requests about a bucket have no type of their own.
                if has_any(&["404 Not Found"]) {
                    Self::Missing { place }
                } else if has_any(&["403 Forbidden", "401 Unauthorized"]) {
                    Self::Denied { place, reason, how }
                } else if has_any(&["400 Bad Request", "redirect without LOCATION"]) {
                    Self::Refused { place, reason }
                } else {
                    Self::Unavailable { place, reason }
                }
            }
        }
    }
}

/// The last of the errors that an error stands on, which says most.
pub(crate) fn innermost(error: &dyn std::error::Error) -> String {
    let mut last = error;
    while let Some(source) = last.source() {
        last = source;
    }
    last.to_string().trim().to_owned()
}
