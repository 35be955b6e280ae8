// Bytes of CPU tensors, as libtorch's allocator reports them to a profiler.
#include <algorithm>

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include "error.hpp"

using vit::guarded;

namespace {

struct Counter : c10::MemoryReportingInfoBase {
  void reportMemoryUsage(void*, int64_t size, size_t, size_t, c10::Device) override {
    held += size;
    peak = std::max(peak, held);
  }
  bool memoryProfilingEnabled() const override { return true; }

  int64_t held = 0;
  int64_t peak = 0;
};

}  // namespace

namespace vit {

struct Meter {
  std::shared_ptr<Counter> counter = std::make_shared<Counter>();
  c10::DebugInfoGuard guard{c10::DebugInfoKind::PROFILER_STATE, counter};
};

}  // namespace vit

extern "C" {

// Counts from now on the bytes that this thread allocates minus those it frees.
vit::Status vit_meter_new(vit::Meter** out) {
  return guarded([&] { *out = new vit::Meter(); });
}

void vit_meter_free(vit::Meter* meter) {
  guarded([&] { delete meter; });
}

void vit_meter_read(const vit::Meter* meter, int64_t* held, int64_t* peak) {
  *held = meter->counter->held;
  *peak = meter->counter->peak;
}
}
