// The requester of a reliable connection (RC): sends a queue pair's requests as packets, and
// completes them in order when the responder has them. Pure state: no socket, no clock, no lock, no
// allocation after construction. Called by the queue pair's send side; one caller at a time.
//
//             done                  fresh                 posted
//   requests ---|---- begun ----------|---- never sent -----|
//                    ^ cursor: the next packet is of this one
//   PSNs        |unacknowledged ... cursor_psn ... sent|
//
// The window is what lies between the oldest PSN without an acknowledgement and the cursor. A loss
// (told by a negative acknowledgement, a response that does not follow the last one, a timeout) or
// a receiver that was not ready puts the cursor back to that oldest PSN (go-back-N). A READ owns
// the PSNs of its responses; an acknowledgement beyond one whose data has not come says that the
// data was lost. Each loss halves the window, as the receiver had no room for it, or the network;
// each window that is acknowledged adds a packet, up to what `start` said.
//
// A long READ travels as several requests, each of at most `most_read_packets` responses, as their
// bytes are the requester's to have room for. A piece that is asked for again begins at what it
// lacks, and ends where it did: a responder repeats only what it has done.
//
// Invariants.
// - Requests complete in the order of posting, each once, until one fails; none does after that.
// - A packet with the PSN of an earlier one is the same packet, but for the owner's memory, and for
//   a READ, which asks for what is still missing.
// - What a READ or an atomic brought is placed once, in order, and only while its request waits.
// - While something is unacknowledged, and no receiver has asked for a pause, the timer runs; each
//   time that it runs out without progress takes one of `retry_count`.
// - What is unacknowledged for some round trips is sent again before, ever more rarely, and that
//   takes none: a lost last packet costs milliseconds, though the peer may be silent for seconds.
//
// Source: InfiniBand Architecture Specification, volume 1, chapter 9.7 (reliable service).
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "bursts.hpp"
#include "outlet.hpp"
#include "packet.hpp"
#include "psn.hpp"
#include "sides.hpp"

namespace millrace::roce {

/// Of a queue pair at RTS.
struct RequesterAttributes {
    std::uint32_t destination = 0;  ///< the peer's queue pair
    std::uint32_t first_psn = 0;    ///< sq_psn
    std::uint32_t mtu = 1024;       ///< bytes: a power of two, 256 to 4096
    std::uint16_t partition_key = default_partition_key;
    std::uint8_t timeout = 14;  ///< 4.096 µs * 2^n; 0: waits for ever
    std::uint8_t retry_count = 7;
    std::uint8_t rnr_retry = 7;    ///< 7: for ever
    std::uint32_t most_reads = 1;  ///< max_rd_atomic: requests of READs and atomics under way
    std::uint32_t window = 128;    ///< packets under way at most; below 2^22
};

/// Nothing is sent again earlier, in nanoseconds: a peer without a processor waits for one as long.
inline constexpr std::int64_t least_patience = 4'000'000;
/// Responses that one request of a READ asks for.
inline constexpr std::uint32_t most_read_packets = 32;

struct RequesterCounts {
    std::uint64_t packets = 0;   ///< sent, again or not
    std::uint64_t repeated = 0;  ///< of these, sent again
    std::uint64_t timeouts = 0;
    std::uint64_t early = 0;      ///< repetitions before a timeout
    std::uint64_t gaps = 0;       ///< told by the responder, or seen in what it sent
    std::uint64_t not_ready = 0;  ///< pauses asked for by the receiver
    std::uint64_t strange = 0;    ///< packets that no request waits for
};

class Requester {
  public:
    /// `most_requests`: posted and not complete. `most_reads`: the most that `start` will name.
    Requester(SendSide& side, std::uint32_t most_requests, std::uint32_t most_reads);

    /// RTR to RTS: nothing is posted; PSNs begin.
    void start(const RequesterAttributes& attributes) noexcept;
    /// What may change at RTS and SQD: timeout, retries, `most_reads`.
    void change(const RequesterAttributes& attributes) noexcept;

    /// There is room: the owner counts its slots. Nothing leaves before `send`.
    void post(const Request& request) noexcept;
    /// Acknowledgements and responses, whose destination is this queue pair. Times are nanoseconds
    /// of a clock that never goes back.
    void arrived(const Packet& packet, std::int64_t now) noexcept;
    /// Everything that may leave leaves, and what is due is done: after `post`, `arrived`, and at
    /// `next_deadline`. False: the outlet was full; call it again when there is room.
    bool send(std::int64_t now, Outlet& outlet) noexcept;
    /// `never`: nothing happens by itself.
    [[nodiscard]] std::int64_t next_deadline() const noexcept;

    /// What is to leave is one packet.
    [[nodiscard]] bool has_one_packet() const noexcept {
        return posted_ - cursor_ == 1 && entry(cursor_).request.length <= attributes_.mtu;
    }
    /// SQD: what has not begun to leave does not.
    void hold(bool held) noexcept { is_held_ = held; }
    /// What has begun is complete.
    [[nodiscard]] bool is_drained() const noexcept { return done_ == fresh_; }
    /// Everything posted is complete.
    [[nodiscard]] bool is_idle() const noexcept { return done_ == posted_; }
    /// An error of the queue pair, or RESET: nothing leaves or completes any more until `start`.
    /// How many requests were posted and not complete, the failed one not counted.
    std::uint32_t abort() noexcept;

    [[nodiscard]] const RequesterCounts& counts() const noexcept { return counts_; }

  private:
    struct Entry {
        Request request;
        std::uint32_t first_psn;  ///< set when it begins
        std::uint32_t packets;    ///< PSNs
    };
    enum class Sent : std::uint8_t { yes, not_now, outlet_full };

    [[nodiscard]] Entry& entry(std::uint32_t index) const noexcept {
        return entries_[index & mask_];
    }
    [[nodiscard]] std::uint32_t end_of(const Entry& entry) const noexcept {
        return psn_after(entry.first_psn, entry.packets);
    }
    [[nodiscard]] std::uint32_t under_way() const noexcept {
        return (cursor_psn_ - unacknowledged_) & psn_mask;
    }
    /// It leaves in a packet that is not full.
    [[nodiscard]] bool is_short(const Entry& entry) const noexcept {
        return entry.request.length < attributes_.mtu;
    }
    [[nodiscard]] bool is_awaited() const noexcept { return unacknowledged_ != sent_psn_; }
    [[nodiscard]] bool is_between(std::uint32_t psn) const noexcept;
    [[nodiscard]] std::uint32_t size_at(const Entry& entry, std::uint32_t packet) const noexcept;

    [[nodiscard]] bool may_begin(const Entry& entry) const noexcept;
    void begin(Entry& entry) noexcept;
    /// A SEND or WRITE leaves at once after the message at the cursor, and can ask for an
    /// acknowledgement in its place. Not where something is sent again: should the next one then
    /// fail here, nobody would have asked.
    [[nodiscard]] bool is_followed() const noexcept;
    [[nodiscard]] std::uint32_t most_unasked() const noexcept;
    [[nodiscard]] bool may_read() const noexcept;
    Sent send_next(Outlet& outlet) noexcept;
    Sent send_message(const Entry& entry, Outlet& outlet) noexcept;
    Sent send_read(const Entry& entry, Outlet& outlet) noexcept;
    Sent send_atomic(const Entry& entry, Outlet& outlet) noexcept;
    void sent(const Entry& entry, std::uint32_t packets) noexcept;
    void head(Packet& packet, Kind kind) const noexcept;
    void run_local() noexcept;

    void acknowledged(const Packet& packet, std::int64_t now) noexcept;
    void refused(Refusal why) noexcept;
    void not_ready(std::uint8_t timer, std::int64_t now) noexcept;
    void responded(const Packet& packet, std::int64_t now) noexcept;
    [[nodiscard]] bool advance(std::uint32_t psn, std::int64_t now) noexcept;
    void progressed(std::uint32_t before, std::int64_t now) noexcept;
    void complete_first() noexcept;
    void lacks_response() noexcept;
    void repeat() noexcept;
    void repeat_early(std::int64_t now) noexcept;
    void narrow() noexcept;
    void go_back() noexcept;
    void measure(std::int64_t now) noexcept;
    void fail_first(Status status) noexcept;
    void restart_timer(std::int64_t now) noexcept;

    SendSide& side_;
    std::uint32_t mask_;
    std::unique_ptr<Entry[]> entries_;
    RequesterAttributes attributes_;
    std::uint32_t mtu_shift_ = 10;
    std::int64_t timeout_ = never;  ///< nanoseconds

    // Indices of requests; they wrap.
    std::uint32_t done_ = 0;
    std::uint32_t cursor_ = 0;
    std::uint32_t fresh_ = 0;
    std::uint32_t posted_ = 0;

    std::uint32_t unacknowledged_ = 0;  ///< the oldest PSN
    std::uint32_t cursor_psn_ = 0;      ///< of the next packet
    std::uint32_t sent_psn_ = 0;        ///< after the last one that was ever sent
    std::uint32_t since_asked_ = 0;     ///< packets since an acknowledgement was asked for
    std::uint32_t window_ = 1;          ///< packets under way, now
    std::uint32_t since_wider_ = 0;     ///< packets acknowledged since it grew
    Bursts bursts_;

    // The ends of the READs' and atomics' requests under way, oldest first.
    std::uint32_t read_mask_;
    std::unique_ptr<std::uint32_t[]> read_ends_;
    std::uint32_t reads_done_ = 0;
    std::uint32_t reads_sent_ = 0;

    std::int64_t timer_ = never;   ///< when the wait for an acknowledgement ends
    std::int64_t early_ = never;   ///< when what is unacknowledged is sent again before that
    std::int64_t patience_ = 0;    ///< how long that waits
    std::int64_t paused_ = never;  ///< until when the receiver is not ready

    std::int64_t now_ = 0;           ///< of this `send`
    std::int64_t round_trip_ = 0;    ///< smoothed; 0: not known
    std::int64_t measured_ = never;  ///< when the packet left whose acknowledgement is timed
    std::uint32_t measured_psn_ = 0;

    std::uint32_t retries_ = 0;  ///< left
    std::uint32_t rnr_retries_ = 0;
    bool is_running_ = false;
    bool is_held_ = false;
    bool is_recovering_ = false;       ///< went back for a gap, and has seen nothing since
    Status broken_ = Status::success;  ///< of the request at the cursor
    RequesterCounts counts_;
};

}  // namespace millrace::roce
