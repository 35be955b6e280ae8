//! Finding checkpoints without opening their folder for writing.

use std::path::{Path, PathBuf};

use fs_err as fs;

use super::folder::step_of;

/// Whether a job's folder holds a checkpoint; a folder that is not there holds none.
pub(crate) fn has_checkpoints(folder: &Path) -> bool {
    newest(folder).is_ok_and(|found| found.is_some())
}

/// The newest checkpoint in a job's folder.
pub(super) fn newest(folder: &Path) -> std::io::Result<Option<PathBuf>> {
    let mut found = None;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let step = entry.file_name().to_str().and_then(step_of);
        found = found.max(step.map(|step| (step, entry.path())));
    }
    Ok(found.map(|(_, path)| path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_is_the_one_of_the_highest_step() {
        let place = tempfile::tempdir().expect("a folder");
        assert!(!has_checkpoints(place.path()));
        assert!(!has_checkpoints(&place.path().join("missing")));
        for name in [
            "step-00000009",
            "step-100000000",
            ".partial-step-99999999999",
            "log.jsonl",
        ] {
            fs::create_dir(place.path().join(name)).expect("makes");
        }
        let newest = newest(place.path()).expect("lists");
        assert_eq!(newest, Some(place.path().join("step-100000000")));
        assert!(has_checkpoints(place.path()));
    }
}
