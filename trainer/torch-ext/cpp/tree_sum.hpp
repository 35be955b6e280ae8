#pragma once
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace vit {

// Adds up a few numbers over all ranks, on a thread of its own, by recursive doubling: log2 of the ranks rounds, where
// Gloo's all-reduce passes two times as many messages as there are ranks along a ring (R. Thakur et al., "Optimization
// of Collective Communication Operations in MPICH", 2005). Every rank gets the same bits. One sum at a time, during
// which nothing else uses the group.
class TreeSum {
 public:
  explicit TreeSum(c10::intrusive_ptr<c10d::ProcessGroup> group);
  ~TreeSum();
  TreeSum(const TreeSum&) = delete;
  TreeSum& operator=(const TreeSum&) = delete;

  // Begins to add up `numbers`, doubles on the CPU, in place.
  c10::intrusive_ptr<c10::ivalue::Future> start(at::Tensor numbers);

 private:
  struct Sum {
    at::Tensor numbers;
    c10::intrusive_ptr<c10::ivalue::Future> done;
  };

  void work();
  void add_up(at::Tensor& numbers);
  c10::intrusive_ptr<c10d::Work> send(at::Tensor& numbers, int to);
  void receive(at::Tensor& numbers, int from);

  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Sum> next_;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace vit
