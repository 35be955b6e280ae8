//! Errors from libtorch.

use std::ffi::{CStr, c_int};

use crate::sys;

/// A failed call into libtorch.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{action}: {message}")]
pub struct Error {
    /// The failed action: "failed to ...".
    pub action: String,
    /// The kind of failure that libtorch reports.
    pub kind: ErrorKind,
    /// libtorch's own message.
    pub message: String,
}

/// The kind of a failure.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ErrorKind {
    /// Another rank or the network to it was lost, or timed out.
    Communication,
    /// The accelerator is out of memory.
    OutOfDeviceMemory,
    /// The host is out of memory.
    OutOfHostMemory,
    /// The accelerator is missing or faulty.
    Device,
    /// Anything else: a bug in the caller.
    Other,
}

impl ErrorKind {
    /// Derives the kind from the message of an error that lost its type: from a backward pass (tch
    /// keeps only the text) or from Gloo (a plain `std::runtime_error`).
    pub fn from_message(message: &str) -> Self {
        const COMMUNICATION: [&str; 8] = [
            "/gloo/",
            "gloo::",
            "Connection closed by peer",
            "Connection reset by peer",
            "Connection refused",
            "Broken pipe",
            "NCCL error",
            "ProcessGroupNCCL",
        ];
        const OUT_OF_MEMORY: [&str; 3] = ["out of memory", "not enough memory", "can't allocate memory"];
        const DEVICE: [&str; 3] = ["CUDA error", "CUDA driver error", "No CUDA GPUs"];
        const DEVICE_NAMES: [&str; 3] = ["CUDA", "Cuda", "HIP"];
        let holds = |needles: &[&str]| needles.iter().any(|needle| message.contains(needle));
        if holds(&OUT_OF_MEMORY) {
            if holds(&DEVICE_NAMES) {
                Self::OutOfDeviceMemory
            } else {
                Self::OutOfHostMemory
            }
        } else if holds(&COMMUNICATION) {
            Self::Communication
        } else if holds(&DEVICE) {
            Self::Device
        } else {
            Self::Other
        }
    }
}

/// Turns the status of a C++ function into a result; `action` reads "failed to ...".
pub(crate) fn check(status: c_int, action: impl FnOnce() -> String) -> Result<(), Error> {
    if status == 0 {
        return Ok(());
    }
    // SAFETY: the message is a C string that lives until this thread's next failed call, and is copied here.
    let message = unsafe { CStr::from_ptr(sys::vit_last_error()) }
        .to_string_lossy()
        .into_owned();
    let kind = match status {
        1 => ErrorKind::Communication,
        2 => ErrorKind::OutOfDeviceMemory,
        3 => ErrorKind::OutOfHostMemory,
        _ => ErrorKind::from_message(&message),
    };
    Err(Error {
        action: action(),
        kind,
        message,
    })
}

/// Exits the process at once with `code`, without destructors. Those of process groups wait for
/// lost peers, and static ones destroy what group threads still use. Data must be on disk before
/// this call.
pub fn exit_now(code: u8) -> ! {
    use std::io::Write as _;
    // A closed standard output must not prevent the exit.
    let _ = std::io::stdout().flush();
    // SAFETY: _exit may be called at any time and does not return.
    unsafe { sys::vit_exit_now(c_int::from(code)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_a_lost_peer_are_communication_errors() {
        for message in [
            "[../third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.2]:4711",
            "[/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1000ms for recv",
            "NCCL error in: ProcessGroupNCCL.cpp:3690, remote process exited",
        ] {
            assert_eq!(
                ErrorKind::from_message(message),
                ErrorKind::Communication,
                "{message}"
            );
        }
    }

    #[test]
    fn memory_outranks_the_device_that_ran_out_of_it() {
        for message in [
            "CUDA error: out of memory",
            "CUDA out of memory. Tried to allocate 1.50 GiB",
            "NCCL error in: ProcessGroupNCCL.cpp:3690, Cuda failure 2 'out of memory'",
            "HIP out of memory. Tried to allocate 1.50 GiB",
        ] {
            assert_eq!(
                ErrorKind::from_message(message),
                ErrorKind::OutOfDeviceMemory,
                "{message}"
            );
        }
        assert_eq!(
            ErrorKind::from_message("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes"),
            ErrorKind::OutOfHostMemory
        );
        assert_eq!(
            ErrorKind::from_message("CUDA error: an illegal memory access"),
            ErrorKind::Device
        );
        assert_eq!(
            ErrorKind::from_message("mat1 and mat2 shapes cannot be multiplied"),
            ErrorKind::Other
        );
    }
}
