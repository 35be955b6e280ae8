//! The channel from a rank to its agent.

use std::io::{Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};

use contract::ExitCode;

use super::Report;
use crate::error::TrainError;
use ::agent::pulse::Pulse;

/// Sends reports as lines of JSON.
#[derive(Clone, Debug)]
pub(crate) struct Reporter {
    socket: Arc<Mutex<UnixStream>>,
    /// State of this rank from its reports.
    pulse: Arc<Mutex<Pulse>>,
}

impl Reporter {
    /// Takes the socket that the agent put on standard input and watches it: ranks end with their
    /// agent, whatever ended it.
    pub(crate) fn on_standard_input() -> Result<Self, TrainError> {
        let socket = std::io::stdin()
            .as_fd()
            .try_clone_to_owned()
            .map(UnixStream::from);
        let not_a_socket =
            TrainError::system("ranks are started by `vit-trainer agent`, with a socket as standard input");
        let socket = socket.map_err(&not_a_socket)?;
        socket.peer_addr().map_err(&not_a_socket)?;
        let mut watched = socket.try_clone().map_err(&not_a_socket)?;
        std::thread::spawn(move || {
            // The agent never writes: the read returns when its end closes.
            let _ = watched.read(&mut [0]);
            torch_ext::exit_now(ExitCode::PeerLost.code());
        });
        Ok(Self {
            socket: Arc::new(Mutex::new(socket)),
            pulse: Arc::default(),
        })
    }

    /// Sends a report, or drops it if the agent is gone: then the watch ends this process.
    pub(crate) fn send(&self, report: &Report) {
        self.take_pulse(report);
        let Ok(mut line) = serde_json::to_vec(report) else {
            return;
        };
        line.push(b'\n');
        let mut socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = socket.write_all(&line);
    }

    /// When this rank last made progress, by its reports.
    pub(crate) fn pulse(&self) -> Pulse {
        self.pulse.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn take_pulse(&self, report: &Report) {
        let mut pulse = self.pulse.lock().unwrap_or_else(PoisonError::into_inner);
        match report {
            Report::Step(step) => pulse.stepped(step.step, step.phases.sum()),
            Report::Activity { activity } => pulse.turned_to(*activity),
            _ => {}
        }
    }
}
