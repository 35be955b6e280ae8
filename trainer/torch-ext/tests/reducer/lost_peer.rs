//! A rank that ends without taking part in a step.

#![allow(unsafe_code, reason = "the process group that only queues is C++")]

use std::ffi::{c_int, c_void};

use tch::{Kind, Tensor};
use torch_ext::{Compression, ErrorKind, ProcessGroup};

use crate::ranks::{ReportOver, on_ranks};

unsafe extern "C" {
    /// `tests/reducer/delay.cpp`.
    fn vit_group_queue(group: *mut c_void) -> c_int;
    /// `tests/reducer/delay.cpp`.
    fn vit_group_aborted(group: *mut c_void, aborted: *mut bool) -> c_int;
}

/// Makes the group's all-reduces complete for the host once queued, like NCCL's.
fn queue(group: &ProcessGroup) {
    // SAFETY: the pointer is that of a live group, and the function takes such a one.
    assert_eq!(unsafe { vit_group_queue(group.as_raw()) }, 0);
}

fn is_aborted(group: &ProcessGroup) -> bool {
    let mut aborted = false;
    // SAFETY: as above, and the place is valid for the call.
    assert_eq!(unsafe { vit_group_aborted(group.as_raw(), &raw mut aborted) }, 0);
    aborted
}

#[test]
fn a_step_that_is_only_queued_holds_up_nobody_and_what_waits_is_aborted_from_another_thread() {
    on_ranks(2, |rank| {
        if rank.rank == 1 {
            return;
        }
        queue(&rank.gradients);
        let parameters = [rank.parameter(8)];
        let mut reducer = rank.reducer(&parameters, 1024, Compression::None, ReportOver::Gradients);
        reducer.begin().expect("begins");
        reducer
            .prepare(&Tensor::from_slice(&[1.0_f64]))
            .expect("prepares");
        parameters[0].sum(Kind::Float).backward();
        let (_, measurement) = reducer.finish().expect("the host waits for no rank");
        let error = measurement.times().expect_err("rank 1 is gone");
        assert_eq!(error.kind, ErrorKind::Communication, "{error}");

        assert!(!is_aborted(&rank.gradients));
        let aborter = rank.gradients.aborter().expect("shares");
        std::thread::scope(|scope| scope.spawn(move || aborter.abort()).join())
            .expect("a thread that ends")
            .expect("aborts");
        assert!(is_aborted(&rank.gradients));
    });
}
