// libtorch's profiler (torch/csrc/autograd/profiler_kineto.h).
#include <set>
#include <string>

#include <torch/csrc/autograd/profiler_kineto.h>

#include "error.hpp"

namespace profiler = torch::autograd::profiler;
using vit::guarded;

extern "C" {

// Starts recording the operators of this thread and of the backward passes that it starts;
// `with_cuda` includes GPUs.
vit::Status vit_profile_begin(bool with_cuda) {
  return guarded([&] {
    std::set<profiler::ActivityType> activities{profiler::ActivityType::CPU};
    if (with_cuda) {
      activities.insert(profiler::ActivityType::CUDA);
    }
    const profiler::ProfilerConfig config(profiler::ProfilerState::KINETO, /*report_input_shapes=*/true);
    profiler::prepareProfiler(config, activities);
    profiler::enableProfiler(config, activities);
  });
}

// Ends this thread's profile and writes a Chrome trace to `path`, or discards it.
vit::Status vit_profile_end(const char* path) {
  return guarded([&] {
    const auto result = profiler::disableProfiler();
    if (path != nullptr) {
      result->save(path);
    }
  });
}
}
