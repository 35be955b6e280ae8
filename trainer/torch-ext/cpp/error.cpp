#include "error.hpp"

#include <unistd.h>

namespace vit {

thread_local std::string last_error;

Status remember_error(Status status, const char* message) noexcept {
  try {
    last_error = message;
  } catch (...) {
    last_error.clear();
  }
  return status;
}

}  // namespace vit

extern "C" {

const char* vit_last_error() {
  return vit::last_error.c_str();
}

// Exits the process without static destructors: libtorch's run while threads of a process group
// still use what they destroy.
void vit_exit_now(int code) {
  _exit(code);
}
}
