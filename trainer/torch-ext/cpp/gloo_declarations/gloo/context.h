#pragma once
// Declarations that libtorch's ProcessGroupGloo.hpp uses from this Gloo header, which libtorch does
// not ship. The type is held only by pointer; its code is in libtorch_cpu.so.
#include <chrono>

namespace gloo {
class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};
}  // namespace gloo
