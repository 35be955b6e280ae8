// Entry points of libvit_nccl.so (torch-ext/nccl) for the simulated devices.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include <unistd.h>

#include "device.hpp"
#include "memory.hpp"
#include "nccl.hpp"
#include "settings.hpp"

// From driver.cpp, which is preloaded.
extern "C" bool vit_simulated_device_is_loaded;
extern "C" int (*vit_simulated_last_words)(int code);

namespace sim {
namespace {

// At process exit: reports collectives that other ranks have not joined, and resource use.
int last_words(int code) {
  if (code == 0) {
    const auto lines = left_over();
    if (!lines.empty()) {
      std::fprintf(stderr, "simulated NCCL, rank %d has finished, but other ranks have not joined:%s\n", settings().rank, lines.c_str());
      code = 134;
    }
  }
  if (!settings().report_folder.empty()) {
    const auto used = usage();
    std::ofstream report(settings().report_folder + "/rank-" + std::to_string(settings().rank) + "-" + std::to_string(getpid()) + ".json");
    report << "{\"rank\":" << settings().rank << ",\"communicators\":" << communicators() << ",\"pinnedPeakBytes\":" << used.pinned_peak
           << ",\"devices\":{";
    const char* comma = "";
    for (const auto& [device, peak] : used.peaks) {
      report << comma << "\"" << int(device) << "\":" << peak;
      comma = ",";
    }
    report << "}}\n";
  }
  return code;
}

__attribute__((constructor)) void begin() {
  vit_simulated_device_is_loaded = true;
  vit_simulated_last_words = &last_words;
}

}  // namespace
}  // namespace sim

extern "C" int vit_nccl_backend_new(const c10::intrusive_ptr<c10d::Store>* store, const char* name, int device, int rank, int world_size,
                                    int64_t timeout_ms, c10::intrusive_ptr<c10d::Backend>* out, char* message, size_t message_size) {
  try {
    *out = sim::nccl_group(*store, {name, static_cast<c10::DeviceIndex>(device), rank, world_size, std::chrono::milliseconds(timeout_ms)});
    return 0;
  } catch (const c10::Error& error) {
    std::snprintf(message, message_size, "%s", error.what_without_backtrace());
  } catch (const std::exception& error) {
    std::snprintf(message, message_size, "%s", error.what());
  }
  return 1;
}

extern "C" int vit_nccl_flight_record(void (*take)(void* out, const char* text, size_t length), void* out) {
  const auto text = sim::flight_record();
  take(out, text.data(), text.size());
  return 0;
}

extern "C" void vit_cuda_forbid_waits(bool forbidden) { sim::forbid_waits(forbidden); }

extern "C" int vit_cuda_identity(int index, uint8_t (*uuid)[16], char* text, size_t text_size) {
  const auto name = sim::visible_name(static_cast<c10::DeviceIndex>(index));
  std::memset(*uuid, 0, sizeof(*uuid));
  std::memcpy(*uuid, name.data(), std::min(name.size(), sizeof(*uuid)));
  std::snprintf(text, text_size, "Simulated GPU");
  return 0;
}

extern "C" int vit_cuda_replace_layer_norm(char* text, size_t text_size) {
  static std::atomic<int> calls{0};
  const auto& failure = sim::settings().kernel_failure;
  std::snprintf(text, text_size, "%s", failure.c_str());
  return calls++ > 0 && !failure.empty() ? 1 : 0;
}
