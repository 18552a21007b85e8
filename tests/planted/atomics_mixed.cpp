// A counter to which peers add with atomics of the device, and its own process with atomics of the
// processor. Each kind is atomic to itself alone: additions get lost. Without the mistake each kind
// has a counter of its own.
#include "program.hpp"

#include <atomic>
#include <cstdint>
#include <thread>

namespace millrace::planted {

MILLRACE_CHILD(atomics_mixed) {
    const bool wrong = makes_mistake(arguments);
    constexpr std::uint64_t rounds = 50;
    const Device device;
    if (device.attributes().atomic_cap == IBV_ATOMIC_NONE) {
        say("unsupported");
        return 3;
    }
    Loopback pair{device};
    auto* const counters = reinterpret_cast<std::uint64_t*>(pair.b_memory.data());
    const std::atomic_ref<std::uint64_t> own{counters[wrong ? 0 : 1]};
    std::atomic<bool> stop{false};
    std::uint64_t added = 0;
    std::jthread processor{[&] {
        for (; !stop.load(std::memory_order_relaxed); ++added) own.fetch_add(1);
    }};
    std::optional<std::string> what;
    for (std::uint64_t i = 0; i < rounds && !what; ++i) {
        ibv_sge result = pair.a_memory.slice(0, 8);
        ibv_send_wr wr{};
        wr.sg_list = &result;
        wr.num_sge = 1;
        wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
        wr.send_flags = IBV_SEND_SIGNALED;
        wr.wr.atomic.remote_addr = pair.b_memory.address();
        wr.wr.atomic.rkey = pair.b_memory.rkey();
        wr.wr.atomic.compare_add = 1;
        ibv_send_wr* bad = nullptr;
        what = ibv_post_send(pair.a.qp.get(), &wr, &bad) != 0 ? "refused" : trouble(pair.a.sends);
    }
    stop = true;
    processor.join();
    if (what) return went_wrong(*what);
    const std::uint64_t sum = wrong ? counters[0] : counters[0] + counters[1];
    if (sum != rounds + added) return went_wrong("additions lost");
    return went_well();
}

}  // namespace millrace::planted
