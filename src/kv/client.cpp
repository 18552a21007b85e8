#include "millrace/kv/client.hpp"

#include <algorithm>
#include <new>

#include <fmt/format.h>

namespace millrace::kv {
namespace {

constexpr auto nothing = [](std::span<const std::byte>) {};

bool has_key(Command command) noexcept {
    return command == Command::get || command == Command::set || command == Command::del ||
           command == Command::exists;
}

}  // namespace

Client Client::connect(const connect::Address& address, message::ClientOptions options,
                       const base::Deadline& deadline) {
    const bool resumes = options.resumes;
    options.tuning.large.keeps_order = true;
    options.tuning.service = server_service;
    const std::size_t heads = answer_head_bytes + sizeof(Cursor);
    const auto page_bytes = static_cast<std::uint32_t>(std::min<std::size_t>(
        dump_page_bytes, options.max_answer_bytes - std::min(options.max_answer_bytes, heads)));
    return Client{message::Client::connect(address, std::move(options), deadline), resumes,
                  page_bytes};
}

Code Client::check(Command command, const RequestParts& parts) noexcept {
    const bool needs_key = has_key(command);
    if (parts.key.size() > longest_key || (needs_key && parts.key.empty())) return Code::key_error;
    if (parts.value.size() > longest_value) return Code::store_error;
    return Code::ok;
}

Result Client::read(std::span<const std::byte> payload, std::span<const std::byte>& rest) noexcept {
    const std::optional<AnswerHead> head = parse_answer(payload, rest);
    if (!head) return {.code = Code::unanswered, .outcome = message::Outcome::failed};
    return {.code = head->code, .version = head->version};
}

Answer Client::translated(const message::Answer& answer) noexcept {
    Answer translated{.id = answer.id, .result = {.code = Code::unanswered}};
    if (answer.outcome == message::Outcome::ok) {
        translated.result = read(answer.payload, translated.value);
        if (!translated.result.ok()) translated.value = {};
    } else {
        translated.result.outcome = answer.outcome;
    }
    return translated;
}

base::Status Client::submit(Command command, const RequestParts& parts, std::uint64_t& id) {
    if (check(command, parts) != Code::ok) return base::Status::too_large;
    return client_.submit(size_of(parts), [&](std::span<std::byte> room) { write(parts, room); },
                          id, {.procedure = static_cast<std::uint16_t>(command)});
}

base::Status Client::submit(Command command, const RequestParts& parts, std::uint64_t& id,
                            const base::Deadline& deadline) {
    if (check(command, parts) != Code::ok) return base::Status::too_large;
    return client_.submit(size_of(parts), [&](std::span<std::byte> room) { write(parts, room); },
                          id, deadline, {.procedure = static_cast<std::uint16_t>(command)});
}

void Client::check_nothing_is_outstanding() const {
    if (outstanding() == 0) return;
    throw base::Error{
        base::ErrorCode::invalid_argument, "get many keys at once", "a key-value client",
        fmt::format("{} requests that were submitted before have no answer yet", outstanding()),
        "take their answers by poll() or wait(), or cancel() them, first"};
}

void Client::take_back_from(std::uint64_t first) noexcept {
    for (std::size_t i = 0; i < sent_.size(); ++i) {
        try {
            (void)client_.cancel(first + i);
        } catch (const std::bad_alloc&) {
            // Nobody gets its answer; only the server is not told.
        }
    }
}

Result Client::get(std::span<const std::byte> key, std::vector<std::byte>& value,
                   const base::Deadline& deadline) {
    return get(
        key, [&](std::span<const std::byte> found) { value.assign(found.begin(), found.end()); },
        deadline);
}

Result Client::set(std::span<const std::byte> key, std::span<const std::byte> value,
                   const base::Deadline& deadline, const SetOptions& options) {
    return call(Command::set, {key, value, options}, nothing, deadline);
}

Result Client::erase(std::span<const std::byte> key, const base::Deadline& deadline,
                     std::optional<Version> if_version) {
    return call(Command::del, {.key = key, .options = {.if_version = if_version}}, nothing,
                deadline);
}

Result Client::exists(std::span<const std::byte> key, const base::Deadline& deadline) {
    return call(Command::exists, {.key = key}, nothing, deadline);
}

Result Client::ping(const base::Deadline& deadline) {
    return call(Command::ping, {}, nothing, deadline);
}

Result Client::stats(std::string& lines, const base::Deadline& deadline) {
    return call(
        Command::stats, {},
        [&](std::span<const std::byte> text) {
            lines.assign(reinterpret_cast<const char*>(text.data()), text.size());
        },
        deadline);
}

Result Client::reset(const base::Deadline& deadline) {
    return call(Command::rst, {}, nothing, deadline);
}

Result Client::exit(const base::Deadline& deadline) {
    return call(Command::exit, {}, nothing, deadline);
}

Result Client::set_option(std::string_view name, std::string_view value,
                          const base::Deadline& deadline) {
    return call(Command::setopt, {.key = bytes(name), .value = bytes(value)}, nothing, deadline);
}

}  // namespace millrace::kv
