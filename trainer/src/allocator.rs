//! How memory is allocated, also by libtorch: jemalloc takes the place of the C library's functions in the whole process.
//! glibc's let the activations of a step take a fifth more memory than they hold.

use tikv_jemallocator::Jemalloc;

#[global_allocator]
static GLOBAL: Jemalloc = Jemalloc;

/// Read by jemalloc as a process starts.
pub(crate) const SETTINGS: &str = "MALLOC_CONF";
/// Every step frees all activations and asks for the same again. What was given back to the kernel in between would come
/// back page by page, each filled with zeros first: a rank keeps it.
pub(crate) const KEEP: &str = "dirty_decay_ms:-1,muzzy_decay_ms:-1";
