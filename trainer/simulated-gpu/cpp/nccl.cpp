// ProcessGroupNCCL over TCP. A collective queues on the group's stream behind the launching stream,
// and the call returns. On the group's thread the ranks first compare their calls; its output is
// poisoned until it ends. A lost peer is an error for NCCL's watchdog: by
// TORCH_NCCL_ASYNC_ERROR_HANDLING it ends the process, or the collective hangs until it is aborted.
#include "nccl.hpp"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <thread>

#include <ATen/core/ivalue.h>
#include <c10/core/StreamGuard.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "device.hpp"
#include "links.hpp"
#include "memory.hpp"
#include "settings.hpp"

namespace sim {
namespace {

using Future = c10::ivalue::Future;
using Tensors = std::vector<at::Tensor>;

constexpr int kMostRanks = 32;

// Description of a collective that each rank sends first. All ranks must have the same text.
struct Header {
  char text[192];
  int64_t bytes;
  // Bytes to each rank in an all-to-all.
  int64_t sent[kMostRanks];
  // The values of a small collective.
  uint8_t values[2048];
};

at::Tensor bytes_of(const at::Tensor& tensor) {
  return at::from_blob(tensor.data_ptr(), {static_cast<int64_t>(tensor.nbytes())}, at::kByte);
}

// One collective, or message, of this rank.
struct Operation {
  std::string what;
  // Host views of what it reads and writes, which may be the same. In an in-place all-gather, this
  // rank's part of the output is its input and only read.
  at::Tensor input;
  Tensors outputs;
  std::vector<int64_t> sent, received;
  // Applied to the inputs of all ranks, one after the other in `gathered` with equal sizes.
  std::function<void(Operation&, const at::Tensor& gathered, int64_t stride)> apply;
  // For a message: the peer, and whether it is received from there.
  int peer = -1;
  bool receives = false;
  // Keeps the device memory alive, with its place in the stream.
  Tensors tensors;
  WorkItem item{};
  Tasks before;
  std::shared_ptr<Task> task = std::make_shared<Task>();
  uint64_t number = 0;
};

struct Record {
  std::string group, what;
  uint64_t number;
  std::shared_ptr<Task> task;
};

std::mutex records_mutex;
std::deque<Record> records;
std::vector<Record> launched;
size_t communicator_count = 0;

bool handles_errors_itself() {
  const char* text = std::getenv("TORCH_NCCL_ASYNC_ERROR_HANDLING");
  // ProcessGroupNCCL's default: SkipCleanUp.
  return text == nullptr || std::atoi(text) != 0;
}

// A communicator, which outlives the group if its thread is stuck.
class Communicator {
 public:
  Communicator(std::unique_ptr<Links> links, GroupOptions options) : links_(std::move(links)), options_(std::move(options)) {
    take(options_.device, settings().communicator_bytes, "ncclCommInitRank");
    const std::lock_guard lock(records_mutex);
    ++communicator_count;
  }

  const GroupOptions& options() const { return options_; }

  void queue(std::shared_ptr<Operation> operation) {
    const std::lock_guard lock(mutex_);
    TORCH_CHECK_WITH(DistBackendError, !is_aborted_, "NCCL communicator was aborted on rank ", options_.rank, ".");
    // Messages are compared only by their two ranks.
    operation->number = operation->peer < 0 ? ++collectives_ : ++messages_;
    {
      const std::lock_guard records_lock(records_mutex);
      records.push_back({options_.name, operation->what, operation->number, operation->task});
      if (records.size() > 256) {
        records.pop_front();
      }
      launched.push_back(records.back());
      launched.erase(std::remove_if(launched.begin(), launched.end(), [](const Record& record) { return record.task->has_ended(); }),
                     launched.end());
    }
    waiting_.push_back(std::move(operation));
    changed_.notify_all();
  }

  // Ends queued work with undefined results and refuses new work.
  void abort() {
    const std::lock_guard lock(mutex_);
    is_aborted_ = true;
    for (const auto& operation : waiting_) {
      operation->task->finish();
    }
    waiting_.clear();
    if (running_) {
      running_->task->finish();
    }
    changed_.notify_all();
  }

  // No more work follows.
  void close() {
    const std::lock_guard lock(mutex_);
    is_closed_ = true;
    changed_.notify_all();
  }

  void work() {
    for (;;) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return is_aborted_ || is_closed_ || !waiting_.empty(); });
      if (is_aborted_ || waiting_.empty()) {
        return;
      }
      running_ = waiting_.front();
      waiting_.pop_front();
      const auto operation = running_;
      lock.unlock();
      for (const auto& task : operation->before) {
        task->wait();
      }
      try {
        run(*operation);
      } catch (const std::exception& error) {
        fail(*operation, error.what());
        return;
      }
      // Nothing is kept after the end, as ProcessGroupNCCL's watchdog drops the tensors then.
      for (const auto& tensor : operation->tensors) {
        release_after(operation->item, tensor.const_data_ptr());
      }
      const auto task = operation->task;
      lock.lock();
      running_.reset();
      *operation = Operation{};
      lock.unlock();
      task->finish();
    }
  }

 private:
  std::string line(const Operation& operation) const {
    return options_.name + " #" + std::to_string(operation.number) + ": " + operation.what;
  }

  void run(Operation& operation) {
    at::NoGradGuard no_grad;
    Header own{};
    std::snprintf(own.text, sizeof(own.text), "%s", operation.peer < 0 ? line(operation).c_str() : operation.what.c_str());
    const auto input = operation.receives ? at::Tensor() : operation.input.clone();
    own.bytes = input.defined() ? static_cast<int64_t>(input.nbytes()) : 0;
    std::copy(operation.sent.begin(), operation.sent.end(), own.sent);
    if (own.bytes > 0 && own.bytes <= static_cast<int64_t>(sizeof(own.values))) {
      std::memcpy(own.values, input.const_data_ptr(), own.bytes);
    }
    for (const auto& output : operation.outputs) {
      poison(output);
    }
    if (operation.peer >= 0) {
      exchange_message(operation, own, input);
    } else {
      const auto headers = compare(own);
      int64_t most = 0;
      for (const auto& header : headers) {
        most = std::max(most, header.bytes);
      }
      auto gathered = at::zeros({options_.size * most}, at::kByte);
      if (most <= static_cast<int64_t>(sizeof(own.values))) {
        for (int64_t rank = 0; rank < options_.size; ++rank) {
          std::copy_n(headers[rank].values, most, gathered.mutable_data_ptr<uint8_t>() + rank * most);
        }
      } else {
        auto padded = at::zeros({most}, at::kByte);
        padded.narrow(0, 0, own.bytes).copy_(bytes_of(input));
        links_->gather(padded.const_data_ptr(), gathered.mutable_data_ptr(), most);
      }
      std::this_thread::sleep_for(next_delay());
      if (is_aborted()) {
        return;
      }
      operation.received = received_by(headers);
      operation.apply(operation, gathered, most);
    }
  }

  std::vector<Header> compare(const Header& own) {
    std::vector<Header> headers(options_.size);
    links_->gather(&own, headers.data(), sizeof(Header));
    for (int rank = 0; rank < options_.size; ++rank) {
      if (std::strcmp(headers[rank].text, own.text) != 0) {
        end_process("ranks call different collectives: rank " + std::to_string(options_.rank) + " \"" + own.text + "\", rank " +
                    std::to_string(rank) + " \"" + headers[rank].text + "\"");
      }
    }
    return headers;
  }

  // Start and size of this rank's part in each rank's input.
  std::vector<int64_t> received_by(const std::vector<Header>& headers) const {
    std::vector<int64_t> places;
    for (const auto& header : headers) {
      int64_t before = 0;
      for (int rank = 0; rank < options_.rank; ++rank) {
        before += header.sent[rank];
      }
      places.push_back(before);
      places.push_back(header.sent[options_.rank]);
    }
    return places;
  }

  void exchange_message(const Operation& operation, Header own, const at::Tensor& input) {
    if (!operation.receives) {
      links_->send(operation.peer, &own, sizeof(Header));
      links_->send(operation.peer, input.const_data_ptr(), input.nbytes());
      std::this_thread::sleep_for(next_delay());
      return;
    }
    Header other{};
    links_->receive(operation.peer, &other, sizeof(Header));
    if (std::strcmp(other.text, own.text) != 0) {
      end_process("ranks exchange different messages: rank " + std::to_string(options_.rank) + " receives \"" + own.text + "\", rank " +
                  std::to_string(operation.peer) + " sends \"" + other.text + "\"");
    }
    auto received = at::empty_like(operation.outputs.at(0));
    links_->receive(operation.peer, received.mutable_data_ptr(), received.nbytes());
    std::this_thread::sleep_for(next_delay());
    if (!is_aborted()) {
      operation.outputs.at(0).copy_(received);
    }
  }

  bool is_aborted() {
    const std::lock_guard lock(mutex_);
    return is_aborted_;
  }

  // A peer is lost, or later than the timeout.
  void fail(const Operation& operation, const char* error) {
    if (is_aborted()) {
      return;
    }
    if (handles_errors_itself()) {
      end_process("watchdog: NCCL error in " + line(operation) + ": " + error +
                  "; to avoid data inconsistency, we are taking the entire process down");
    }
  }

  [[noreturn]] void end_process(const std::string& why) const {
    std::fprintf(stderr, "simulated NCCL, rank %d of %s: %s (seed %llu)\n", options_.rank, options_.name.c_str(), why.c_str(),
                 static_cast<unsigned long long>(settings().seed));
    std::abort();
  }

  std::unique_ptr<Links> links_;
  GroupOptions options_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Operation>> waiting_;
  std::shared_ptr<Operation> running_;
  uint64_t collectives_ = 0, messages_ = 0;
  bool is_aborted_ = false;
  bool is_closed_ = false;
};

class LaunchedWork final : public c10d::Work {
 public:
  LaunchedWork(c10::intrusive_ptr<Future> future, StreamEvent end, StreamName stream)
      : future_(std::move(future)), end_(std::move(end)), device_(stream.device) {}

  c10::intrusive_ptr<Future> getFuture() override { return future_; }
  bool isCompleted() override { return end_.has_passed(); }
  bool isSuccess() const override { return true; }
  void synchronize() override { follow(current_stream(device_), end_); }
  // Only the stream waits, not the host.
  bool wait(std::chrono::milliseconds) override {
    synchronize();
    return true;
  }

 private:
  c10::intrusive_ptr<Future> future_;
  StreamEvent end_;
  c10::DeviceIndex device_;
};

const char* name_of(c10d::ReduceOp::RedOpType op) {
  switch (op) {
    case c10d::ReduceOp::SUM: return "sum";
    case c10d::ReduceOp::AVG: return "average";
    case c10d::ReduceOp::MIN: return "min";
    case c10d::ReduceOp::MAX: return "max";
    default: TORCH_CHECK(false, "the simulated NCCL has no such reduction");
  }
}

// The input of rank `rank`.
at::Tensor part_of(const at::Tensor& gathered, int64_t stride, int64_t rank, const at::Tensor& like) {
  return gathered.narrow(0, rank * stride, stride).view(like.scalar_type());
}

// Like NCCL, an average scales each rank's values before summing (ncclAvg, src/enqueue.cc).
at::Tensor reduced(const at::Tensor& gathered, int64_t stride, int64_t ranks, const at::Tensor& like, c10d::ReduceOp::RedOpType op) {
  at::Tensor sum;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    auto part = part_of(gathered, stride, rank, like).clone();
    if (op == c10d::ReduceOp::AVG) {
      part.mul_(1.0 / static_cast<double>(ranks));
    }
    if (!sum.defined()) {
      sum = part;
    } else if (op == c10d::ReduceOp::MIN) {
      sum = at::minimum(sum, part);
    } else if (op == c10d::ReduceOp::MAX) {
      sum = at::maximum(sum, part);
    } else {
      sum.add_(part);
    }
  }
  return sum;
}

class Group final : public c10d::Backend {
 public:
  explicit Group(std::shared_ptr<Communicator> communicator)
      : Backend(communicator->options().rank, communicator->options().size),
        communicator_(std::move(communicator)),
        stream_(stream_of_pool(communicator_->options().device, /*of_collectives=*/true)) {
    std::thread([communicator = communicator_] { communicator->work(); }).detach();
  }

  ~Group() override { communicator_->close(); }

  const std::string getBackendName() const override { return "nccl"; }

  c10::intrusive_ptr<c10d::Work> broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    return launch(describe("broadcast from " + std::to_string(options.rootRank), tensors.at(0)), tensors.at(0), tensors,
                  [root = options.rootRank](Operation& operation, const at::Tensor& gathered, int64_t stride) {
                    bytes_of(operation.outputs.at(0)).copy_(gathered.narrow(0, root * stride, stride));
                  });
  }

  c10::intrusive_ptr<c10d::Work> allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    const auto op = options.reduceOp.op_;
    return launch(describe(std::string("all_reduce ") + name_of(op), tensors.at(0)), tensors.at(0), tensors,
                  [op, ranks = getSize()](Operation& operation, const at::Tensor& gathered, int64_t stride) {
                    const auto& output = operation.outputs.at(0);
                    output.view({-1}).copy_(reduced(gathered, stride, ranks, output, op));
                  });
  }

  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions&) override {
    TORCH_CHECK(output.numel() == input.numel() * getSize() && output.scalar_type() == input.scalar_type(),
                "output tensor size must be equal to world_size times input tensor size, and of its type");
    // Like NCCL, in place if the input is its own part of the output.
    const auto parts = output.view({-1}).chunk(getSize());
    const bool is_in_place = parts.at(getRank()).const_data_ptr() == input.const_data_ptr();
    std::vector<int64_t> ranks;
    Tensors written;
    for (int64_t rank = 0; rank < getSize(); ++rank) {
      if (!is_in_place || rank != getRank()) {
        ranks.push_back(rank);
        written.push_back(parts.at(rank));
      }
    }
    return launch(describe("all_gather", input), input, written, [ranks](Operation& operation, const at::Tensor& gathered, int64_t stride) {
      for (size_t part = 0; part < ranks.size(); ++part) {
        bytes_of(operation.outputs[part]).copy_(gathered.narrow(0, ranks[part] * stride, stride));
      }
    });
  }

  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) override {
    TORCH_CHECK(input.numel() == output.numel() * getSize() && output.scalar_type() == input.scalar_type(),
                "input tensor must be the same size as output size times world size, and of its type");
    const auto op = options.reduceOp.op_;
    return launch(describe(std::string("reduce_scatter ") + name_of(op), output), input, {output},
                  [op, ranks = getSize(), rank = getRank()](Operation& operation, const at::Tensor& gathered, int64_t stride) {
                    const auto& output = operation.outputs.at(0);
                    const auto sum = reduced(gathered, stride, ranks, output, op);
                    output.view({-1}).copy_(sum.narrow(0, rank * output.numel(), output.numel()));
                  });
  }

  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& received,
                                               std::vector<int64_t>& sent, const c10d::AllToAllOptions&) override {
    const auto rows = [ranks = getSize()](const at::Tensor& tensor, std::vector<int64_t> splits) {
      if (splits.empty()) {
        splits.assign(ranks, tensor.size(0) / ranks);
      }
      // Sizes in bytes.
      const auto row = tensor.size(0) == 0 ? 0 : static_cast<int64_t>(tensor.nbytes()) / tensor.size(0);
      for (auto& split : splits) {
        split *= row;
      }
      return splits;
    };
    const auto expected = rows(output, received);
    return launch(std::string("all_to_all ") + c10::toString(input.scalar_type()), input, {output},
                  [expected](Operation& operation, const at::Tensor& gathered, int64_t stride) {
                    int64_t place = 0;
                    for (size_t rank = 0; rank < expected.size(); ++rank) {
                      const auto begin = operation.received[2 * rank], bytes = operation.received[2 * rank + 1];
                      TORCH_CHECK(bytes == expected[rank], "rank ", rank, " sends ", bytes, " bytes where ", expected[rank], " are received");
                      bytes_of(operation.outputs.at(0)).narrow(0, place, bytes).copy_(gathered.narrow(0, static_cast<int64_t>(rank) * stride + begin, bytes));
                      place += bytes;
                    }
                  },
                  rows(input, sent));
  }

  c10::intrusive_ptr<c10d::Work> send(Tensors& tensors, int to, int) override { return message(tensors.at(0), to, /*receives=*/false); }
  c10::intrusive_ptr<c10d::Work> recv(Tensors& tensors, int from, int) override { return message(tensors.at(0), from, /*receives=*/true); }

  void abort() override { communicator_->abort(); }

 private:
  static std::string describe(const std::string& what, const at::Tensor& tensor) {
    return what + " of " + std::to_string(tensor.numel()) + " " + c10::toString(tensor.scalar_type());
  }

  void require_sound(const at::Tensor& tensor) const {
    TORCH_CHECK(tensor.is_cuda(), "Tensors must be CUDA and dense");
    TORCH_CHECK(tensor.device().index() == communicator_->options().device, "Expected all tensors of a communicator on cuda:",
                int(communicator_->options().device), ", found one on ", tensor.device());
    TORCH_CHECK(tensor.is_contiguous(), "Tensors must be contiguous");
  }

  c10::intrusive_ptr<c10d::Work> message(const at::Tensor& tensor, int peer, bool receives) {
    auto operation = std::make_shared<Operation>();
    operation->what = describe("message", tensor);
    operation->peer = peer;
    operation->receives = receives;
    return receives ? queue(std::move(operation), std::nullopt, {tensor}) : queue(std::move(operation), tensor, {});
  }

  template <typename Apply>
  c10::intrusive_ptr<c10d::Work> launch(std::string what, const at::Tensor& input, const Tensors& outputs, Apply apply,
                                        std::vector<int64_t> sent = {}) {
    auto operation = std::make_shared<Operation>();
    operation->what = std::move(what);
    operation->apply = std::move(apply);
    operation->sent = std::move(sent);
    return queue(std::move(operation), input, outputs);
  }

  c10::intrusive_ptr<c10d::Work> queue(std::shared_ptr<Operation> operation, std::optional<at::Tensor> input, const Tensors& outputs) {
    require_device(operation->what.c_str(), /*is_operator=*/true);
    const auto device = communicator_->options().device;
    const auto what = operation->what;
    // Behind the work of the launching stream.
    follow(stream_, record_event(current_stream(device)));
    operation->before = pending(stream_);
    const auto item = operation->item = sim::launch(stream_);
    const auto use = [&](const at::Tensor& tensor, bool writes) {
      require_sound(tensor);
      access(stream_, item, tensor, writes, what);
      operation->tensors.push_back(tensor);
      return host_view(tensor);
    };
    if (input) {
      operation->input = use(*input, /*writes=*/false);
    }
    for (const auto& output : outputs) {
      operation->outputs.push_back(use(output, /*writes=*/true));
    }
    const auto task = operation->task;
    communicator_->queue(std::move(operation));
    add(stream_, task);
    auto future = c10::make_intrusive<Future>(c10::ListType::create(c10::TensorType::get()),
                                              std::vector<c10::Device>{c10::Device(c10::kCUDA, device)});
    {
      const c10::StreamGuard on(c10::Stream(c10::Stream::UNSAFE, {c10::kCUDA, device}, stream_.id));
      future->markCompleted(c10::IValue(outputs));
    }
    return c10::make_intrusive<LaunchedWork>(std::move(future), record_event(stream_), stream_);
  }

  std::shared_ptr<Communicator> communicator_;
  StreamName stream_;
};

}  // namespace

namespace {

// The GPU's identity for NCCL (src/init.cc), which allows to set the host's.
std::string gpu_of(c10::DeviceIndex device) {
  const char* host = std::getenv("NCCL_HOSTID");
  return std::string(host != nullptr ? host : settings().address) + " GPU " + visible_name(device);
}

void require_gpus_of_their_own(Links& links, const GroupOptions& options) {
  constexpr int64_t kBytes = 128;
  const auto name = gpu_of(options.device);
  std::vector<char> own(kBytes), all(kBytes * options.size);
  std::copy_n(name.data(), std::min<size_t>(name.size(), kBytes - 1), own.data());
  links.gather(own.data(), all.data(), kBytes);
  for (int rank = 0; rank < options.size; ++rank) {
    TORCH_CHECK_WITH(DistBackendError, rank == options.rank || std::strcmp(all.data() + rank * kBytes, own.data()) != 0,
                     "NCCL error: Duplicate GPU detected : rank ", options.rank, " and rank ", rank, " both on CUDA device ", name);
  }
}

}  // namespace

c10::intrusive_ptr<c10d::Backend> nccl_group(const c10::intrusive_ptr<c10d::Store>& store, const GroupOptions& options) {
  TORCH_CHECK(options.size <= kMostRanks, "the simulated NCCL has at most ", kMostRanks, " ranks");
  TORCH_CHECK(options.device >= 0 && options.device < settings().devices, "CUDA error: invalid device ordinal ", int(options.device));
  require_device("ncclCommInitRank", /*is_operator=*/false);
  auto prefixed = c10::make_intrusive<c10d::PrefixStore>("simulated-nccl", store);
  auto links = std::make_unique<Links>(*prefixed, options.rank, options.size, settings().address, options.timeout);
  require_gpus_of_their_own(*links, options);
  return c10::make_intrusive<Group>(std::make_shared<Communicator>(std::move(links), options));
}

std::string flight_record() {
  const std::lock_guard lock(records_mutex);
  std::string entries;
  for (const auto& record : records) {
    entries += std::string(entries.empty() ? "" : ",") + "{\"process_group\":[\"" + record.group + "\",\"\"],\"collective_seq_id\":" +
               std::to_string(record.number) + ",\"profiling_name\":\"nccl:" + record.what + "\",\"state\":\"" +
               (record.task->has_ended() ? "completed" : "scheduled") + "\"}";
  }
  return "{\"version\":\"2.10\",\"entries\":[" + entries + "]}";
}

size_t communicators() {
  const std::lock_guard lock(records_mutex);
  return communicator_count;
}

std::string left_over() {
  constexpr std::chrono::seconds kPatience{10};
  std::vector<Record> all;
  {
    const std::lock_guard lock(records_mutex);
    all = launched;
  }
  std::string lines;
  for (const auto& record : all) {
    if (!record.task->ends_within(lines.empty() ? kPatience : std::chrono::seconds(0))) {
      lines += "\n  " + record.group + " #" + std::to_string(record.number) + ": " + record.what;
    }
  }
  return lines;
}

}  // namespace sim
