#include "memory.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <unordered_map>

#include <c10/util/Exception.h>

#include "settings.hpp"

namespace sim {
namespace {

constexpr size_t kMostDevices = 16;
constexpr size_t kRounding = 512;

struct Access {
  size_t stream;
  uint64_t number;
  uintptr_t begin, end;
  bool writes;
  std::string who;
  StreamName name;
};

struct Block {
  StreamName home;
  size_t bytes;
  void* memory;
  // Accesses by all owners so far that later work could be unordered with.
  std::vector<Access> accesses;
  // Other streams that have used it, as reported to libtorch (`record_stream`).
  std::vector<StreamName> users;
  // Work that must end before it is free, and whether that ends all other streams' accesses.
  Tasks used_by;
  bool forgets = false;
  // Work, by stream and number, that has ended before the memory is freed.
  std::vector<std::pair<size_t, uint64_t>> ended;
};

struct Device {
  bool is_used = false;
  int64_t held = 0;
  int64_t peak = 0;
  // Memory outside tensors.
  int64_t other = 0;
};

std::mutex mutex;
std::array<Device, kMostDevices> devices;
std::map<uintptr_t, Block*> blocks;
using Bin = std::tuple<c10::DeviceIndex, c10::StreamId, size_t>;
std::map<Bin, std::vector<Block*>> free_blocks;
// Freed blocks still used by queued work.
std::vector<Block*> used_blocks;

void count(Device& device, int64_t bytes) {
  device.is_used = true;
  device.held += bytes;
  device.peak = std::max(device.peak, device.held);
}

void require_room(c10::DeviceIndex index, int64_t bytes) {
  const auto limit = settings().device_bytes;
  const auto held = devices.at(index).held + devices.at(index).other;
  if (limit > 0 && held + bytes > limit) {
    // CUDACachingAllocator's message.
    TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ", bytes / 1048576.0, " MiB. GPU ", int(index),
                     " has a total capacity of ", limit / 1048576.0, " MiB of which ", (limit - held) / 1048576.0, " MiB is free.");
  }
}

// With the lock held: frees blocks that other streams no longer use.
void reclaim_used() {
  const auto is_over = [](const Block* block) {
    return std::all_of(block->used_by.begin(), block->used_by.end(), [](const auto& task) { return task->has_ended(); });
  };
  for (auto* block : used_blocks) {
    if (is_over(block)) {
      block->used_by.clear();
      if (block->forgets) {
        block->accesses.clear();
      }
      std::memset(block->memory, kPoison, block->bytes);
      free_blocks[{block->home.device, block->home.id, block->bytes}].push_back(block);
    }
  }
  const auto is_free = [](const Block* block) { return block->used_by.empty(); };
  used_blocks.erase(std::remove_if(used_blocks.begin(), used_blocks.end(), is_free), used_blocks.end());
}

// With the lock held; null for memory outside a device.
Block* block_of(const void* memory) {
  const auto address = reinterpret_cast<uintptr_t>(memory);
  auto next = blocks.upper_bound(address);
  if (next == blocks.begin()) {
    return nullptr;
  }
  auto* block = std::prev(next)->second;
  return address < reinterpret_cast<uintptr_t>(block->memory) + block->bytes ? block : nullptr;
}

Block* locked_block_of(const void* memory) {
  const std::lock_guard lock(mutex);
  return block_of(memory);
}

void free_block(void* memory) {
  auto* block = locked_block_of(memory);
  // As on a device, work on the own stream precedes the next owner's.
  auto used_by = pending(block->home);
  for (const auto& user : block->users) {
    const auto tasks = pending(user);
    used_by.insert(used_by.end(), tasks.begin(), tasks.end());
  }
  const std::lock_guard lock(mutex);
  count(devices.at(block->home.device), -static_cast<int64_t>(block->bytes));
  for (const auto& [stream, number] : block->ended) {
    const auto has_ended = [stream = stream, number = number](const Access& access) { return access.stream == stream && access.number <= number; };
    block->accesses.erase(std::remove_if(block->accesses.begin(), block->accesses.end(), has_ended), block->accesses.end());
  }
  block->ended.clear();
  block->forgets = !block->users.empty();
  block->users.clear();
  if (!used_by.empty()) {
    block->used_by = std::move(used_by);
    used_blocks.push_back(block);
    reclaim_used();
    return;
  }
  if (block->forgets) {
    block->accesses.clear();
  }
  std::memset(block->memory, kPoison, block->bytes);
  free_blocks[{block->home.device, block->home.id, block->bytes}].push_back(block);
}

Block* take_block(c10::DeviceIndex device, size_t bytes) {
  TORCH_CHECK(device >= 0 && device < settings().devices, "CUDA error: invalid device ordinal ", int(device));
  bytes = (bytes + kRounding - 1) / kRounding * kRounding;
  const auto home = current_stream(device);
  const std::lock_guard lock(mutex);
  reclaim_used();
  require_room(device, static_cast<int64_t>(bytes));
  count(devices.at(device), static_cast<int64_t>(bytes));
  auto& free = free_blocks[{device, home.id, bytes}];
  if (!free.empty()) {
    auto* block = free.back();
    free.pop_back();
    return block;
  }
  auto* block = new Block{home, bytes, std::aligned_alloc(64, bytes), {}, {}, {}, false, {}};
  TORCH_CHECK(block->memory != nullptr, "the host has no memory for a simulated device");
  std::memset(block->memory, kPoison, bytes);
  blocks.emplace(reinterpret_cast<uintptr_t>(block->memory), block);
  return block;
}

class Allocator final : public c10::DeviceAllocator {
 public:
  // On the thread's current device, like CUDACachingAllocator::allocate, whatever the tensor.
  c10::DataPtr allocate(size_t bytes) override {
    const auto device = current_device();
    if (bytes == 0) {
      return {nullptr, c10::Device(c10::kCUDA, device)};
    }
    auto* block = take_block(device, bytes);
    return {block->memory, block->memory, &free_block, c10::Device(c10::kCUDA, device)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    const std::lock_guard lock(mutex);
    auto* block = block_of(data.get());
    if (block != nullptr && !(block->home == name_of(stream))) {
      block->users.push_back(name_of(stream));
    }
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    const std::lock_guard lock(mutex);
    c10::CachingDeviceAllocator::DeviceStats stats;
    auto& bytes = stats.allocated_bytes[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
    bytes.peak = devices.at(device).peak;
    bytes.current = devices.at(device).held;
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex device) override {
    const std::lock_guard lock(mutex);
    devices.at(device).peak = devices.at(device).held;
  }
};

// The device for tensors of this thread's running operator; otherwise negative.
thread_local c10::DeviceIndex served = -1;
c10::Allocator* of_cpu = nullptr;

// Memory of the CPU's allocator: host or device memory.
void free_either(void* memory) {
  locked_block_of(memory) != nullptr ? free_block(memory) : of_cpu->raw_deleter()(memory);
}

class CpuAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (served < 0 || bytes == 0) {
      auto data = of_cpu->allocate(bytes);
      TORCH_CHECK(data.compare_exchange_deleter(of_cpu->raw_deleter(), &free_either), "the CPU's allocator has an unknown deleter");
      return data;
    }
    auto* block = take_block(served, bytes);
    return {block->memory, block->memory, &free_either, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_either; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
};

struct PinnedBlock {
  size_t bytes;
  void* memory;
  Tasks used_by;
};

std::mutex pinned_mutex;
std::map<uintptr_t, PinnedBlock*> pinned;
std::vector<PinnedBlock*> free_pinned;
int64_t pinned_bytes = 0, pinned_peak = 0;

// With the lock held.
PinnedBlock* pinned_block_of(const void* memory) {
  const auto address = reinterpret_cast<uintptr_t>(memory);
  auto next = pinned.upper_bound(address);
  if (next == pinned.begin()) {
    return nullptr;
  }
  auto* block = std::prev(next)->second;
  return address < reinterpret_cast<uintptr_t>(block->memory) + block->bytes ? block : nullptr;
}

void free_pinned_block(void* context) {
  const std::lock_guard lock(pinned_mutex);
  free_pinned.push_back(static_cast<PinnedBlock*>(context));
}

class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) {
      return {nullptr, c10::Device(c10::kCPU)};
    }
    // Like CachingHostAllocator, which never returns memory to the system.
    size_t rounded = kRounding;
    while (rounded < bytes) {
      rounded *= 2;
    }
    const std::lock_guard lock(pinned_mutex);
    const auto fits = [rounded](PinnedBlock* block) {
      return block->bytes == rounded && std::all_of(block->used_by.begin(), block->used_by.end(), [](const auto& task) { return task->has_ended(); });
    };
    const auto found = std::find_if(free_pinned.rbegin(), free_pinned.rend(), fits);
    PinnedBlock* block = nullptr;
    if (found != free_pinned.rend()) {
      block = *found;
      free_pinned.erase(std::next(found).base());
      block->used_by.clear();
    } else {
      block = new PinnedBlock{rounded, std::aligned_alloc(64, rounded), {}};
      TORCH_CHECK(block->memory != nullptr, "the host has no pinned memory left");
      pinned.emplace(reinterpret_cast<uintptr_t>(block->memory), block);
      pinned_bytes += static_cast<int64_t>(rounded);
      pinned_peak = std::max(pinned_peak, pinned_bytes);
    }
    std::memset(block->memory, kPoison, rounded);
    return {block->memory, block, &free_pinned_block, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
};

}  // namespace

c10::DeviceAllocator& device_allocator() {
  static Allocator allocator;
  return allocator;
}

c10::Allocator& pinned_allocator() {
  static PinnedAllocator allocator;
  return allocator;
}

bool is_pinned(const void* memory) {
  const std::lock_guard lock(pinned_mutex);
  return pinned_block_of(memory) != nullptr;
}

void keep_pinned(const void* memory, const std::shared_ptr<Task>& task) {
  const std::lock_guard lock(pinned_mutex);
  pinned_block_of(memory)->used_by.push_back(task);
}

OnDeviceMemory::OnDeviceMemory(c10::DeviceIndex device) { served = device; }
OnDeviceMemory::~OnDeviceMemory() { served = -1; }

void install_allocators() {
  static CpuAllocator allocator;
  of_cpu = c10::GetAllocator(c10::kCPU);
  c10::SetAllocator(c10::kCPU, &allocator, 1);
  c10::SetAllocator(c10::kCUDA, &device_allocator(), 1);
}

void access(StreamName stream, const WorkItem& item, const void* memory, size_t bytes, bool writes, const std::string& who) {
  if (bytes == 0) {
    return;
  }
  const std::lock_guard lock(mutex);
  auto* block = block_of(memory);
  if (block == nullptr) {
    return;
  }
  const auto begin = reinterpret_cast<uintptr_t>(memory), end = begin + bytes;
  for (const auto& other : block->accesses) {
    const bool meets = other.begin < end && begin < other.end && (writes || other.writes);
    TORCH_CHECK(!meets || item.comes_after(other.stream, other.number), who, " on ", text_of(stream), writes ? " writes" : " reads",
                " memory that ", other.who, " on ", text_of(other.name), other.writes ? " writes" : " reads",
                ", and nothing orders them: on a real device they may run at the same time");
  }
  // Accesses ordered before this one, which replaces them, need no more comparisons.
  const auto is_covered = [&](const Access& other) {
    return begin <= other.begin && other.end <= end && (writes || (!other.writes && other.stream == item.stream));
  };
  auto& accesses = block->accesses;
  accesses.erase(std::remove_if(accesses.begin(), accesses.end(), is_covered), accesses.end());
  accesses.push_back({item.stream, item.number, begin, end, writes, who, stream});
}

void release_after(const WorkItem& item, const void* memory) {
  const std::lock_guard lock(mutex);
  if (auto* block = block_of(memory)) {
    block->ended.emplace_back(item.stream, item.number);
  }
}

void take(c10::DeviceIndex device, int64_t bytes, const char* what) {
  const std::lock_guard lock(mutex);
  const auto limit = settings().device_bytes;
  auto& found = devices.at(device);
  TORCH_CHECK_WITH(DistBackendError, limit == 0 || found.held + found.other + bytes <= limit, "NCCL error in: ", what,
                   ", unhandled cuda error: Cuda failure 2 'out of memory'");
  found.is_used = true;
  found.other += bytes;
}

Usage usage() {
  Usage usage{};
  {
    const std::lock_guard lock(mutex);
    for (size_t index = 0; index < devices.size(); ++index) {
      if (devices[index].is_used) {
        usage.peaks.emplace_back(static_cast<c10::DeviceIndex>(index), devices[index].peak);
      }
    }
  }
  const std::lock_guard lock(pinned_mutex);
  usage.pinned_peak = pinned_peak;
  return usage;
}

}  // namespace sim
