// Escapes what could steer a terminal or end a C string.
#include "printable.hpp"

#include <fmt/format.h>

namespace millrace::connect {

std::string printable(std::string_view text, std::size_t limit) {
    std::string result;
    for (const char c : text) {
        const auto byte = static_cast<unsigned char>(c);
        // Bytes above 127 are left alone: they are UTF-8 in names, and harmless elsewhere.
        // So is a backslash, and what is escaped once stays as it is, however often it travels.
        const bool plain = byte >= 0x20 && byte != 0x7f;
        const std::string piece = plain ? std::string(1, c) : fmt::format("\\x{:02x}", byte);
        if (result.size() + piece.size() > limit) break;
        result += piece;
    }
    return result;
}

}  // namespace millrace::connect
