#include "terms.hpp"

#include <bit>
#include <string>

#include "credits.hpp"
#include "millrace/base/error.hpp"

namespace millrace::stream {
namespace {

void require(bool holds, const char* what, std::uint64_t value, const char* range) {
    if (holds) return;
    throw base::Error{base::ErrorCode::invalid_argument, "set up a byte stream",
                      std::string{what} + " of " + std::to_string(value),
                      std::string{"it is not "} + range, "choose a value in that range"};
}

void require_within(const char* what, std::uint64_t value, std::uint64_t least,
                    std::uint64_t most) {
    const std::string range = std::to_string(least) + " to " + std::to_string(most);
    require(value >= least && value <= most, what, value, range.c_str());
}

void check_direction(const DirectionTerms& terms) {
    if (terms.mode != Mode::direct) {
        require(std::has_single_bit(terms.ring_bytes) && terms.ring_bytes <= largest_ring,
                "an intermediate ring", terms.ring_bytes, "a power of two, 2^40 at most");
        require(terms.mark_bytes <= terms.ring_bytes, "a message's mark", terms.mark_bytes,
                "within the ring");
    }
    if (terms.mode != Mode::indirect) {
        require_within("a number of advertisements", terms.adverts, 1, most_adverts);
    }
}

}  // namespace

void check(const Terms& terms) {
    check_direction(terms.outgoing);
    check_direction(terms.incoming);
    require_within("a number of message slots", terms.own_slots, fewest_slots, most_slots);
    require_within("a number of the peer's message slots", terms.peer_slots, fewest_slots,
                   most_slots);
    require_within("a number of sends", terms.sends, 1, most_operations);
    require_within("a number of receives", terms.receives, 1, most_operations);
    require_within("a length of transfers", terms.transfer_bytes, 1, longest_transfer);
    require_within("a length of pieces", terms.ring_piece_bytes, 1, longest_transfer);
}

}  // namespace millrace::stream
