// What a socket's sends are to its receives. Both ends are of the same type.
#pragma once

#include <cstdint>
#include <string_view>

#include "millrace/base/language.hpp"

namespace millrace::stream {

enum class Type : std::uint8_t {
    stream,     ///< bytes alone: a receive takes what is there (SOCK_STREAM)
    seqpacket,  ///< messages: a receive takes what one send has sent (SOCK_SEQPACKET)
};

[[nodiscard]] constexpr std::string_view name_of(Type type) noexcept {
    switch (type) {
        case Type::stream: return "stream";
        case Type::seqpacket: return "seqpacket";
    }
    return "unknown";
}

}  // namespace millrace::stream
