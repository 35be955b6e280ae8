#pragma once
// libtorch's ProcessGroupGloo.hpp includes this header of Gloo's, which libtorch does not ship, and uses nothing of it.
