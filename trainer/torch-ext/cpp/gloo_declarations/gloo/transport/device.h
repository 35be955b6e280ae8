#pragma once
// Types that libtorch's ProcessGroupGloo.hpp uses from Gloo headers, which libtorch does not ship.
namespace gloo {
namespace transport {
class Device;
class UnboundBuffer;
}  // namespace transport
}  // namespace gloo
