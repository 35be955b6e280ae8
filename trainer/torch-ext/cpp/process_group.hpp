#pragma once
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace vit {

// What a Rust handle points at.
struct Store {
  c10::intrusive_ptr<c10d::Store> store;
};

struct Group {
  c10::intrusive_ptr<c10d::ProcessGroup> group;
  // Whether it can average, and not only add up.
  bool averages = false;
  // Whether it can give each rank its part of a sum and no more. Gloo sends every rank the whole one anyway, and tells of
  // its end to nobody who does not wait.
  bool scatters = false;
};

}  // namespace vit
