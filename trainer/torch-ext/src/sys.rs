//! The C border, as `cpp/*.cpp` defines it.

use std::ffi::{c_char, c_int, c_void};
use std::marker::{PhantomData, PhantomPinned};

/// A C++ object seen only by pointer.
#[repr(C)]
pub(crate) struct Opaque<Name> {
    _data: [u8; 0],
    _marker: PhantomData<(*mut u8, PhantomPinned, Name)>,
}

pub(crate) enum StoreName {}
pub(crate) enum GroupName {}
pub(crate) enum ReducerName {}
pub(crate) enum MeterName {}
pub(crate) type RawStore = Opaque<StoreName>;
pub(crate) type RawGroup = Opaque<GroupName>;
pub(crate) type RawReducer = Opaque<ReducerName>;
pub(crate) type RawMeter = Opaque<MeterName>;

/// `at::Tensor*`, as tch hands it out.
pub(crate) type RawTensor = *const c_void;

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct RawSyncTimes {
    pub(crate) total: f64,
    pub(crate) exposed: f64,
    pub(crate) straggler: f64,
    pub(crate) bytes: u64,
}

#[repr(C)]
pub(crate) struct RawAdamNumbers {
    pub(crate) learning_rate: f64,
    pub(crate) beta1: f64,
    pub(crate) beta2: f64,
    pub(crate) weight_decay: f64,
    pub(crate) epsilon: f64,
}

#[repr(C)]
pub(crate) struct RawSgdNumbers {
    pub(crate) learning_rate: f64,
    pub(crate) momentum: f64,
    pub(crate) weight_decay: f64,
    pub(crate) nesterov: bool,
}

unsafe extern "C" {
    pub(crate) fn vit_last_error() -> *const c_char;
    pub(crate) fn vit_exit_now(code: c_int) -> !;

    pub(crate) fn vit_peak_cuda_bytes(index: c_int, bytes: *mut u64) -> c_int;

    pub(crate) fn vit_store_new(
        host: *const c_char,
        port: u16,
        is_server: bool,
        world_size: usize,
        prefix: *const c_char,
        timeout_ms: i64,
        out: *mut *mut RawStore,
    ) -> c_int;
    pub(crate) fn vit_store_free(store: *mut RawStore);

    pub(crate) fn vit_group_gloo(
        store: *mut RawStore,
        name: *const c_char,
        rank: c_int,
        world_size: c_int,
        address: *const c_char,
        timeout_ms: i64,
        out: *mut *mut RawGroup,
    ) -> c_int;
    pub(crate) fn vit_group_nccl(
        store: *mut RawStore,
        name: *const c_char,
        rank: c_int,
        world_size: c_int,
        timeout_ms: i64,
        backend_new: *const c_void,
        out: *mut *mut RawGroup,
    ) -> c_int;
    pub(crate) fn vit_group_free(group: *mut RawGroup);
    pub(crate) fn vit_group_all_reduce_sum(group: *mut RawGroup, tensor: RawTensor) -> c_int;
    pub(crate) fn vit_group_broadcast(
        group: *mut RawGroup,
        tensors: *const RawTensor,
        count: usize,
        root: c_int,
    ) -> c_int;
    pub(crate) fn vit_group_barrier(group: *mut RawGroup) -> c_int;

    pub(crate) fn vit_reducer_new(
        parameters: *const RawTensor,
        count: usize,
        gradients: *mut RawGroup,
        control: *mut RawGroup,
        bucket_bytes: usize,
        in_bf16: bool,
        out: *mut *mut RawReducer,
    ) -> c_int;
    pub(crate) fn vit_reducer_free(reducer: *mut RawReducer);
    pub(crate) fn vit_reducer_prepare(reducer: *mut RawReducer, arrival: RawTensor) -> c_int;
    pub(crate) fn vit_reducer_finish(reducer: *mut RawReducer, sums: *mut f64, count: usize) -> c_int;
    pub(crate) fn vit_reducer_times(reducer: *mut RawReducer, times: *mut RawSyncTimes) -> c_int;

    pub(crate) fn vit_closure_error(message: *const c_char, length: usize);
    pub(crate) fn vit_recompute(
        data: *mut c_void,
        run: extern "C" fn(*const c_void, *mut c_void, *mut *mut c_void) -> c_int,
        free: extern "C" fn(*mut c_void),
        inputs: *const RawTensor,
        count: usize,
        output: *mut *mut c_void,
    ) -> c_int;
    pub(crate) fn vit_gelu_linear(
        x: RawTensor,
        weight: RawTensor,
        bias: RawTensor,
        output: *mut *mut c_void,
    ) -> c_int;
    pub(crate) fn vit_norm_linear(
        x: RawTensor,
        norm_weight: RawTensor,
        norm_bias: RawTensor,
        weight: RawTensor,
        bias: RawTensor,
        epsilon: f64,
        output: *mut *mut c_void,
    ) -> c_int;

    pub(crate) fn vit_meter_new(out: *mut *mut RawMeter) -> c_int;
    pub(crate) fn vit_meter_free(meter: *mut RawMeter);
    pub(crate) fn vit_meter_read(meter: *const RawMeter, held: *mut i64, peak: *mut i64);

    pub(crate) fn vit_fused_adamw(
        parameters: *const RawTensor,
        gradients: *const RawTensor,
        first_moments: *const RawTensor,
        second_moments: *const RawTensor,
        count: usize,
        step: RawTensor,
        numbers: *const RawAdamNumbers,
    ) -> c_int;
    pub(crate) fn vit_fused_sgd(
        parameters: *const RawTensor,
        gradients: *const RawTensor,
        momentum_buffers: *const RawTensor,
        count: usize,
        numbers: *const RawSgdNumbers,
    ) -> c_int;
    pub(crate) fn vit_lamb(
        parameters: *const RawTensor,
        gradients: *const RawTensor,
        first_moments: *const RawTensor,
        second_moments: *const RawTensor,
        count: usize,
        sizes: RawTensor,
        step: f64,
        numbers: *const RawAdamNumbers,
    ) -> c_int;
    pub(crate) fn vit_global_norm(tensors: *const RawTensor, count: usize, norm: RawTensor) -> c_int;
    pub(crate) fn vit_scale(tensors: *const RawTensor, count: usize, factor: f64) -> c_int;
    pub(crate) fn vit_zero(tensors: *const RawTensor, count: usize) -> c_int;
    pub(crate) fn vit_copy(targets: *const RawTensor, values: *const RawTensor, count: usize) -> c_int;
    pub(crate) fn vit_lerp(
        averages: *const RawTensor,
        values: *const RawTensor,
        count: usize,
        weight: f64,
    ) -> c_int;

    pub(crate) fn vit_autocast_enter(tensor: RawTensor, is_bfloat16: bool) -> c_int;
    pub(crate) fn vit_autocast_leave(tensor: RawTensor);
}

/// Pointers of tensors, valid while the tensors are borrowed.
pub(crate) fn pointers<'a>(tensors: impl IntoIterator<Item = &'a tch::Tensor>) -> Vec<RawTensor> {
    tensors.into_iter().map(|tensor| tensor.as_ptr().cast()).collect()
}
