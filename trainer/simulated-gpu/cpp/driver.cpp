// Stands in for the driver and is preloaded into every process: the file that shows a GPU,
// libtorch's compile-time choice of an accelerator, and a hook at exit. It needs no other library.
#include <dlfcn.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <optional>

// From libtorch's c10/core/Device.h and DeviceType.h.
namespace c10 {
enum class DeviceType : int8_t { CPU = 0, CUDA = 1 };
}

// Set by the simulated device when loaded.
extern "C" {
bool vit_simulated_device_is_loaded = false;
// Called before the process exits; may change the exit code.
int (*vit_simulated_last_words)(int code) = nullptr;
}

namespace at::accelerator {
std::optional<c10::DeviceType> getAccelerator(bool) {
  return vit_simulated_device_is_loaded ? std::optional(c10::DeviceType::CUDA) : std::nullopt;
}
}  // namespace at::accelerator

extern "C" int statx(int folder, const char* path, int flags, unsigned mask, struct statx* buffer) {
  using Function = int (*)(int, const char*, int, unsigned, struct statx*);
  static const auto next = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "statx"));
  const char* gpus = std::getenv("VIT_SIMULATED_GPUS");
  // Declared non-null, but Rust's standard library passes null to probe for this call.
  const char* volatile asked = path;
  const bool is_driver = asked != nullptr && std::strcmp(path, "/dev/nvidiactl") == 0 && gpus != nullptr && std::atoi(gpus) > 0;
  return next(folder, is_driver ? "/dev/null" : path, flags, mask, buffer);
}

extern "C" void _exit(int code) {
  if (vit_simulated_last_words != nullptr) {
    code = vit_simulated_last_words(code);
  }
  static const auto next = reinterpret_cast<void (*)(int)>(dlsym(RTLD_NEXT, "_exit"));
  next(code);
  __builtin_unreachable();
}
