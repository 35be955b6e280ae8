#pragma once
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace vit {

// The objects behind Rust handles.
struct Store {
  c10::intrusive_ptr<c10d::Store> store;
};

struct Group {
  c10::intrusive_ptr<c10d::ProcessGroup> group;
  // Whether it can average, not only sum.
  bool averages = false;
  // Whether it can scatter a sum without sending the whole. Gloo sends every rank the whole sum
  // anyway, and reports its end only to waiters.
  bool scatters = false;
};

}  // namespace vit
