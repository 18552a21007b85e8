#include "frames.hpp"

#include <array>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>
#include <thread>

#include "bench/framework/payload.hpp"
#include "millrace/base/deadline.hpp"
#include "millrace/connect/link.hpp"
#include "millrace/verbs/memory.hpp"
#include "millrace/verbs/queue_pair.hpp"
#include "millrace/verbs/work_request.hpp"
#include "streams.hpp"

namespace millrace::bench {
namespace {

using base::Status;

constexpr std::size_t frames_of_turn = 16;
/// Before the payload: a frame's header and a request's.
constexpr std::size_t head_bytes = 24;
constexpr std::size_t mark_bytes = 8;

base::Deadline patience() { return base::Deadline::after(std::chrono::seconds{60}); }

struct Turn {
    verbs::QueuePair& queue_pair;
    verbs::RegisteredBuffer& ring;
    verbs::RegisteredBuffer& payloads;  ///< of ports
    verbs::RemoteAddress to;
    std::size_t bytes;   ///< of a payload
    std::size_t extent;  ///< of a frame
    std::array<std::byte, head_bytes> head{};

    [[nodiscard]] std::byte* lay(std::size_t place, std::uint64_t mark) {
        std::byte* const frame = ring.data() + place;
        std::memcpy(frame, head.data(), head_bytes);
        std::memcpy(frame + extent - mark_bytes, &mark, mark_bytes);
        return frame;
    }
};

[[gnu::noinline]] void counted_copied_frames(Turn& turn) {
    for (std::size_t i = 0; i < frames_of_turn; ++i) {
        std::byte* const frame = turn.lay(i * turn.extent, i);
        std::memcpy(frame + head_bytes, turn.payloads.data() + i * turn.bytes, turn.bytes);
    }
    const ibv_sge all = turn.ring.slice(0, frames_of_turn * turn.extent);
    require(turn.queue_pair.post(verbs::Write{.from = {&all, 1}, .to = turn.to}) == 0, "a WRITE");
}
[[gnu::noinline]] void counted_gathered_frames(Turn& turn) {
    verbs::Batch<frames_of_turn> batch;
    std::array<std::array<ibv_sge, 3>, frames_of_turn> pieces;
    for (std::size_t i = 0; i < frames_of_turn; ++i) {
        const std::size_t place = i * turn.extent;
        (void)turn.lay(place, i);
        pieces[i] = {turn.ring.slice(place, head_bytes),
                     turn.payloads.slice(i * turn.bytes, turn.bytes),
                     turn.ring.slice(place + turn.extent - mark_bytes, mark_bytes)};
        require(batch.add(verbs::Write{.from = pieces[i], .to = turn.to + place}), "a WRITE");
    }
    require(turn.queue_pair.post(batch) == 0, "a list of WRITEs");
}

void count_turns(void (*counted)(Turn&), std::size_t bytes) {
    connect::LinkOptions options{.service = "instructions"};
    options.max_send_slices = 3;
    auto listener = connect::Listener::listen(connect::Address::tcp("127.0.0.1", 0), options);
    const auto address = listener.address();
    std::optional<connect::Link> peer;
    std::jthread connecting{[&] { peer = connect::connect(address, options, patience()); }};
    connect::Link link = listener.accept(patience());
    connecting.join();
    // Without padding, so that both bring the same bytes.
    const std::size_t extent = head_bytes + bytes + mark_bytes;
    auto memory =
        peer->protection_domain().allocate(frames_of_turn * extent, verbs::Access::remote_write);
    auto ring = link.protection_domain().allocate(frames_of_turn * extent, verbs::Access::none);
    auto payloads = link.protection_domain().allocate(frames_of_turn * bytes, verbs::Access::none);
    Turn turn{link.queue_pair(), ring, payloads, memory.remote(), bytes, extent};
    for (std::size_t i = 0; i < operations / frames_of_turn; ++i) {
        counted(turn);
        require(turn.queue_pair.post(verbs::Write{
                    .from = {}, .to = turn.to, .flags = verbs::SendFlags::signaled}) == 0,
                "the last WRITE");
        verbs::Completion completion;
        while (link.send_queue().poll({&completion, 1}) == 0) {
        }
        require(completion.ok(), "the requests' completion");
    }
}

}  // namespace

bool count_frames(std::string_view operation) {
    constexpr std::string_view copied = "frames-copied-";
    constexpr std::string_view gathered = "frames-gathered-";
    const bool is_copied = operation.starts_with(copied);
    if (!is_copied && !operation.starts_with(gathered)) return false;
    operation.remove_prefix(is_copied ? copied.size() : gathered.size());
    std::size_t bytes = 0;
    const char* const end = operation.data() + operation.size();
    const auto read = std::from_chars(operation.data(), end, bytes);
    if (read.ec != std::errc{} || read.ptr != end || bytes == 0) return false;
    count_turns(is_copied ? counted_copied_frames : counted_gathered_frames, bytes);
    return true;
}

}  // namespace millrace::bench
