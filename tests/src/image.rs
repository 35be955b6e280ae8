//! Container images as OCI archives, built by buildah without a daemon or a registry.
//!
//! mmdebstrap creates the Debian base image, under the name in the Dockerfiles. A build is skipped
//! if an archive with the hash of its inputs (Dockerfile, base, every file of the context) exists.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use fs_err as fs;

use crate::cache::{self, Key};
use crate::command::{command, run, run_logged};
use crate::progress::step;

/// The image that keeps a pod's namespaces open.
pub const PAUSE: &str = "localhost/pause:1";
/// The operator's image.
pub const OPERATOR: &str = "localhost/vit-operator:dev";
/// The trainer's image.
pub const TRAINER: &str = "localhost/vit-trainer:dev";
/// The trainer's image with simulated GPUs.
pub const SIMULATED_GPUS: &str = "localhost/vit-simulated-gpus:dev";
/// The image of the scaling studies' contenders.
pub const CONTENDERS: &str = "localhost/vit-contenders:dev";

/// Base image of the shipped Dockerfiles.
const BASE: &str = "docker.io/library/debian:bookworm-slim";
const BASE_SUITE: &str = "bookworm";

const PAUSE_SOURCE: &str = include_str!("../images/pause/pause.c");
const PAUSE_DOCKERFILE: &str = include_str!("../images/pause/Dockerfile");

/// The pause image's archive.
pub fn pause() -> Result<PathBuf> {
    let key = Key::new()
        .part("source", PAUSE_SOURCE.as_bytes())
        .part("dockerfile", PAUSE_DOCKERFILE.as_bytes())
        .finish();
    build_keyed(PAUSE, &key, |builder| {
        let context = tempfile::tempdir()?;
        let (source, dockerfile) = (context.path().join("pause.c"), context.path().join("Dockerfile"));
        fs::write(&source, PAUSE_SOURCE)?;
        fs::write(&dockerfile, PAUSE_DOCKERFILE)?;
        run(command("cc", ["-Os", "-static", "-o"])
            .arg(context.path().join("pause"))
            .arg(&source))?;
        builder.build(PAUSE, &dockerfile, context.path())
    })
}

/// Builds the image `name` from a Dockerfile and a context folder, and returns its OCI archive.
pub fn build(name: &str, dockerfile: &Path, context: &Path) -> Result<PathBuf> {
    let text = fs::read(dockerfile)?;
    let mut key = Key::new()
        .part("dockerfile", &text)
        .part("suite", BASE_SUITE.as_bytes());
    key = hash_folder(key, context, Path::new(""))?;
    build_keyed(name, &key.finish(), |builder| {
        builder.ensure_base()?;
        builder.build(name, dockerfile, context)
    })
}

fn build_keyed(name: &str, key: &str, build: impl FnOnce(&Builder) -> Result<()>) -> Result<PathBuf> {
    let folder = cache::directory()?.join("images");
    let slug = slug(name);
    let archive = folder.join(format!("{slug}-{key}.tar"));
    if archive.exists() {
        return Ok(archive);
    }
    let _lock = cache::lock(&folder.join(".lock"))?;
    if archive.exists() {
        return Ok(archive);
    }
    step(format_args!("building the image {name}"), || {
        let builder = Builder::new(&folder)?;
        build(&builder)?;
        builder.export(name, &archive)
    })?;
    remove_older(&folder, &slug, &archive)?;
    Ok(archive)
}

/// Removes archives of the same image with other inputs, which use much disk space.
fn remove_older(folder: &Path, slug: &str, newest: &Path) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let file = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        let key = file
            .strip_prefix(slug)
            .and_then(|rest| rest.strip_prefix('-')?.strip_suffix(".tar"));
        if key.is_some_and(|key| key.len() == 16) && path != newest {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}

/// `localhost/vit-operator:dev` -> `vit-operator-dev`
fn slug(name: &str) -> String {
    name.rsplit('/').next().unwrap_or(name).replace(':', "-")
}

/// Adds the path, mode and content of everything below `folder` to a key, in a fixed order.
fn hash_folder(mut key: Key, root: &Path, relative: &Path) -> Result<Key> {
    use std::os::unix::fs::PermissionsExt as _;
    let mut entries = fs::read_dir(root.join(relative))?.collect::<std::io::Result<Vec<_>>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let path = relative.join(entry.file_name());
        let name = path
            .to_str()
            .with_context(|| format!("{}: the file name is not UTF-8", path.display()))?;
        let metadata = fs::symlink_metadata(entry.path())?;
        key = key.part(name, &metadata.permissions().mode().to_le_bytes());
        key = if metadata.is_dir() {
            hash_folder(key, root, &path)?
        } else if metadata.is_symlink() {
            key.part(
                "link",
                fs::read_link(entry.path())?.as_os_str().as_encoded_bytes(),
            )
        } else if metadata.is_file() {
            key.file(&entry.path())?
        } else {
            bail!(
                "{}: not a file, folder or link, so it cannot be part of an image",
                entry.path().display()
            )
        };
    }
    Ok(key)
}

/// Fills a build context with hard links, or copies if linking fails.
///
/// `files` are pairs of an existing file and its path in the context.
pub fn stage<'a>(context: &Path, files: impl IntoIterator<Item = (&'a Path, &'a str)>) -> Result<()> {
    for (source, target) in files {
        let target = context.join(target);
        if let Some(parent) = target.parent() {
            fs::create_dir_all(parent)?;
        }
        // A symbolic link would point outside the context.
        let source = fs::canonicalize(source)?;
        if fs::hard_link(&source, &target).is_err() {
            fs::copy(&source, &target)?;
        }
    }
    Ok(())
}

/// buildah with its storage in the cache.
#[derive(Debug)]
struct Builder {
    folder: PathBuf,
    log: PathBuf,
}

impl Builder {
    fn new(folder: &Path) -> Result<Self> {
        let log = folder.join("buildah.log");
        fs::write(&log, "")?;
        Ok(Self {
            folder: folder.to_owned(),
            log,
        })
    }

    fn buildah<const N: usize>(&self, arguments: [&str; N]) -> Command {
        let mut buildah = command("buildah", ["--storage-driver", "overlay"]);
        buildah
            .arg("--root")
            .arg(self.folder.join("storage"))
            .arg("--runroot")
            .arg(self.folder.join("run"));
        buildah.args(arguments);
        buildah
    }

    fn build(&self, name: &str, dockerfile: &Path, context: &Path) -> Result<()> {
        let mut bud = self.buildah([
            "bud",
            "--layers",
            // Leftovers of failed builds would prevent images from being pruned.
            "--force-rm",
            "--isolation",
            "chroot",
            "--network",
            "host",
            "--pull=never",
        ]);
        for mount in self.settings_of_pip()? {
            bud.args(["--volume", &mount]);
        }
        run_logged(
            bud.args(["--tag", name, "--file"]).arg(dockerfile).arg(context),
            &self.log,
        )
    }

    /// Mounts that let pip in a build trust the certificates in `PIP_CERT`, if set.
    fn settings_of_pip(&self) -> Result<Vec<String>> {
        let Ok(certificates) = std::env::var("PIP_CERT") else {
            return Ok(Vec::new());
        };
        let inside = "/run/certificates.pem";
        let settings = self.folder.join("pip.conf");
        fs::write(&settings, format!("[global]\ncert = {inside}\n"))?;
        Ok(vec![
            format!("{certificates}:{inside}:ro"),
            format!("{}:/etc/pip.conf:ro", settings.display()),
        ])
    }

    fn export(&self, name: &str, archive: &Path) -> Result<()> {
        let part = archive.with_extension("part");
        if part.exists() {
            // buildah would append to it.
            fs::remove_file(&part)?;
        }
        // Fast rather than small: only this machine's containerd reads the archive.
        let mut push = self.buildah(["push", "--compression-format=zstd", "--compression-level=1"]);
        let target = format!("oci-archive:{}:{name}", part.display());
        run_logged(push.args([name, &target]), &self.log)?;
        fs::rename(part, archive)?;
        // Removes unused layers of earlier builds.
        run_logged(&mut self.buildah(["rmi", "--prune"]), &self.log)
    }

    /// Creates the base image if the storage lacks it.
    fn ensure_base(&self) -> Result<()> {
        if run(&mut self.buildah(["inspect", "--type", "image", BASE])).is_ok() {
            return Ok(());
        }
        let tarball = self.folder.join(format!("base-{BASE_SUITE}.tar"));
        if !tarball.exists() {
            step(
                format_args!("creating the base image {BASE} with mmdebstrap"),
                || {
                    let part = tarball.with_extension("part.tar");
                    let mut make = command("mmdebstrap", ["--variant=minbase", "--quiet", BASE_SUITE]);
                    run_logged(make.arg(&part), &self.log)?;
                    fs::rename(&part, &tarball)?;
                    Ok(())
                },
            )?;
        }
        let container = run(&mut self.buildah(["from", "scratch"]))?.trim().to_owned();
        ensure!(!container.is_empty(), "buildah named no working container");
        run_logged(self.buildah(["add", &container]).arg(&tarball), &self.log)?;
        run_logged(&mut self.buildah(["commit", "--rm", &container, BASE]), &self.log)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{hash_folder, slug, stage};
    use crate::cache::Key;

    #[test]
    fn a_slug_is_the_last_part_with_the_tag() {
        assert_eq!(slug("localhost/vit-operator:dev"), "vit-operator-dev");
    }

    #[test]
    fn a_context_hashes_by_path_and_content_not_by_time() {
        let folder = tempfile::tempdir().unwrap();
        let hash = || {
            hash_folder(Key::new(), folder.path(), Path::new(""))
                .unwrap()
                .finish()
        };
        fs_err::create_dir(folder.path().join("lib")).unwrap();
        fs_err::write(folder.path().join("lib/a"), "1").unwrap();
        let first = hash();
        fs_err::write(folder.path().join("lib/a"), "1").unwrap();
        assert_eq!(hash(), first);
        fs_err::write(folder.path().join("lib/a"), "2").unwrap();
        assert_ne!(hash(), first);
        fs_err::write(folder.path().join("lib/a"), "1").unwrap();
        fs_err::rename(folder.path().join("lib/a"), folder.path().join("lib/b")).unwrap();
        assert_ne!(hash(), first);
    }

    #[test]
    fn staging_follows_links_to_their_files() {
        let folder = tempfile::tempdir().unwrap();
        fs_err::write(folder.path().join("libx.so.1"), "code").unwrap();
        std::os::unix::fs::symlink("libx.so.1", folder.path().join("libx.so")).unwrap();
        let context = folder.path().join("context");
        stage(
            &context,
            [(folder.path().join("libx.so").as_path(), "lib/libx.so")],
        )
        .unwrap();
        assert!(!context.join("lib/libx.so").is_symlink());
        assert_eq!(
            fs_err::read_to_string(context.join("lib/libx.so")).unwrap(),
            "code"
        );
    }
}
