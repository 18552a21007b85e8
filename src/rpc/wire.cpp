// Errors and tables as bytes.
#include <algorithm>
#include <cstring>
#include <string_view>

#include <fmt/format.h>

#include "millrace/rpc/head.hpp"
#include "millrace/rpc/table.hpp"

namespace millrace::rpc {
namespace {

/// Puts numbers and texts after each other.
class Writing {
  public:
    template <class Number>
    void put(Number number) {
        const auto* const first = reinterpret_cast<const std::byte*>(&number);
        bytes_.insert(bytes_.end(), first, first + sizeof number);
    }
    void put(std::string_view text) {
        const auto* const first = reinterpret_cast<const std::byte*>(text.data());
        bytes_.insert(bytes_.end(), first, first + text.size());
    }
    [[nodiscard]] std::vector<std::byte> take() noexcept { return std::move(bytes_); }

  private:
    std::vector<std::byte> bytes_;
};

/// Takes them again; false once there is not enough.
class Reading {
  public:
    explicit Reading(std::span<const std::byte> bytes) noexcept : rest_{bytes} {}

    template <class Number>
    [[nodiscard]] bool take(Number& number) noexcept {
        if (rest_.size() < sizeof number) return false;
        std::memcpy(&number, rest_.data(), sizeof number);
        rest_ = rest_.subspan(sizeof number);
        return true;
    }
    [[nodiscard]] bool take(std::string& text, std::size_t size) {
        if (rest_.size() < size) return false;
        text.assign(reinterpret_cast<const char*>(rest_.data()), size);
        rest_ = rest_.subspan(size);
        return true;
    }
    [[nodiscard]] bool is_done() const noexcept { return rest_.empty(); }

  private:
    std::span<const std::byte> rest_;
};

enum EntryFact : std::uint8_t { entry_idempotent = 1, entry_stream = 2 };

struct EntryHead {
    std::uint16_t number = 0;
    std::uint8_t facts = 0;
    std::uint8_t request_kind = 0;
    std::uint8_t response_kind = 0;
    std::uint8_t zero = 0;
    std::uint16_t name_bytes = 0;
    std::uint16_t request_bytes = 0;
    std::uint16_t response_bytes = 0;
    std::uint32_t request_size = 0;
    std::uint32_t response_size = 0;
};
static_assert(sizeof(EntryHead) == 20);

/// What was counted, in the order in which it travels.
constexpr std::uint64_t ProcedureReport::*counted[] = {
    &ProcedureReport::calls,       &ProcedureReport::answered,     &ProcedureReport::failed,
    &ProcedureReport::late,        &ProcedureReport::overloaded,   &ProcedureReport::unwanted,
    &ProcedureReport::pending,     &ProcedureReport::latency_p50,  &ProcedureReport::latency_p90,
    &ProcedureReport::latency_p99, &ProcedureReport::latency_p999, &ProcedureReport::latency_most};

[[nodiscard]] std::string_view shortened(std::string_view name) noexcept {
    return name.substr(0, longest_name);
}
[[nodiscard]] bool is_kind(std::uint8_t kind) noexcept {
    return kind >= static_cast<std::uint8_t>(Kind::plain) &&
           kind <= static_cast<std::uint8_t>(Kind::codec);
}

bool take_entry(Reading& from, ProcedureReport& into, bool with_counts) {
    EntryHead head;
    if (!from.take(head)) return false;
    if (head.number < first_number || (head.number & head_bit) != 0 || head.name_bytes == 0 ||
        head.name_bytes > longest_name || head.request_bytes > longest_name ||
        head.response_bytes > longest_name || !is_kind(head.request_kind) ||
        !is_kind(head.response_kind)) {
        return false;
    }
    into.number = head.number;
    Signature& signature = into.signature;
    signature.is_idempotent = (head.facts & entry_idempotent) != 0;
    signature.is_stream = (head.facts & entry_stream) != 0;
    signature.request = {static_cast<Kind>(head.request_kind), head.request_size, {}};
    signature.response = {static_cast<Kind>(head.response_kind), head.response_size, {}};
    if (!from.take(signature.name, head.name_bytes) ||
        !from.take(signature.request.name, head.request_bytes) ||
        !from.take(signature.response.name, head.response_bytes)) {
        return false;
    }
    if (!with_counts) return true;
    std::uint16_t values = 0;
    if (!from.take(values)) return false;
    for (std::size_t i = 0; i < values; ++i) {
        std::uint64_t value = 0;
        if (!from.take(value)) return false;
        if (i < std::size(counted)) into.*counted[i] = value;
    }
    return true;
}

/// What an error can say: nothing that a client finds by itself, and no success.
[[nodiscard]] bool is_of_servers(Code code) noexcept {
    return code > Code::ok && code <= Code::failed && code != Code::not_sent;
}

[[nodiscard]] std::string shown(const Type& type) {
    switch (type.kind) {
        case Kind::plain: return fmt::format("struct {} of {} bytes", type.name, type.size);
        case Kind::bytes: return "bytes";
        case Kind::codec: return fmt::format("codec {}", type.name);
    }
    return "?";
}

}  // namespace

std::span<const std::byte> write(const Error& error, ErrorRoom& into) noexcept {
    const std::size_t text = std::min(error.text.size(), longest_error);
    const std::size_t detail = std::min(error.detail.size(), longest_error - text);
    const Code code = is_of_servers(error.code) ? error.code : Code::failed;
    const std::uint64_t first = std::uint64_t{static_cast<std::uint8_t>(code)} |
                                std::uint64_t{text} << 16 | std::uint64_t{error.number} << 32;
    std::memcpy(into.data(), &first, sizeof first);
    if (text != 0) std::memcpy(into.data() + 8, error.text.data(), text);
    if (detail != 0) std::memcpy(into.data() + 8 + text, error.detail.data(), detail);
    return std::span{into}.first(8 + text + detail);
}

Error parse_error(std::span<const std::byte> payload) {
    std::uint64_t first = 0;
    if (payload.size() >= sizeof first) std::memcpy(&first, payload.data(), sizeof first);
    const auto code = static_cast<std::uint8_t>(first);
    const std::size_t text = first >> 16 & 0xffff;
    const bool is_error = payload.size() >= sizeof first &&
                          is_of_servers(static_cast<Code>(code)) &&
                          text <= payload.size() - sizeof first;
    const auto* const letters = reinterpret_cast<const char*>(payload.data());
    if (!is_error) return {.text = {letters, letters + std::min(payload.size(), longest_error)}};
    const auto detail = payload.subspan(sizeof first + text);
    return {.code = static_cast<Code>(code),
            .number = static_cast<std::uint32_t>(first >> 32),
            .text = {letters + sizeof first, text},
            .detail = {detail.begin(), detail.end()}};
}

std::vector<std::byte> write_table(std::span<const ProcedureReport> procedures, bool with_counts) {
    Writing bytes;
    bytes.put(table_version);
    bytes.put(static_cast<std::uint32_t>(procedures.size()));
    for (const ProcedureReport& one : procedures) {
        const Signature& signature = one.signature;
        const std::string_view name = shortened(signature.name);
        const std::string_view request = shortened(signature.request.name);
        const std::string_view response = shortened(signature.response.name);
        bytes.put(EntryHead{
            .number = one.number,
            .facts = static_cast<std::uint8_t>((signature.is_idempotent ? entry_idempotent : 0) |
                                               (signature.is_stream ? entry_stream : 0)),
            .request_kind = static_cast<std::uint8_t>(signature.request.kind),
            .response_kind = static_cast<std::uint8_t>(signature.response.kind),
            .name_bytes = static_cast<std::uint16_t>(name.size()),
            .request_bytes = static_cast<std::uint16_t>(request.size()),
            .response_bytes = static_cast<std::uint16_t>(response.size()),
            .request_size = signature.request.size,
            .response_size = signature.response.size});
        bytes.put(name);
        bytes.put(request);
        bytes.put(response);
        if (!with_counts) continue;
        bytes.put(static_cast<std::uint16_t>(std::size(counted)));
        for (const auto value : counted) bytes.put(one.*value);
    }
    return bytes.take();
}

std::optional<std::vector<ProcedureReport>> parse_table(std::span<const std::byte> payload,
                                                        bool with_counts) {
    Reading from{payload};
    std::uint32_t version = 0;
    std::uint32_t entries = 0;
    if (!from.take(version) || version != table_version || !from.take(entries) ||
        entries > most_procedures) {
        return std::nullopt;
    }
    std::vector<ProcedureReport> procedures;
    for (std::uint32_t i = 0; i < entries; ++i) {
        if (!take_entry(from, procedures.emplace_back(), with_counts)) return std::nullopt;
    }
    if (!from.is_done()) return std::nullopt;
    return procedures;
}

std::string why_different(const Signature& ours, const Signature& theirs) {
    // A plain struct may have grown at its end.
    const auto is_same = [](const Type& one, const Type& other) {
        return one.kind == other.kind && shortened(one.name) == shortened(other.name);
    };
    if (ours.is_stream != theirs.is_stream) {
        return fmt::format("it answers by {}, and not by {}",
                           theirs.is_stream ? "a stream" : "one message",
                           ours.is_stream ? "a stream" : "one message");
    }
    if (!is_same(ours.request, theirs.request)) {
        return fmt::format("the server takes {}, and not {}", shown(theirs.request),
                           shown(ours.request));
    }
    if (!is_same(ours.response, theirs.response)) {
        return fmt::format("the server answers by {}, and not by {}", shown(theirs.response),
                           shown(ours.response));
    }
    return {};
}

}  // namespace millrace::rpc
