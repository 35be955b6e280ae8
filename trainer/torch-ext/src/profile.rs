//! A trace of what libtorch does, by its own profiler.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::{Error, ErrorKind, check};
use crate::sys;

/// Records the operators of this thread, and of the backward passes that it starts, with their times and the shapes of their
/// inputs; on a GPU also its kernels and copies. A second profile waits for the end of the first. Dropped, what it recorded
/// is lost.
#[derive(Debug)]
pub struct Profile {
    has_ended: bool,
    /// It cannot leave its thread, and nor can the profile: the thread that began it has to end it.
    _turn: MutexGuard<'static, ()>,
}

/// The profiler is the process's.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

impl Profile {
    /// Begins to record; with `cuda` the GPUs of this process too.
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

    /// Writes what was recorded as a Chrome trace, JSON for `chrome://tracing` or <https://ui.perfetto.dev>, in place of the
    /// file of this name.
    pub fn save(mut self, path: &Path) -> Result<(), Error> {
        let action = || format!("failed to write the trace {}", path.display());
        let failed = |message| Error {
            action: action(),
            kind: ErrorKind::Other,
            message,
        };
        let name = CString::new(path.as_os_str().as_bytes())
            .map_err(|_| failed("its name holds a zero byte".into()))?;
        self.has_ended = true;
        // SAFETY: the name outlives the call. This thread began the profile, which cannot leave it, and it has not ended.
        let status = unsafe { sys::vit_profile_end(name.as_ptr()) };
        check(status, action)?;
        // The profiler only logs what it cannot write.
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
