#pragma once
// What libtorch's ProcessGroupGloo.hpp names of Gloo's header of this name, which libtorch does not ship. The type is
// only ever held by pointer here; libtorch_cpu.so holds its code.
#include <chrono>

namespace gloo {
class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};
}  // namespace gloo
