//! Finding CUDA at run time, so that one binary serves machines with and without it.

use std::ffi::c_void;
use std::path::Path;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

/// libtorch's CUDA half.
const TORCH_CUDA: &str = "libtorch_cuda.so";
/// This project's plugin over NCCL, built by `scripts/build-nccl-plugin`.
const PLUGIN: &str = "libvit_nccl.so";

/// Files of the NVIDIA driver; a machine with a GPU has at least one of them.
const DEVICE_FILES: [&str; 2] = ["/dev/nvidiactl", "/dev/nvidia0"];

/// CUDA and NCCL, loaded for the rest of the process's life.
#[derive(Clone, Copy, Debug)]
pub struct Cuda {
    backend_new: *const c_void,
}

impl Cuda {
    pub(crate) fn nccl_backend_new(&self) -> *const c_void {
        self.backend_new
    }
}

/// Why this process cannot use a GPU.
#[derive(Debug, thiserror::Error)]
pub enum CudaError {
    /// No device of the NVIDIA driver.
    #[error("no GPU is visible: neither {} nor {} exists", DEVICE_FILES[0], DEVICE_FILES[1])]
    NoDevice,
    /// A library that is missing or does not fit.
    #[error("failed to load {library}: {message}")]
    Library {
        /// File name of the library.
        library: &'static str,
        /// The loader's words.
        message: String,
    },
    /// The libraries are there but CUDA finds nothing to run on.
    #[error("CUDA is installed but reports no usable GPU")]
    Unusable,
}

/// Loads libtorch's CUDA half and the NCCL plugin, where a device file of the NVIDIA driver shows that there is a GPU. The libraries are looked for where the loader looks (`LD_LIBRARY_PATH`, rpath).
pub fn load_cuda() -> Result<Cuda, CudaError> {
    if !DEVICE_FILES.iter().any(|file| Path::new(file).exists()) {
        return Err(CudaError::NoDevice);
    }
    // libtorch_cuda registers its kernels with libtorch_cpu as it is loaded, and the plugin links against it.
    let torch_cuda = open(TORCH_CUDA)?;
    let plugin = open(PLUGIN)?;
    // SAFETY: the symbol is a function of the plugin; only its address is taken here.
    let entry = unsafe { plugin.get::<*const c_void>(b"vit_nccl_backend_new\0") }.map_err(|error| {
        CudaError::Library {
            library: PLUGIN,
            message: error.to_string(),
        }
    })?;
    let backend_new = *entry;
    // Neither library can be unloaded: libtorch keeps pointers into them.
    std::mem::forget(torch_cuda);
    std::mem::forget(plugin);
    if !tch::Cuda::is_available() {
        return Err(CudaError::Unusable);
    }
    Ok(Cuda { backend_new })
}

fn open(library: &'static str) -> Result<Library, CudaError> {
    // SAFETY: both libraries' initialisers are meant to run on loading and have no other preconditions.
    unsafe { Library::open(Some(library), RTLD_NOW | RTLD_GLOBAL) }.map_err(|error| CudaError::Library {
        library,
        message: error.to_string(),
    })
}
