#pragma once
// The order of a device's work. Operators run where they are launched; copies that do not block and collectives are tasks of
// threads of their own, and an operator of a stream waits for the tasks that the stream waits for.
//
// An operator that makes no new tensor is such a task too, where its stream has to wait: the host goes on.
//
// What a real device runs at the same time runs one after another here, for the most part, so whether streams are ordered is not left to time:
// each stream has a vector clock (L. Lamport; as torch.cuda._sanitizer has), and memory.hpp refuses accesses that nothing orders.
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
  // Whether it ended within this time.
  bool ends_within(std::chrono::milliseconds time) const;
  bool has_ended() const { return ends_within(std::chrono::milliseconds(0)); }
  // When it ended, which it has.
  Time ended() const;

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool has_ended_ = false;
  Time ended_;
};

using Tasks = std::vector<std::shared_ptr<Task>>;

// By stream, how much of its work is known to have ended before.
using Clock = std::vector<uint64_t>;

struct StreamName {
  c10::DeviceIndex device;
  c10::StreamId id;

  bool operator==(const StreamName& other) const { return device == other.device && id == other.id; }
};

inline StreamName name_of(const c10::Stream& stream) { return {stream.device_index(), stream.id()}; }

// The device and the streams that this thread has chosen.
c10::DeviceIndex current_device();
void set_current_device(c10::DeviceIndex device);
StreamName current_stream(c10::DeviceIndex device);
void set_current_stream(StreamName stream);
// The next of a few streams that are given out again and again; those of collectives are others.
StreamName stream_of_pool(c10::DeviceIndex device, bool of_collectives);

// Makes a device for one block the current one of this thread.
class OnDevice {
 public:
  explicit OnDevice(c10::DeviceIndex device) : before_(current_device()) { set_current_device(device); }
  ~OnDevice() { set_current_device(before_); }

 private:
  c10::DeviceIndex before_;
};

// A point in a stream's work.
struct Mark {
  Time at;
  Tasks tasks;
  Clock clock;

  bool has_passed() const;
  // When the stream came to it, which it has.
  Time passed() const;
};

// A piece of a stream's work, for the order of accesses.
struct Moment {
  size_t stream;
  uint64_t number;
  Clock clock;

  bool comes_after(size_t other_stream, uint64_t other_number) const {
    return other_stream == stream || (other_stream < clock.size() && clock[other_stream] >= other_number);
  }
};

Mark mark(StreamName stream);
// The stream's further work comes after `mark`.
void follow(StreamName stream, const Mark& mark);
// Begins a piece of work: what comes after what the host has waited for.
Moment launch(StreamName stream);
// What the stream's next work must wait for.
Tasks pending(StreamName stream);
// Adds to that.
void add(StreamName stream, const std::shared_ptr<Task>& task);
// Waits for the tasks of a stream, on behalf of an operator of it.
void drain(StreamName stream);
// The host waits: what it launches from now on, on any stream, comes after.
void host_waits(const Mark& mark);
void host_waits_for_device(c10::DeviceIndex device);
std::string text_of(StreamName stream);

// Runs `work` on a thread of its own, late, once what the stream waits for has ended. The stream waits for it.
std::shared_ptr<Task> run_late(StreamName stream, std::function<void()> work);

}  // namespace sim
