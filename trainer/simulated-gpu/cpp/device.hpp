#pragma once
// What the parts of the simulated device have in common with the group over it.
#include <string>

#include <ATen/ATen.h>

#include "streams.hpp"

namespace sim {

// A device's memory as a tensor of the host's, which shares it.
at::Tensor host_view(const at::Tensor& tensor);

// Fails or hangs where the device has failed by now; operators count.
void require_device(const char* who, bool is_operator);

// Notes that `stream` reads or writes a tensor.
void access(StreamName stream, const Moment& moment, const at::Tensor& tensor, bool writes, const std::string& who);

// Fills a tensor of the host's with what nobody should read.
void poison(const at::Tensor& tensor);

// An error where the host may not wait (`vit_cuda_forbid_waits`).
void require_may_wait();
void forbid_waits(bool forbidden);

}  // namespace sim
