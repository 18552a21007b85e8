// How messages of a session travel in one direction. Chosen by the client for each direction
// (ClientOptions::requests, ClientOptions::answers); what a server allows stands in ServerOptions.
// docs/messaging.md compares the combinations.
//
//     auto client =
//         message::Client::connect(address, {.answers = message::Transfer::send}, deadline);
//
// Source: work 004, sections 3 and 4 (requests and responses by WRITE and by SEND).
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>

#include "millrace/base/language.hpp"

namespace millrace::message {

enum class Transfer : std::uint8_t {
    write,   ///< by WRITEs, or stores, into a ring of the receiver, which looks at memory
    send,    ///< by SENDs into receives that the receiver has posted; it polls completions
    shared,  ///< requests only: by WRITEs, or stores, into one buffer that all clients of the
             ///< server write into, for clients that it trusts (Polling::shared); answers come by
             ///< SEND
};
/// "write", "send", "shared".
[[nodiscard]] std::string_view name_of(Transfer transfer) noexcept;
/// None: it is the name of none.
[[nodiscard]] std::optional<Transfer> parse_transfer(std::string_view name) noexcept;

/// How an end posts what it sends, by rc, uc and ud. Each is on; a study switches one off to
/// measure what it brings. Source: work 004, section 8.
struct PostingHabits {
    /// Frames and packets up to what the queue pair takes travel within their request.
    bool inlines = true;
    /// A request leaves a completion only where slots of the send queue, or the memory that it is
    /// sent from, are needed, and not each.
    bool signals_selectively = true;
};

/// Messages that do not go through the receiver's ring (or receives): the sender keeps them in
/// registered memory of its own and announces them by a small message, and the receiver READs them
/// (rendezvous), while smaller ones go on. Only by rc, and only where both ends allow it; elsewhere
/// large messages travel in pieces among the small ones.
struct LargeMessages {
    bool allowed = true;
    /// This end sends messages so whose payload has more bytes than this. 0: what is longer than
    /// half of the ring that it sends into; less than 48 is taken for 48. `never`: none, but it
    /// READs what the other end announces.
    std::size_t longer_than = 0;
    static constexpr std::size_t never = std::numeric_limits<std::size_t>::max();
    /// Bytes that lie here for one peer until it has READ them, and bytes of that peer's that are
    /// READ, or lie here READ, at one time; a single message may be longer. Beyond, requests
    /// travel in pieces, answers wait here until others were READ, and what is READ waits at the
    /// peer.
    std::size_t max_bytes = std::size_t{16} << 20;
    /// Of a client: its requests reach the handler in the order in which they were sent: those
    /// after a large one wait at the server until that is READ. Otherwise they overtake it.
    bool keeps_order = false;
};

/// What a server's clients can do to each other's memory.
enum class Protection : std::uint8_t {
    domains,  ///< nothing: each has a protection domain of its own. What cannot be so, is refused
    trusted,  ///< anything: a client that knows or guesses a key reaches what it stands for
};
/// "domains", "trusted".
[[nodiscard]] std::string_view name_of(Protection protection) noexcept;

/// Where requests that travel by SEND land at a server.
enum class Receives : std::uint8_t {
    own,     ///< in receives of each client's own: as many as it has credits for
    shared,  ///< in one shared receive queue of the server: for clients that it trusts, as one that
             ///< sends more than its share leaves the others without receives
};
/// "own", "shared".
[[nodiscard]] std::string_view name_of(Receives receives) noexcept;

}  // namespace millrace::message
