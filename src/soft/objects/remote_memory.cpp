// Memory of a peer for the program itself to write to: where a WRITE of it has nothing to copy.
// Called through verbs/ by rings whose producer lays its items where the consumer reads them.
#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>

#include "millrace/base/detail/uncancelled.hpp"
#include "millrace/soft/device.hpp"
#include "millrace/soft/wire.hpp"
#include "process/context.hpp"
#include "queue_pair/queue_pair.hpp"
#include "regions/region_facts.hpp"

namespace millrace::soft {

std::shared_ptr<std::byte> map_remote(ibv_qp* qp, std::uint64_t address, std::uint32_t rkey,
                                      std::size_t length) noexcept try {
    const base::Uncancelled held;
    auto& own = *static_cast<QueuePair*>(qp);
    std::shared_ptr<PeerNode> peer;
    std::uint32_t pd = 0;
    {
        const auto sends = own.sends.hold();
        // On a link, what is written must not be seen before it has travelled.
        if (own.cable != nullptr || !own.connection(sends)) return nullptr;
        peer = own.connection(sends).peer();
        pd = own.connection(sends).view().control->pd.load(std::memory_order_relaxed);
    }
    const auto facts = read_region(*peer->region(rkey), rkey);
    const std::uint64_t offset = facts ? address - facts->iova : 0;
    if (!facts || facts->pd != pd || (facts->access & IBV_ACCESS_REMOTE_WRITE) == 0 ||
        (facts->access & access_window) != 0 || offset > facts->length ||
        length > facts->length - offset)
        return nullptr;
    const std::shared_ptr<std::byte> region = peer->map(*facts, rkey);
    return {region, region != nullptr ? region.get() + offset : nullptr};
} catch (const std::exception&) {
    return nullptr;
}

bool maps_remote(ibv_context* context) noexcept { return context_of(context)->cable == nullptr; }
bool shares_memory(ibv_qp* qp) noexcept {
    auto& own = *static_cast<QueuePair*>(qp);
    return bool{own.connection(own.sends.hold())};
}
void leave_out_icrc(ibv_qp* qp) noexcept {
    const auto sends = static_cast<QueuePair*>(qp)->sends.hold();
    if (sends->transport != nullptr) sends->transport->leave_out_icrc();
}

}  // namespace millrace::soft
