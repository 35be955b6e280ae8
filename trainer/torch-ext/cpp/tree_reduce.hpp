#pragma once
#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace vit {

// Reduces a few numbers over all ranks, on a thread of its own, by recursive doubling: log2 of the ranks rounds, where
// Gloo's all-reduce passes two times as many messages as there are ranks along a ring (R. Thakur et al., "Optimization
// of Collective Communication Operations in MPICH", 2005). Every rank gets the same bits. One reduction at a time, in the
// order in which they were started, which is the same on every rank; meanwhile nothing else uses the group.
class TreeReduce {
 public:
  enum class Op { kSum, kMin };

  // Reductions of this process, of which c10d's flight recorder knows nothing: it records no messages.
  static std::atomic<uint64_t> begun, ended;

  explicit TreeReduce(c10::intrusive_ptr<c10d::ProcessGroup> group);
  ~TreeReduce();
  TreeReduce(const TreeReduce&) = delete;
  TreeReduce& operator=(const TreeReduce&) = delete;

  // Begins to reduce `numbers`, doubles on the CPU, in place.
  c10::intrusive_ptr<c10::ivalue::Future> start(at::Tensor numbers, Op op);

 private:
  struct Reduction {
    at::Tensor numbers;
    Op op;
    c10::intrusive_ptr<c10::ivalue::Future> done;
  };

  void work();
  void reduce(at::Tensor& numbers, Op op);
  c10::intrusive_ptr<c10d::Work> send(at::Tensor& numbers, int to);
  void receive(at::Tensor& numbers, int from);

  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Reduction> waiting_;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace vit
