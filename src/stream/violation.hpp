// What a peer did that the protocol does not allow, told by value. Answered by everything that
// takes a peer's words (wire.hpp, Credits, Sender, Receiver, Connection).
#pragma once

#include <cstdint>
#include <string_view>

namespace millrace::stream {

enum class [[nodiscard]] Violation : std::uint8_t {
    none = 0,
    malformed,             ///< a message of no known kind, of a wrong size, or with unknown bits
    credit_overrun,        ///< a message for which it had no credit
    credit_forged,         ///< credits returned for messages that were never sent
    advert_unexpected,     ///< an ADVERT in mode indirect, or before its CANCEL is answered
    advert_number,         ///< an ADVERT that is not the next one
    advert_range,          ///< an ADVERT of no bytes, too many, or beyond the end of memory
    advert_phase,          ///< an ADVERT of a phase in which the peer cannot be
    advert_sequence,       ///< an ADVERT of a place in the stream that it cannot be for
    advert_overflow,       ///< more ADVERTs at once than were agreed on
    acknowledged_unsent,   ///< an ACK for bytes that never were in the ring
    direct_unexpected,     ///< a direct transfer that no advertisement can have brought about
    direct_overrun,        ///< a direct transfer longer than what was advertised
    indirect_unexpected,   ///< an indirect transfer in mode direct
    indirect_overrun,      ///< an indirect transfer beyond the room or the end of the ring
    sequence_gap,          ///< a transfer, FIN or CANCELLED that is not at the end of the stream
    cancel_unexpected,     ///< a CANCEL before the one before it is answered
    cancelled_unexpected,  ///< a CANCELLED without a CANCEL
    message_mark,          ///< an end of a message where none can be, or none where one must
    after_end,             ///< more of the stream behind its FIN
    /// None of the peer's: there is no memory here to keep what it said. The stream ends likewise.
    no_memory,
};

[[nodiscard]] constexpr std::string_view name_of(Violation violation) noexcept {
    switch (violation) {
        case Violation::none: return "none";
        case Violation::malformed: return "malformed";
        case Violation::credit_overrun: return "credit_overrun";
        case Violation::credit_forged: return "credit_forged";
        case Violation::advert_unexpected: return "advert_unexpected";
        case Violation::advert_number: return "advert_number";
        case Violation::advert_range: return "advert_range";
        case Violation::advert_phase: return "advert_phase";
        case Violation::advert_sequence: return "advert_sequence";
        case Violation::advert_overflow: return "advert_overflow";
        case Violation::acknowledged_unsent: return "acknowledged_unsent";
        case Violation::direct_unexpected: return "direct_unexpected";
        case Violation::direct_overrun: return "direct_overrun";
        case Violation::indirect_unexpected: return "indirect_unexpected";
        case Violation::indirect_overrun: return "indirect_overrun";
        case Violation::sequence_gap: return "sequence_gap";
        case Violation::cancel_unexpected: return "cancel_unexpected";
        case Violation::cancelled_unexpected: return "cancelled_unexpected";
        case Violation::message_mark: return "message_mark";
        case Violation::after_end: return "after_end";
        case Violation::no_memory: return "no_memory";
    }
    return "unknown";
}

}  // namespace millrace::stream
