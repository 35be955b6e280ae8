//! Counts of operators that libtorch dispatches.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::{Error, check};
use crate::handle::Handle;
use crate::sys::{self, RawTrace};

/// Operators after which the host waits for the device, because it needs their value or the size of
/// their output.
const HOST_STOPS: [&str; 10] = [
    "aten::_local_scalar_dense",
    "aten::_unique",
    "aten::_unique2",
    "aten::bincount",
    "aten::equal",
    "aten::histc",
    "aten::masked_select",
    "aten::nonzero",
    "aten::unique_consecutive",
    "aten::unique_dim",
];

/// The counters are global to the process.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Counts operators of all threads until dropped. A second trace waits for the first to end.
#[derive(Debug)]
pub struct Trace {
    handle: Handle<RawTrace>,
    _turn: MutexGuard<'static, ()>,
}

impl Trace {
    /// Starts counting.
    pub fn begin() -> Result<Self, Error> {
        let turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let handle = Handle::new(sys::vit_trace_free, |out| {
            // SAFETY: `out` is a valid place for the object's pointer.
            let status = unsafe { sys::vit_trace_new(out) };
            check(status, || "failed to trace operators".into())
        })?;
        Ok(Self { handle, _turn: turn })
    }

    /// How often this operator, such as `aten::nonzero`, was dispatched so far.
    ///
    /// If the name contains a NUL.
    pub fn count(&self, name: &str) -> u64 {
        let name = CString::new(name).expect("a name without NUL");
        // SAFETY: the trace is valid and the name is borrowed for the call.
        unsafe { sys::vit_trace_count(self.handle.as_ptr(), name.as_ptr()) }
    }

    /// The operators so far after which the host waited for the device, and how often. The CPU runs
    /// the same ones without waiting.
    pub fn host_stops(&self) -> BTreeMap<String, u64> {
        let counted = HOST_STOPS.map(|name| (name.to_owned(), self.count(name)));
        counted.into_iter().filter(|(_, count)| *count > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use tch::Tensor;

    use super::*;

    #[test]
    fn what_needs_a_value_on_the_host_is_a_stop() {
        let mask = Tensor::from_slice(&[true, false, true]);
        let trace = Trace::begin().expect("traces");
        let chosen = mask.masked_fill(&mask, 0.0);
        assert!(trace.host_stops().is_empty(), "{:?}", trace.host_stops());
        assert_eq!(trace.count("aten::masked_fill"), 1);
        let value = chosen.int64_value(&[0]);
        let places = mask.nonzero();
        let stops = trace.host_stops();
        assert_eq!((value, places.size()), (0, vec![2, 1]));
        assert_eq!(
            stops,
            BTreeMap::from([
                ("aten::_local_scalar_dense".to_owned(), 1),
                ("aten::nonzero".to_owned(), 1)
            ])
        );
    }
}
