// `--mode` and `--type` of the subcommands that use byte streams.
#pragma once

#include <optional>
#include <string_view>

#include "command_line/command.hpp"
#include "millrace/stream/mode.hpp"
#include "millrace/stream/type.hpp"

namespace millrace::tools {

/// Nothing: it is the name of none.
[[nodiscard]] inline std::optional<stream::Mode> stream_mode(std::string_view name) noexcept {
    for (const auto mode : {stream::Mode::dynamic, stream::Mode::direct, stream::Mode::indirect}) {
        if (name == stream::name_of(mode)) return mode;
    }
    return std::nullopt;
}

[[nodiscard]] inline std::optional<stream::Type> stream_type(std::string_view name) noexcept {
    for (const auto type : {stream::Type::stream, stream::Type::seqpacket}) {
        if (name == stream::name_of(type)) return type;
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

/// `type` must outlive the parsing.
inline CLI::Option* add_stream_type(CLI::App& command, stream::Type& type) {
    return command
        .add_option_function<std::string>(
            "--type", [&type](const std::string& name) { type = stream_type(name).value_or(type); },
            "What a receive takes: the bytes that are there (stream, the default), or one message, "
            "which is what one send has sent (seqpacket)")
        ->check(CLI::IsMember({"stream", "seqpacket"}))
        ->type_name("TYPE");
}

}  // namespace millrace::tools
