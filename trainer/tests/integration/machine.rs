//! The machine of a test: hanging storage, GPUs present or absent.

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::fcntl::OFlag;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use crate::common::TRAINER;

/// A checkpoint folder in which every write blocks: a write first reads the file with the folder's
/// owner, which is a pipe here.
pub(crate) struct HangingStorage {
    owner: PathBuf,
    pipe: PathBuf,
    content: Vec<u8>,
}

impl HangingStorage {
    pub(crate) fn begin(checkpoints: &Path) -> Self {
        let owner = checkpoints.join("owner.json");
        let pipe = checkpoints.with_extension("pipe");
        let content = fs_err::read(&owner).expect("an owner");
        mkfifo(&pipe, Mode::S_IRWXU).expect("makes");
        let new = checkpoints.with_extension("new");
        fs_err::hard_link(&pipe, &new).expect("links");
        fs_err::rename(new, &owner).expect("replaces");
        Self { owner, pipe, content }
    }

    /// Unblocks the running write and all later ones.
    pub(crate) fn end(self) {
        let new = self.pipe.with_extension("new");
        fs_err::write(&new, &self.content).expect("writes");
        fs_err::rename(new, &self.owner).expect("replaces");
        // Without waiting for a reader, because there may be none.
        let pipe = std::fs::OpenOptions::new()
            .write(true)
            .custom_flags(OFlag::O_NONBLOCK.bits())
            .open(&self.pipe);
        if let Ok(mut pipe) = pipe {
            pipe.write_all(&self.content).expect("writes");
        }
    }
}

/// The trainer on a machine with only these device files of the NVIDIA driver. Needs root.
pub(crate) fn trainer_on_machine_with(devices: &[&str]) -> Command {
    // A new /dev in a new mount namespace, with the usual devices.
    const SCRIPT: &str = "set -eu; new=$(mktemp -d); mount -t tmpfs tmpfs $new
        for name in null zero urandom; do : > $new/$name; mount --bind /dev/$name $new/$name; done
        for name in $DEVICES; do : > $new/$name; done
        mount --move $new /dev; rmdir $new; exec \"$0\" \"$@\"";
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--propagation", "private", "sh", "-c", SCRIPT, TRAINER])
        .env("DEVICES", devices.join(" "))
        .env_remove("CUDA_VISIBLE_DEVICES");
    command
}
