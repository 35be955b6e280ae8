// The run-time plugin that creates c10d::ProcessGroupNCCL, reads its flight recorder, calls
// CUDA-only functions, and includes layer_norm.cpp. Only it needs libtorch_cuda.so and libnccl.so,
// so the trainer runs without CUDA; torch-ext loads it only if a GPU is present.
#define USE_C10D_NCCL
#include <cstdio>
#include <cstring>

#include <c10/cuda/CUDAFunctions.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "device_properties.hpp"

// Creates the group's communicator at once. Otherwise the first message between two ranks would
// create one for that pair (pytorch#129140), with hundreds of megabytes.
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

// Passes the recorded collectives of NCCL's groups to `take`, as JSON, or the error message.
// Returns 0 on success.
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

// Makes libtorch throw (or no longer) if the host would wait for a GPU.
extern "C" void vit_cuda_forbid_waits(bool forbidden) {
  using c10::cuda::SyncDebugMode;
  c10::cuda::warning_state().set_sync_debug_mode(forbidden ? SyncDebugMode::L_ERROR : SyncDebugMode::L_DISABLED);
}

// Writes a GPU's UUID and product name, or the error message. Returns 0 on success.
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
