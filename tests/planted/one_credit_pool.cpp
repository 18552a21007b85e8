// Buffers for sending and for receiving come from one pool. When both sides want to send at once,
// both take all of it, no receive is posted anywhere, and neither goes on.
#include "program.hpp"

#include <cstdint>

namespace millrace::planted {

MILLRACE_CHILD(one_credit_pool) {
    const bool wrong = makes_mistake(arguments);
    constexpr std::uint64_t buffers = 8;
    const std::uint64_t reserved = wrong ? 0 : buffers / 2;  // for receiving
    const Device device;
    Loopback pair{device};
    struct Side {
        Endpoint& end;
        Buffer& memory;
        std::uint64_t to_send = buffers;  // messages that wait to be sent
        std::uint64_t to_receive = buffers;
        std::uint64_t pool = buffers;  // buffers that are free
        std::uint64_t posted = 0;      // receives
    };
    Side sides[2] = {{pair.a, pair.a_memory}, {pair.b, pair.b_memory}};
    const auto go_on = [&](Side& side) {
        while (side.to_send > 0 &&
               side.pool > (reserved > side.posted ? reserved - side.posted : 0)) {
            if (side.end.send(1, {side.memory.slice(0, 64)}) != 0) break;
            --side.to_send;
            --side.pool;
        }
        while (side.pool > 0 && side.posted < side.to_receive) {
            if (side.end.receive(2, {side.memory.slice(4096, 64)}) != 0) break;
            ++side.posted;
            --side.pool;
        }
        ibv_wc completion{};
        while (ibv_poll_cq(side.end.sends.get(), 1, &completion) == 1) ++side.pool;
        while (ibv_poll_cq(side.end.receives.get(), 1, &completion) == 1) {
            ++side.pool;
            --side.posted;
            --side.to_receive;
        }
        return side.to_send == 0 && side.to_receive == 0;
    };
    base::NapParker naps;
    const auto status = base::wait_until(
        [&] {
            const bool first = go_on(sides[0]);
            const bool second = go_on(sides[1]);
            return first && second;
        },
        base::Deadline::after(own_patience), {}, naps);
    if (status == base::Status::ok) return went_well();
    return went_wrong("stuck with " + std::to_string(sides[0].posted + sides[1].posted) +
                      " receives posted");
}

}  // namespace millrace::planted
