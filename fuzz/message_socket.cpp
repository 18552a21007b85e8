// A stream of bytes that a hostile peer may send where messages go over a socket. The first byte
// of an input says which cuts it arrives in, the second the longest message allowed; the rest is
// the stream.
//
// Required: what is found lies within the memory that was taken, which is bounded by what is
// allowed; it does not depend on where the stream was cut; finding ends; and frames that were laid
// by our own half are found again as they were.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "fuzz/target.hpp"
#include "lane/socket_framing.hpp"

namespace millrace::fuzz {
namespace {

using message::SocketInbox;
using Bytes = std::vector<std::byte>;

struct Found {
    SocketInbox::Found what;
    Bytes message;
    bool operator==(const Found&) const = default;
};

/// What is found in `stream`, which arrives in pieces of `cut(left)` bytes.
template <class Cut>
std::vector<Found> read(std::span<const std::byte> stream, std::size_t most, Cut&& cut) {
    SocketInbox inbox{most};
    std::vector<Found> all;
    const std::size_t memory = 2 * message::SocketFrame::size_of(most) +
                               2 * message::ByteQueue::usual + 2 * message::ByteQueue::smallest;
    while (true) {
        std::span<const std::byte> message;
        const SocketInbox::Found what = inbox.front(message);
        require(inbox.has_front() == (what != SocketInbox::Found::nothing), "one answer");
        if (what == SocketInbox::Found::message || what == SocketInbox::Found::too_large) {
            require(message.size() <= most, "no longer message than allowed");
            all.push_back({what, {message.begin(), message.end()}});
            inbox.pass();
            continue;
        }
        if (what != SocketInbox::Found::nothing) {
            if (what == SocketInbox::Found::goodbye) (void)inbox.passed_by_peer();
            all.push_back({what, {}});
            return all;
        }
        if (stream.empty()) return all;
        const std::span<std::byte> room = inbox.room();
        require(!room.empty(), "there is room");
        require(inbox.capacity() <= memory, "memory for what is allowed");
        const std::size_t piece =
            std::clamp<std::size_t>(cut(stream.size()), 1, std::min(room.size(), stream.size()));
        std::memcpy(room.data(), stream.data(), piece);
        stream = stream.subspan(piece);
        inbox.took(piece);
    }
}

void read_whatever_comes(std::span<const std::byte> stream, std::size_t most, unsigned seed) {
    std::minstd_rand random{seed + 1};
    const auto at_once = read(stream, most, [](std::size_t left) { return left; });
    const auto in_bytes = read(stream, most, [](std::size_t) { return std::size_t{1}; });
    const auto in_pieces =
        read(stream, most, [&](std::size_t left) { return random() % (left + 1); });
    require(at_once == in_bytes && at_once == in_pieces, "the same, wherever it was cut");
}

/// `content` cut into messages, laid and sent in pieces, is found again.
void read_what_was_laid(std::span<const std::byte> content, unsigned seed) {
    std::minstd_rand random{seed + 7};
    message::SocketOutbox outbox;
    std::vector<Found> laid;
    Bytes stream;
    while (!content.empty()) {
        const std::size_t size = random() % (content.size() + 1);
        const std::span<std::byte> place = outbox.claim(size);
        std::copy_n(content.begin(), size, place.begin());
        outbox.commit(size);
        laid.push_back({SocketInbox::Found::message, {place.begin(), place.end()}});
        content = content.subspan(std::max<std::size_t>(size, 1));
        const std::size_t sent = random() % (outbox.pending().size() + 1);
        stream.insert(stream.end(), outbox.pending().begin(),
                      outbox.pending().begin() + static_cast<std::ptrdiff_t>(sent));
        outbox.sent(sent);
    }
    outbox.append_goodbye(outbox.laid());
    stream.insert(stream.end(), outbox.pending().begin(), outbox.pending().end());
    laid.push_back({SocketInbox::Found::goodbye, {}});
    require(read(stream, std::size_t{1} << 20,
                 [&](std::size_t left) { return random() % (left + 1); }) == laid,
            "what was laid is found");
}

}  // namespace
}  // namespace millrace::fuzz

extern "C" int LLVMFuzzerInitialize(int*, char***) { return 0; }

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size < 2) return 0;
    const auto stream = std::as_bytes(std::span{data + 2, size - 2});
    const std::size_t most = millrace::message::session_head_bytes + std::size_t{data[1]} * 16;
    millrace::fuzz::read_whatever_comes(stream, most, data[0]);
    millrace::fuzz::read_what_was_laid(stream, data[0]);
    return 0;
}
