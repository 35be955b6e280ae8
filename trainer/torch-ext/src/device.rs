//! Finding CUDA at run time, so that one binary serves machines with and without it.

use std::error::Error as _;
use std::ffi::{CStr, c_int, c_void};
use std::path::Path;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

use crate::error::{Error, ErrorKind, check};
use crate::sys::{self, CudaIdentity, NcclFlightRecord, ReplaceLayerNorm};

/// libtorch's CUDA half.
const TORCH_CUDA: &str = "libtorch_cuda.so";
/// This project's plugin over NCCL, built by `scripts/build-nccl-plugin`.
const PLUGIN: &str = "libvit_nccl.so";

/// Files of the NVIDIA driver; a machine with a GPU has at least one of them.
const DEVICE_FILES: [&str; 2] = ["/dev/nvidiactl", "/dev/nvidia0"];

/// How the C++ side is told of a device: the index of a GPU, or a negative number for the CPU.
pub(crate) fn index(device: tch::Device) -> c_int {
    match device {
        tch::Device::Cuda(index) => index as c_int,
        _ => -1,
    }
}

/// CUDA and NCCL, loaded for the rest of the process's life.
#[derive(Clone, Copy, Debug)]
pub struct Cuda {
    backend_new: *const c_void,
    flight_record: NcclFlightRecord,
    forbid_waits: unsafe extern "C" fn(bool),
    identity: CudaIdentity,
    replace_layer_norm: ReplaceLayerNorm,
}

/// Which GPU it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuIdentity {
    /// Product name, as CUDA has it: `NVIDIA H200`.
    pub product: String,
    /// UUID of the GPU, or of the MIG instance.
    pub uuid: [u8; 16],
}

impl Cuda {
    pub(crate) fn nccl_backend_new(&self) -> *const c_void {
        self.backend_new
    }

    pub(crate) fn nccl_flight_record(&self) -> NcclFlightRecord {
        self.flight_record
    }

    /// Makes libtorch fail, on every thread, where the host would wait for a GPU ("called a synchronizing CUDA operation"),
    /// or wait again. Waiting for an event is no failure.
    pub fn forbid_waits(&self, forbidden: bool) {
        // SAFETY: the plugin's function takes a plain value, and the plugin is never unloaded.
        unsafe { (self.forbid_waits)(forbidden) }
    }

    /// Most memory that tensors on the GPU of this number have had at once, bytes.
    pub fn peak_bytes(&self, index: usize) -> Result<u64, Error> {
        let mut bytes = 0;
        // SAFETY: `bytes` is a valid place.
        let status = unsafe { sys::vit_peak_cuda_bytes(index as c_int, &raw mut bytes) };
        check(status, || "failed to ask for the memory of a GPU".into())?;
        Ok(bytes)
    }

    /// Puts the plugin's kernels of LayerNorm in the place of libtorch's for the rest of the process's life. An error leaves
    /// libtorch's, which are slower. Kernels are compiled when a row of a new length is first met: called again, this tells of
    /// one that could not be.
    pub fn replace_layer_norm(&self) -> Result<(), Error> {
        let mut text = [0; 1024];
        // SAFETY: the plugin's function has this signature, registers operators, and is never unloaded; the place has so many
        // bytes.
        let failed = unsafe { (self.replace_layer_norm)(text.as_mut_ptr().cast(), text.len()) };
        if failed == 0 {
            return Ok(());
        }
        Err(Error {
            action: "LayerNorm runs on libtorch's kernels, which are slower".into(),
            kind: ErrorKind::Other,
            message: text_of(&text),
        })
    }

    /// Which GPU has this number among those that this process may use.
    pub fn identity(&self, index: usize) -> Result<GpuIdentity, Error> {
        // The longest name that CUDA has takes 256 bytes.
        let (mut uuid, mut text) = ([0; 16], [0; 256]);
        // SAFETY: the plugin's function has this signature and is never unloaded; both places are valid, and the second has
        // so many bytes.
        let failed = unsafe {
            (self.identity)(
                index as c_int,
                &raw mut uuid,
                text.as_mut_ptr().cast(),
                text.len(),
            )
        };
        let text = text_of(&text);
        if failed == 0 {
            Ok(GpuIdentity { product: text, uuid })
        } else {
            Err(Error {
                action: format!("failed to ask CUDA which GPU has number {index}"),
                kind: ErrorKind::Other,
                message: text,
            })
        }
    }
}

fn text_of(bytes: &[u8]) -> String {
    CStr::from_bytes_until_nul(bytes)
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

/// Why this process cannot use a GPU.
#[derive(Debug, thiserror::Error)]
pub enum CudaError {
    /// No device of the NVIDIA driver.
    #[error("no GPU is visible: neither {} nor {} exists", DEVICE_FILES[0], DEVICE_FILES[1])]
    NoDevice,
    /// A CUDA library that this build or image does not have.
    #[error(
        "{library} is missing: this build is for the CPU, and GPUs need the image whose tag ends in -cuda13"
    )]
    CpuBuild {
        /// File name of the library.
        library: &'static str,
    },
    /// A library that fails to load.
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

/// Loads libtorch's CUDA half and the NCCL plugin, where a device file of the NVIDIA driver shows that there is a GPU. The libraries
/// are looked for where the loader looks (`LD_LIBRARY_PATH`, rpath).
pub fn load_cuda() -> Result<Cuda, CudaError> {
    if !DEVICE_FILES.iter().any(|file| Path::new(file).exists()) {
        return Err(CudaError::NoDevice);
    }
    // libtorch_cuda registers its kernels with libtorch_cpu as it is loaded, and the plugin links against it.
    let torch_cuda = open(TORCH_CUDA)?;
    let plugin = open(PLUGIN)?;
    let failed = |error| unusable(PLUGIN, &error);
    // SAFETY: the symbol is a function of the plugin; only its address is taken here.
    let entry = unsafe { plugin.get::<*const c_void>(b"vit_nccl_backend_new\0") }.map_err(failed)?;
    let backend_new = *entry;
    // SAFETY: the symbol is a function of the plugin with this signature (both are written in this crate).
    let entry = unsafe { plugin.get::<NcclFlightRecord>(b"vit_nccl_flight_record\0") }.map_err(failed)?;
    let flight_record = *entry;
    // SAFETY: the plugin defines the function with this signature (nccl/plugin.cpp).
    let entry = unsafe { plugin.get::<unsafe extern "C" fn(bool)>(b"vit_cuda_forbid_waits\0") };
    let forbid_waits = *entry.map_err(failed)?;
    // SAFETY: the plugin defines the function with this signature (nccl/plugin.cpp).
    let entry = unsafe { plugin.get::<CudaIdentity>(b"vit_cuda_identity\0") };
    let identity = *entry.map_err(failed)?;
    // SAFETY: the plugin defines the function with this signature (nccl/layer_norm.cpp).
    let entry = unsafe { plugin.get::<ReplaceLayerNorm>(b"vit_cuda_replace_layer_norm\0") };
    let replace_layer_norm = *entry.map_err(failed)?;
    // Neither library can be unloaded: libtorch keeps pointers into them.
    std::mem::forget(torch_cuda);
    std::mem::forget(plugin);
    if !tch::Cuda::is_available() {
        return Err(CudaError::Unusable);
    }
    Ok(Cuda {
        backend_new,
        flight_record,
        forbid_waits,
        identity,
        replace_layer_norm,
    })
}

fn open(library: &'static str) -> Result<Library, CudaError> {
    // SAFETY: both libraries' initialisers are meant to run on loading and have no other preconditions.
    unsafe { Library::open(Some(library), RTLD_NOW | RTLD_GLOBAL) }.map_err(|error| unusable(library, &error))
}

/// Classifies a failure to load a library by the dynamic loader's message.
fn unusable(library: &'static str, error: &libloading::Error) -> CudaError {
    let message = error.source().unwrap_or(error).to_string();
    // The message names the missing file, which may also be a dependency of this library.
    if message.starts_with(&format!("{library}: cannot open shared object file")) {
        CudaError::CpuBuild { library }
    } else {
        CudaError::Library { library, message }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_missing_is_told_from_one_that_does_not_load() {
        let missing = open("libvit_missing.so").expect_err("is not there");
        assert!(
            matches!(missing, CudaError::CpuBuild { library } if library == "libvit_missing.so"),
            "{missing}"
        );
        let message = open("/proc/self/status").expect_err("is no library").to_string();
        assert!(
            message.starts_with("failed to load /proc/self/status: /proc/self/status: "),
            "{message}"
        );
    }
}
