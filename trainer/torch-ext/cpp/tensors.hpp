#pragma once
#include <vector>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

namespace vit {

// Copies of the tensor handles (not of their data) that an array of pointers names.
inline std::vector<at::Tensor> tensor_list(at::Tensor* const* tensors, size_t count) {
  std::vector<at::Tensor> list;
  list.reserve(count);
  for (size_t index = 0; index < count; ++index) {
    list.push_back(*tensors[index]);
  }
  return list;
}

}  // namespace vit
