#pragma once
// The order of a device's work. Operators run when launched; asynchronous copies and collectives
// are tasks on threads, and an operator waits for the tasks that its stream waits for.
//
// An in-place operator whose stream has to wait is such a task too: the host continues.
//
// Work mostly runs in sequence here, so ordering is not left to timing: each stream has a vector
// clock (L. Lamport; as in torch.cuda._sanitizer), and memory.hpp refuses unordered accesses.
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include <c10/core/Stream.h>

namespace sim {

using Time = std::chrono::steady_clock::time_point;

// Work that ends later.
class Task {
 public:
  void finish();
  void wait() const;
  // Waits; returns whether it ended within this time.
  bool ends_within(std::chrono::milliseconds time) const;
  bool has_ended() const { return ends_within(std::chrono::milliseconds(0)); }
  // The time it ended, once it has.
  Time ended() const;

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool has_ended_ = false;
  Time ended_;
};

using Tasks = std::vector<std::shared_ptr<Task>>;

// Per stream, the number of its last work item known to have ended.
using Clock = std::vector<uint64_t>;

struct StreamName {
  c10::DeviceIndex device;
  c10::StreamId id;

  bool operator==(const StreamName& other) const { return device == other.device && id == other.id; }
};

inline StreamName name_of(const c10::Stream& stream) { return {stream.device_index(), stream.id()}; }

// The current device and streams of this thread.
c10::DeviceIndex current_device();
void set_current_device(c10::DeviceIndex device);
StreamName current_stream(c10::DeviceIndex device);
void set_current_stream(StreamName stream);
// The next of a few reused streams; collectives have separate ones.
StreamName stream_of_pool(c10::DeviceIndex device, bool of_collectives);

// Makes a device current for this thread within a scope.
class OnDevice {
 public:
  explicit OnDevice(c10::DeviceIndex device) : before_(current_device()) { set_current_device(device); }
  ~OnDevice() { set_current_device(before_); }

 private:
  c10::DeviceIndex before_;
};

// A point in a stream's work.
struct StreamEvent {
  Time at;
  Tasks tasks;
  Clock clock;

  bool has_passed() const;
  // The time the stream reached it, once it has.
  Time passed() const;
};

// An item of a stream's work, for the order of accesses.
struct WorkItem {
  size_t stream;
  uint64_t number;
  Clock clock;

  bool comes_after(size_t other_stream, uint64_t other_number) const {
    return other_stream == stream || (other_stream < clock.size() && clock[other_stream] >= other_number);
  }
};

StreamEvent record_event(StreamName stream);
// Makes the stream's further work come after `event`.
void follow(StreamName stream, const StreamEvent& event);
// Starts a work item, after everything that the host has waited for.
WorkItem launch(StreamName stream);
// Tasks that the stream's next work must wait for.
Tasks pending(StreamName stream);
// Adds one of those tasks.
void add(StreamName stream, const std::shared_ptr<Task>& task);
// Waits for the tasks of a stream on behalf of its next operator.
void drain(StreamName stream);
// Makes the host wait: its later work on any stream comes after `event`.
void host_waits(const StreamEvent& event);
void host_waits_for_device(c10::DeviceIndex device);
std::string text_of(StreamName stream);

// Runs `work` late, on a thread, after the stream's tasks. The stream waits for it.
std::shared_ptr<Task> run_late(StreamName stream, std::function<void()> work);

}  // namespace sim
