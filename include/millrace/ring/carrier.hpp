// What carries the items of a ring of push1 data, and its counters, to the peer's memory: requests
// that are posted, or, where the peer's memory is addressable (verbs::QueuePair::map_remote), plain
// stores. The one place of the house where that is chosen; flow/ and message/ ask here.
//
// With stores, an item is laid where the consumer reads it, its mark or the counter after it is a
// release store, and credit is another. Nothing is posted, and nothing has to complete. Everything
// else is as ever: marks, counters, announcements of sleep, events, close.
//
// Memory that is stored to serves one connection only: its rings and pages are pieces of files
// (verbs::Buffer) that no other registration uses, then or later. So a late store of a peer that
// was given up, or whose other end is gone already, hits memory that nobody reads any more, and a
// late load finds 0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "millrace/base/error.hpp"
#include "millrace/connect/link.hpp"
#include "millrace/ring/design.hpp"
#include "millrace/ring/detail/end_names.hpp"
#include "millrace/verbs/device.hpp"
#include "millrace/verbs/memory.hpp"

namespace millrace::ring {

enum class Carrier : std::uint8_t {
    automatic,  ///< store wherever the peer's memory is addressable; or as MILLRACE_CARRIER says
    store,      ///< and refuse, if it is not
    post,       ///< requests, even where a store would do
};
[[nodiscard]] std::string_view name_of(Carrier carrier) noexcept;
/// Why the items of a design must be posted, whatever the device can, as a clause. Empty: they need
/// not.
[[nodiscard]] std::string_view why_posted(Design design) noexcept;

/// What an end has of its peer's memory. Nothing, if it posts.
class PeerMemory {
  public:
    PeerMemory() noexcept = default;
    /// Whether ends on this device will store, as far as that can be known before there is a peer:
    /// for code that chooses by it. Throws Error (invalid_argument), as `behind` does.
    [[nodiscard]] static bool may_store(const verbs::Context& context, Carrier asked);
    /// The peer's memory that `link` reaches, once its queue pairs are connected, if `asked` allows
    /// a store. `why_not`: the protocol of the caller has to post whatever the device can; empty if
    /// it need not. Throws Error: unsupported, if a store was asked for that cannot be;
    /// invalid_argument for a MILLRACE_CARRIER that names no carrier.
    [[nodiscard]] static PeerMemory behind(connect::Link& link, Carrier asked,
                                           std::string_view why_not);

    /// `length` bytes from `at` on, aligned to 8 or a single one, for as long as the pointer lives.
    /// Null where they are not addressable (then the end posts), or throws Error (unsupported), if
    /// it was asked to store. For set-up.
    [[nodiscard]] std::shared_ptr<std::byte> map(verbs::RemoteAddress at, std::size_t length);
    [[nodiscard]] PeerWord word(verbs::RemoteAddress at);

    [[nodiscard]] bool stores() const noexcept { return stores_; }
    /// Why it stores or posts, as a clause: "the consumer's memory is ...".
    [[nodiscard]] std::string_view reason() const noexcept { return reason_; }

  private:
    connect::Link* link_ = nullptr;
    bool stores_ = false;
    bool must_store_ = false;
    bool has_mapped_ = false;
    std::string_view reason_ = "nothing was asked";
};

}  // namespace millrace::ring
