// Points in time for Rust.
#include "moment.hpp"

#include "device_index.hpp"
#include "error.hpp"

using vit::guarded;

extern "C" {

// The present moment of a device, whose `index` is that of a CUDA device, or negative for the CPU.
vit::Status vit_moment_new(int index, vit::Moment** out) {
  return guarded([&] { *out = new vit::Moment(vit::Moment::now(vit::device_of(index))); });
}

void vit_moment_free(vit::Moment* moment) {
  guarded([&] { delete moment; });
}

vit::Status vit_moment_seconds_since(const vit::Moment* moment, const vit::Moment* earlier, double* seconds) {
  return guarded([&] { *seconds = moment->seconds_since(*earlier); });
}
}
