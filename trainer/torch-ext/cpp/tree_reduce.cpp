#include "tree_reduce.hpp"

#include <algorithm>
#include <utility>

namespace {

// These are the only messages between two ranks of the group, so order identifies them.
constexpr int kTag = 0;

void combine(at::Tensor& results, const at::Tensor& numbers, vit::TreeReduce::Op op) {
  const auto combined = [op](double left, double right) {
    return op == vit::TreeReduce::Op::kSum ? left + right : std::min(left, right);
  };
  auto* first = results.mutable_data_ptr<double>();
  std::transform(first, first + results.numel(), numbers.const_data_ptr<double>(), first, combined);
}

}  // namespace

namespace vit {

std::atomic<uint64_t> TreeReduce::begun{0};
std::atomic<uint64_t> TreeReduce::ended{0};

TreeReduce::TreeReduce(c10::intrusive_ptr<c10d::ProcessGroup> group) : group_(std::move(group)), thread_([this] { work(); }) {}

TreeReduce::~TreeReduce() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ends_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

c10::intrusive_ptr<c10::ivalue::Future> TreeReduce::start(at::Tensor numbers, Op op) {
  auto done = c10::make_intrusive<c10::ivalue::Future>(c10::TensorType::get());
  ++begun;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    waiting_.push_back({std::move(numbers), op, done});
  }
  changed_.notify_one();
  return done;
}

void TreeReduce::work() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ends_ || !waiting_.empty(); });
    if (ends_) {
      return;
    }
    auto [numbers, op, done] = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    try {
      reduce(numbers, op);
      ++ended;
      done->markCompleted(numbers);
    } catch (...) {
      done->setError(std::current_exception());
    }
    lock.lock();
  }
}

void TreeReduce::reduce(at::Tensor& numbers, Op op) {
  const int rank = group_->getRank();
  const int size = group_->getSize();
  int power = 1;
  while (2 * power <= size) {
    power *= 2;
  }
  // Ranks beyond the power of two exchange numbers and results with a rank within it.
  if (rank >= power) {
    send(numbers, rank - power)->wait();
    receive(numbers, rank - power);
    return;
  }
  const bool has_guest = rank + power < size;
  auto received = at::empty_like(numbers);
  if (has_guest) {
    receive(received, rank + power);
    combine(numbers, received, op);
  }
  for (int distance = 1; distance < power; distance *= 2) {
    const int partner = rank ^ distance;
    const auto sent = send(numbers, partner);
    receive(received, partner);
    sent->wait();
    combine(numbers, received, op);
  }
  if (has_guest) {
    send(numbers, rank + power)->wait();
  }
}

c10::intrusive_ptr<c10d::Work> TreeReduce::send(at::Tensor& numbers, int to) {
  std::vector<at::Tensor> tensors{numbers};
  return group_->send(tensors, to, kTag);
}

void TreeReduce::receive(at::Tensor& numbers, int from) {
  std::vector<at::Tensor> tensors{numbers};
  group_->recv(tensors, from, kTag)->wait();
}

}  // namespace vit
