//! Detects CUDA at run time, so that one binary serves machines with and without it.

use std::error::Error as _;
use std::ffi::{CStr, c_int, c_void};
use std::path::Path;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

use crate::error::{Error, ErrorKind, check};
use crate::sys::{self, CudaIdentity, NcclFlightRecord, ReplaceLayerNorm};

/// The CUDA part of libtorch.
const TORCH_CUDA: &str = "libtorch_cuda.so";
/// This project's plugin over NCCL, built by `scripts/build-nccl-plugin`.
const PLUGIN: &str = "libvit_nccl.so";

/// Device files of the NVIDIA driver; a machine with a GPU has at least one.
const DEVICE_FILES: [&str; 2] = ["/dev/nvidiactl", "/dev/nvidia0"];

/// The device index for C++: that of a GPU, or negative for the CPU.
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

/// Identity of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuIdentity {
    /// Product name from CUDA, such as `NVIDIA H200`.
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

    /// Makes libtorch fail (or no longer) on every thread if the host would wait for a GPU ("called
    /// a synchronizing CUDA operation"). Waiting for an event is allowed.
    pub fn forbid_waits(&self, forbidden: bool) {
        // SAFETY: the plugin's function takes a plain value, and the plugin is never unloaded.
        unsafe { (self.forbid_waits)(forbidden) }
    }

    /// Peak memory of tensors on this GPU, bytes.
    pub fn peak_bytes(&self, index: usize) -> Result<u64, Error> {
        let mut bytes = 0;
        // SAFETY: `bytes` is a valid place.
        let status = unsafe { sys::vit_peak_cuda_bytes(index as c_int, &raw mut bytes) };
        check(status, || "failed to read the memory use of a GPU".into())?;
        Ok(bytes)
    }

    /// Replaces libtorch's LayerNorm kernels with the plugin's for the rest of the process. On an
    /// error libtorch's slower ones stay. Kernels are compiled for the first row of each length; a
    /// later call reports failed compilations.
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

    /// The identity of the visible GPU with this index.
    pub fn identity(&self, index: usize) -> Result<GpuIdentity, Error> {
        // CUDA's names have at most 256 bytes.
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
                action: format!("failed to identify GPU {index}"),
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
    /// No device file of the NVIDIA driver.
    #[error("no GPU is visible: neither {} nor {} exists", DEVICE_FILES[0], DEVICE_FILES[1])]
    NoDevice,
    /// This build or image lacks a CUDA library.
    #[error(
        "{library} is missing: this build is for the CPU, and GPUs need the image whose tag ends in -cuda13"
    )]
    CpuBuild {
        /// File name of the library.
        library: &'static str,
    },
    /// A library does not load.
    #[error("failed to load {library}: {message}")]
    Library {
        /// File name of the library.
        library: &'static str,
        /// Message of the loader.
        message: String,
    },
    /// The libraries are installed, but CUDA finds no usable GPU.
    #[error("CUDA is installed but reports no usable GPU")]
    Unusable,
}

/// Loads libtorch's CUDA part and the NCCL plugin if a device file of the NVIDIA driver shows a
/// GPU. The loader's search path applies (`LD_LIBRARY_PATH`, rpath).
pub fn load_cuda() -> Result<Cuda, CudaError> {
    if !DEVICE_FILES.iter().any(|file| Path::new(file).exists()) {
        return Err(CudaError::NoDevice);
    }
    // libtorch_cuda registers kernels with libtorch_cpu when loaded; the plugin links to it.
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

/// Classifies a failed library load by the loader's message.
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
        let message = open("/proc/self/status")
            .expect_err("is not a library")
            .to_string();
        assert!(
            message.starts_with("failed to load /proc/self/status: /proc/self/status: "),
            "{message}"
        );
    }
}
