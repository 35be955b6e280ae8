//! Files in object stores and on the Hugging Face Hub: listed, and fetched into a folder or read in parts.
//!
//! ```text
//!   "s3://bucket/train-{000..127}.tar" -> Location -> Store -> files -> fetch -> folder
//!                                                                     -> cache -> parts of files
//! ```
#![forbid(unsafe_code)]

mod cache;
mod error;
mod fetch;
mod hub;
mod location;
mod lock;
mod record;
mod store;

pub use cache::Cache;
pub use error::Error;
pub use fetch::{Fetched, Plan, Progress};
pub use location::Location;
pub use store::{RemoteFile, Store};
