// The words of a session, as a hostile peer may write them: an input is one message.
//
// Required: no sanitizer has anything to say; what is taken for a header says the same when it is
// packed again; and what is taken for a hello, a welcome or an announcement is within the ranges
// that the other end relies on, and packs to the bytes it came from; and what is taken for entries
// of a batch lies within it, one behind the other, and is the same when it is laid again.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include "fuzz/target.hpp"
#include "millrace/message/detail/entries.hpp"
#include "millrace/message/session.hpp"

namespace millrace::fuzz {
namespace {

void parse_header(std::span<const std::byte> message) {
    message::SessionHeader header;
    std::span<const std::byte> payload;
    if (!message::parse(message, header, payload)) return;
    require(payload.data() == message.data() + message::session_head_bytes &&
                payload.size() + message::session_head_bytes == message.size(),
            "the payload is the rest of the message");
    require(header.id <= message::largest_request_id, "a number fits in its bits");
    const message::SessionHead again = pack(header);
    require(std::memcmp(again.data(), message.data(), sizeof again) == 0, "the same header");
}

void parse_words(std::span<const std::byte> payload) {
    if (const auto hello = message::parse_hello(payload)) {
        require(hello->window >= 1 && hello->window <= message::largest_window, "a window");
        require(hello->next_id >= 1, "a number");
        require(std::ranges::equal(pack(*hello), payload), "the same hello");
    }
    if (const auto welcome = message::parse_welcome(payload)) {
        require(welcome->window >= 1 && welcome->window <= message::largest_window, "a window");
        require(!welcome->session.is_none(), "a session");
        require(std::ranges::equal(pack(*welcome), payload), "the same welcome");
    }
    if (const auto announced = message::parse_announcement(payload)) {
        require(std::ranges::equal(pack(*announced), payload), "the same announcement");
    }
}

void parse_entries(std::span<const std::byte> entries) {
    message::detail::RequestRun run{.at = entries.data(), .end = entries.data() + entries.size()};
    const auto passed = [&] { return static_cast<std::size_t>(run.at - entries.data()); };
    alignas(8) static std::byte room[std::size_t{128} << 10];
    message::BatchWriter writer;
    writer.open(std::span{room}.first(std::min(
                    sizeof room, message::session_head_bytes + message::padded(entries.size()))),
                1, std::nullopt);
    message::EntryHead head;
    std::span<const std::byte> payload;
    for (std::size_t at = 0; run.at != run.end && run.take(head, payload); at = passed()) {
        require(payload.data() == entries.data() + at + message::entry_head_bytes &&
                    payload.size() == head.length &&
                    at + message::entry_bytes(head.length) <= entries.size(),
                "an entry lies within its message");
        require(passed() == at + message::entry_bytes(head.length), "entries follow each other");
        std::byte* const place = writer.place_for(payload.size());
        require(place == room + message::session_head_bytes + at + message::entry_head_bytes,
                "it fits where it came from");
        std::copy(payload.begin(), payload.end(), place);
        writer.add(head);
        require(std::memcmp(place - message::entry_head_bytes, entries.data() + at,
                            message::entry_head_bytes + payload.size()) == 0,
                "the same entry");
    }
    require(passed() + message::session_head_bytes == writer.bytes(), "as many bytes");
}

}  // namespace
}  // namespace millrace::fuzz

extern "C" int LLVMFuzzerInitialize(int*, char***) { return 0; }

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const auto bytes = std::as_bytes(std::span{data, size});
    millrace::fuzz::parse_header(bytes);
    millrace::fuzz::parse_words(bytes);
    millrace::fuzz::parse_entries(bytes);
    return 0;
}
