// A completion is looked for once, right after the request: where everything completes when it is
// posted it is always there.
#include "program.hpp"

#include <cstdint>

namespace millrace::planted {

MILLRACE_CHILD(looking_once) {
    const bool wrong = makes_mistake(arguments);
    const Device device;
    Loopback pair{device};
    for (std::uint32_t i = 0; i < 50; ++i) {
        if (pair.a.write(i, {pair.a_memory.slice(0, 8)}, at(pair.b_memory), IBV_SEND_SIGNALED) !=
            0) {
            return went_wrong("refused");
        }
        if (wrong) {
            ibv_wc completion{};
            if (ibv_poll_cq(pair.a.sends.get(), 1, &completion) != 1) {
                return went_wrong("posted, and not complete");
            }
        } else if (const auto what = trouble(pair.a.sends)) {
            return went_wrong(*what);
        }
    }
    return went_well();
}

}  // namespace millrace::planted
