//! A rank without an agent.

use std::io::{BufRead as _, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use contract::environment;
use serde_json::Value;

use crate::agent::free_port;
use crate::common::TRAINER;
use crate::device::{Device, gpus};

/// A rank with the test as its agent.
pub(crate) struct Rank {
    pub(crate) child: Child,
    reports: BufReader<UnixStream>,
    pub(crate) errors: PathBuf,
}

impl Rank {
    /// The only rank of the configuration in `folder`.
    pub(crate) fn start_alone(folder: &Path, attempt: u64) -> Self {
        Self::start(folder, attempt, 0, 1, free_port())
    }

    /// One of several ranks, which meet at a port.
    pub(crate) fn start(folder: &Path, attempt: u64, rank: u32, ranks: u32, port: u16) -> Self {
        let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
        let errors = folder.join(format!("errors-{attempt}-{rank}"));
        let mut command = Command::new(TRAINER);
        Device::current().prepare(&mut command, &gpus());
        let child = command
            .arg("rank")
            .env(environment::RUN_CONFIG, folder.join("run.json"))
            .env(environment::ATTEMPT, attempt.to_string())
            .env(environment::POD_ADDRESS, "127.0.0.1")
            .env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", port.to_string())
            .envs(["RANK", "LOCAL_RANK"].map(|name| (name, rank.to_string())))
            .envs(["WORLD_SIZE", "LOCAL_WORLD_SIZE"].map(|name| (name, ranks.to_string())))
            .env("OMP_NUM_THREADS", "1")
            // As its agent does.
            .env("CUDA_VISIBLE_DEVICES", rank.to_string())
            .env("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
            .stdin(OwnedFd::from(theirs))
            .stderr(fs_err::File::create(&errors).expect("a file").into_parts().0)
            .spawn()
            .expect("starts");
        Self {
            child,
            reports: BufReader::new(ours),
            errors,
        }
    }

    /// The next report; `None` once the rank has ended.
    pub(crate) fn report(&mut self) -> Option<Value> {
        let mut line = String::new();
        self.reports.read_line(&mut line).expect("reads");
        serde_json::from_str(&line).ok()
    }
}
