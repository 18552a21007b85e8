#include "measure_rpc.hpp"

#include <chrono>
#include <cstddef>
#include <vector>

#include "bench/framework/environment_scope.hpp"
#include "bench/framework/pair.hpp"
#include "bench/framework/payload.hpp"
#include "requesters.hpp"
#include "responders.hpp"
#include "response_memory.hpp"
#include "sides.hpp"

namespace millrace::bench {

RpcResult measure_rpc(const RpcCase& chosen) {
    require(chosen.response_bytes >= 16 && chosen.requesters >= 1 && chosen.responders >= 1 &&
                chosen.responders <= most_responders && chosen.window >= 1 && chosen.window <= 64 &&
                (chosen.window == 1 || (chosen.threads && chosen.responders == 1)) &&
                chosen.memory_bytes >= chosen.response_bytes && chosen.idle_percent < 100 &&
                (chosen.idle_percent == 0 || !chosen.threads) &&
                (!chosen.dispatcher_threads || chosen.per_dispatcher != 0),
            "this case");
    // Here, where it says why.
    if (chosen.pages == Pages::huge) (void)ResponseMemory{std::size_t{4} << 20, chosen.pages};
    const EnvironmentScope mode{"MILLRACE_SOFT_MODE", chosen.mode};
    const EnvironmentScope device{"MILLRACE_DEVICE", chosen.device};
    const std::vector<int> of_requesters = cores_of_side(false);
    const std::vector<int> of_responders = cores_of_side(true);
    RpcResult result;
    run_pair(
        {.shared_bytes = sizeof(Board), .deadline = std::chrono::seconds{60}},
        [&](Pair& pair) {
            ask_and_count(pair, chosen, of_requesters, result);
            return 0.0;
        },
        [&](Pair& pair) { respond(pair, chosen, of_responders); });
    return result;
}

}  // namespace millrace::bench
