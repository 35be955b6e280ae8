//! A folder's fetched files, one line of JSON each, appended after its content is complete and
//! before it is renamed.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::Error;

const NAME: &str = "fetched.jsonl";

/// A fetched file.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) tag: String,
    pub(crate) bytes: u64,
    /// Its location.
    pub(crate) from: String,
}

#[derive(Debug)]
pub(crate) struct Record {
    path: PathBuf,
    file: File,
    pub(crate) lines: BTreeMap<String, Line>,
}

impl Record {
    pub(crate) fn open(folder: &Path) -> Result<Self, Error> {
        let path = folder.join(NAME);
        let failed = |error| Error::Write {
            path: path.clone(),
            error,
        };
        let mut lines = BTreeMap::new();
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(failed(error)),
        };
        // After a crash the last line may be incomplete: its file was not renamed yet.
        for line in text
            .lines()
            .filter_map(|line| serde_json::from_str::<Line>(line).ok())
        {
            lines.insert(line.name.clone(), line);
        }
        let mut file = OpenOptions::new()
            .append(true)
            .create(true)
            .open(&path)
            .map_err(failed)?;
        if !text.is_empty() && !text.ends_with('\n') {
            file.write_all(b"\n").map_err(failed)?;
        }
        Ok(Self { path, file, lines })
    }

    /// Adds a line, durably.
    pub(crate) fn add(&mut self, line: &Line) -> Result<(), Error> {
        let text = serde_json::to_string(line).unwrap_or_default() + "\n";
        let written = self.file.write_all(text.as_bytes());
        written
            .and_then(|()| self.file.sync_data())
            .map_err(|error| Error::Write {
                path: self.path.clone(),
                error,
            })
    }
}
