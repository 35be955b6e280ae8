#pragma once
#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace vit {

// Reduces a few numbers over all ranks by recursive doubling, on a thread: log2(ranks) rounds,
// while Gloo's all-reduce passes two messages per rank along a ring (R. Thakur et al., 2005). Every
// rank gets the same bits. Reductions run one at a time, in the same order on every rank; nothing
// else uses the group.
class TreeReduce {
 public:
  enum class Op { kSum, kMin };

  // Reductions of this process: c10d's flight recorder does not record messages.
  static std::atomic<uint64_t> begun, ended;

  explicit TreeReduce(c10::intrusive_ptr<c10d::ProcessGroup> group);
  ~TreeReduce();
  TreeReduce(const TreeReduce&) = delete;
  TreeReduce& operator=(const TreeReduce&) = delete;

  // Starts reducing `numbers`, doubles on the CPU, in place.
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
