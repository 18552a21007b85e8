// Text from outside, made fit for messages. Used wherever this folder quotes a person or a peer.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace millrace::connect {

/// At most `limit` bytes of `text`, control characters escaped. Done twice, it changes nothing
/// more.
[[nodiscard]] std::string printable(std::string_view text, std::size_t limit);

}  // namespace millrace::connect
