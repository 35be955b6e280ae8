//! Collectives that this process has started and completed, from c10d's flight recorder.

use std::ffi::{c_char, c_void};

use crate::device::Cuda;
use crate::error::{Error, ErrorKind, check};
use crate::sys::{self, NcclFlightRecord};

/// The recorders of this process: Gloo's, and NCCL's with GPUs. Any thread may read them, even
/// while others hang in a collective, but not while a group runs its first one.
#[derive(Clone, Copy, Debug)]
pub struct FlightRecorder {
    nccl: Option<NcclFlightRecord>,
}

impl FlightRecorder {
    /// Includes NCCL's recorder if `cuda` is given.
    pub fn new(cuda: Option<&Cuda>) -> Self {
        Self {
            nccl: cuda.map(Cuda::nccl_flight_record),
        }
    }

    /// Reductions by messages between ranks that this process has started, and those completed:
    /// reports, and comparisons of step times.
    pub fn reductions_by_messages(&self) -> (u64, u64) {
        let (mut begun, mut ended) = (0, 0);
        // SAFETY: both are valid places for the call.
        unsafe { sys::vit_reductions_by_messages(&raw mut begun, &raw mut ended) };
        (begun, ended)
    }

    /// The latest collectives of Gloo's groups, as JSON. A completed one is `retired`; its `state`
    /// stays `scheduled`, since Gloo has no events. Messages between two ranks are not recorded.
    pub fn gloo(&self) -> Result<String, Error> {
        let mut text = Vec::new();
        // SAFETY: `take` gets the vector that it is given here, which lives until the call is over.
        let status = unsafe { sys::vit_flight_record(take, (&raw mut text).cast()) };
        check(status, || "failed to read Gloo's flight recorder".into())?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// The latest collectives of NCCL's groups, as JSON; `None` without GPUs.
    pub fn nccl(&self) -> Option<Result<String, Error>> {
        let record = self.nccl?;
        let mut text = Vec::new();
        // SAFETY: as for Gloo; the entry has this signature, and its library is never unloaded.
        let failed = unsafe { record(take, (&raw mut text).cast()) };
        let text = String::from_utf8_lossy(&text).into_owned();
        Some(if failed == 0 {
            Ok(text)
        } else {
            Err(Error {
                action: "failed to read NCCL's flight recorder".into(),
                kind: ErrorKind::Other,
                message: text,
            })
        })
    }
}

/// Appends a text to the vector of bytes at `out`.
unsafe extern "C" fn take(out: *mut c_void, text: *const c_char, length: usize) {
    // SAFETY: `out` is the vector that the caller above has put there, and nobody else uses it; the text is valid for the
    // call.
    unsafe {
        let bytes = &mut *out.cast::<Vec<u8>>();
        bytes.extend_from_slice(std::slice::from_raw_parts(text.cast(), length));
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};
    use std::time::Duration;

    use tch::Tensor;

    use super::*;
    use crate::process_group::{ProcessGroup, Rendezvous, Store};

    #[test]
    fn a_collective_is_recorded_under_the_name_of_its_group() {
        let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let timeout = Duration::from_secs(60);
        let store = Store::connect(&Rendezvous {
            host: address.to_string(),
            port: Rendezvous::reserve_port(address).expect("a port"),
            rank: 0,
            world_size: 1,
            prefix: "test".into(),
            timeout,
        })
        .expect("a store");
        let group =
            ProcessGroup::gloo(&store, ("control", store.member()), address, timeout).expect("a group");
        group
            .all_reduce_sum(&mut Tensor::from_slice(&[1.0, 2.0]))
            .expect("sums");
        let recorder = FlightRecorder::new(None);
        assert!(recorder.nccl().is_none());
        let json = recorder.gloo().expect("a record");
        let record: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        let entries = record["entries"].as_array().expect("entries");
        let of_group = |entry: &&serde_json::Value| entry["process_group"][0] == "control";
        let entry = entries.iter().find(of_group).unwrap_or_else(|| panic!("{json}"));
        assert_eq!(entry["profiling_name"], "gloo:all_reduce");
        assert_eq!(entry["input_sizes"], serde_json::json!([[2]]));
    }
}
