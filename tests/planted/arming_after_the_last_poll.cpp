// The receiver polls until the queue is empty, arms, and sleeps without looking again: what came
// between the last poll and the arming wakes nobody.
#include "program.hpp"

#include <cstdint>

namespace millrace::planted {

MILLRACE_CHILD(arming_after_the_last_poll) {
    const bool wrong = makes_mistake(arguments);
    const Device device;
    Loopback pair{device};
    for (std::uint64_t id = 0; id < 4; ++id) {
        if (pair.b.receive(id, {pair.b_memory.slice(64 * id, 64)}) != 0) return 2;
    }
    ibv_wc completion{};
    if (ibv_poll_cq(pair.b.receives.get(), 1, &completion) != 0) return 2;  // empty
    // The message that comes at the wrong moment. Its completion at the sender proves that it is
    // there; in a real program it is the other process that is quick just now.
    if (pair.a.send(1, {pair.a_memory.slice(0, 8)}) != 0) return 2;
    if (const auto what = trouble(pair.a.sends)) return went_wrong(*what);
    if (ibv_req_notify_cq(pair.b.receives.get(), 0) != 0) return 2;
    if (!wrong) {
        if (ibv_poll_cq(pair.b.receives.get(), 1, &completion) == 1) return went_well();
    }
    if (!conformance::event_waits(pair.b.channel, own_patience)) return went_wrong("never woken");
    return went_well();
}

}  // namespace millrace::planted
