#pragma once
// What libtorch's ProcessGroupGloo.hpp names of Gloo's headers, which libtorch does not ship: held by pointer only.
namespace gloo {
namespace transport {
class Device;
class UnboundBuffer;
}  // namespace transport
}  // namespace gloo
