#include "millrace/kv/client.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "many_keys.hpp"

namespace millrace::kv {
namespace {

constexpr auto nothing = [](std::span<const std::byte>) {};

bool has_key(Command command) noexcept {
    return command == Command::get || command == Command::set || command == Command::del ||
           command == Command::exists;
}

/// Of a dump's page.
std::uint32_t page_bytes(const message::ClientOptions& options) noexcept {
    const std::size_t heads = answer_head_bytes + sizeof(Cursor);
    return static_cast<std::uint32_t>(std::min<std::size_t>(
        dump_page_bytes, options.max_answer_bytes - std::min(options.max_answer_bytes, heads)));
}

}  // namespace

Client::Client(message::Client client, const message::ClientOptions& options)
    : client_{std::move(client)},
      resumes_{options.resumes},
      dump_page_bytes_{page_bytes(options)},
      many_keys_{std::make_unique<detail::ManyKeys>(options)} {}
Client::Client(Client&&) noexcept = default;
Client& Client::operator=(Client&&) noexcept = default;
Client::~Client() = default;

Client Client::connect(const connect::Address& address, message::ClientOptions options,
                       const base::Deadline& deadline) {
    options.tuning.large.keeps_order = true;
    options.tuning.service = server_service;
    return Client{message::Client::connect(address, options, deadline), options};
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

base::Status Client::reconnect(const base::Deadline& deadline) {
    many_keys_->forget_server();
    return client_.reconnect(deadline);
}

void Client::check_nothing_is_outstanding() const {
    if (outstanding() == 0) return;
    throw base::Error{
        base::ErrorCode::invalid_argument, "get many keys at once", "a key-value client",
        fmt::format("{} requests that were submitted before have no answer yet", outstanding()),
        "take their answers by poll() or wait(), or cancel() them, first"};
}

base::Status Client::multi_get(std::span<const std::span<const std::byte>> keys, TakeOne take,
                               const base::Deadline& deadline) {
    check_nothing_is_outstanding();
    detail::ManyKeys& many = *many_keys_;
    struct TakingBack {
        Client& client;
        ~TakingBack() { client.many_keys_->take_back(client); }
    };
    const TakingBack taking_back{*this};
    many.begin(keys, take);
    for (std::size_t i = 0; i != keys.size(); ++i) many.add(i);
    while (!many.is_done()) {
        if (many.has_more()) {
            const base::Status status =
                many.submit(*this, outstanding() == 0 ? &deadline : nullptr);
            if (status == base::Status::ok) continue;
            if (status != base::Status::full) return status;
        }
        const base::Status status = wait([&](const Answer& one) { many.take(one); }, deadline);
        if (status != base::Status::ok) return status;
    }
    return base::Status::ok;
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
