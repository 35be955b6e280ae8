//! The project's cache folder. Results are built in a temporary folder, then renamed.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use fs_err as fs;
use sha2::{Digest, Sha256};

/// `$VIT_CACHE`, else `$XDG_CACHE_HOME/vit-operator`, else `$HOME/.cache/vit-operator`.
pub fn directory() -> Result<PathBuf> {
    let set = |name: &str| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    let path = if let Some(path) = set("VIT_CACHE") {
        path
    } else if let Some(path) = set("XDG_CACHE_HOME") {
        path.join("vit-operator")
    } else if let Some(path) = set("HOME") {
        path.join(".cache/vit-operator")
    } else {
        bail!("no cache folder: set VIT_CACHE, XDG_CACHE_HOME or HOME");
    };
    fs::create_dir_all(&path)?;
    fs::canonicalize(&path).context("the cache folder")
}

/// An exclusive lock on `path`, held until dropped. Waits while another process holds it.
pub fn lock(path: &Path) -> Result<fs::File> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    let file = fs::OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)?;
    file.file()
        .lock()
        .with_context(|| format!("cannot lock {}", path.display()))?;
    Ok(file)
}

/// Hashes the inputs of a cached result; equal inputs have equal keys.
#[derive(Clone, Default, Debug)]
pub struct Key(Sha256);

impl Key {
    /// A key without parts.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a named part. Lengths are hashed too, so that parts stay separate.
    #[must_use]
    pub fn part(mut self, name: &str, value: &[u8]) -> Self {
        for bytes in [name.as_bytes(), value] {
            self.0.update((bytes.len() as u64).to_le_bytes());
            self.0.update(bytes);
        }
        self
    }

    /// Adds a file's length and content.
    pub fn file(mut self, path: &Path) -> Result<Self> {
        let mut file = fs::File::open(path)?;
        self.0.update(file.metadata()?.len().to_le_bytes());
        std::io::copy(&mut file, &mut self.0).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(self)
    }

    /// The first 16 hexadecimal digits of the SHA-256 of all parts.
    pub fn finish(self) -> String {
        let digest = self.0.finalize();
        let start: [u8; 8] = std::array::from_fn(|index| digest[index]);
        format!("{:016x}", u64::from_be_bytes(start))
    }
}

#[cfg(test)]
mod tests {
    use super::Key;

    #[test]
    fn a_key_depends_on_every_part_and_its_borders() {
        let key = |a: &str, b: &str| {
            Key::new()
                .part("x", a.as_bytes())
                .part("y", b.as_bytes())
                .finish()
        };
        assert_eq!(key("ab", "c"), key("ab", "c"));
        assert_ne!(key("ab", "c"), key("a", "bc"));
        assert_ne!(key("ab", "c"), key("ab", "d"));
        assert_eq!(key("ab", "c").len(), 16);
    }
}
