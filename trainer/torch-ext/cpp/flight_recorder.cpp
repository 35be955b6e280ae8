// Collectives of this process, from c10d's FlightRecorder.hpp.
#include <torch/csrc/distributed/c10d/FlightRecorder.hpp>

#include "error.hpp"
#include "tree_reduce.hpp"

extern "C" {

// Reductions by messages that this process has started, and those completed.
void vit_reductions_by_messages(uint64_t* begun, uint64_t* ended) {
  // This order never counts an end before its start.
  *ended = vit::TreeReduce::ended;
  *begun = vit::TreeReduce::begun;
}

// Passes the recorded collectives of Gloo's groups to `take`, as JSON. Safe during collectives,
// except a group's first: the recorder adds groups to a map without a lock.
vit::Status vit_flight_record(void (*take)(void* out, const char* text, size_t length), void* out) {
  return vit::guarded([&] {
    const auto json = c10d::dump_fr_trace_json(/*includeCollectives=*/true, /*onlyActive=*/false);
    take(out, json.data(), json.size());
  });
}
}
