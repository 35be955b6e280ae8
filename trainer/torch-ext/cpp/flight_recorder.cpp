// What c10d's flight recorder (torch/csrc/distributed/c10d/FlightRecorder.hpp) knows of this process's collectives.
#include <torch/csrc/distributed/c10d/FlightRecorder.hpp>

#include "error.hpp"
#include "tree_reduce.hpp"

extern "C" {

// How many reductions by messages this process has begun, and how many of them have ended.
void vit_reductions_by_messages(uint64_t* begun, uint64_t* ended) {
  // An end that comes in between is not counted before its beginning.
  *ended = vit::TreeReduce::ended;
  *begun = vit::TreeReduce::begun;
}

// Gives the collectives of Gloo's groups that are still recorded to `take`, as JSON; finished ones too. Safe beside
// running collectives, except a group's first: the recorder notes groups in a map without a lock.
vit::Status vit_flight_record(void (*take)(void* out, const char* text, size_t length), void* out) {
  return vit::guarded([&] {
    const auto json = c10d::dump_fr_trace_json(/*includeCollectives=*/true, /*onlyActive=*/false);
    take(out, json.data(), json.size());
  });
}
}
