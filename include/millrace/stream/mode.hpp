// How a byte stream moves its bytes. Both ends of a direction go by the same mode.
//
// Source: work 003, "UNH EXS Dynamic Protocol" and its two baselines ("Performance Evaluation").
#pragma once

#include <cstdint>
#include <string_view>

#include "millrace/base/language.hpp"

namespace millrace::stream {

enum class Mode : std::uint8_t {
    dynamic,   ///< directly where an advertisement has come in time, otherwise through the ring
    direct,    ///< the sender always waits for an advertisement; the receiver never copies
    indirect,  ///< the receiver never advertises and always copies
};

/// Which protocol one end of a stream in mode `dynamic` follows. The ends need not agree.
enum class Protocol : std::uint8_t {
    /// That of work 003, and what docs/design/stream.md adds to it: sends wait a moment for an
    /// advertisement that is late, short ones leave it, receives are advertised anew as soon as the
    /// ring is empty.
    extended,
    /// That of work 003 alone, to be compared: a send goes to an advertisement that has come, or
    /// else to the ring, and every receive is advertised.
    published,
};

[[nodiscard]] constexpr std::string_view name_of(Mode mode) noexcept {
    switch (mode) {
        case Mode::dynamic: return "dynamic";
        case Mode::direct: return "direct";
        case Mode::indirect: return "indirect";
    }
    return "unknown";
}

}  // namespace millrace::stream
