//! Safe wrappers over the parts of libtorch that tch lacks: c10d's process groups and gradient
//! reducer, collectives inside a model, sharded training state, multi-tensor optimizers, activation
//! checkpointing, and asynchronous copies to a device.
//!
//! All unsafe code of the workspace. Each C++ function (folder `cpp`, one file per concern) catches
//! exceptions and returns a status; each has one safe wrapper. Dropping a handle frees it.
#![allow(unsafe_code)]

mod arithmetic;
mod autocast;
mod collectives;
pub mod device;
mod device_event;
mod error;
mod flight_recorder;
mod handle;
mod host_copies;
pub mod memory;
pub mod optim;
pub mod process_group;
mod profile;
mod readback;
pub mod recompute;
pub mod reducer;
pub mod sharded;
mod sync_step;
mod sys;
mod trace;
mod transfer;

pub use arithmetic::{Arithmetic, AttentionKernel, without_cudnn_attention};
pub use autocast::autocast;
pub use collectives::Collectives;
pub use device::{Cuda, CudaError, GpuIdentity, load_cuda};
pub use device_event::DeviceEvent;
pub use error::{Error, ErrorKind, exit_now};
pub use flight_recorder::FlightRecorder;
pub use host_copies::HostCopies;
pub use process_group::{Aborter, Member, ProcessGroup, Rendezvous, Store};
pub use profile::Profile;
pub use readback::Readback;
pub use reducer::Reducer;
pub use sharded::Sharded;
pub use sync_step::{Compression, Measurement, SyncCost, SyncRecorder, SyncTimes};
pub use trace::Trace;
pub use transfer::{Transfer, sent};
