// Rendezvous store and process groups of c10d (torch/csrc/distributed/c10d).
#define USE_C10D_GLOO
#include "process_group.hpp"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include "error.hpp"
#include "tensors.hpp"

using vit::guarded;
using Milliseconds = std::chrono::milliseconds;

namespace {

// Size of a message with several tensors; each message pays the network's latency.
constexpr size_t kBroadcastBytes = size_t{25} << 20;

vit::Group* wrap(const c10::intrusive_ptr<c10d::Store>& store, int rank, int world_size, c10::DeviceType device,
                 c10d::ProcessGroup::BackendType type, const c10::intrusive_ptr<c10d::Backend>& backend) {
  auto group = c10::make_intrusive<c10d::ProcessGroup>(store, rank, world_size);
  group->setBackend(device, type, backend);
  group->setDefaultBackend(type);
  const bool is_nccl = type == c10d::ProcessGroup::BackendType::NCCL;
  return new vit::Group{group, /*averages=*/is_nccl, /*scatters=*/is_nccl};
}

}  // namespace

extern "C" {

// Connects to the store at host:port; `is_server` serves it there first. Returns once all
// `world_size` ranks are connected. Every key gets `prefix`.
vit::Status vit_store_new(const char* host, uint16_t port, bool is_server, size_t world_size, const char* prefix,
                          int64_t timeout_ms, vit::Store** out) {
  return guarded([&] {
    c10d::TCPStoreOptions options;
    options.port = port;
    options.isServer = is_server;
    options.numWorkers = world_size;
    options.timeout = Milliseconds(timeout_ms);
    auto store = c10::make_intrusive<c10d::TCPStore>(host, options);
    *out = new vit::Store{c10::make_intrusive<c10d::PrefixStore>(prefix, store)};
  });
}

void vit_store_free(vit::Store* store) {
  guarded([&] { delete store; });
}

// A group for CPU tensors over Gloo, with connections from and to `address`.
vit::Status vit_group_gloo(vit::Store* store, const char* name, int rank, int world_size, const char* address,
                           int64_t timeout_ms, vit::Group** out) {
  return guarded([&] {
    auto prefixed = c10::make_intrusive<c10d::PrefixStore>(name, store->store);
    auto options = c10d::ProcessGroupGloo::Options::create(Milliseconds(timeout_ms));
    options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(address));
    // For the flight recorder.
    options->group_name = name;
    auto backend = c10::make_intrusive<c10d::ProcessGroupGloo>(prefixed, rank, world_size, options);
    *out = wrap(prefixed, rank, world_size, c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::GLOO, backend);
  });
}

// The entry point of the NCCL plugin (nccl/plugin.cpp): creates a ProcessGroupNCCL on a device and
// connects it, or writes the error to `message`.
using NcclBackendNew = int (*)(const c10::intrusive_ptr<c10d::Store>* store, const char* name, int device, int rank,
                               int world_size, int64_t timeout_ms, c10::intrusive_ptr<c10d::Backend>* out,
                               char* message, size_t message_size);

// A group for tensors on the CUDA device `device` over NCCL. Every rank of the group calls it.
vit::Status vit_group_nccl(vit::Store* store, const char* name, int device, int rank, int world_size,
                           int64_t timeout_ms, NcclBackendNew backend_new, vit::Group** out) {
  return guarded([&] {
    c10::intrusive_ptr<c10d::Store> prefixed = c10::make_intrusive<c10d::PrefixStore>(name, store->store);
    c10::intrusive_ptr<c10d::Backend> backend;
    char message[1024] = "";
    const int failed = backend_new(&prefixed, name, device, rank, world_size, timeout_ms, &backend, message, sizeof(message));
    TORCH_CHECK_WITH(DistBackendError, failed == 0, message);
    *out = wrap(prefixed, rank, world_size, c10::DeviceType::CUDA, c10d::ProcessGroup::BackendType::NCCL, backend);
  });
}

void vit_group_free(vit::Group* group) {
  guarded([&] { delete group; });
}

// Sums the tensors of all ranks in place.
vit::Status vit_group_all_reduce_sum(vit::Group* group, at::Tensor* tensor) {
  return guarded([&] {
    c10::NoGradGuard no_grad;
    std::vector<at::Tensor> tensors{*tensor};
    group->group->allreduce(tensors)->wait();
  });
}

// Sends or receives a tensor. Tensors between two ranks arrive in order.
vit::Status vit_group_send(vit::Group* group, at::Tensor* tensor, int to) {
  return guarded([&] {
    std::vector<at::Tensor> tensors{*tensor};
    group->group->send(tensors, to, /*tag=*/0)->wait();
  });
}

vit::Status vit_group_receive(vit::Group* group, at::Tensor* tensor, int from) {
  return guarded([&] {
    c10::NoGradGuard no_grad;
    std::vector<at::Tensor> tensors{*tensor};
    group->group->recv(tensors, from, /*tag=*/0)->wait();
  });
}

// Copies the values of `root` to every rank, as DistributedDataParallel does at the start.
vit::Status vit_group_broadcast(vit::Group* group, at::Tensor* const* tensors, size_t count, int root) {
  return guarded([&] {
    c10::NoGradGuard no_grad;
    c10d::broadcast_coalesced(group->group, vit::tensor_list(tensors, count), kBroadcastBytes, root);
  });
}

// Another reference to the same group.
vit::Status vit_group_share(vit::Group* group, vit::Group** out) {
  return guarded([&] { *out = new vit::Group(*group); });
}

// Aborts operations on the device and refuses new ones. Another thread may wait for them.
vit::Status vit_group_abort(vit::Group* group) {
  return guarded([&] { group->group->abort(); });
}

// Returns once every rank has called it.
vit::Status vit_group_barrier(vit::Group* group) {
  return guarded([&] { group->group->barrier()->wait(); });
}
}
