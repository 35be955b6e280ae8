// The run-time plugin that makes c10d::ProcessGroupNCCL, reads its flight recorder, reaches what only CUDA's libraries know, and
// has the kernels of layer_norm.cpp. It alone needs libtorch_cuda.so and libnccl.so, so that the trainer itself runs on machines
// without CUDA; torch-ext loads it only where a GPU is present.
#define USE_C10D_NCCL
#include <cstdio>
#include <cstring>

#include <c10/cuda/CUDAFunctions.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "device_properties.hpp"

// Creates the group's communicator at once. Left to the first collective, the first message between two ranks would create
// another one for that pair (pytorch#129140), hundreds of megabytes each, at the first checkpoint.
extern "C" int vit_nccl_backend_new(const c10::intrusive_ptr<c10d::Store>* store, const char* name, int device, int rank,
                                    int world_size, int64_t timeout_ms, c10::intrusive_ptr<c10d::Backend>* out,
                                    char* message, size_t message_size) {
  try {
    auto options = c10d::ProcessGroupNCCL::Options::create(/*is_high_priority_stream=*/true);
    options->timeout = std::chrono::milliseconds(timeout_ms);
    // For the flight recorder.
    options->group_name = name;
    auto group = c10::make_intrusive<c10d::ProcessGroupNCCL>(*store, rank, world_size, options);
    group->eagerConnectSingleDevice(at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(device)));
    *out = std::move(group);
    return 0;
  } catch (const std::exception& error) {
    std::snprintf(message, message_size, "%s", error.what());
  } catch (...) {
    std::snprintf(message, message_size, "NCCL threw something that is not an exception");
  }
  return 1;
}

// Gives the collectives of NCCL's groups that are still recorded to `take`, as JSON, or else what went wrong. 0 where it
// succeeded.
extern "C" int vit_nccl_flight_record(void (*take)(void* out, const char* text, size_t length), void* out) {
  std::string message;
  try {
    const auto json = c10d::dump_nccl_trace_json(/*includeCollectives=*/true, /*onlyActive=*/false);
    take(out, json.data(), json.size());
    return 0;
  } catch (const std::exception& error) {
    message = error.what();
  } catch (...) {
    message = "NCCL threw something that is not an exception";
  }
  take(out, message.data(), message.size());
  return 1;
}

// Makes libtorch throw where the host would wait for a GPU, or wait again.
extern "C" void vit_cuda_forbid_waits(bool forbidden) {
  using c10::cuda::SyncDebugMode;
  c10::cuda::warning_state().set_sync_debug_mode(forbidden ? SyncDebugMode::L_ERROR : SyncDebugMode::L_DISABLED);
}

// Writes the UUID of a GPU and, as a string, its product name, or else what went wrong. 0 where it succeeded.
extern "C" int vit_cuda_identity(int index, uint8_t (*uuid)[16], char* text, size_t text_size) {
  try {
    const auto* properties = at::cuda::getDeviceProperties(static_cast<c10::DeviceIndex>(index));
    std::memcpy(*uuid, properties->uuid.bytes, sizeof(*uuid));
    std::snprintf(text, text_size, "%s", properties->name);
    return 0;
  } catch (const std::exception& error) {
    std::snprintf(text, text_size, "%s", error.what());
  } catch (...) {
    std::snprintf(text, text_size, "CUDA threw something that is not an exception");
  }
  return 1;
}
