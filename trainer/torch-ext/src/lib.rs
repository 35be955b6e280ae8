//! Safe wrappers over the parts of libtorch that tch lacks: process groups and the gradient reducer of c10d,
//! collectives inside a model, divided training state, optimizer steps over all parameters at once, activation checkpointing,
//! and copies to a device that nobody waits for.
//!
//! The only unsafe code of the workspace is here. Each C++ function (folder `cpp`, a file a concern) catches every
//! exception and returns a status; each has one safe wrapper. Handles are freed when dropped.
#![allow(unsafe_code)]

mod arithmetic;
mod autocast;
mod collectives;
pub mod device;
mod error;
mod flight_recorder;
mod handle;
mod host_copies;
pub mod memory;
mod moment;
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
pub use error::{Error, ErrorKind, exit_now};
pub use flight_recorder::FlightRecorder;
pub use host_copies::HostCopies;
pub use moment::Moment;
pub use process_group::{Aborter, Member, ProcessGroup, Rendezvous, Store};
pub use profile::Profile;
pub use readback::Readback;
pub use reducer::Reducer;
pub use sharded::Sharded;
pub use sync_step::{Compression, Measurement, SyncCost, SyncRecorder, SyncTimes};
pub use trace::Trace;
pub use transfer::{Transfer, sent};
