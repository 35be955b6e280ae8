//! This program's tests with a simulated GPU for each rank, and errors of the simulation.

#![allow(unsafe_code, reason = "work that nothing orders is launched in C++")]

use std::ffi::c_int;
use std::process::{Command, Output};

use simulated_gpu::SimulatedGpus;
use tch::{Device, Kind, Tensor};
use torch_ext::{Readback, load_cuda};

use crate::ranks::{gpus, on_ranks};

unsafe extern "C" {
    /// `tests/reducer/delay.cpp`.
    fn vit_add_on_other_stream(tensor: *mut std::ffi::c_void, ordered: bool) -> c_int;
}

/// Tests without delays of their own.
const ON_GPUS: [&str; 12] = [
    "averaging::every_rank_gets_the_mean_gradient_and_the_sum_of_arrivals",
    "averaging::a_single_rank_pays_nothing",
    "averaging::a_backward_pass_that_was_not_prepared_only_accumulates",
    "averaging::gradients_sent_in_bf16_are_half_the_bytes_and_nearly_the_mean",
    "collectives::each_rank_gets_a_part_of_every_other_and_gradients_go_the_way_back",
    "collectives::a_sum_that_all_ranks_go_on_with_alike_has_the_gradient_of_all_their_losses",
    "collectives::parts_of_a_layer_and_their_sum_have_the_gradients_of_the_whole_layer",
    "sharding::every_rank_gets_its_shard_of_the_mean_gradient",
    "sharding::the_model_computes_with_what_the_masters_of_all_ranks_became",
    "sharding::weights_have_memory_only_while_the_stage_says_so",
    "sharding::gradients_of_a_rank_are_gone_once_they_are_reduced",
    "sharding::a_backward_pass_after_the_weights_are_gone_is_an_error",
];

/// Runs tests with simulated GPUs, whose copies and collectives are up to `delay_us` late.
fn run(tests: &[&str], delay_us: u32) -> Output {
    let gpus = SimulatedGpus::new(9);
    Command::new(std::env::current_exe().expect("a path"))
        .args(tests)
        // One at a time: two tests would share a device's backward thread in libtorch.
        .args(["--exact", "--nocapture", "--test-threads=1"])
        .envs(gpus.environment())
        .env("VIT_SIMULATED_DELAY_US", delay_us.to_string())
        .output()
        .expect("starts")
}

#[test]
fn ranks_on_simulated_gpus_compute_the_same() {
    if gpus().is_some() {
        return;
    }
    let output = run(&ON_GPUS, 100);
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    let expected = format!("{} passed; 0 failed", ON_GPUS.len());
    assert!(printed.contains(&expected), "{printed}");
}

/// A test in a process with simulated GPUs that fails with these texts or, without any, succeeds.
fn in_simulation(name: &str, failures: &[&str], body: impl FnOnce()) {
    if gpus().is_some() {
        body();
        return;
    }
    // Far longer than a read by the host.
    let output = run(&[&format!("simulated::{name}")], 500_000);
    let printed = [&output.stdout[..], &output.stderr].concat();
    let printed = String::from_utf8_lossy(&printed);
    assert!(printed.contains("running 1 test"), "{}: {printed}", output.status);
    assert_eq!(output.status.success(), failures.is_empty(), "{printed}");
    for failure in failures {
        assert!(printed.contains(failure), "no {failure:?} in {printed}");
    }
}

#[test]
fn what_the_host_reads_too_early_is_poison() {
    in_simulation("what_the_host_reads_too_early_is_poison", &[], || {
        load_cuda().expect("a GPU");
        let device = Tensor::ones([8], (Kind::Float, Device::Cuda(0)));
        let late = device.to_device_(Device::Cpu, Kind::Float, true, true);
        let early = late.double_value(&[0]);
        assert!(early.is_nan(), "the copy has not ended: {early}");
        let sums = Readback::begin(&device.sum(Kind::Double).unsqueeze(0)).expect("begins");
        assert_eq!(sums.wait().expect("waits"), [8.0]);
        tch::Cuda::synchronize(0);
        assert_eq!(Vec::<f32>::try_from(&late).expect("numbers"), [1.0; 8]);
        let fresh = Tensor::empty([8], (Kind::Float, Device::Cuda(0)));
        assert!(fresh.double_value(&[0]).is_nan(), "new memory is poisoned");
    });
}

#[test]
fn work_of_two_streams_that_nothing_orders_is_refused() {
    let message = "and nothing orders them";
    in_simulation(
        "work_of_two_streams_that_nothing_orders_is_refused",
        &[message],
        || {
            load_cuda().expect("a GPU");
            let mut tensor = Tensor::ones([8], (Kind::Float, Device::Cuda(0)));
            for ordered in [true, false] {
                // SAFETY: the tensor is valid for the call.
                let status = unsafe { vit_add_on_other_stream(tensor.as_mut_ptr().cast(), ordered) };
                assert_eq!(status, 0, "it is launched");
                tensor = tensor.f_add_scalar(1.0).expect("is ordered");
            }
        },
    );
}

#[test]
fn tensors_of_two_gpus_do_not_meet() {
    let message = "found at least two devices, cuda:0 and cuda:1";
    in_simulation("tensors_of_two_gpus_do_not_meet", &[], || {
        load_cuda().expect("a GPU");
        let [first, second] = [0, 1].map(|index| Tensor::ones([2], (Kind::Float, Device::Cuda(index))));
        let error = first.f_add(&second).expect_err(message).to_string();
        assert!(error.contains(message), "{error}");
    });
}

#[test]
fn ranks_that_call_different_collectives_end_with_the_lines_of_both() {
    // Either rank may see it first.
    in_simulation(
        "ranks_that_call_different_collectives_end_with_the_lines_of_both",
        &[
            "rank 0 \"gradients #1: all_reduce sum of 4 Float\"",
            "rank 1 \"gradients #1: all_reduce sum of 5 Float\"",
        ],
        || {
            on_ranks(2, |rank| {
                let mut tensor = Tensor::ones([4 + i64::from(rank.rank)], (Kind::Float, rank.device));
                rank.gradients.all_reduce_sum(&mut tensor).expect("is launched");
                tch::Cuda::synchronize(i64::from(rank.rank));
            });
        },
    );
}

#[test]
fn a_tensor_of_the_host_is_no_matter_of_nccl() {
    let message = "No backend type associated with device type cpu";
    in_simulation("a_tensor_of_the_host_is_no_matter_of_nccl", &[], || {
        on_ranks(1, |rank| {
            let mut tensor = Tensor::ones([4], (Kind::Float, Device::Cpu));
            let error = rank.gradients.all_reduce_sum(&mut tensor).expect_err(message);
            assert!(error.to_string().contains(message), "{error}");
        });
    });
}
