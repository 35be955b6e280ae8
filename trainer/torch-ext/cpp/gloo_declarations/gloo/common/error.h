#pragma once
// libtorch's ProcessGroupGloo.hpp includes this Gloo header, but uses nothing in it.
