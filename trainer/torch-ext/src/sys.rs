//! The C interface defined by `cpp/*.cpp`.

use std::ffi::{c_char, c_int, c_void};
use std::marker::{PhantomData, PhantomPinned};

use serde::{Deserialize, Serialize};

/// A C++ object seen only by pointer.
#[repr(C)]
pub(crate) struct Opaque<Name> {
    _data: [u8; 0],
    _marker: PhantomData<(*mut u8, PhantomPinned, Name)>,
}

pub(crate) enum StoreName {}
pub(crate) enum GroupName {}
pub(crate) enum CollectivesName {}
pub(crate) enum RecorderName {}
pub(crate) enum ReducerName {}
pub(crate) enum MeasurementName {}
pub(crate) enum MeterName {}
pub(crate) enum DeviceEventName {}
pub(crate) enum ReadbackName {}
pub(crate) enum ShardedName {}
pub(crate) enum TraceName {}
pub(crate) enum HostCopiesName {}
pub(crate) enum TransferName {}
pub(crate) type RawStore = Opaque<StoreName>;
pub(crate) type RawGroup = Opaque<GroupName>;
pub(crate) type RawCollectives = Opaque<CollectivesName>;
pub(crate) type RawRecorder = Opaque<RecorderName>;
pub(crate) type RawReducer = Opaque<ReducerName>;
pub(crate) type RawMeasurement = Opaque<MeasurementName>;
pub(crate) type RawMeter = Opaque<MeterName>;
pub(crate) type RawDeviceEvent = Opaque<DeviceEventName>;
pub(crate) type RawReadback = Opaque<ReadbackName>;
pub(crate) type RawSharded = Opaque<ShardedName>;
pub(crate) type RawTrace = Opaque<TraceName>;
pub(crate) type RawHostCopies = Opaque<HostCopiesName>;
pub(crate) type RawTransfer = Opaque<TransferName>;

/// `at::Tensor*`, as from tch.
pub(crate) type RawTensor = *const c_void;

/// Cost of collectives for one rank in one step, seconds.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SyncCost {
    /// Time during which a collective ran that every rank had started; at least `exposed`.
    pub total: f64,
    /// Waiting for collectives that every rank had started: mostly from when every rank had its
    /// last gradient until reduced gradients were usable.
    pub exposed: f64,
    /// Waiting for ranks that had not started a collective: mostly for the last rank's gradients.
    pub straggler: f64,
    /// Bytes of the largest tensor of each collective: the reduced or the gathered one.
    pub bytes: u64,
    /// Number of collectives, without the report that shows when the last rank arrives.
    #[serde(default)]
    pub collectives: u64,
}

/// Synchronization cost of one rank in one step, which waited for `all.exposed + all.straggler`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SyncTimes {
    /// All collectives; `total` counts overlapping ones once.
    #[serde(flatten)]
    pub all: SyncCost,
    /// Whole gradients on every rank, and summed activations.
    #[serde(default, skip_serializing_if = "SyncCost::is_zero")]
    pub all_reduce: SyncCost,
    /// Gradients sharded among ranks.
    #[serde(default, skip_serializing_if = "SyncCost::is_zero")]
    pub reduce_scatter: SyncCost,
    /// Weights sharded among ranks.
    #[serde(default, skip_serializing_if = "SyncCost::is_zero")]
    pub all_gather: SyncCost,
    /// Activations, between division by tokens and by heads.
    #[serde(default, skip_serializing_if = "SyncCost::is_zero")]
    pub all_to_all: SyncCost,
    /// The part of the waiting in forward passes.
    #[serde(default)]
    pub waited_in_forward: f64,
}

/// Parameters of a step of AdamW (arXiv 1711.05101) or LAMB (arXiv 1904.00962).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamNumbers {
    /// Learning rate of this step.
    pub learning_rate: f64,
    /// Decay rates of the first and second event.
    pub betas: [f64; 2],
    /// Weight decay.
    pub weight_decay: f64,
    /// Added to the denominator.
    pub epsilon: f64,
}

/// Parameters of a step of SGD with momentum.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SgdNumbers {
    /// Learning rate of this step.
    pub learning_rate: f64,
    /// Momentum factor.
    pub momentum: f64,
    /// Weight decay, added to the gradient.
    pub weight_decay: f64,
    /// Whether to use Nesterov momentum.
    pub nesterov: bool,
}

/// Receives a text: destination, first byte, length.
pub(crate) type TakeText = unsafe extern "C" fn(*mut c_void, *const c_char, usize);
/// `vit_nccl_flight_record` of the NCCL plugin (`nccl/plugin.cpp`). 0 on success.
pub(crate) type NcclFlightRecord = unsafe extern "C" fn(TakeText, *mut c_void) -> c_int;
/// The plugin's `vit_cuda_identity`: GPU index, UUID, string buffer and its size. 0 on success.
pub(crate) type CudaIdentity = unsafe extern "C" fn(c_int, *mut [u8; 16], *mut c_char, usize) -> c_int;
/// The plugin's `vit_cuda_replace_layer_norm`: string buffer and its size. 0 on success.
pub(crate) type ReplaceLayerNorm = unsafe extern "C" fn(*mut c_char, usize) -> c_int;

/// The device's decision on a step, as `cpp/optim.cpp` reads it.
#[repr(C)]
pub(crate) struct RawGate {
    pub(crate) grad_scale: RawTensor,
    pub(crate) found_inf: RawTensor,
}

unsafe extern "C" {
    pub(crate) fn vit_last_error() -> *const c_char;
    pub(crate) fn vit_exit_now(code: c_int) -> !;

    pub(crate) fn vit_peak_cuda_bytes(index: c_int, bytes: *mut u64) -> c_int;

    pub(crate) fn vit_flight_record(take: TakeText, out: *mut c_void) -> c_int;
    pub(crate) fn vit_reductions_by_messages(begun: *mut u64, ended: *mut u64);

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
        device: c_int,
        rank: c_int,
        world_size: c_int,
        timeout_ms: i64,
        backend_new: *const c_void,
        out: *mut *mut RawGroup,
    ) -> c_int;
    pub(crate) fn vit_group_free(group: *mut RawGroup);
    pub(crate) fn vit_group_all_reduce_sum(group: *mut RawGroup, tensor: RawTensor) -> c_int;
    pub(crate) fn vit_group_send(group: *mut RawGroup, tensor: RawTensor, to: c_int) -> c_int;
    pub(crate) fn vit_group_receive(group: *mut RawGroup, tensor: RawTensor, from: c_int) -> c_int;
    pub(crate) fn vit_group_broadcast(
        group: *mut RawGroup,
        tensors: *const RawTensor,
        count: usize,
        root: c_int,
    ) -> c_int;
    pub(crate) fn vit_group_share(group: *mut RawGroup, out: *mut *mut RawGroup) -> c_int;
    pub(crate) fn vit_group_abort(group: *mut RawGroup) -> c_int;
    pub(crate) fn vit_group_barrier(group: *mut RawGroup) -> c_int;

    pub(crate) fn vit_device_event_new(index: c_int, out: *mut *mut RawDeviceEvent) -> c_int;
    pub(crate) fn vit_device_event_free(event: *mut RawDeviceEvent);
    pub(crate) fn vit_device_event_seconds_since(
        event: *const RawDeviceEvent,
        earlier: *const RawDeviceEvent,
        seconds: *mut f64,
    ) -> c_int;

    pub(crate) fn vit_recorder_new(
        reports: *mut RawGroup,
        control: *mut RawGroup,
        out: *mut *mut RawRecorder,
    ) -> c_int;
    pub(crate) fn vit_recorder_free(recorder: *mut RawRecorder);

    pub(crate) fn vit_collectives_new(
        group: *mut RawGroup,
        control: *mut RawGroup,
        recorder: *mut RawRecorder,
        out: *mut *mut RawCollectives,
    ) -> c_int;
    pub(crate) fn vit_collectives_free(collectives: *mut RawCollectives);
    pub(crate) fn vit_collectives_share(
        collectives: *mut RawCollectives,
        out: *mut *mut RawCollectives,
    ) -> c_int;
    pub(crate) fn vit_all_to_all(
        collectives: *mut RawCollectives,
        parts: RawTensor,
        output: *mut *mut c_void,
    ) -> c_int;
    pub(crate) fn vit_used_in_parts(
        collectives: *mut RawCollectives,
        values: RawTensor,
        output: *mut *mut c_void,
    ) -> c_int;
    pub(crate) fn vit_sum_of_parts(
        collectives: *mut RawCollectives,
        values: RawTensor,
        output: *mut *mut c_void,
    ) -> c_int;
    pub(crate) fn vit_sum_for_all(
        collectives: *mut RawCollectives,
        values: RawTensor,
        output: *mut *mut c_void,
    ) -> c_int;

    pub(crate) fn vit_reducer_new(
        parameters: *const RawTensor,
        count: usize,
        gradients: *mut RawGroup,
        control: *mut RawGroup,
        recorder: *mut RawRecorder,
        bucket_bytes: usize,
        in_bf16: bool,
        out: *mut *mut RawReducer,
    ) -> c_int;
    pub(crate) fn vit_reducer_free(reducer: *mut RawReducer);
    pub(crate) fn vit_reducer_begin(reducer: *mut RawReducer) -> c_int;
    pub(crate) fn vit_reducer_prepare(reducer: *mut RawReducer, report: RawTensor) -> c_int;
    pub(crate) fn vit_reducer_finish(
        reducer: *mut RawReducer,
        sums: *mut *mut c_void,
        measurement: *mut *mut RawMeasurement,
    ) -> c_int;
    pub(crate) fn vit_sharded_new(
        group: *mut RawGroup,
        control: *mut RawGroup,
        replicas: *mut RawGroup,
        replicas_control: *mut RawGroup,
        recorder: *mut RawRecorder,
        stage: c_int,
        reshards: bool,
        in_bf16: bool,
        reads_first: bool,
        out: *mut *mut RawSharded,
    ) -> c_int;
    pub(crate) fn vit_sharded_free(sharded: *mut RawSharded);
    pub(crate) fn vit_sharded_add(
        sharded: *mut RawSharded,
        unit: usize,
        parameters: *const RawTensor,
        offsets: *const i64,
        count: usize,
        full: RawTensor,
        shard: RawTensor,
        gradient: RawTensor,
    ) -> c_int;
    pub(crate) fn vit_sharded_begin(sharded: *mut RawSharded) -> c_int;
    pub(crate) fn vit_sharded_prepare(sharded: *mut RawSharded, report: RawTensor) -> c_int;
    pub(crate) fn vit_sharded_finish(
        sharded: *mut RawSharded,
        sums: *mut *mut c_void,
        measurement: *mut *mut RawMeasurement,
    ) -> c_int;
    pub(crate) fn vit_sharded_settle(sharded: *mut RawSharded) -> c_int;
    pub(crate) fn vit_sharded_publish(sharded: *mut RawSharded) -> c_int;
    pub(crate) fn vit_sharded_enter(sharded: *mut RawSharded, unit: usize) -> c_int;
    pub(crate) fn vit_sharded_leave(sharded: *mut RawSharded, unit: usize, output: RawTensor) -> c_int;

    pub(crate) fn vit_measurement_free(measurement: *mut RawMeasurement);
    pub(crate) fn vit_measurement_times(measurement: *const RawMeasurement, times: *mut SyncTimes) -> c_int;

    pub(crate) fn vit_readback_new(values: RawTensor, out: *mut *mut RawReadback) -> c_int;
    pub(crate) fn vit_readback_free(readback: *mut RawReadback);
    pub(crate) fn vit_readback_wait(readback: *mut RawReadback, numbers: *mut f64, count: usize) -> c_int;

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

    pub(crate) fn vit_profile_begin(with_cuda: bool) -> c_int;
    pub(crate) fn vit_profile_end(path: *const c_char) -> c_int;

    pub(crate) fn vit_trace_new(out: *mut *mut RawTrace) -> c_int;
    pub(crate) fn vit_trace_free(trace: *mut RawTrace);
    pub(crate) fn vit_trace_count(trace: *const RawTrace, name: *const c_char) -> u64;

    pub(crate) fn vit_host_copies_new(index: c_int, out: *mut *mut RawHostCopies) -> c_int;
    pub(crate) fn vit_host_copies_free(copies: *mut RawHostCopies);
    pub(crate) fn vit_host_copies_add(
        copies: *mut RawHostCopies,
        tensor: RawTensor,
        copy: *mut *mut c_void,
    ) -> c_int;
    pub(crate) fn vit_host_copies_finish(copies: *mut RawHostCopies) -> c_int;

    pub(crate) fn vit_transfer_new(index: c_int, bytes: usize, out: *mut *mut RawTransfer) -> c_int;
    pub(crate) fn vit_transfer_free(transfer: *mut RawTransfer);
    pub(crate) fn vit_transfer_host(transfer: *mut RawTransfer, bytes: *mut *mut u8) -> c_int;
    pub(crate) fn vit_transfer_send(transfer: *mut RawTransfer, bytes: usize) -> c_int;
    pub(crate) fn vit_sent(tensor: RawTensor, index: c_int, out: *mut *mut c_void) -> c_int;
    pub(crate) fn vit_transfer_begin_use(transfer: *mut RawTransfer, device: *mut *mut c_void) -> c_int;
    pub(crate) fn vit_transfer_end_use(transfer: *mut RawTransfer) -> c_int;

    pub(crate) fn vit_fused_adamw(
        parameters: *const RawTensor,
        gradients: *const RawTensor,
        first_moments: *const RawTensor,
        second_moments: *const RawTensor,
        count: usize,
        step: RawTensor,
        gate: *const RawGate,
        numbers: *const AdamNumbers,
    ) -> c_int;
    pub(crate) fn vit_fused_sgd(
        parameters: *const RawTensor,
        gradients: *const RawTensor,
        momentum_buffers: *const RawTensor,
        count: usize,
        gate: *const RawGate,
        numbers: *const SgdNumbers,
    ) -> c_int;
    pub(crate) fn vit_lamb(
        parameters: *const RawTensor,
        gradients: *const RawTensor,
        first_moments: *const RawTensor,
        second_moments: *const RawTensor,
        count: usize,
        sizes: RawTensor,
        whole_sizes: *const i64,
        ranks: *const RawGroup,
        step: RawTensor,
        gate: *const RawGate,
        numbers: *const AdamNumbers,
    ) -> c_int;
    pub(crate) fn vit_global_norm(tensors: *const RawTensor, count: usize, norm: RawTensor) -> c_int;
    pub(crate) fn vit_zero(tensors: *const RawTensor, count: usize) -> c_int;
    pub(crate) fn vit_copy(targets: *const RawTensor, values: *const RawTensor, count: usize) -> c_int;
    pub(crate) fn vit_lerp(
        averages: *const RawTensor,
        values: *const RawTensor,
        count: usize,
        weight: f64,
    ) -> c_int;

    pub(crate) fn vit_set_arithmetic(tf32: bool, cudnn_attention: bool) -> c_int;
    pub(crate) fn vit_exchange_cudnn_attention(allowed: bool, before: *mut bool) -> c_int;
    pub(crate) fn vit_arithmetic(tf32: *mut bool, backends: *mut i64, count: *mut usize) -> c_int;

    pub(crate) fn vit_autocast_enter(tensor: RawTensor, is_bfloat16: bool) -> c_int;
    pub(crate) fn vit_autocast_leave(tensor: RawTensor);
}

/// Pointers of tensors, valid while the tensors are borrowed.
pub(crate) fn pointers<'a>(tensors: impl IntoIterator<Item = &'a tch::Tensor>) -> Vec<RawTensor> {
    tensors.into_iter().map(|tensor| tensor.as_ptr().cast()).collect()
}
