#pragma once
// How a C++ exception reaches Rust: every interface function returns a Status. The message of a
// failed call stays with its thread until the next failed call.
#include <exception>
#include <string>

#include <c10/util/Exception.h>

namespace vit {

enum Status : int {
  kOk = 0,
  kCommunication = 1,
  kOutOfDeviceMemory = 2,
  kOutOfHostMemory = 3,
  kOther = 4,
};

Status remember_error(Status status, const char* message) noexcept;

// Runs `body` and turns any exception into a Status and a stored message.
template <typename Body>
Status guarded(Body&& body) noexcept {
  try {
    body();
    return kOk;
  } catch (const c10::DistError& error) {
    return remember_error(kCommunication, error.what_without_backtrace());
  } catch (const c10::OutOfMemoryError& error) {
    return remember_error(kOutOfDeviceMemory, error.what_without_backtrace());
  } catch (const c10::Error& error) {
    return remember_error(kOther, error.what_without_backtrace());
  } catch (const std::bad_alloc&) {
    return remember_error(kOutOfHostMemory, "out of host memory");
  } catch (const std::exception& error) {
    return remember_error(kOther, error.what());
  } catch (...) {
    return remember_error(kOther, "C++ threw something that is not an exception");
  }
}

}  // namespace vit
