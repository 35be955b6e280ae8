#include "streams.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <thread>

#include "settings.hpp"

namespace sim {
namespace {

constexpr size_t kMostDevices = 16;
// As in libtorch's pools.
constexpr c10::StreamId kPool = 32;

thread_local c10::DeviceIndex chosen_device = 0;
thread_local std::array<c10::StreamId, kMostDevices> chosen_streams{};

struct Stream {
  size_t index;
  Clock clock;
  Tasks tasks;
};

std::mutex mutex;
std::map<std::pair<c10::DeviceIndex, c10::StreamId>, Stream> streams;
// Work that any host thread has waited for: the order between threads is not known here.
Clock host;

void join(Clock& clock, const Clock& other) {
  clock.resize(std::max(clock.size(), other.size()));
  for (size_t index = 0; index < other.size(); ++index) {
    clock[index] = std::max(clock[index], other[index]);
  }
}

// With the lock held.
Stream& stream_of(StreamName name) {
  const auto [place, is_new] = streams.try_emplace({name.device, name.id});
  auto& stream = place->second;
  if (is_new) {
    stream.index = streams.size() - 1;
    stream.clock.resize(streams.size());
  }
  const auto has_ended = [](const std::shared_ptr<Task>& task) { return task->has_ended(); };
  stream.tasks.erase(std::remove_if(stream.tasks.begin(), stream.tasks.end(), has_ended), stream.tasks.end());
  return stream;
}

}  // namespace

void Task::finish() {
  const std::lock_guard lock(mutex_);
  if (!has_ended_) {
    has_ended_ = true;
    ended_ = std::chrono::steady_clock::now();
    changed_.notify_all();
  }
}

void Task::wait() const {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return has_ended_; });
}

bool Task::ends_within(std::chrono::milliseconds time) const {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, time, [this] { return has_ended_; });
}

Time Task::ended() const {
  const std::lock_guard lock(mutex_);
  return ended_;
}

bool StreamEvent::has_passed() const {
  return std::all_of(tasks.begin(), tasks.end(), [](const auto& task) { return task->has_ended(); });
}

Time StreamEvent::passed() const {
  Time last = at;
  for (const auto& task : tasks) {
    last = std::max(last, task->ended());
  }
  return last;
}

c10::DeviceIndex current_device() { return chosen_device; }
void set_current_device(c10::DeviceIndex device) { chosen_device = device; }
StreamName current_stream(c10::DeviceIndex device) { return {device, chosen_streams.at(device)}; }
void set_current_stream(StreamName stream) { chosen_streams.at(stream.device) = stream.id; }

StreamName stream_of_pool(c10::DeviceIndex device, bool of_collectives) {
  static std::atomic<c10::StreamId> next{0}, next_of_collectives{0};
  const auto number = of_collectives ? kPool + next_of_collectives++ % kPool : next++ % kPool;
  return {device, 1 + number};
}

StreamEvent record_event(StreamName name) {
  const std::lock_guard lock(mutex);
  auto& stream = stream_of(name);
  join(stream.clock, host);
  return {std::chrono::steady_clock::now(), stream.tasks, stream.clock};
}

void follow(StreamName name, const StreamEvent& event) {
  const std::lock_guard lock(mutex);
  auto& stream = stream_of(name);
  join(stream.clock, event.clock);
  for (const auto& task : event.tasks) {
    if (std::find(stream.tasks.begin(), stream.tasks.end(), task) == stream.tasks.end()) {
      stream.tasks.push_back(task);
    }
  }
}

WorkItem launch(StreamName name) {
  const std::lock_guard lock(mutex);
  auto& stream = stream_of(name);
  join(stream.clock, host);
  stream.clock.resize(std::max(stream.clock.size(), stream.index + 1));
  const auto number = ++stream.clock[stream.index];
  return {stream.index, number, stream.clock};
}

Tasks pending(StreamName name) {
  const std::lock_guard lock(mutex);
  return stream_of(name).tasks;
}

void add(StreamName name, const std::shared_ptr<Task>& task) {
  const std::lock_guard lock(mutex);
  stream_of(name).tasks.push_back(task);
}

void drain(StreamName name) {
  for (const auto& task : pending(name)) {
    task->wait();
  }
}

void host_waits(const StreamEvent& event) {
  for (const auto& task : event.tasks) {
    task->wait();
  }
  const std::lock_guard lock(mutex);
  join(host, event.clock);
}

void host_waits_for_device(c10::DeviceIndex device) {
  std::vector<StreamName> all;
  {
    const std::lock_guard lock(mutex);
    for (const auto& [name, stream] : streams) {
      if (name.first == device) {
        all.push_back({name.first, name.second});
      }
    }
  }
  for (const auto& name : all) {
    host_waits(record_event(name));
  }
}

std::string text_of(StreamName stream) {
  return "stream " + std::to_string(stream.id) + " of cuda:" + std::to_string(stream.device);
}

std::shared_ptr<Task> run_late(StreamName stream, std::function<void()> work) {
  const auto before = pending(stream);
  const auto task = std::make_shared<Task>();
  add(stream, task);
  std::thread([before, task, work = std::move(work)] {
    for (const auto& other : before) {
      other->wait();
    }
    try {
      work();
    } catch (const std::exception& error) {
      // Like a device error while nobody waits.
      std::fprintf(stderr, "simulated device: %s\n", error.what());
      std::abort();
    }
    task->finish();
  }).detach();
  return task;
}

}  // namespace sim
