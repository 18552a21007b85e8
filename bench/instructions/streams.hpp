// Byte streams among the operations that callgrind counts. Called by millrace-instructions.
#pragma once

#include <string_view>

namespace millrace::bench {

/// Counted operations of one kind, in all.
inline constexpr int operations = 1200;  // batches of 16 and of 50
inline constexpr int rounds = 20;

/// "stream-store", "stream-post": bytes through the ring; "stream-direct": into advertised
/// receives. False: it has another name. Throws Error.
[[nodiscard]] bool count_streams(std::string_view operation);

}  // namespace millrace::bench
