// A buffer is registered anew, and the peer goes on with the key of the first registration.
#include "program.hpp"

#include <cstdint>

namespace millrace::planted {

MILLRACE_CHILD(stale_rkey) {
    const bool wrong = makes_mistake(arguments);
    const Device device;
    Loopback pair{device};
    auto* const memory = pair.b_memory.data();
    const auto enroll = [&] {
        return conformance::Region{
            conformance::made(ibv_reg_mr(pair.b_domain.get(), memory, 4096,
                                         IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE),
                              "ibv_reg_mr")};
    };
    conformance::Region region = enroll();
    std::uint32_t key_at_the_peer = region->rkey;
    for (int round = 0; round < 3; ++round) {
        if (pair.a.write(1, {pair.a_memory.slice(0, 64)},
                         {reinterpret_cast<std::uint64_t>(memory), key_at_the_peer}) != 0) {
            return 2;
        }
        if (const auto what = trouble(pair.a.sends)) return went_wrong(*what);
        region.reset();
        region = enroll();
        if (!wrong) key_at_the_peer = region->rkey;
    }
    return went_well();
}

}  // namespace millrace::planted
