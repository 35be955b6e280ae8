// LayerNorm on a GPU. The backward pass of libtorch 2.11 reads gradients and input several times
// and takes 10 % of a step of ViT-B/16 on an H200. NVRTC, which libtorch needs for generated
// kernels too, compiles these kernels for the first row of each length.
#include <dlfcn.h>

#include <array>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/ops/native_layer_norm_backward_native.h>
#include <ATen/ops/native_layer_norm_native.h>
#include <c10/core/DeviceGuard.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda.h>
#include <torch/library.h>

#include "device_properties.hpp"
#include "layer_norm_kernels.hpp"

namespace vit {
namespace {

using TensorTriple = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

constexpr int kLanes = 32, kWarps = 4;
// More do not fit in a thread's registers in the backward pass.
constexpr int64_t kMostColumns = 1536;
constexpr int kBlocksPerProcessor = 4;

// A CUDA library loaded at run time.
class Library {
 public:
  explicit Library(const char* name) : handle_(dlopen(name, RTLD_NOW)) {
    TORCH_CHECK(handle_ != nullptr, dlerror());
  }

  template <typename Function>
  Function* get(const char* name) const {
    auto* function = reinterpret_cast<Function*>(dlsym(handle_, name));
    TORCH_CHECK(function != nullptr, dlerror());
    return function;
  }

 private:
  void* handle_;
};

// Functions of NVRTC (nvrtc.h).
struct Compiler {
  using Program = struct NvrtcProgram*;

  // The version of libtorch's CUDA, whose headers are used here.
  Library library{("libnvrtc.so." + std::to_string(CUDA_VERSION / 1000)).c_str()};
  int (*create)(Program*, const char*, const char*, int, const char* const*, const char* const*) =
      library.get<int(Program*, const char*, const char*, int, const char* const*, const char* const*)>("nvrtcCreateProgram");
  int (*compile)(Program, int, const char* const*) =
      library.get<int(Program, int, const char* const*)>("nvrtcCompileProgram");
  int (*log_size)(Program, size_t*) = library.get<int(Program, size_t*)>("nvrtcGetProgramLogSize");
  int (*log)(Program, char*) = library.get<int(Program, char*)>("nvrtcGetProgramLog");
  int (*binary_size)(Program, size_t*) = library.get<int(Program, size_t*)>("nvrtcGetCUBINSize");
  int (*binary)(Program, char*) = library.get<int(Program, char*)>("nvrtcGetCUBIN");
  int (*destroy)(Program*) = library.get<int(Program*)>("nvrtcDestroyProgram");

  std::string run(const char* source, const std::vector<std::string>& options) const {
    Program program = nullptr;
    TORCH_CHECK(create(&program, source, "layer_norm.cu", 0, nullptr, nullptr) == 0, "NVRTC rejected the program");
    const std::unique_ptr<Program, int (*)(Program*)> owner(&program, destroy);
    std::vector<const char*> arguments;
    for (const auto& option : options) {
      arguments.push_back(option.c_str());
    }
    const int failed = compile(program, static_cast<int>(arguments.size()), arguments.data());
    size_t size = 0;
    if (failed != 0) {
      log_size(program, &size);
      std::string text(size, '\0');
      log(program, text.data());
      TORCH_CHECK(false, "NVRTC's error ", failed, ": ", text);
    }
    binary_size(program, &size);
    std::string code(size, '\0');
    binary(program, code.data());
    return code;
  }
};

// Functions of the driver (cuda.h).
struct Driver {
  Library library{"libcuda.so.1"};
  decltype(cuModuleLoadData)* load = library.get<decltype(cuModuleLoadData)>("cuModuleLoadData");
  decltype(cuModuleGetFunction)* function = library.get<decltype(cuModuleGetFunction)>("cuModuleGetFunction");
  decltype(cuLaunchKernel)* launch = library.get<decltype(cuLaunchKernel)>("cuLaunchKernel");
  decltype(cuGetErrorString)* error_string = library.get<decltype(cuGetErrorString)>("cuGetErrorString");

  void check(CUresult result) const {
    const char* text = nullptr;
    if (result != CUDA_SUCCESS) {
      error_string(result, &text);
      TORCH_CHECK(false, "CUDA error: ", text != nullptr ? text : std::to_string(result));
    }
  }
};

const Compiler& compiler() {
  static const Compiler loaded;
  return loaded;
}

const Driver& driver() {
  static const Driver loaded;
  return loaded;
}

// The kernels for rows of one length and format, on one GPU.
struct Kernels {
  int processors;
  CUfunction forward, backward, reduce;

  Kernels(int64_t columns, at::ScalarType format, c10::DeviceIndex device) {
    const auto* properties = at::cuda::getDeviceProperties(device);
    processors = properties->multiProcessorCount;
    // Reads 16 bytes at once if rows are divisible by them.
    int64_t pack = format == at::kFloat ? 4 : 8;
    while (columns % (kLanes * pack) != 0) {
      pack /= 2;
    }
    const auto code = compiler().run(
        kLayerNormKernels,
        {"--std=c++17",
         "--gpu-architecture=sm_" + std::to_string(properties->major) + std::to_string(properties->minor),
         "-DCOLUMNS=" + std::to_string(columns), "-DPACK=" + std::to_string(pack), "-DWARPS=" + std::to_string(kWarps),
         std::string("-DFORMAT=") + (format == at::kFloat ? "32" : format == at::kHalf ? "16" : "0")});
    CUmodule module;
    driver().check(driver().load(&module, code.data()));
    driver().check(driver().function(&forward, module, "vit_layer_norm_forward"));
    driver().check(driver().function(&backward, module, "vit_layer_norm_backward"));
    driver().check(driver().function(&reduce, module, "vit_layer_norm_reduce"));
  }

  // Blocks that process the rows of a pass together.
  int64_t blocks(int64_t rows) const {
    return std::min<int64_t>((rows + kWarps - 1) / kWarps, int64_t{processors} * kBlocksPerProcessor);
  }
};

template <typename... Arguments>
void launch(CUfunction kernel, int64_t blocks, int warps, Arguments... arguments) {
  void* places[] = {&arguments...};
  driver().check(driver().launch(kernel, static_cast<unsigned>(blocks), 1, 1, kLanes * warps, 1, 1, 0,
                                 c10::cuda::getCurrentCUDAStream().stream(), places, nullptr));
}

// The driver needs a context on this thread, even if the device is already set.
class OnDevice {
 public:
  explicit OnDevice(const at::Tensor& tensor) : guard_(tensor.device()) {
    c10::cuda::SetDevice(tensor.get_device(), /*force=*/true);
  }

 private:
  c10::DeviceGuard guard_;
};

bool is_plain(const at::Tensor& tensor, const at::Tensor& like) {
  return tensor.defined() && tensor.is_contiguous() && tensor.scalar_type() == like.scalar_type() &&
         tensor.device() == like.device() && reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % 16 == 0;
}

// Why the first failed kernel could not be compiled.
struct Failure {
  std::mutex mutex;
  std::string text;
};

Failure& failure() {
  static Failure first;
  return first;
}

// The kernels for rows of `input`; null to use libtorch's own, also for its error messages.
const Kernels* kernels_for(const at::Tensor& input, at::IntArrayRef shape, const std::optional<at::Tensor>& weight,
                           const std::optional<at::Tensor>& bias) {
  const auto format = input.scalar_type();
  const bool has_format = format == at::kFloat || format == at::kHalf || format == at::kBFloat16;
  const bool has_rows = shape.size() == 1 && input.dim() > 0 && input.size(-1) == shape[0] && input.numel() > 0 &&
                        shape[0] % (2 * kLanes) == 0 && shape[0] <= kMostColumns;
  const auto is_of_row = [&](const std::optional<at::Tensor>& tensor) {
    return tensor && is_plain(*tensor, input) && tensor->sizes() == shape;
  };
  if (!has_format || !has_rows || !is_plain(input, input) || !is_of_row(weight) || !is_of_row(bias)) {
    return nullptr;
  }
  static std::mutex mutex;
  static std::map<std::tuple<int64_t, at::ScalarType, c10::DeviceIndex>, std::unique_ptr<Kernels>> known;
  const std::lock_guard lock(mutex);
  const auto [place, is_new] = known.try_emplace({shape[0], format, input.get_device()});
  if (is_new) {
    try {
      place->second = std::make_unique<Kernels>(shape[0], format, input.get_device());
    } catch (const c10::Error& error) {
      // Slower, but not a reason to end a run.
      const std::lock_guard telling(failure().mutex);
      if (failure().text.empty()) {
        failure().text = error.what_without_backtrace();
      }
    }
  }
  return place->second.get();
}

TensorTriple forward(const at::Tensor& input, at::IntArrayRef shape, const std::optional<at::Tensor>& weight,
              const std::optional<at::Tensor>& bias, double epsilon) {
  const OnDevice on_device(input);
  const auto* kernels = kernels_for(input, shape, weight, bias);
  if (kernels == nullptr) {
    return at::native::layer_norm_cuda(input, shape, weight, bias, epsilon);
  }
  const long long rows = input.numel() / shape[0];
  auto output = at::empty_like(input);
  // Like libtorch: one number per row.
  auto sizes = input.sizes().vec();
  sizes.back() = 1;
  auto means = at::empty(sizes, input.options().dtype(at::kFloat)), inverse_deviations = at::empty_like(means);
  launch(kernels->forward, kernels->blocks(rows), kWarps, input.const_data_ptr(), weight->const_data_ptr(),
         bias->const_data_ptr(), static_cast<float>(epsilon), rows, output.mutable_data_ptr(), means.mutable_data_ptr(),
         inverse_deviations.mutable_data_ptr());
  return {output, means, inverse_deviations};
}

TensorTriple backward(const at::Tensor& gradients, const at::Tensor& input, at::IntArrayRef shape, const at::Tensor& means,
               const at::Tensor& inverse_deviations, const std::optional<at::Tensor>& weight,
               const std::optional<at::Tensor>& bias, std::array<bool, 3> wanted) {
  const OnDevice on_device(input);
  const bool is_usual = is_plain(gradients, input) && gradients.sizes() == input.sizes() && wanted[0] && wanted[1] && wanted[2];
  const auto* kernels = is_usual ? kernels_for(input, shape, weight, bias) : nullptr;
  if (kernels == nullptr) {
    return at::native::layer_norm_backward_cuda(gradients, input, shape, means, inverse_deviations, weight, bias, wanted);
  }
  const long long rows = input.numel() / shape[0];
  const auto blocks = kernels->blocks(rows);
  auto of_input = at::empty_like(input), of_weight = at::empty_like(*weight), of_bias = at::empty_like(*bias);
  const auto partial = at::empty({blocks, 2, shape[0]}, input.options().dtype(at::kFloat));
  launch(kernels->backward, blocks, kWarps, gradients.const_data_ptr(), input.const_data_ptr(), weight->const_data_ptr(),
         means.const_data_ptr(), inverse_deviations.const_data_ptr(), rows, of_input.mutable_data_ptr(),
         partial.mutable_data_ptr());
  launch(kernels->reduce, 2 * shape[0] / kLanes, 8, partial.const_data_ptr(), static_cast<int>(blocks),
         of_weight.mutable_data_ptr(), of_bias.mutable_data_ptr());
  return {of_input, of_weight, of_bias};
}

}  // namespace
}  // namespace vit

// Replaces libtorch's kernels for the rest of the process, or writes why that failed. Returns 0 on
// success. A later call reports compilations that failed since.
extern "C" int vit_cuda_replace_layer_norm(char* message, size_t message_size) {
  // libtorch warns about replaced kernels.
  struct Silent : c10::WarningHandler {
    void process(const c10::Warning&) override {}
  } silent;
  try {
    const c10::WarningUtils::WarningHandlerGuard guard(&silent);
    static std::once_flag once;
    std::call_once(once, [] {
      vit::compiler();
      vit::driver();
      static torch::Library library(torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__);
      library.impl("native_layer_norm", TORCH_FN(vit::forward));
      library.impl("native_layer_norm_backward", TORCH_FN(vit::backward));
    });
    const std::lock_guard lock(vit::failure().mutex);
    std::snprintf(message, message_size, "%s", vit::failure().text.c_str());
    return vit::failure().text.empty() ? 0 : 1;
  } catch (const c10::Error& error) {
    std::snprintf(message, message_size, "%s", error.what_without_backtrace());
  } catch (const std::exception& error) {
    std::snprintf(message, message_size, "%s", error.what());
  } catch (...) {
    std::snprintf(message, message_size, "libtorch threw something that is not an exception");
  }
  return 1;
}
