#include "settings.hpp"

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <random>

#include <c10/util/Exception.h>

namespace sim {
namespace {

std::string text_of(const char* name, const char* otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? text : otherwise;
}

int64_t number_of(const char* name) { return std::atoll(text_of(name, "0").c_str()); }

// The entry at this index of a comma-separated list; "0" beyond its end.
std::string entry(std::string list, int place) {
  for (; place > 0; --place) {
    const auto comma = list.find(',');
    if (comma == std::string::npos) {
      return "0";
    }
    list = list.substr(comma + 1);
  }
  return list.substr(0, list.find(','));
}

// `lost@RANK:OPERATOR` or `hangs@RANK:OPERATOR`.
std::optional<Fault> fault_of(int rank) {
  const auto text = text_of("VIT_SIMULATED_FAULT", "");
  if (text.empty()) {
    return std::nullopt;
  }
  const auto at = text.find('@'), colon = text.find(':');
  const auto kind = text.substr(0, at);
  TORCH_CHECK(at != std::string::npos && colon != std::string::npos && (kind == "lost" || kind == "hangs"),
              "VIT_SIMULATED_FAULT is ", text, ": expected lost@RANK:OPERATOR or hangs@RANK:OPERATOR");
  if (std::atoi(text.c_str() + at + 1) != rank) {
    return std::nullopt;
  }
  return Fault{kind == "lost" ? Failure::kLost : Failure::kHangs, std::strtoull(text.c_str() + colon + 1, nullptr, 10)};
}

Settings read() {
  Settings settings;
  const auto machine = static_cast<c10::DeviceIndex>(number_of("VIT_SIMULATED_GPUS"));
  const auto visible = text_of("CUDA_VISIBLE_DEVICES", "all");
  settings.devices = visible == "all" ? machine
                     : visible.empty() ? 0
                                       : static_cast<c10::DeviceIndex>(std::count(visible.begin(), visible.end(), ',') + 1);
  TORCH_CHECK(settings.devices <= machine, "CUDA_VISIBLE_DEVICES is ", visible, ", but the machine has ", int(machine), " GPUs");
  settings.rank = static_cast<int>(number_of("RANK"));
  settings.most_delay = std::chrono::microseconds(number_of("VIT_SIMULATED_DELAY_US"));
  settings.seed = static_cast<uint64_t>(number_of("VIT_SIMULATED_SEED"));
  settings.device_bytes = number_of("VIT_SIMULATED_GPU_BYTES");
  settings.communicator_bytes = number_of("VIT_SIMULATED_COMMUNICATOR_BYTES");
  settings.slowness = std::chrono::microseconds(std::atoi(entry(text_of("VIT_SIMULATED_SLOW", "0"), settings.rank).c_str()));
  settings.fault = fault_of(settings.rank);
  settings.kernel_failure = text_of("VIT_SIMULATED_KERNEL_FAILURE", "");
  settings.report_folder = text_of("VIT_SIMULATED_REPORT", "");
  settings.address = text_of("VIT_POD_ADDRESS", settings.address.c_str());
  return settings;
}

}  // namespace

const Settings& settings() {
  static const Settings read_once = read();
  return read_once;
}

std::string visible_name(c10::DeviceIndex device) {
  const auto visible = text_of("CUDA_VISIBLE_DEVICES", "");
  return visible.empty() ? std::to_string(device) : entry(visible, device);
}

std::chrono::microseconds next_delay() {
  static std::mutex mutex;
  static std::mt19937_64 random(settings().seed * 1000003 + static_cast<uint64_t>(settings().rank));
  const std::lock_guard lock(mutex);
  return std::chrono::microseconds(std::uniform_int_distribution<int64_t>(0, settings().most_delay.count())(random));
}

}  // namespace sim
