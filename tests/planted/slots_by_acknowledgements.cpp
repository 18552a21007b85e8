// The sender counts a slot of its send queue as free when the peer's answer arrives. The answer can
// come before the completion is polled, so that the queue overflows.
#include "program.hpp"

#include <cstdint>

namespace millrace::planted {

MILLRACE_CHILD(slots_by_acknowledgements) {
    const bool wrong = makes_mistake(arguments);
    Options options;
    options.max_send = 4;
    options.max_receive = 64;
    const Device device;
    Loopback pair{device, options};
    const std::uint32_t slots = pair.a.capacity.max_send_wr;
    std::uint32_t free = slots;
    for (std::uint32_t i = 0; i < 8 * slots; ++i) {
        if (pair.b.receive(i, {pair.b_memory.slice(0, 64)}) != 0) return 2;
        if (pair.a.receive(i, {pair.a_memory.slice(64, 64)}) != 0) return 2;
        if (free == 0) return 2;
        --free;
        const int error = pair.a.send(i, {pair.a_memory.slice(0, 8)});
        if (error != 0) return went_wrong(error == ENOMEM ? "send queue full" : "refused");
        if (const auto what = trouble(pair.b.receives)) return went_wrong(*what);
        if (pair.b.send(i, {pair.b_memory.slice(64, 8)}) != 0) return 2;  // the answer
        if (const auto what = trouble(pair.b.sends)) return went_wrong(*what);
        if (const auto what = trouble(pair.a.receives)) return went_wrong(*what);
        if (!wrong) {
            if (const auto what = trouble(pair.a.sends)) return went_wrong(*what);
        }
        ++free;
    }
    return went_well();
}

}  // namespace millrace::planted
