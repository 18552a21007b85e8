#include "millrace/rpc/result.hpp"

namespace millrace::rpc {

std::string_view name_of(Code code) noexcept {
    switch (code) {
        case Code::ok: return "ok";
        case Code::overloaded: return "overloaded";
        case Code::draining: return "draining";
        case Code::late: return "late";
        case Code::not_sent: return "not_sent";
        case Code::unknown_procedure: return "unknown_procedure";
        case Code::mismatch: return "mismatch";
        case Code::stale_table: return "stale_table";
        case Code::malformed: return "malformed";
        case Code::failed: return "failed";
        case Code::dropped: return "dropped";
        case Code::too_large: return "too_large";
        case Code::cancelled: return "cancelled";
        case Code::expired: return "expired";
        case Code::session_lost: return "session_lost";
        case Code::timed_out: return "timed_out";
        case Code::closed: return "closed";
        case Code::peer_lost: return "peer_lost";
        case Code::bad_answer: return "bad_answer";
    }
    return "unknown";
}

Code code_of(message::Outcome outcome) noexcept {
    using message::Outcome;
    switch (outcome) {
        case Outcome::ok: return Code::ok;
        case Outcome::failed: return Code::failed;
        case Outcome::dropped: return Code::dropped;
        case Outcome::overloaded: return Code::overloaded;
        case Outcome::draining: return Code::draining;
        case Outcome::too_large: return Code::too_large;
        case Outcome::cancelled: return Code::cancelled;
        case Outcome::expired: return Code::expired;
        case Outcome::session_lost: return Code::session_lost;
        case Outcome::timed_out: return Code::timed_out;
        case Outcome::closed: return Code::closed;
        case Outcome::peer_lost: return Code::peer_lost;
    }
    return Code::failed;
}

}  // namespace millrace::rpc
