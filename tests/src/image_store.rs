//! Preloaded images of nodes, imported once and shared by hard links.
//!
//! Importing a 600 MB image into every node's containerd would cost seconds and disk writes per
//! node. Instead, a separate containerd imports a set of images once, and its root folder stays in
//! the cache. Nodes start from a copy with hard links to image content and unpacked layers. This is
//! safe: containerd and overlayfs only add and unlink these files. Other files are copied.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fs_err as fs;
use rustix::process::{Pid, Signal, kill_process};

use crate::binaries::Binaries;
use crate::cache::{self, Key};
use crate::command::{command, run, tail_of_file};
use crate::progress::{say, step};

/// Time limit for containerd to listen or to end.
const DEADLINE: Duration = Duration::from_secs(60);
/// Number of prepared roots to keep, by most recent use.
const KEPT: usize = 3;
/// Folders below containerd's root that hard links may share.
const SHARED: [&str; 2] = [
    "io.containerd.content.v1.content/blobs",
    "io.containerd.snapshotter.v1.overlayfs/snapshots",
];

/// A containerd root folder with a set of images, and without containers.
#[derive(Clone, Debug)]
pub struct Store {
    root: PathBuf,
}

impl Store {
    /// The root with exactly these images, created if it is not cached.
    pub fn prepare(binaries: &Binaries, archives: &[PathBuf]) -> Result<Self> {
        let folder = cache::directory()?.join("containerd");
        let root = folder.join(key(binaries, archives)?);
        let _lock = cache::lock(&folder.join(".lock"))?;
        if !root.exists() {
            let names: Vec<_> = archives
                .iter()
                .filter_map(|path| path.file_stem()?.to_str().map(str::to_owned))
                .collect();
            step(format_args!("importing the images {}", names.join(", ")), || {
                let staging = tempfile::Builder::new().prefix(".import-").tempdir_in(&folder)?;
                import_into(binaries, staging.path(), archives)?;
                fs::rename(staging.keep(), &root)?;
                Ok(())
            })?;
        }
        // The folder's modification time records the last use.
        fs::File::open(&root)?
            .file()
            .set_modified(std::time::SystemTime::now())?;
        remove_least_recent(&folder)?;
        Ok(Self { root })
    }

    /// Makes `target` a containerd root with the same images.
    pub fn copy_to(&self, target: &Path) -> Result<()> {
        if let Some(parent) = target.parent() {
            fs::create_dir_all(parent)?;
        }
        run(command("cp", ["--archive", "--link", "--no-target-directory"])
            .arg(&self.root)
            .arg(target))?;
        unshare_files(target, target)
    }
}

fn key(binaries: &Binaries, archives: &[PathBuf]) -> Result<String> {
    let mut key = Key::new().part(
        "programs",
        binaries.path("containerd").as_os_str().as_encoded_bytes(),
    );
    let mut paths: Vec<_> = archives.to_vec();
    paths.sort();
    paths.dedup();
    for path in paths {
        let metadata = fs::metadata(&path).context("an image's archive")?;
        let modified = metadata.modified()?.duration_since(std::time::UNIX_EPOCH)?;
        key = key
            .part("archive", path.as_os_str().as_encoded_bytes())
            .part("size", &metadata.len().to_le_bytes())
            .part("modified", &modified.as_nanos().to_le_bytes());
    }
    Ok(key.finish())
}

fn import_into(binaries: &Binaries, root: &Path, archives: &[PathBuf]) -> Result<()> {
    let containerd = Importer::start(binaries, root)?;
    for archive in archives {
        import(binaries, &containerd.socket(), archive)?;
    }
    containerd.end()
}

/// Imports and unpacks an image's archive into a running containerd.
pub fn import(binaries: &Binaries, socket: &Path, archive: &Path) -> Result<()> {
    let mut ctr = command(binaries.path("ctr"), ["--address"]);
    ctr.arg(socket)
        .args(["--namespace", "k8s.io", "images", "import"])
        .arg(archive);
    run(&mut ctr).with_context(|| format!("cannot import {}", archive.display()))?;
    Ok(())
}

/// A containerd that only imports.
struct Importer {
    process: Child,
    folder: tempfile::TempDir,
}

impl Importer {
    fn start(binaries: &Binaries, root: &Path) -> Result<Self> {
        // A short path, because of the Unix socket in it.
        let folder = tempfile::Builder::new().prefix("vit-images-").tempdir()?;
        let at = folder.path().display();
        let config = format!(
            "version = 3\nroot = \"{}\"\nstate = \"{at}/state\"\ndisabled_plugins = [\"io.containerd.internal.v1.opt\", \
             \"io.containerd.grpc.v1.cri\", \"io.containerd.cri.v1.runtime\", \"io.containerd.nri.v1.nri\"]\n\
             [grpc]\naddress = \"{at}/containerd.sock\"\n",
            root.display()
        );
        fs::write(folder.path().join("containerd.toml"), config)?;
        let log = fs::File::create(folder.path().join("log"))?.into_parts().0;
        let process = command(binaries.path("containerd"), ["--config"])
            .arg(folder.path().join("containerd.toml"))
            .env("PATH", binaries.search_path())
            .stdout(log.try_clone()?)
            .stderr(log)
            .stdin(Stdio::null())
            .spawn()
            .context("cannot start containerd")?;
        let mut importer = Self { process, folder };
        let started = Instant::now();
        while UnixStream::connect(importer.socket()).is_err() {
            let ended = importer.process.try_wait()?;
            ensure!(
                ended.is_none() && started.elapsed() < DEADLINE,
                "containerd is not listening: {}",
                tail_of_file(&importer.folder.path().join("log"), 20)
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(importer)
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("containerd.sock")
    }

    /// Ends containerd cleanly, so that its databases are complete.
    fn end(mut self) -> Result<()> {
        kill_process(Pid::from_child(&self.process), Signal::TERM)?;
        let started = Instant::now();
        while self.process.try_wait()?.is_none() {
            ensure!(
                started.elapsed() < DEADLINE,
                "containerd did not end after SIGTERM"
            );
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}

impl Drop for Importer {
    fn drop(&mut self) {
        // It may still be running after a failure; after `end` both calls have no effect.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Replaces hard links below `folder` by copies, except in [`SHARED`].
fn unshare_files(root: &Path, folder: &Path) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let path = entry.path();
        if SHARED.iter().any(|shared| root.join(shared) == path) {
            continue;
        }
        let kind = entry.file_type()?;
        if kind.is_dir() {
            unshare_files(root, &path)?;
        } else if kind.is_file() {
            let copy = folder.join(".copy");
            fs::copy(&path, &copy)?;
            fs::rename(copy, path)?;
        }
    }
    Ok(())
}

fn remove_least_recent(folder: &Path) -> Result<()> {
    let mut roots = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            roots.push((entry.metadata()?.modified()?, entry.path()));
        }
    }
    roots.sort();
    for (_, path) in roots.iter().rev().skip(KEPT) {
        say(format_args!(
            "removing images of earlier builds: {}",
            path.display()
        ));
        fs::remove_dir_all(path)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::{SHARED, Store};

    #[test]
    fn a_copy_shares_layers_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        let files = [
            format!("{}/sha256/a", SHARED[0]),
            format!("{}/1/fs/lib", SHARED[1]),
            "meta/meta.db".to_owned(),
        ];
        for file in &files {
            let path = root.join(file);
            fs_err::create_dir_all(path.parent().unwrap()).unwrap();
            fs_err::write(path, file).unwrap();
        }
        let target = folder.path().join("nodes/0");
        Store { root: root.clone() }.copy_to(&target).unwrap();
        let inode = |path: &std::path::Path| fs_err::metadata(path).unwrap().ino();
        let shared: Vec<bool> = files
            .iter()
            .map(|file| inode(&root.join(file)) == inode(&target.join(file)))
            .collect();
        assert_eq!(shared, [true, true, false]);
        assert_eq!(fs_err::read_to_string(target.join(&files[2])).unwrap(), files[2]);
    }
}
