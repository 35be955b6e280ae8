#pragma once
// Interfaces between the parts of the simulated device and its NCCL.
#include <string>

#include <ATen/ATen.h>

#include "streams.hpp"

namespace sim {

// A device tensor's memory as a host tensor.
at::Tensor host_view(const at::Tensor& tensor);

// Fails or hangs if the device has failed by now; operators count.
void require_device(const char* who, bool is_operator);

// Records that `stream` reads or writes a tensor.
void access(StreamName stream, const WorkItem& item, const at::Tensor& tensor, bool writes, const std::string& who);

// Fills a host tensor with poison values.
void poison(const at::Tensor& tensor);

// An error if the host may not wait (`vit_cuda_forbid_waits`).
void require_may_wait();
void forbid_waits(bool forbidden);

}  // namespace sim
