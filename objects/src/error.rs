//! Why files could not be listed or fetched.

use std::io::ErrorKind;
use std::path::PathBuf;

use object_store::Error as StoreError;

/// What is wrong, where, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The text is not a valid location.
    #[error("{text} is not a valid location: {expected}")]
    Location {
        /// The text.
        text: String,
        /// What is valid.
        expected: String,
    },
    /// The place does not exist or has no files.
    #[error("{place} does not exist or has no files")]
    Missing {
        /// The requested place.
        place: String,
    },
    /// Credentials are missing or insufficient.
    #[error("access to {place} was denied ({reason}): {how}")]
    Denied {
        /// The requested place.
        place: String,
        /// The store's message.
        reason: String,
        /// How to give credentials.
        how: &'static str,
    },
    /// The store refused the request.
    #[error("the request for {place} was refused: {reason}")]
    Refused {
        /// The requested place.
        place: String,
        /// The store's message.
        reason: String,
    },
    /// The store did not respond in time, or asked to retry later, until patience ended.
    #[error("{place} could not be read: {reason}")]
    Unavailable {
        /// The requested place.
        place: String,
        /// The last failure.
        reason: String,
    },
    /// A file has changed since it was listed.
    #[error("{place} has changed since it was listed: run again to read the new version")]
    Changed {
        /// The requested place.
        place: String,
    },
    /// A name that would leave the folder.
    #[error("{name} is not a valid file name: its path must stay within the folder")]
    Name {
        /// The name in the store.
        name: String,
    },
    /// Two files with the same name.
    #[error("{name} is in several of the fetched locations: fetch them into separate folders")]
    Twice {
        /// The name below the folder.
        name: String,
    },
    /// A file with this name was not fetched from here.
    #[error(
        "{path} has {found} bytes, but the file to fetch has {expected}: it was not fetched from there; remove it, or use another folder"
    )]
    InTheWay {
        /// The file.
        path: PathBuf,
        /// Its size.
        found: u64,
        /// Size of the file to fetch.
        expected: u64,
    },
    /// A fetched file that does not exist at its source any more.
    #[error(
        "{path} was fetched, but does not exist at its source any more: remove it, or use another folder"
    )]
    Leftover {
        /// The file.
        path: PathBuf,
    },
    /// Too little space, checked before fetching.
    #[error("{folder} has {free} bytes free, but {needed} must be fetched")]
    NoSpace {
        /// The target.
        folder: PathBuf,
        /// Free bytes.
        free: u64,
        /// Bytes of all missing files.
        needed: u64,
    },
    /// The folder's file system failed.
    #[error("failed to write {path}: {error}")]
    Write {
        /// File or folder.
        path: PathBuf,
        /// The system's error.
        #[source]
        error: std::io::Error,
    },
}

impl Error {
    /// Whether a retry may succeed: the store or the folder's file system failed.
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

    /// Translates a store's error.
    pub(crate) fn from_store(place: String, how: &'static str, error: &StoreError) -> Self {
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
                // Errors about a bucket have no separate type.
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

/// The root cause of an error, which says most.
pub(crate) fn innermost(error: &dyn std::error::Error) -> String {
    let mut last = error;
    while let Some(source) = last.source() {
        last = source;
    }
    last.to_string().trim().to_owned()
}
