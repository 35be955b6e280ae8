//! Traces by libtorch's profiler.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::{Error, ErrorKind, check};
use crate::sys;

/// Records the operators of this thread and of the backward passes that it starts, with times and
/// input shapes; on a GPU also kernels and copies. A second profile waits for the end of the first.
/// Dropping it discards the recording.
#[derive(Debug)]
pub struct Profile {
    has_ended: bool,
    /// Binds the profile to its thread, which has to end it.
    _turn: MutexGuard<'static, ()>,
}

/// The profiler is global to the process.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

impl Profile {
    /// Starts recording; with `cuda` also the GPUs of this process.
    pub fn begin(with_cuda: bool) -> Result<Self, Error> {
        let turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: it takes a plain value.
        let status = unsafe { sys::vit_profile_begin(with_cuda) };
        check(status, || "failed to begin a profile".into())?;
        Ok(Self {
            has_ended: false,
            _turn: turn,
        })
    }

    /// Writes the recording as a Chrome trace (JSON for `chrome://tracing` or
    /// <https://ui.perfetto.dev>), replacing a file of this name.
    pub fn save(mut self, path: &Path) -> Result<(), Error> {
        let action = || format!("failed to write the trace {}", path.display());
        let failed = |message| Error {
            action: action(),
            kind: ErrorKind::Other,
            message,
        };
        let name = CString::new(path.as_os_str().as_bytes())
            .map_err(|_| failed("its name contains a zero byte".into()))?;
        self.has_ended = true;
        // SAFETY: the name outlives the call. This thread began the profile, which cannot leave it, and it has not ended.
        let status = unsafe { sys::vit_profile_end(name.as_ptr()) };
        check(status, action)?;
        // The profiler only logs a failed write.
        let written = std::fs::metadata(path).map_err(|error| failed(error.to_string()))?;
        if written.len() == 0 {
            return Err(failed("nothing was written".into()));
        }
        Ok(())
    }
}

impl Drop for Profile {
    fn drop(&mut self) {
        if !self.has_ended {
            // SAFETY: without a name nothing is written. This thread began the profile, and it has not ended. What fails is lost
            // as the rest is.
            let _ = unsafe { sys::vit_profile_end(std::ptr::null()) };
        }
    }
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::*;

    #[test]
    fn a_trace_holds_the_operators_between_its_ends_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("trace.json");
        let tensor = Tensor::ones([4, 4], (Kind::Float, Device::Cpu)).set_requires_grad(true);
        drop(Profile::begin(false).expect("begins"));
        let _before = tensor.tan();
        let profile = Profile::begin(false).expect("begins");
        tensor.sin().sum(Kind::Float).backward();
        profile.save(&path).expect("writes");
        let _after = tensor.sinh();
        let text = std::fs::read_to_string(&path).expect("text");
        let has = |name: &str| text.contains(&format!("\"{name}\""));
        assert!(has("aten::sin") && has("autograd::engine::evaluate_function: SinBackward0"));
        assert!(!has("aten::tan") && !has("aten::sinh"));
    }

    #[test]
    fn a_trace_that_cannot_be_written_is_an_error_that_names_it() {
        let profile = Profile::begin(false).expect("begins");
        let error = profile
            .save(Path::new("/nowhere/trace.json"))
            .expect_err("refused");
        assert!(error.to_string().contains("/nowhere/trace.json"), "{error}");
    }
}
