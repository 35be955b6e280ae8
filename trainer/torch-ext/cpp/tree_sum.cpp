#include "tree_sum.hpp"

#include <algorithm>
#include <functional>
#include <utility>

namespace {

// The only messages between two ranks of the group, so their order tells them apart.
constexpr int kTag = 0;

void add(at::Tensor& sums, const at::Tensor& numbers) {
  auto* first = sums.mutable_data_ptr<double>();
  std::transform(first, first + sums.numel(), numbers.const_data_ptr<double>(), first, std::plus<>());
}

}  // namespace

namespace vit {

TreeSum::TreeSum(c10::intrusive_ptr<c10d::ProcessGroup> group) : group_(std::move(group)), thread_([this] { work(); }) {}

TreeSum::~TreeSum() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ends_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

c10::intrusive_ptr<c10::ivalue::Future> TreeSum::start(at::Tensor numbers) {
  auto done = c10::make_intrusive<c10::ivalue::Future>(c10::TensorType::get());
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    next_ = Sum{std::move(numbers), done};
  }
  changed_.notify_one();
  return done;
}

void TreeSum::work() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ends_ || next_; });
    if (ends_) {
      return;
    }
    auto [numbers, done] = *std::exchange(next_, std::nullopt);
    lock.unlock();
    try {
      add_up(numbers);
      done->markCompleted(numbers);
    } catch (...) {
      done->setError(std::current_exception());
    }
    lock.lock();
  }
}

void TreeSum::add_up(at::Tensor& numbers) {
  const int rank = group_->getRank();
  const int size = group_->getSize();
  int power = 1;
  while (2 * power <= size) {
    power *= 2;
  }
  // Ranks beyond the power of two hand their numbers to a rank within, and get the sums from it.
  if (rank >= power) {
    send(numbers, rank - power)->wait();
    receive(numbers, rank - power);
    return;
  }
  const bool has_guest = rank + power < size;
  auto received = at::empty_like(numbers);
  if (has_guest) {
    receive(received, rank + power);
    add(numbers, received);
  }
  for (int distance = 1; distance < power; distance *= 2) {
    const int partner = rank ^ distance;
    const auto sent = send(numbers, partner);
    receive(received, partner);
    sent->wait();
    add(numbers, received);
  }
  if (has_guest) {
    send(numbers, rank + power)->wait();
  }
}

c10::intrusive_ptr<c10d::Work> TreeSum::send(at::Tensor& numbers, int to) {
  std::vector<at::Tensor> tensors{numbers};
  return group_->send(tensors, to, kTag);
}

void TreeSum::receive(at::Tensor& numbers, int from) {
  std::vector<at::Tensor> tensors{numbers};
  group_->recv(tensors, from, kTag)->wait();
}

}  // namespace vit
