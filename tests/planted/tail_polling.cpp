// The receiver polls the last word of the place that its peer writes to, and takes the rest for
// there when that has come. No rule of verbs says in which order the bytes of one WRITE land: what
// tells is a completion (or a later WRITE).
#include "program.hpp"

#include <atomic>
#include <cstdint>

namespace millrace::planted {

MILLRACE_CHILD(tail_polling) {
    const bool wrong = makes_mistake(arguments);
    constexpr std::size_t length = 4096;
    const Device device;
    Loopback pair{device};
    for (unsigned round = 1; round <= 20; ++round) {
        pair.a_memory.fill(round);
        pair.a_memory.set_word(round, length - 8);
        if (!wrong && pair.b.receive(round, {}) != 0) return 2;
        if (pair.a.post(wrong ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_WRITE_WITH_IMM, round,
                        {pair.a_memory.slice(0, length)}, at(pair.b_memory)) != 0) {
            return 2;
        }
        if (wrong) {
            const std::atomic_ref<std::uint64_t> tail{
                *reinterpret_cast<std::uint64_t*>(pair.b_memory.data() + length - 8)};
            base::NapParker naps;
            const auto status = base::wait_until(
                [&] {
                    ibv_wc unused{};
                    static_cast<void>(ibv_poll_cq(pair.b.receives.get(), 1, &unused));
                    return tail.load(std::memory_order_acquire) == round;
                },
                base::Deadline::after(own_patience), {}, naps);
            if (status != base::Status::ok) return went_wrong("stuck");
        } else if (const auto what = trouble(pair.b.receives)) {
            return went_wrong(*what);
        }
        if (!conformance::same(pair.a_memory, 0, pair.b_memory, 0, length)) {
            return went_wrong("old bytes before the new tail");
        }
        if (const auto what = trouble(pair.a.sends)) return went_wrong(*what);
    }
    return went_well();
}

}  // namespace millrace::planted
