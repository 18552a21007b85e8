// Requests that others go before: rpc/ serves calls of low priority by them. Not for use by itself.
#pragma once

#include <cstdint>

#include "millrace/base/status.hpp"
#include "millrace/message/server.hpp"

namespace millrace::message::detail {

/// Within a handler, of the request it has.
struct PuttingOff {
    /// Others first: the handler gets this request once more as soon as a turn has found no other
    /// one, and at the latest after `others_before` others for each that was put off before it.
    /// Until then the request is as one that was deferred, and the server keeps a copy of it. `ok`;
    /// `full`: there is no room for the copy (Tuning::max_put_off_bytes), or the request was put
    /// off before, and is to be answered now; `closed`: it is answered, or deferred, already.
    static base::Status put_off(Request& request);
    static constexpr std::uint32_t others_before = 16;
    /// base::ticks() when it was put off; 0: it was not.
    [[nodiscard]] static std::uint64_t put_off_at(const Request& request) noexcept;
};

}  // namespace millrace::message::detail
