// Counts of dispatched operators, from libtorch's RecordFunction (ATen/record_function.h).
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

#include <ATen/record_function.h>

#include "error.hpp"

using vit::guarded;

namespace {

// Operators of all threads: a backward pass may run on other threads.
std::mutex mutex;
std::map<std::string, uint64_t, std::less<>> counts;

// On the CPU this kernel reads each parameter's step through an operator; on a device it does not.
constexpr const char* kReadsItself = "aten::_fused_adamw_";
thread_local bool is_in_kernel = false;
struct InKernel : at::ObserverContext {};

std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
  if (is_in_kernel) {
    return nullptr;
  }
  {
    const std::lock_guard<std::mutex> lock(mutex);
    ++counts[function.name()];
  }
  if (std::strcmp(function.name(), kReadsItself) != 0) {
    return nullptr;
  }
  is_in_kernel = true;
  return std::make_unique<InKernel>();
}

void end(const at::RecordFunction&, at::ObserverContext* context) {
  if (context != nullptr) {
    is_in_kernel = false;
  }
}

}  // namespace

namespace vit {

struct Trace {
  at::CallbackHandle callback;
};

}  // namespace vit

extern "C" {

// Starts counting from zero. One trace at a time.
vit::Status vit_trace_new(vit::Trace** out) {
  return guarded([&] {
    const std::lock_guard<std::mutex> lock(mutex);
    counts.clear();
    const auto callback = at::RecordFunctionCallback(begin, end).scopes({at::RecordScope::FUNCTION});
    *out = new vit::Trace{at::addGlobalCallback(callback)};
  });
}

void vit_trace_free(vit::Trace* trace) {
  guarded([&] {
    at::removeCallback(trace->callback);
    delete trace;
  });
}

// How often this operator, such as "aten::nonzero", was dispatched so far.
uint64_t vit_trace_count(const vit::Trace*, const char* name) {
  const std::lock_guard<std::mutex> lock(mutex);
  // No std::string, which might fail to allocate: nothing here throws.
  const auto found = counts.find(std::string_view(name));
  return found == counts.end() ? 0 : found->second;
}
}
