// The state of one end of a channel and its polled paths: claim, commit, look, release. Used by
// channel.cpp alone; setup.cpp makes it.
#pragma once

#include <infiniband/verbs.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "assembly.hpp"
#include "channel/channel_facts.hpp"
#include "channel/channel_figures.hpp"
#include "channel/incoming.hpp"
#include "channel/transmitted.hpp"
#include "millrace/base/clock.hpp"
#include "millrace/base/detail/forks.hpp"
#include "millrace/base/detail/full_fence.hpp"
#include "millrace/base/detail/sole_use.hpp"
#include "millrace/base/status.hpp"
#include "millrace/connect/link.hpp"
#include "millrace/end/end.hpp"
#include "millrace/end/send_window.hpp"
#include "millrace/end/wake_up.hpp"
#include "millrace/message/channel.hpp"
#include "millrace/message/detail/copy.hpp"
#include "millrace/message/detail/frame_reader.hpp"
#include "millrace/message/detail/frame_writer.hpp"
#include "millrace/message/transfer.hpp"
#include "millrace/ring/carrier.hpp"
#include "millrace/ring/position.hpp"
#include "millrace/verbs/memory.hpp"
#include "millrace/verbs/work_request.hpp"

namespace millrace::message {

struct Channel::Core {
    /// Looks that find nothing, between two that look around; one less than a power of two.
    static constexpr std::uint64_t looks_between = 63;
    /// … and between two that let the device move on, where it is asked to carry messages.
    static constexpr std::uint64_t looks_between_polls = 7;

    class ChannelSleeper final : public end::Sleeper {
      public:
        ChannelSleeper(Core& core)
            : Sleeper{core.link(), core.window(), core.page().wake_up, core.memory.region(),
                      core.is_told_of_events() ? Events::told : Events::own_receives},
              core_{&core} {}
        void prepare() override;
        void retract() override;
        Rest settle() override;

      private:
        bool is_news(std::uint64_t progress) noexcept override { return core_->is_news(progress); }
        [[nodiscard]] bool awaits_room() const noexcept override {
            return core_->waiting_for_room || core_->wants_room || core_->lacks_room;
        }
        bool take_told() noexcept override;
        Core* core_;
    };

    /// Allocates what the peer must be told about.
    Core(connect::Link connected, const ChannelOptions& chosen, const Ways& chosen_ways = {});
    Core(const Core&) = delete;
    Core& operator=(const Core&) = delete;
    ~Core();

    [[nodiscard]] Facts facts();
    /// Whoever sleeps is to make the fences of both ends.
    [[nodiscard]] bool leaves_fences() noexcept;
    /// Takes what the peer told. Throws Error (protocol, refused, resource_exhausted).
    void meet(const Facts& peer);

    [[nodiscard]] connect::Link& link() noexcept { return end.link(); }
    [[nodiscard]] const connect::Link& link() const noexcept { return end.link(); }
    [[nodiscard]] end::SendWindow& window() noexcept { return end.window(); }
    [[nodiscard]] const end::SendWindow& window() const noexcept { return end.window(); }
    [[nodiscard]] ControlPage& page() const noexcept { return *own_page; }

    // --- sending

    /// Makes sure that a piece of `size` bytes fits where the writer is.
    [[gnu::always_inline]] base::Status reserve(std::size_t size) noexcept {
        return size <= longest_here ? reserve_piece(size) : too_long();
    }
    /// The same of a piece of a message that goes this way all the same; of at most max_piece().
    [[gnu::always_inline]] base::Status reserve_piece(std::size_t size) noexcept {
        if (frame_bytes(size) <= room && (stores || window().free() >= 4)) [[likely]]
            return base::Status::ok;
        return make_room(size);
    }
    base::Status claim(std::size_t size, std::span<std::byte>& place) noexcept {
        const base::Status status = reserve(size);
        if (status == base::Status::ok) [[likely]]
            place = writer.payload(size);
        claimed_at = writer.position();
        return status;
    }
    /// The place that was claimed last is still the next one.
    [[nodiscard]] bool is_claimed() const noexcept { return claimed_at == writer.position(); }

    /// Sends the first `size` bytes of what was claimed.
    [[gnu::always_inline]] base::Status commit(std::size_t size, std::uint8_t flags) noexcept {
        return sent(writer.commit(size, flags), size, flags);
    }
    /// The same of a message that has the rest of its block to itself, if the ring stays half empty
    /// all the same. Only where frames are stored.
    base::Status commit_apart_if_roomy(std::size_t size) noexcept;
    /// Sends a copy of a piece for which there is room.
    [[gnu::always_inline]] base::Status send(std::span<const std::byte> piece,
                                             std::uint8_t flags) noexcept {
        return sent(writer.send(piece, flags), piece.size(), flags);
    }
    /// The same of a whole message that begins with `head`.
    [[gnu::always_inline]] base::Status send(const PieceHead& head,
                                             std::span<const std::byte> rest) noexcept {
        const std::size_t size = sizeof head + rest.size();
        const Transmission frame = writer.send(head, rest);
        room -= frame_bytes(size);
        return count_sent(stores ? show_progress() : post_apart(frame), size, frame_whole);
    }
    [[gnu::always_inline]] base::Status sent(Transmission frame, std::size_t size,
                                             std::uint8_t flags) noexcept {
        room -= frame_bytes(size);
        return count_sent(post(frame, figures.frame_writes()), size, flags);
    }
    [[gnu::always_inline]] base::Status count_sent(base::Status status, std::size_t size,
                                                   std::uint8_t flags) noexcept {
        if (status != base::Status::ok) [[unlikely]]
            return status;
        figures.sent(size, (flags & frame_more) == 0);
        return base::Status::ok;
    }

    /// Brings a frame that was laid to the peer, where it does not lie there already.
    [[gnu::always_inline]] base::Status post(Transmission frame, std::uint64_t& counter) noexcept {
        return stores ? show_progress() : post_here(frame, counter);
    }
    [[gnu::always_inline]] base::Status post_here(Transmission frame,
                                                  std::uint64_t& counter) noexcept {
        const base::Status status = post_writes(frame, counter);
        if (status != base::Status::ok) [[unlikely]]
            return lost_or_closed();
        return show_progress();
    }
    /// The same for who stores mostly, and keeps its registers for that.
    [[gnu::noinline]] base::Status post_apart(Transmission frame) noexcept;
    [[gnu::always_inline]] base::Status show_progress() noexcept {
        sent_half = Progress::sent_half(writer.position());
        if (bell.publish(sent_half | Progress::units(reader.position()))) [[unlikely]]
            wake_peer();
        return base::Status::ok;
    }

    base::Status post_writes(const Transmission& frame, std::uint64_t& counter) noexcept {
        base::Status status;
        if (posting == Posting::one_write) [[likely]] {
            status = post_write(frame);
            ++counter;
        } else if (posting == Posting::send) {
            status = post_send(frame, counter);
        } else {
            // The trailer alone, behind the rest: see docs/message.md.
            status = post_write({frame.offset, frame.bytes - word_bytes});
            if (status == base::Status::ok) {
                status = post_write({frame.offset + frame.bytes - word_bytes, word_bytes});
            }
            counter += 2;
        }
        transmitted.posted(window().posted());
        return status;
    }
    base::Status post_send(const Transmission& frame, std::uint64_t& counter) noexcept;

    base::Status post_write(const Transmission& range) noexcept {
        return window().post(
            verbs::RoutedWrite{.route = &route,
                               .from = send_ring_address + range.offset,
                               .bytes = static_cast<std::uint32_t>(range.bytes),
                               .to = peer_ring.address + range.offset,
                               .flags = range.bytes <= max_inline ? verbs::SendFlags::inlined
                                                                  : verbs::SendFlags::none},
            signal);
    }

    /// Bytes of the longest piece.
    [[nodiscard]] std::uint64_t max_piece() const noexcept {
        return peer_slot == 0 ? writer.max_length() : peer_slot - 2 * word_bytes;
    }

    [[gnu::noinline]] base::Status make_room(std::size_t size) noexcept;
    /// As reserve_piece(), also for what goes although the end is closing.
    base::Status reserve_last(std::size_t size) noexcept {
        return end.is_closing() ? find_room(size) : reserve_piece(size);
    }
    [[nodiscard]] base::Status too_long() const noexcept {
        return ended_sending == base::Status::ok ? base::Status::too_large : ended_sending;
    }
    base::Status find_room(std::size_t size) noexcept;
    /// Sending has ended, or nothing is known of room any more.
    void forget_room() noexcept { room = 0; }
    base::Status look_for_room(std::uint64_t needed) noexcept;
    base::Status found_full() noexcept;
    /// Why sending ended, now that it must have: the queue pair or the peer is gone.
    base::Status lost_or_closed() noexcept;
    void wake_peer() noexcept;
    void take_consumed(std::uint64_t word) noexcept;
    base::Status send_close() noexcept;
    /// Tries to bring everything, and the close frame, to the peer's ring. `full`: not yet.
    base::Status deliver() noexcept;
    /// How far the peer's messages were read here, which goes with the goodbye.
    [[nodiscard]] std::uint64_t read_position() noexcept;
    void say_goodbye() noexcept { end.say_goodbye(read_position()); }
    /// True if the peer said goodbye, and had read every message of ours by then.
    [[nodiscard]] bool peer_had_all() const noexcept;
    /// close() without waiting, as end::End's.
    template <class Deliver, class PeerHadAll>
    base::Status try_close(Deliver&& try_to_deliver, PeerHadAll&& had_all) noexcept {
        begin_to_close();
        return note_closed(
            end.try_close(try_to_deliver, had_all, [this] { return read_position(); }));
    }
    void begin_to_close() noexcept;
    /// After an attempt, which has come to `status`.
    base::Status note_closed(base::Status status) noexcept;

    // --- receiving

    /// True if the next message has come, is whole and has at most `most` bytes: its length.
    [[nodiscard, gnu::always_inline]] bool finds_whole(std::size_t most,
                                                       std::uint64_t& length) const noexcept {
        return !is_not_plain && reader.front_whole(most, length);
    }
    /// Goes on behind it: it has been copied. True: tell_peer() is due.
    [[nodiscard, gnu::always_inline]] bool pass_whole(std::uint64_t length,
                                                      std::uint64_t steps = 1) noexcept {
        empty_looks = 0;
        reader.release(length);
        return released(length, steps);
    }
    /// Goes on behind one that has the rest of its block to itself. `steps`: as released().
    [[nodiscard, gnu::always_inline]] bool pass_apart(std::uint64_t length,
                                                      std::uint64_t steps = 1) noexcept {
        empty_looks = 0;
        reader.release_apart(length);
        return released(length, steps);
    }
    /// Copies it, if it is longer than most.
    [[gnu::noinline]] base::Status take_long(std::byte* into, std::uint64_t length) noexcept {
        std::memcpy(into, reader.payload(), length);
        return pass_whole(length) ? tell_peer() : base::Status::ok;
    }
    /// Receiving has ended, or a message is being put together.
    void note_plain() noexcept {
        is_not_plain = ended_receiving != base::Status::ok || assembled_whole;
    }

    [[gnu::always_inline]] base::Status look(Piece& piece) noexcept {
        if (ended_receiving == base::Status::ok && reader.look(piece) == FrameReader::Look::piece)
            [[likely]] {
            empty_looks = 0;
            return base::Status::ok;
        }
        return found_none(piece);
    }
    /// For who waits, and has looked in vain: true if nothing has come since, by a look at the
    /// place of the next frame alone. False also where it is time to look around, which look()
    /// does.
    [[nodiscard, gnu::always_inline]] bool stays_quiet() noexcept {
        reader.ask_for_second_line();
        return !reader.arriving() && counts_vain_look();
    }
    /// Behind such a look that has found nothing. False: it is time to look around.
    [[nodiscard, gnu::always_inline]] bool counts_vain_look() noexcept {
        if (((empty_looks + 1) & quiet_looks) == 0) return false;
        ++empty_looks;
        return true;
    }
    [[gnu::noinline]] base::Status found_none(Piece& piece) noexcept;
    base::Status find_piece(Piece& piece, bool is_thorough) noexcept;

    /// For who READs the peer's memory through this end's window: the first of its READs that is
    /// not taken is complete. Whoever sleeps is woken by it.
    [[nodiscard]] bool read_has_come() noexcept {
        return awaited_read != 0 &&
               (window().done(awaited_read) ||
                (window().reap() == base::Status::ok && window().done(awaited_read)));
    }

    // --- sleeping elsewhere

    /// Falls asleep for a program that sleeps in a loop of its own, unless there is a message, or
    /// room if that is wanted.
    [[gnu::cold]] void rest() noexcept;
    void end_rest() noexcept;
    /// Nothing was sent, or wanted to be, and nothing received.
    [[nodiscard]] bool is_unused() const noexcept { return figures.is_unused(); }
    /// Another number, once something was sent or received.
    [[nodiscard]] std::uint64_t activity() const noexcept {
        return writer.position() + reader.position();
    }

    /// `bytes`: of payload.
    void release(std::size_t bytes, bool last) noexcept {
        reader.release();
        if (!last) figures.received_part();
        if (released(bytes)) [[unlikely]]
            (void)tell_peer();
    }
    /// True: tell_peer() is due. `steps`: behind so many times `credit_step`. Twice as far for who
    /// is likely to say soon how far it has read in a message of its own (say_position).
    [[nodiscard, gnu::always_inline]] bool released(std::size_t bytes,
                                                    std::uint64_t steps = 1) noexcept {
        figures.received(bytes);
        const std::uint64_t position = reader.position();
        ControlPage& own = *own_page;
        own.consumed.store(ring::PositionWord::pack(position));
        own.wake_up.progress.store(sent_half | Progress::units(position));
        return position - credited >= steps * credit_step || peer_waits_for_room();
    }

    // --- room that messages tell of: how far their sender has read its own ring. A hint, as
    // `credit` is: who finds no room asks.

    /// Of what is said: it says something. The other bits are units of Progress.
    static constexpr std::uint32_t says_position = std::uint32_t{1} << 31;
    /// `credit` is told behind so many bytes all the same. It says 32 bits of a position, and the
    /// peer, who may look at it at any time, would take one of 16 GiB ago for a lie, and one of 32
    /// for news.
    static constexpr std::uint64_t longest_untold = std::uint64_t{1} << 30;
    /// How far this end has read, for the head of a message that it is about to send. 0: it says
    /// nothing.
    [[nodiscard]] std::uint32_t say_position() noexcept {
        if (!has_ring) return 0;
        credited = reader.position();
        if (credited - told >= longest_untold) [[unlikely]]
            return_credit();
        return Progress::units(credited) | says_position;
    }
    /// What the peer said so. False: it cannot be there.
    [[nodiscard]] bool hear_position(std::uint32_t said) noexcept {
        if ((said & says_position) == 0) return true;
        // By 31 bits of either.
        const std::int64_t twice =
            Progress::ahead(said << 1, Progress::units(consumed.value()) << 1);
        return consumed.go_on(twice / 2, writer.position()) != ring::News::impossible;
    }
    /// After progress that was stored.
    [[nodiscard, gnu::always_inline]] bool peer_waits_for_room() const noexcept {
        if (fences_here) [[unlikely]]
            base::full_fence();
        return bell.peer_waits_for_room();
    }
    /// `ok`, as the last thing that a receiving call does.
    [[gnu::noinline]] base::Status tell_peer() noexcept;

    // --- receiving by SEND

    /// Events come with messages, or to all ends of a server.
    [[nodiscard]] bool is_told_of_events() const noexcept {
        return ways.receives == Transfer::send || ways.shared != nullptr;
    }
    /// Posts the receives of an end whose peer is to be told of them.
    void post_receives();
    void poll_receives() noexcept;
    /// The completion of a receive. May be of a message, of an event, or a failure.
    void take(const verbs::Completion& completion) noexcept;
    /// Goes on behind the message that was passed: posts its receive again.
    void pass_slot() noexcept;
    /// The reader shall look at the next message that has come, or will.
    void place_next() noexcept;
    void fail_receiving(std::string_view why) noexcept;
    /// Messages that have come by SEND, all in all.
    [[nodiscard]] std::uint64_t arrivals() const noexcept {
        return incoming.has_value() ? incoming->taken() : 0;
    }

    base::Status look_around(Piece& piece) noexcept;
    base::Status end_receiving(Piece& piece) noexcept;
    void return_credit() noexcept;
    /// Lets a peer that waits for room know how far we have read, for certain.
    void publish() noexcept;

    bool is_news(std::uint64_t word) noexcept;
    /// In a child made by fork: nothing more is sent, and nothing is found.
    void become_copy() noexcept;
    /// Nothing more is sent. The first reason is the one that failure() tells.
    void fail(std::string_view why) noexcept;
    /// The same, as the peer broke the protocol.
    void distrust(std::string_view why) noexcept;
    /// The same, as a request or the peer itself says.
    void fail_by_loss() noexcept;
    [[nodiscard]] std::string failure() const { return end.failure(); }
    [[nodiscard]] ChannelStats stats() const noexcept;
    [[nodiscard]] std::string explain() const;
    /// Brings the statistics page up to date. Called when there is nothing to do, now and then
    /// else.
    void show() noexcept;
    void show_now_and_then() noexcept {
        if (figures.is_due()) show();
    }

    // In the order in which they may go: the queue pair before the memory that its requests name.
    ChannelOptions options;  ///< and with it the device
    Ways ways;
    const std::uint64_t first_position;  ///< of what it sends
    std::size_t receive_bytes = 0;       ///< of `memory`, before the ControlPage
    verbs::RegisteredBuffer memory;  ///< the ring, or slots, to receive into; then the ControlPage
    verbs::RegisteredBuffer send_ring;       ///< none where frames are laid in the peer's ring
    std::shared_ptr<std::byte> peer_memory;  ///< … which is mapped here then
    end::End end;
    std::optional<ChannelSleeper> sleeper;

    // What each message asks for lies together, in few cache lines. One thread uses all of it, so
    // nothing here needs a line of its own.
    FrameWriter writer;
    std::size_t longest_here = largest_ring;  ///< of messages that go in one piece
    std::uint64_t room = 0;       ///< bytes that frames may take from where the writer is
    std::uint64_t reusable = 0;   ///< everything before it was consumed and its WRITE completed
    ring::PeerPosition consumed;  ///< by the peer, as far as is known
    std::uint64_t sent_half = 0;  ///< of our progress: how much was sent
    ControlPage* own_page = nullptr;
    bool stores = false;        ///< frames are laid in the peer's ring
    bool has_ring = false;      ///< that the peer writes to
    bool is_not_plain = false;  ///< ended_receiving, or assembled_whole
    end::Bell bell;
    bool fences_here = false;  ///< the peer makes no far fences when it sleeps
    base::Status ended_sending = base::Status::ok;
    base::Status ended_receiving = base::Status::ok;
    FrameReader reader;
    std::uint64_t credit_step = 0;  ///< tell_peer() is due behind so many bytes; by SEND always
    std::uint64_t credited = 0;     ///< the position that `credit`, or a message, told last
    std::uint64_t told = 0;         ///< … that `credit` did
    std::uint64_t empty_looks = 0;
    std::uint64_t quiet_looks = looks_between;  ///< between two that do more than that
    ChannelFigures figures;

    // Sending.
    Transmitted transmitted;
    std::uint64_t send_ring_address = 0;
    std::uint32_t max_inline = 0;
    end::Signal signal = end::Signal::when_due;  ///< of what carries frames
    verbs::RemoteAddress peer_ring{};
    verbs::RemoteAddress peer_page{};  ///< its ControlPage
    std::uint64_t awaited_read = 0;    ///< ticket; 0: none is
    verbs::WriteRoute route;           ///< from the one to the other
    enum class Posting : std::uint8_t {
        one_write,   ///< for each frame
        two_writes,  ///< as the bytes of one may become visible in any order
        send,
    };
    Posting posting = Posting::one_write;
    std::uint64_t peer_slot = 0;  ///< bytes of the peer's receives; 0: it has a ring
    std::uint32_t send_ring_key = 0;
    ring::PeerMemory carrier;
    std::uint64_t secret = 0;  ///< of the frames that this end sends
    end::CounterPull pull;
    bool waiting_for_room = false;
    bool lacks_room = false;  ///< the last attempt to send found none
    bool wants_room =
        false;  ///< the last attempt to send found none, and the descriptor is to tell
    std::size_t wanted_size = 0;
    bool falls_asleep = false;      ///< the wait has come to the point of sleeping
    std::uint64_t asked_ticks = 0;  ///< when the last READ of `consumed` was posted
    std::uint64_t asking_pause = base::ticks_in(std::chrono::milliseconds{20});
    std::uint64_t claimed_at = 0;     ///< where the place is that was claimed last
    bool closed_by_us = false;        ///< the close frame is posted
    std::uint64_t data_position = 0;  ///< … and before it, everything up to here

    // Receiving.
    std::optional<Incoming> incoming;  ///< if it receives by SEND
    static constexpr std::uint32_t no_place = ~std::uint32_t{0};
    std::uint32_t server_place = no_place;
    bool is_told = false;          ///< something has come that the server has not looked at
    std::uint64_t credit_due = 0;  ///< the peer is told of so many at a time
    end::CounterPush credit;
    /// What look() found last.
    struct Current {
        std::uint64_t at = 0;
        std::uint64_t bytes = 0;  ///< of its payload
        bool is_last = true;      ///< it is the last piece of its message
    } current;
    std::uint64_t published = 0;  ///< position that a sleeping peer was certainly told of
    base::SoleUse use;            ///< by a wait or close that is under way
    Assembly assembled{options.max_message_bytes};
    bool assembled_whole = false;  ///< it is handed out, or about to be

    base::ForkWatch fork_watch{*this};
};

}  // namespace millrace::message
