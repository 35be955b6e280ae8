#pragma once
#include <vector>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

namespace vit {

// Copies of tensor handles (not of their data) from an array of pointers.
inline std::vector<at::Tensor> tensor_list(at::Tensor* const* tensors, size_t count) {
  std::vector<at::Tensor> list;
  list.reserve(count);
  for (size_t index = 0; index < count; ++index) {
    list.push_back(*tensors[index]);
  }
  return list;
}

}  // namespace vit
