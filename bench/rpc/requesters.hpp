// The process of all requesters. Used by measure_rpc.cpp.
#pragma once

#include <vector>

#include "bench/framework/pair.hpp"
#include "measure_rpc.hpp"

namespace millrace::bench {

/// Asks until there are enough responses, by clients of each requester or by ports of dispatchers,
/// and says what it took, also by what the responders have left on the board. `cores`: of its
/// threads, if there are several. Throws Error.
void ask_and_count(Pair& pair, const RpcCase& chosen, const std::vector<int>& cores,
                   RpcResult& result);

}  // namespace millrace::bench
