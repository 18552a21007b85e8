// A hash of a name, which two processes compare where the name itself is too long to be told.
#pragma once

#include <cstdint>
#include <string_view>

#include "millrace/base/language.hpp"

namespace millrace::base {

/// FNV-1a: the same in every process and release.
[[nodiscard]] constexpr std::uint64_t name_hash(std::string_view name) noexcept {
    std::uint64_t hash = 0xcbf29ce484222325;
    for (const char letter : name) {
        hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001b3;
    }
    return hash;
}

}  // namespace millrace::base
