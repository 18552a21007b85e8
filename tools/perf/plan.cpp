#include "perf/plan.hpp"

#include <array>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "millrace/base/error.hpp"
#include "millrace/base/status.hpp"
#include "stream_options.hpp"

namespace millrace::tools::perf {

using base::Error;
using base::ErrorCode;
using base::Status;

namespace {

constexpr std::uint32_t most_text = 1 << 20;

constexpr const char* directions[] = {"forward", "reverse", "both"};

[[noreturn]] void fail(const stream::Socket& control, Status status, const char* attempted) {
    switch (status) {
        case Status::cancelled:
            throw Error{ErrorCode::cancelled, attempted, control.peer_name(),
                        "interrupted by a signal", ""};
        case Status::timed_out:
            throw Error{ErrorCode::timed_out, attempted, control.peer_name(), "it does not answer",
                        "look whether its process is stopped or overloaded"};
        case Status::closed:
            throw Error{ErrorCode::closed, attempted, control.peer_name(),
                        "it ended the conversation", "look at what its process reported"};
        default:
            throw Error{ErrorCode::peer_lost, attempted, control.peer_name(),
                        control.failure().empty() ? "the connection broke" : control.failure(),
                        "look at what its process reported"};
    }
}

void read(stream::Socket& control, std::span<std::byte> into, const base::Deadline& deadline) {
    while (!into.empty()) {
        std::size_t size = 0;
        const Status status = control.read_some(into, size, deadline);
        if (status != Status::ok) fail(control, status, "hear the other end of a measurement");
        into = into.subspan(size);
    }
}

}  // namespace

std::string Plan::wrong() const {
    if (streams < 1 || streams > most_streams) {
        return fmt::format("{} streams; there may be 1 to {}", streams, most_streams);
    }
    if (bytes == 0 && (seconds < 1 || seconds > most_seconds)) {
        return fmt::format("{} seconds; there may be 1 to {}", seconds, most_seconds);
    }
    if (bytes != 0 && bytes < streams) return "fewer bytes than streams";
    if (length < 1 || length > most_length) {
        return fmt::format("{} bytes in one send; there may be 1 to {}", length, most_length);
    }
    if (buffers < 1 || buffers > most_buffers) {
        return fmt::format("{} buffers of a stream; there may be 1 to {}", buffers, most_buffers);
    }
    const std::uint64_t memory = length * buffers * lanes();
    if (memory > most_memory) {
        return fmt::format(
            "{} bytes of buffers; there may be {}: fewer streams, buffers or bytes "
            "of a send",
            memory, most_memory);
    }
    return {};
}

nlohmann::json Plan::to_json() const {
    return {{"tcp", tcp},
            {"direction", directions[static_cast<int>(direction)]},
            {"streams", streams},
            {"seconds", seconds},
            {"bytes", bytes},
            {"length", length},
            {"buffers", buffers},
            {"mode", stream::name_of(mode)},
            {"type", stream::name_of(type)}};
}

std::optional<Plan> Plan::parse(const nlohmann::json& document) {
    try {
        Plan plan;
        document.at("tcp").get_to(plan.tcp);
        document.at("streams").get_to(plan.streams);
        document.at("seconds").get_to(plan.seconds);
        document.at("bytes").get_to(plan.bytes);
        document.at("length").get_to(plan.length);
        document.at("buffers").get_to(plan.buffers);
        const auto direction = document.at("direction").get<std::string>();
        const auto mode = stream_mode(document.at("mode").get<std::string>());
        const auto type = stream_type(document.at("type").get<std::string>());
        bool known = false;
        for (int at = 0; at < 3; ++at) {
            if (direction != directions[at]) continue;
            plan.direction = static_cast<Direction>(at);
            known = true;
        }
        if (!known || !mode || !type) return std::nullopt;
        plan.mode = *mode;
        plan.type = *type;
        return plan;
    } catch (const nlohmann::json::exception&) {
        return std::nullopt;
    }
}

void say(stream::Socket& control, const nlohmann::json& document, const base::Deadline& deadline) {
    const std::string text =
        document.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    const auto length = static_cast<std::uint32_t>(text.size());
    Status status = control.write_all(std::as_bytes(std::span{&length, 1}), deadline);
    if (status == Status::ok) {
        status = control.write_all(std::as_bytes(std::span{text}), deadline);
    }
    if (status != Status::ok) fail(control, status, "tell the other end of a measurement");
}

nlohmann::json hear(stream::Socket& control, const base::Deadline& deadline) {
    std::uint32_t length = 0;
    read(control, std::as_writable_bytes(std::span{&length, 1}), deadline);
    nlohmann::json document = nlohmann::json::value_t::discarded;
    if (length <= most_text) {
        std::string text(length, ' ');
        read(control, std::as_writable_bytes(std::span{text}), deadline);
        document = nlohmann::json::parse(text, nullptr, false);
    }
    if (!document.is_object()) {
        throw Error{ErrorCode::protocol, "hear the other end of a measurement", control.peer_name(),
                    "it does not speak as `millrace perf` does",
                    "use the same version of millrace on both sides"};
    }
    if (const auto error = document.find("error"); error != document.end()) {
        throw Error{ErrorCode::refused, "measure with the other end", control.peer_name(),
                    error->is_string() ? error->get<std::string>() : "it says no more", ""};
    }
    return document;
}

}  // namespace millrace::tools::perf
