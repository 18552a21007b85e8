// A GID as people write it: eight groups of four hexadecimal digits.
#pragma once

#include <infiniband/verbs.h>

#include <string>

#include <fmt/format.h>

namespace millrace::verbs {

[[nodiscard]] inline std::string text_of(const ibv_gid& gid) {
    std::string text;
    for (int i = 0; i < 16; i += 2) {
        text += fmt::format("{}{:02x}{:02x}", i == 0 ? "" : ":", gid.raw[i], gid.raw[i + 1]);
    }
    return text;
}

}  // namespace millrace::verbs
