//! The line from a rank to its agent.

use std::io::{Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};

use contract::ExitCode;

use super::Report;
use crate::error::TrainError;

/// Sends reports as lines of JSON.
#[derive(Clone, Debug)]
pub(crate) struct Reporter(Arc<Mutex<UnixStream>>);

impl Reporter {
    /// Takes the socket that the agent put on standard input, and watches it: an agent that is gone takes its ranks
    /// with it, whatever ended it.
    pub(crate) fn on_standard_input() -> Result<Self, TrainError> {
        let socket = std::io::stdin()
            .as_fd()
            .try_clone_to_owned()
            .map(UnixStream::from);
        let not_a_socket = TrainError::system(
            "a rank is started by `vit-trainer agent`, with a socket as its standard input",
        );
        let socket = socket.map_err(&not_a_socket)?;
        socket.peer_addr().map_err(&not_a_socket)?;
        let mut watched = socket.try_clone().map_err(&not_a_socket)?;
        std::thread::spawn(move || {
            // The agent never writes: this returns when its end closes.
            let _ = watched.read(&mut [0]);
            torch_ext::exit_now(ExitCode::PeerLost.code());
        });
        Ok(Self(Arc::new(Mutex::new(socket))))
    }

    /// Sends a report. One that cannot be sent is dropped: the agent is gone, and the watch ends this process.
    pub(crate) fn send(&self, report: &Report) {
        let Ok(mut line) = serde_json::to_vec(report) else {
            return;
        };
        line.push(b'\n');
        let mut socket = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = socket.write_all(&line);
    }
}
