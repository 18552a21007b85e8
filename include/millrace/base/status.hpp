// The outcome of a hot-path operation, told by value.
#pragma once

#include <cstdint>
#include <string_view>

#include "millrace/base/language.hpp"

namespace millrace::base {

/// Every `try_…` operation and every wait of every abstraction answers with one of these.
enum class [[nodiscard]] Status : std::uint8_t {
    ok = 0,
    full,       ///< no room now; try again, or wait
    empty,      ///< nothing there now; try again, or wait
    timed_out,  ///< the deadline passed; nothing was done
    cancelled,  ///< the deadline's cancellation was requested; nothing was done
    closed,     ///< closed in good order and, for a consumer, drained
    peer_lost,  ///< the peer died or the connection broke
    too_large,  ///< the item can never fit; nothing was done
};

[[nodiscard]] constexpr std::string_view name_of(Status status) noexcept {
    switch (status) {
        case Status::ok: return "ok";
        case Status::full: return "full";
        case Status::empty: return "empty";
        case Status::timed_out: return "timed_out";
        case Status::cancelled: return "cancelled";
        case Status::closed: return "closed";
        case Status::peer_lost: return "peer_lost";
        case Status::too_large: return "too_large";
    }
    return "unknown";
}

}  // namespace millrace::base
