// The state of one end of a byte stream, and what drives its protocol: takes the peer's messages
// out of their slots, does what Connection::next answers, and hands completions to the program.
// Used by socket.cpp alone; setup.cpp makes it.
//
//   this end's memory, which the peer writes     | ring | slots | ControlPage |
//
//   bytes       by store into the peer's ring; by post into its ring or a receive's buffer
//   messages    into the peer's slots (slot.hpp), by store or, behind a posted WRITE, by post
//
// Bytes that go directly are posted even where the receive's memory could be stored to: a queue
// pair in error fences a WRITE, and nothing fences a store of a peer that was stopped in the middle
// of it, into a buffer that is the program's again. The ring is this connection's own, so a late
// store hits what nobody reads any more (ring/carrier.hpp).
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bounded_queue.hpp"
#include "connection.hpp"
#include "hold.hpp"
#include "millrace/base/detail/forks.hpp"
#include "millrace/base/detail/shared_lines.hpp"
#include "millrace/base/detail/sole_use.hpp"
#include "millrace/base/statistics.hpp"
#include "millrace/base/status.hpp"
#include "millrace/connect/link.hpp"
#include "millrace/end/end.hpp"
#include "millrace/end/wake_up.hpp"
#include "millrace/ring/carrier.hpp"
#include "millrace/stream/socket.hpp"
#include "millrace/verbs/memory.hpp"
#include "sizing.hpp"
#include "slot.hpp"
#include "staging.hpp"

namespace millrace::stream {

/// Registered memory that the peer reads and writes. One per end, behind ring and slots.
struct ControlPage {
    end::WakeUpPage wake_up;  ///< progress: messages sent
};

/// Of each end, for the other's messages; told to the peer. A small ring is that of an end that is
/// idle with thousands of others: its slots take a quarter of that.
inline constexpr std::uint32_t most_message_slots = 128;
inline constexpr std::uint32_t fewest_message_slots = 16;
[[nodiscard]] constexpr std::uint32_t message_slots(std::uint64_t ring_bytes) noexcept {
    if (ring_bytes == 0) return most_message_slots;  // mode direct
    return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(
        ring_bytes / (4 * sizeof(Slot)), fewest_message_slots, most_message_slots));
}

/// Places that the mark of a message takes in the ring (sender.hpp), so that a ring's marks, of
/// which a list is kept, are few. A ring has that many at least.
inline constexpr std::uint32_t message_mark_bytes = 64;

/// The last words of an end: how many bytes of the other's stream have come.
using LastWords = std::array<std::byte, sizeof(std::uint64_t)>;

/// What each end tells the other at the beginning.
struct Facts {
    std::uint64_t memory_address = 0;  ///< of the ring; the slots lie behind it
    std::uint64_t ring_bytes = 0;
    std::uint64_t control_address = 0;
    std::uint32_t rkey = 0;
    std::uint32_t slots = 0;
    std::uint32_t adverts = 0;
    std::uint16_t mode = 0;
    std::uint16_t type = 0;
    /// This end makes far fences (end/far_fence.hpp): if both do, who sleeps makes them.
    std::uint32_t far_fences = 0;
    /// Of the devices, as who connects has measured it (sizing.hpp); 0: nobody has.
    std::uint32_t round_trip_us = 0;
};
static_assert(sizeof(Facts) == 48);

struct Socket::Core {
    /// Looks that find nothing, between two that look around; one less than a power of two.
    static constexpr std::uint64_t looks_between = 63;
    /// A plain send of no more bytes is copied; a longer one is registered, which with its end
    /// takes as long as a copy of 180 KiB (from memory) to 500 KiB (from a cache).
    static constexpr std::size_t most_staged = 128 << 10;
    /// The same, where a kept registration takes less time than a copy of 8 KiB, and one that has
    /// to be made more than one of all of these.
    static constexpr std::size_t most_staged_beside_cache = 32 << 10;
    static constexpr std::size_t staging_bytes = 512 << 10;
    /// That write_some copies at a time.
    static constexpr std::size_t most_written = 64 << 10;
    /// Of receives into plain memory, where the program does not say and the ring is posted to.
    static constexpr std::size_t least_posted_plain = std::size_t{1} << 20;
    static constexpr std::size_t none_is_advertised = ~std::size_t{0};
    /// Of what goes through a ring, at least (Terms): the receiver copies one while the sender
    /// stores the next. A message that write_some takes is no longer, and so goes with two of them
    /// at most.
    static constexpr std::uint32_t ring_piece_bytes = 64 << 10;
    /// Terms::short_bytes, where bytes for the ring are stored: two copies of so many take about as
    /// long as what the device does for a WRITE.
    static constexpr std::size_t short_bytes = 16 << 10;
    /// Of a receive whose lines are taken: as short as was measured.
    static constexpr std::size_t least_taken_bytes = 16 << 10;
    /// Of mode direct.
    static constexpr std::size_t landing_bytes = 256 << 10;
    /// Of the device: a transfer, its message, and what an end posts beside them.
    static constexpr std::uint32_t requests_at_once = 4;

    class SocketSleeper final : public end::Sleeper {
      public:
        SocketSleeper(Core& core)
            : Sleeper{core.end.link(), core.end.window(), core.page().wake_up,
                      core.memory.region()},
              core_{&core} {}
        /// Whoever was woken looks around, as it may have been the peer's end that woke it: by the
        /// socket, which tells it once.
        void retract() override {
            Sleeper::retract();
            core_->empty_looks |= looks_between;
        }

      private:
        /// A hold is over by the clock, which raises no event.
        Rest settle() override {
            const Rest rest = Sleeper::settle();
            return rest == Rest::sleep && core_->hold.is_running() ? Rest::nap : rest;
        }
        bool is_news(std::uint64_t progress) noexcept override {
            return progress != core_->slots.taken();
        }
        Core* core_;
    };

    /// A send of the program that the protocol has not let go of. By its number, modulo
    /// twice as many as the program may have (report_sends).
    struct Send {
        std::uint64_t id = 0;
        const std::byte* data = nullptr;
        std::uint64_t length = 0;
        std::uint32_t lkey = 0;
        bool is_internal = false;  ///< of write_some: completes nothing
        bool is_copy = false;      ///< in the staging ring
        bool is_patient = false;
        /// Plain memory that can be stored from, and not posted: see lend.
        bool is_bare = false;
        std::uint64_t staged_to = 0;
        base::Status status = base::Status::ok;
        RegistrationCache::Held region;  ///< of plain memory, or the Buffer's
    };
    struct Receive {
        std::uint64_t id = 0;
        std::byte* data = nullptr;
        bool is_used = false;
        bool is_internal = false;  ///< of read_some
        RegistrationCache::Held region;
    };
    /// WRITEs under way, and what was stored behind them.
    struct InFlight {
        std::uint64_t ticket = 0;
        std::uint64_t places = 0;  ///< of the stream
        std::uint64_t posted = 0;  ///< when: base::ticks()
    };

    /// Allocates what the peer must be told about.
    Core(connect::Link connected, const SocketOptions& asked, const Way& path);
    Core(const Core&) = delete;
    Core& operator=(const Core&) = delete;

    [[nodiscard]] Facts facts();
    /// Takes what the peer told. Throws Error (protocol, refused, resource_exhausted).
    void meet(const Facts& peer);

    [[nodiscard]] ControlPage& page() const noexcept { return *own_page; }
    /// Null: of another endpoint.
    [[nodiscard]] const Slice* if_registered_here(const Slice& slice) noexcept {
        return slice.domain() == end.link().protection_domain().raw() ? &slice : nullptr;
    }

    // --- the program

    /// `slice`: of which `from` are the bytes; null: they are plain memory.
    [[nodiscard]] base::Status send(std::span<const std::byte> from, const Slice* slice,
                                    std::uint64_t id, SendFlags flags);
    [[nodiscard]] base::Status receive(std::span<std::byte> into, const Slice* slice,
                                       std::uint64_t id, ReceiveFlags flags);
    [[nodiscard]] base::Status cancel(std::uint64_t id) noexcept;
    void shut_down() noexcept;
    /// `empty`: none of them can go now.
    [[nodiscard]] base::Status write_some(std::span<const std::byte> from, std::size_t& size);
    /// `empty`: nothing has come.
    [[nodiscard]] base::Status read_some(std::span<std::byte> into, std::size_t& size);
    /// `empty`: nothing has come.
    [[nodiscard]] base::Status read_zero_copy(View& view);
    [[nodiscard]] base::Status release(std::size_t size) noexcept;
    /// Ends a read_some that answered `empty`, and was to fill `into`, which nobody writes to then.
    void end_read(std::span<std::byte> into) noexcept;

    [[nodiscard]] bool take(Completion& completion) noexcept {
        if (completions.empty()) return false;
        completion = completions.front();
        completions.pop();
        --(completion.kind == Completion::Kind::send ? open_sends : open_receives);
        return true;
    }
    [[nodiscard]] base::Status look_for(Completion& completion) noexcept;
    [[nodiscard]] bool has_operations() const noexcept { return open_sends + open_receives != 0; }

    // --- progress

    /// Takes what has come and does what is to be done.
    void step() noexcept {
        take_in();
        if (!is_quiet) act();
    }
    void take_in() noexcept {
        if (slots.has_next()) take_messages();
        if (!in_flight.empty()) settle_writes();
    }
    /// A step of a waiting end: looks around now and then.
    void look() noexcept;
    void look_around() noexcept;
    /// Requires slots.has_next().
    void take_messages() noexcept;
    void settle_writes() noexcept;
    void act() noexcept;

    /// Everything of this side has reached the peer's memory.
    [[nodiscard]] bool all_delivered() noexcept;
    /// True if the peer said goodbye, and had every byte of ours by then.
    [[nodiscard]] bool peer_had_all() const noexcept {
        // A peer that claims more harms nobody.
        return end.peer_position().value_or(0) >=
               connection->sender().sequence() + connection->sender().unsent();
    }
    /// How much of the peer's stream has come here.
    [[nodiscard]] std::uint64_t arrived() noexcept;
    /// The peer, or this side, is gone.
    void break_off(base::Status how) noexcept;
    template <class Why>
    void break_off_because(const Why& why) noexcept {
        if (end.ended() != base::Status::ok) return;
        break_off(end.fail(why));
    }
    void end_by_peer() noexcept;
    /// In a child made by fork. What it means is left to its first call: the program may have been
    /// in one of the parent's when it forked.
    void become_copy() noexcept { is_copy = true; }
    /// The first call there. The queue pair is the parent's, and goes on.
    [[gnu::cold]] void end_copy() noexcept;
    [[nodiscard]] base::Status outcome(base::Status status) const noexcept {
        return status == base::Status::peer_lost && end.ended() != base::Status::ok ? end.ended()
                                                                                    : status;
    }

    // --- sleeping elsewhere

    /// What calls that do not wait look for, each of which takes in all that has come.
    enum class Awaited : std::uint8_t { completion, bytes, room, end };
    static constexpr std::size_t awaited_kinds = 4;

    /// Something may have come about outside of the call that looks for it.
    void tell_loop() noexcept;
    /// Another number, once somebody may find what was not there.
    [[nodiscard]] std::uint64_t news() const noexcept {
        const std::uint64_t events = slots.taken() + sends_done + sends_reported +
                                     (connection->sender().is_shut_down() ? 1 : 0) +
                                     (end.ended() != base::Status::ok ? 1 : 0);
        return events << 1 | (end.window().free() >= requests_at_once ? 1 : 0);
    }
    void note_search(Awaited what, bool in_vain) noexcept {
        std::optional<std::uint64_t>& seen = searches[static_cast<std::size_t>(what)];
        seen.reset();
        if (in_vain) seen = news();
    }
    /// True: there are completions, or who looked in vain last has not looked since there was news.
    [[nodiscard]] bool owes_news(std::optional<Awaited> but = {}) const noexcept;
    /// The descriptor is readable: who looked in vain counts as told.
    void settle_news() noexcept;
    /// Another number, once something was sent or received.
    [[nodiscard]] std::uint64_t activity() const noexcept { return messages_sent + slots.taken(); }

    [[nodiscard]] SocketStats stats() const noexcept;
    /// Brings the statistics page up to date. Called when there is nothing to do.
    void show() noexcept;

  private:
    [[nodiscard]] bool may_post() noexcept {
        if (in_flight.full()) return false;
        return end.window().free() >= requests_at_once ||
               (end.window().reap() == base::Status::ok && end.window().free() >= requests_at_once);
    }
    void put(const EncodedMessage& message, bool behind_write, end::Signal signal) noexcept;
    void perform(const Write& write) noexcept;
    void settle_with_others(std::uint32_t places) noexcept;
    void perform(const CopyOut& copy) noexcept;
    void perform(const SendDone& done) noexcept;
    void perform(const ReceiveDone& done) noexcept;
    /// Bytes of the ring have been read, and are not acknowledged yet.
    void take_ring_lines(std::uint64_t offset, std::uint64_t length) noexcept {
        if (!takes_ring_lines) return;
        base::take_lines(memory.data() + offset, length);
        counts.taken_bytes += length;
    }
    void take_lines_of_receive(std::span<std::byte> into) noexcept;
    void post_slot(const EncodedMessage& message, end::Signal signal) noexcept;
    template <class Request>
    void post(Request request, end::Signal signal) noexcept;
    void report_sends() noexcept;
    void note_stall(bool could_post) noexcept;
    [[nodiscard]] bool ends_hold() noexcept;

    [[noreturn]] void refuse_plain(const char* attempted) const;
    [[noreturn]] void refuse_behind_a_read() const;
    [[nodiscard]] bool comes_behind_a_read() const noexcept;
    [[nodiscard]] RegistrationCache::Held registered(std::span<std::byte> plain,
                                                     verbs::Access access, bool by_cache);
    /// Registrations of plain memory that is received into.
    [[nodiscard]] bool keeps_receives() const noexcept {
        return options.registrations != nullptr && options.registrations->options().receives;
    }
    [[nodiscard]] bool keeps_messages() const noexcept { return options.type == Type::seqpacket; }
    [[nodiscard]] bool goes_at_once(std::size_t length, bool patient) noexcept;
    [[nodiscard]] std::size_t longest_copied_message() const noexcept;
    [[nodiscard]] bool reads_ring() const noexcept;
    [[nodiscard]] base::Status read_ring(std::span<std::byte> into, std::size_t& size) noexcept;
    [[nodiscard]] base::Status start_read(std::span<std::byte> into);
    [[nodiscard]] base::Status end_reading() noexcept;
    [[nodiscard]] base::Status lend_landed() noexcept;
    [[nodiscard]] base::Status lend_ring() noexcept;
    [[nodiscard]] std::byte* stage(std::size_t length);
    void make_postable(Send& send, bool patient);
    [[nodiscard]] bool lend(Send& send) noexcept;
    [[nodiscard]] Send& add_send(std::span<const std::byte> from, std::uint64_t id) noexcept;
    [[nodiscard]] Send& send_at(std::uint64_t number) noexcept {
        return sends[number % sends.size()];
    }
    /// Make the memory of the first send, or receive. False: there is none now.
    [[nodiscard]] bool prepare_to_send() noexcept;
    [[nodiscard]] bool prepare_to_receive() noexcept;
    /// `region`: of `into`, with `rkey`, which a receive that may not be advertised lacks.
    [[nodiscard]] base::Status start_receive(std::span<std::byte> into, std::uint32_t rkey,
                                             const RegistrationCache::Held& region,
                                             std::uint64_t id, bool advertised, bool wait_all,
                                             bool is_internal);

  public:
    base::SoleUse use;  ///< by the call that is under way
    // In the order in which they may go: the queue pair before the memory that its requests name.
    SocketOptions options;  ///< and with it the device; what was left open is chosen
    bool is_sized = false;  ///< ... some of it by the way
    Way way;
    verbs::RegisteredBuffer memory;  ///< ring, slots, ControlPage
    struct Copies {
        verbs::RegisteredBuffer memory;
        Staging places;
    };
    std::unique_ptr<Copies> copies;  ///< of plain sends; none before the first
    /// Mode direct: what read_some reads from; none before it does.
    std::unique_ptr<verbs::RegisteredBuffer> landing;
    std::vector<Send> sends;        ///< none before the first (prepare_to_send)
    std::vector<Receive> receives;  ///< likewise
    /// The peer's ring and slots.
    struct AtPeer {
        std::shared_ptr<std::byte> memory;  ///< both, mapped here where messages are stored
        std::byte* ring = nullptr;
        Slot* slots = nullptr;
        verbs::RemoteAddress ring_address{};
        verbs::RemoteAddress slot_address{};
        std::uint64_t ring_bytes = 0;
        std::uint64_t slot_mask = 0;
    } at_peer;
    end::End end;
    ControlPage* own_page = nullptr;
    std::optional<SocketSleeper> sleeper;
    /// Those that found nothing last, each with the news() that it had seen.
    std::array<std::optional<std::uint64_t>, awaited_kinds> searches;
    std::optional<Connection> connection;

    Mode mode = Mode::dynamic;
    bool stores = false;   ///< messages, and bytes for the ring
    bool in_order = true;  ///< the bytes of one WRITE
    /// Of the ring, and of receives, once they have been read (base/detail/shared_lines.hpp).
    bool takes_ring_lines = false;
    bool takes_receives_lines = false;
    std::uint64_t most_in_turns = 0;  ///< bytes of all open receives, about, at most lately
    ring::PeerMemory carrier;
    std::uint32_t max_inline = 0;
    end::Bell bell;
    IncomingSlots slots;

    std::uint64_t messages_sent = 0;
    std::uint64_t last_ticket = 0;  ///< of the last message that leaves a completion
    BoundedQueue<InFlight> in_flight;
    Hold hold;
    std::uint64_t sends_added = 0;
    std::uint64_t sends_reported = 0;  ///< completed, as far as the program is told
    std::uint64_t sends_done = 0;      ///< ... and as far as the protocol is concerned
    std::uint64_t bare_sends = 0;      ///< not done
    bool lacked_requests = false;      ///< when act() had nothing more to do
    bool is_quiet = false;             ///< nothing has happened since, and time makes nothing due
    std::uint64_t open_sends = 0;      ///< of the program: their completion was not taken
    std::uint64_t open_receives = 0;
    std::vector<std::uint32_t> free_receives;  ///< none before the first
    BoundedQueue<Completion> completions;

    /// What read_some, and a view in mode direct, have asked for.
    struct Reader {
        bool is_open = false;
        std::uint32_t receive = 0;
        std::optional<ReceiveDone> result;
        std::byte* landed = nullptr;  ///< what was read elsewhere than where the program wants it
        std::size_t landed_size = 0;
        std::vector<std::byte> kept;  ///< of a message whose reader has gone
    } reader;
    /// The view of read_zero_copy.
    struct Lending {
        View view;
        base::Status status = base::Status::ok;
        bool is_out = false;
        bool is_landed = false;  ///< of what Reader::landed says; otherwise of the ring
        bool is_passed = false;  ///< … and receives have what follows it
    } lending;

    std::uint64_t empty_looks = 0;
    bool is_copy = false;  ///< this is a child made by fork, and no call has come since
    bool is_stalled = false;
    /// By this end itself; stats() adds what its parts count.
    struct Counts {
        std::uint64_t requests = 0;
        std::uint64_t stalls_advert = 0;
        std::uint64_t stalls_room = 0;
        std::uint64_t stalls_credit = 0;
        std::uint64_t stalls_request = 0;
        std::uint64_t staged = 0;
        std::uint64_t registrations = 0;
        std::uint64_t registrations_kept = 0;
        std::uint64_t taken_bytes = 0;
    } counts;
    std::uint64_t shown = 0;
    static constexpr std::size_t own_figures = 32;  ///< of its page
    base::StatisticsPage statistics;
    base::ForkWatch fork_watch{*this};
};

}  // namespace millrace::stream
