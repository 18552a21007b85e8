// The choice between a store and a request, see the header.
#include "millrace/ring/carrier.hpp"

#include <cstdint>
#include <cstdlib>
#include <string>

#include <fmt/format.h>

#include "millrace/base/error.hpp"

namespace millrace::ring {
namespace {

[[noreturn]] void cannot_store(const connect::Link& link, std::string_view cause) {
    throw base::Error{base::ErrorCode::unsupported, "store to a peer's memory", link.peer_name(),
                      std::string{cause},
                      "leave the carrier automatic, or choose post; docs/flow.md says when a store "
                      "can be"};
}

/// `asked`, or what the environment says where nothing was.
Carrier chosen(Carrier asked) {
    if (asked != Carrier::automatic) return asked;
    const char* const named = std::getenv("MILLRACE_CARRIER");
    if (named == nullptr || *named == '\0') return asked;
    for (const Carrier carrier : {Carrier::automatic, Carrier::store, Carrier::post}) {
        if (name_of(carrier) == named) return carrier;
    }
    throw base::Error{base::ErrorCode::invalid_argument, "choose the carrier of a ring",
                      fmt::format("MILLRACE_CARRIER={}", named), "it names no carrier",
                      "use automatic, store or post"};
}

constexpr std::string_view because_addressable =
    "the peer's memory is this process's, too (soft device, mode fast)";
constexpr std::string_view because_not_addressable =
    "the device does not make the peer's memory addressable";

}  // namespace

std::string_view name_of(Carrier carrier) noexcept {
    switch (carrier) {
        case Carrier::automatic: return "automatic";
        case Carrier::store: return "store";
        case Carrier::post: return "post";
    }
    return "unknown";
}

std::string_view why_posted(Design design) noexcept {
    switch (design.data) {
        case DataFlow::push2: return "the data of push2 are SENDs, which the device matches";
        case DataFlow::pull: return "the consumer of pull data fetches them";
        case DataFlow::push1: break;
    }
    if (design.transfer == TransferNotification::immediate) {
        return "immediate data come with the completion of a WRITE";
    }
    return {};
}

bool PeerMemory::may_store(const verbs::Context& context, Carrier asked) {
    return chosen(asked) != Carrier::post && context.maps_remote();
}

PeerMemory PeerMemory::behind(connect::Link& link, Carrier asked, std::string_view why_not) {
    PeerMemory memory;
    memory.link_ = &link;
    const Carrier carrier = chosen(asked);
    // What everything is asked to do by the environment, some protocols cannot.
    memory.must_store_ = asked == Carrier::store;
    if (carrier == Carrier::post) {
        memory.reason_ = "it was asked to";
    } else if (!why_not.empty()) {
        if (memory.must_store_) cannot_store(link, why_not);
        memory.reason_ = why_not;
    } else {
        memory.stores_ = true;
        memory.reason_ = because_addressable;
    }
    return memory;
}

std::shared_ptr<std::byte> PeerMemory::map(verbs::RemoteAddress at, std::size_t length) {
    if (!stores_) return nullptr;
    std::shared_ptr<std::byte> memory;
    if (length == 1 || at.address % sizeof(std::uint64_t) == 0)
        memory = link_->queue_pair().map_remote(at, length);
    if (memory != nullptr) {
        has_mapped_ = true;
        return memory;
    }
    if (must_store_) cannot_store(*link_, because_not_addressable);
    if (!has_mapped_) {
        stores_ = false;
        reason_ = because_not_addressable;
    }
    return nullptr;
}

PeerWord PeerMemory::word(verbs::RemoteAddress at) {
    std::shared_ptr<std::byte> memory = map(at, sizeof(std::uint64_t));
    if (memory == nullptr) return nullptr;
    return {memory, reinterpret_cast<std::uint64_t*>(memory.get())};
}

}  // namespace millrace::ring
