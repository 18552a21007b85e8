// `--mode` of the subcommands that use byte streams.
#pragma once

#include <optional>
#include <string_view>

#include "command.hpp"
#include "millrace/stream/mode.hpp"

namespace millrace::tools {

/// Nothing: it is the name of none.
[[nodiscard]] inline std::optional<stream::Mode> stream_mode(std::string_view name) noexcept {
    for (const auto mode : {stream::Mode::dynamic, stream::Mode::direct, stream::Mode::indirect}) {
        if (name == stream::name_of(mode)) return mode;
    }
    return std::nullopt;
}

/// `mode` must outlive the parsing.
inline CLI::Option* add_stream_mode(CLI::App& command, stream::Mode& mode) {
    return command
        .add_option_function<std::string>(
            "--mode", [&mode](const std::string& name) { mode = stream_mode(name).value_or(mode); },
            "How bytes travel: straight into the receiver's memory (direct), through a ring "
            "(indirect), or the one or the other as it comes (dynamic, the default)")
        ->check(CLI::IsMember({"dynamic", "direct", "indirect"}))
        ->type_name("MODE");
}

}  // namespace millrace::tools
