// The process of all responders. Used by measure_rpc.cpp.
#pragma once

#include <vector>

#include "bench/framework/pair.hpp"
#include "measure_rpc.hpp"

namespace millrace::bench {

/// Answers until the requesters have enough, and leaves its counts on the board. `cores`: of its
/// threads, if each responder has one. Throws Error.
void respond(Pair& pair, const RpcCase& chosen, const std::vector<int>& cores);

}  // namespace millrace::bench
