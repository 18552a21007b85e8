// No request is ever signaled, so no slot of the send queue ever comes back.
#include "program.hpp"

#include <cstdint>

namespace millrace::planted {

MILLRACE_CHILD(never_signaling) {
    const bool wrong = makes_mistake(arguments);
    const Device device;
    Loopback pair{device};
    const std::uint32_t slots = pair.a.capacity.max_send_wr;
    for (std::uint32_t i = 0; i < 10 * slots; ++i) {
        const bool signal = !wrong && i % slots == slots - 1;
        const int error = pair.a.write(i, {pair.a_memory.slice(0, 8)}, at(pair.b_memory),
                                       signal ? unsigned{IBV_SEND_SIGNALED} : 0U);
        if (error != 0) return went_wrong(error == ENOMEM ? "send queue full" : "refused");
        if (!signal) continue;
        if (const auto what = trouble(pair.a.sends)) return went_wrong(*what);
    }
    return went_well();
}

}  // namespace millrace::planted
