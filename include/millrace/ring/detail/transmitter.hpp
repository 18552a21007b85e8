// What sends of a ring's producer: takes what is laid in the ring to the consumer, tells it, and
// learns of space. Sender lays the items and calls this, or the data mover does.
//
//                 transferred   intransit     laid
//   own ring      ----+-------------+----------+--------   room for items
//                     |  in flight  | stranded |
//   peer's ring   --+-----------------+---------------     same offsets, same size S
//                consumed
//
//   consumed <= intransit <= laid      transferred <= intransit
//   laid - transferred <= S            (own ring)
//   intransit - consumed <= S          (peer's ring)
//
// All are positions in bytes and grow modulo 2^64. Where items are laid in the peer's ring itself
// (Terms::in_place), the two rings are one, and nothing is in flight or stranded.
//
// One class for each data flow, with the same calls, over what they have in common:
//
//   push()        sends of what is laid as much as there is space for
//   settle()      sees to it that what is in flight will be known to have arrived
//   reachable()   how far the consumer can be at most
//
// Everything here belongs to one thread, the one that sends: the caller of the Sender, or the data
// mover's (src/ring/sender_mover.hpp draws what the two share then).
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "millrace/base/clock.hpp"
#include "millrace/base/status.hpp"
#include "millrace/base/wait.hpp"
#include "millrace/connect/link.hpp"
#include "millrace/ring/carrier.hpp"
#include "millrace/ring/counts.hpp"
#include "millrace/ring/design.hpp"
#include "millrace/ring/detail/end_names.hpp"
#include "millrace/ring/detail/push1.hpp"
#include "millrace/ring/detail/push2.hpp"
#include "millrace/ring/detail/space.hpp"
#include "millrace/ring/detail/transfer.hpp"
#include "millrace/ring/every_design.hpp"
#include "millrace/ring/frames.hpp"
#include "millrace/ring/options.hpp"
#include "millrace/ring/position.hpp"
#include "millrace/ring/terms.hpp"
#include "millrace/ring/watermark.hpp"
#include "millrace/verbs/memory.hpp"

namespace millrace::ring::detail {

/// Registered memory of the producer that the consumer reads and writes.
struct SenderPage {
    WakeUpPage wake;
    CounterLine credit;    ///< pushed by the consumer
    CounterLine landing;   ///< of our READs of its progress
    CounterLine transfer;  ///< transfer pull: how far it may go, for the consumer to READ
    CounterLine taken;     ///< space push2: how many SENDs were taken
    CounterLine credits[SpaceView<SpaceNotification::push2>::receives];  ///< their receives
};

template <Design D>
class Push1Transmitter;
template <Design D>
class Push2Transmitter;
template <Design D>
class PullTransmitter;
template <Design D>
using Transmitter = std::conditional_t<
    D.data == DataFlow::push1, Push1Transmitter<D>,
    std::conditional_t<D.data == DataFlow::push2, Push2Transmitter<D>, PullTransmitter<D>>>;

/// What the three data flows have in common.
template <Design D>
class TransmitterBase {
  public:
    TransmitterBase(const TransmitterBase&) = delete;
    TransmitterBase& operator=(const TransmitterBase&) = delete;

    // ---- what it knows
    [[nodiscard]] std::uint64_t laid() const noexcept { return laid_; }
    [[nodiscard]] std::uint64_t intransit() const noexcept { return intransit_; }
    [[nodiscard]] std::uint64_t transferred() const noexcept { return transferred_; }
    [[nodiscard]] std::uint64_t consumed() const noexcept { return space_.consumed(); }
    /// `ok`; or how the ring has ended: `closed`, `peer_lost`.
    [[nodiscard]] base::Status ended() const noexcept { return end_.ended(); }
    /// Of the Sender, whose thread has its sleeping and its close.
    [[nodiscard]] End& end() noexcept { return end_; }
    [[nodiscard]] const End& end() const noexcept { return end_; }
    /// Bytes of laid items that fit in the peer's ring, and, where items wait, in ours.
    [[nodiscard]] std::uint64_t peer_room() const noexcept {
        const std::uint64_t used = laid_ - consumed();
        return used >= terms_->window_bytes ? 0 : terms_->window_bytes - used;
    }
    [[nodiscard]] std::uint64_t own_room() const noexcept {
        if (D.data == DataFlow::pull || terms_->in_place) return peer_room();
        return terms_->ring_bytes - (laid_ - transferred_);
    }
    /// How many bytes may be laid before it is worth to look for space again.
    [[nodiscard]] std::uint64_t look_after() const noexcept {
        return space_.look_after(laid_ - consumed());
    }
    /// True: everything laid has arrived, and the consumer was told.
    [[nodiscard]] bool is_done() const noexcept {
        return transferred_ == laid_ && !notice_.owes(intransit_);
    }
    /// True: something must still be told to the consumer.
    [[nodiscard]] bool owes() const noexcept { return bell_.owes() || notice_.owes(intransit_); }
    [[nodiscard]] SenderCounts counts() const noexcept;
    [[nodiscard]] std::string failure() const {
        return end_.failure(notice_window_ ? &*notice_window_ : nullptr);
    }

    // ---- what it does. `ok`; or `closed`, `peer_lost`: it has ended.

    /// Items are laid up to `position`. Before any of the calls below.
    void laid(std::uint64_t position) noexcept { laid_ = position; }
    /// Takes completions, looks for space, rings what is owed, looks after the peer.
    base::Status service() noexcept;
    /// As service, when it is about to be said that everything has arrived.
    base::Status look_at_peer_now() noexcept { return end_.look_now(); }
    /// Asks the consumer for space, if the design does so.
    base::Status refresh() noexcept;
    /// As refresh, if so much of the ring is in use up to `position` that it is time. `asked`: so
    /// it was.
    base::Status refresh_if_due(std::uint64_t position, bool* asked = nullptr) noexcept;
    /// As refresh, when nothing else is left but to say that it is full.
    base::Status refresh_for_certain() noexcept;
    /// How far the consumer is, whether or not it has returned that credit.
    base::Status ask_consumer() noexcept;
    /// Tells the consumer how far it may go, where that is not in the data.
    base::Status tell() noexcept {
        if constexpr (D.transfer == TransferNotification::push ||
                      D.transfer == TransferNotification::pull) {
            return tell_counter();
        } else {
            return base::Status::ok;
        }
    }
    /// Takes completions. False: a request has failed.
    bool reap() noexcept {
        const bool whole = end_.window().reap() == base::Status::ok;
        reap_transferred();
        return whole;
    }
    /// Where who sends by itself sleeps for space.
    [[nodiscard]] base::StandingParker& parker() noexcept { return *sleeper_; }
    /// A wait for space has ended.
    void awake() noexcept { waiting_ = false; }
    /// The data mover calls from now on: more may be laid than it knows of.
    void moved() noexcept {
        is_moved_ = true;
        quarter_ = 1;  // the end of each transfer is waited for
    }
    [[nodiscard]] std::uint64_t asking_pause() const noexcept { return asking_pause_; }

    /// The consumer that pulls may owe credit and make no more calls, so a flush asks it.
    static constexpr bool asks_to_flush =
        D.data == DataFlow::pull && D.space != SpaceNotification::pull;
    /// Credit that comes by SEND wakes by itself.
    static constexpr bool completions_wake = D.space == SpaceNotification::push2;
    /// Whether sleeps have to be so short that the consumer can be asked in time.
    void sleep_to_ask(bool asks) noexcept
        requires completions_wake
    {
        sleeper_->sleep_at_most(asks ? std::chrono::milliseconds{2}
                                     : std::chrono::nanoseconds::max());
    }

  protected:
    using Self = Transmitter<D>;
    using ParkerOfSpace = std::conditional_t<completions_wake, CompletionSleeper, Sleeper>;
    class SpaceSleeper;

    /// Makes ready what the consumer must find before it is told the addresses.
    TransmitterBase(connect::Link link, const Terms& terms, const verbs::RegisteredBuffer& memory,
                    Design design, const RingOptions& options);
    /// Takes the consumer's addresses, and the words among them that are addressable.
    void meet(const Places& theirs, PeerMemory& peer, const verbs::RegisteredBuffer& memory,
              const RingOptions& options);

    [[nodiscard]] Self& self() noexcept { return static_cast<Self&>(*this); }
    /// Requests fail, or the peer goes on no more.
    base::Status lost() noexcept { return end_.lost(); }
    [[gnu::cold]] base::Status distrust() noexcept;
    base::Status look_for_space() noexcept;
    base::Status tell_counter() noexcept;
    base::Status settle_in_flight() noexcept;
    [[nodiscard]] bool relies_on_bell() noexcept;
    void reap_transferred() noexcept;
    /// The last posted request leaves a completion, which says that all up to intransit_ is there.
    void cover() noexcept {
        covers_[cover_tail_++ & cover_mask_] = {end_.window().posted(), intransit_};
        covered_ = intransit_;
    }
    /// Whether the run up to `position` must leave a completion.
    [[nodiscard]] Signal signal_for(std::uint64_t position) const noexcept {
        if constexpr (D.transfer == TransferNotification::pull) return Signal::now;
        return position - covered_ >= quarter_ ? Signal::now : Signal::when_due;
    }
    [[nodiscard]] bool is_skip(std::uint64_t offset, std::uint64_t position) const noexcept {
        return load_word(ring_ + offset) == Frames<D>::skip(position, terms_->secret);
    }
    [[nodiscard]] std::uint64_t unit_at(std::uint64_t offset,
                                        std::uint64_t position) const noexcept;

    struct Cover {
        std::uint64_t ticket;
        std::uint64_t position;
    };

    const Terms* terms_;
    End end_;
    const std::byte* ring_ = nullptr;  ///< of what is laid; null in place, where nothing is read
    std::uint64_t intransit_ = 0;
    std::uint64_t laid_ = 0;
    std::uint64_t sent_offset_ = 0;  ///< of intransit_ in the ring
    std::uint64_t covered_ = 0;      ///< position after the last signaled request
    std::uint64_t quarter_ = 0;
    std::uint64_t transferred_ = 0;
    bool waiting_ = false;  ///< in a wait that has come to its sleeper
    bool is_moved_ = false;

    TransferNotice<D.transfer> notice_;
    Bell bell_;
    SpaceView<D.space> space_;
    std::unique_ptr<ParkerOfSpace> sleeper_;

    std::vector<Cover> covers_;  ///< signaled requests and how far they reach
    std::uint64_t cover_head_ = 0;
    std::uint64_t cover_tail_ = 0;
    std::uint64_t cover_mask_ = 0;
    std::uint64_t asked_ = 0;  ///< ticks of the last question within a sleep
    std::uint64_t asking_pause_ = base::ticks_in(std::chrono::milliseconds{20});
    std::uint64_t settling_writes_ = 0;
    std::uint64_t lazy_refreshes_ = 0;
    std::uint64_t forced_refreshes_ = 0;
    verbs::RemoteAddress peer_page_{};
    std::optional<SendWindow> notice_window_;  ///< transfer push on a queue pair of its own
    CounterPull progress_;                     ///< where a flush asks the consumer that owes credit
};

/// DataFlow::push1: WRITEs of runs, or stores.
template <Design D>
class Push1Transmitter final : public TransmitterBase<D> {
  public:
    Push1Transmitter(connect::Link link, const Terms& terms, const verbs::RegisteredBuffer& memory,
                     Design design, const RingOptions& options);
    /// `ring`: where items are laid; null in place. `peer_ring`: where runs of it are copied to, if
    /// the consumer's ring is addressable.
    void meet(const Places& theirs, PeerMemory& peer, const verbs::RegisteredBuffer& memory,
              const RingOptions& options, const verbs::RegisteredBuffer* ring,
              std::shared_ptr<std::byte> peer_ring);

    base::Status push(bool only_whole) noexcept;
    base::Status settle() noexcept;
    [[nodiscard]] std::uint64_t reachable() const noexcept {
        return this->terms_->in_place ? this->laid_ : this->intransit_;
    }
    /// Of so many bytes that wait, the whole units that go next, in some `piece` bytes.
    [[nodiscard]] std::uint64_t next_run(std::uint64_t waiting, std::uint64_t piece) const noexcept;

    /// In place: items up to `laid` have their marks. Hot.
    base::Status show(std::uint64_t laid) noexcept {
        if constexpr (D.transfer == TransferNotification::push ||
                      D.transfer == TransferNotification::pull) {
            (void)this->notice_.tell(laid);
        }
        if (this->bell_.publish(laid)) [[unlikely]]
            (void)this->bell_.ring();
        return base::Status::ok;
    }
    /// In place: what was shown has arrived.
    void shown(std::uint64_t laid) noexcept {
        this->laid_ = this->intransit_ = this->transferred_ = this->covered_ = laid;
    }
    /// Where nothing waits and the peer has room: sends the `bytes` at `offset`, up to `laid`, in
    /// one WRITE. `full`: no slot of the queue is free, and nothing was sent. Hot.
    base::Status push_straight(std::uint64_t offset, std::uint64_t bytes,
                               std::uint64_t laid) noexcept {
        // Published before it is sent: a sleeping peer that finds it published waits for it.
        if (this->bell_.publish(laid)) [[unlikely]]
            return push_and_ring(offset, bytes, laid);
        return push_published(offset, bytes, laid);
    }
    /// As push_straight, of what lies at `slices` and goes to `offset`.
    base::Status push_gathered(verbs::Slices slices, std::uint64_t offset, std::uint64_t bytes,
                               std::uint64_t laid) noexcept;
    /// True: the consumer has a receive for one more immediate, or the design needs none.
    [[nodiscard]] bool has_receive() noexcept {
        if constexpr (D.transfer == TransferNotification::immediate) {
            return this->notice_.has_receive(this->space_.consumed());
        } else {
            return true;
        }
    }

  private:
    base::Status run(std::uint64_t offset, std::uint64_t bytes,
                     [[maybe_unused]] std::uint64_t position, Signal signal) noexcept {
        if constexpr (D.transfer == TransferNotification::immediate) {
            if (!has_receive()) return base::Status::full;
            const base::Status status = data_.run_with_immediate(this->end_.window(), offset, bytes,
                                                                 immediate_of(position), signal);
            if (status == base::Status::ok) this->notice_.sent(position);
            return status;
        } else {
            return data_.run(this->end_.window(), offset, bytes, signal);
        }
    }
    /// The run counts as sent before it is posted: so nothing has to be kept over the post. How far
    /// items are laid is told by laid() before anything asks for it.
    [[gnu::always_inline]] base::Status push_published(std::uint64_t offset, std::uint64_t bytes,
                                                       std::uint64_t laid) noexcept {
        const Signal signal = this->signal_for(laid);
        this->intransit_ = laid;
        this->sent_offset_ = offset + bytes;
        const base::Status status = run(offset, bytes, laid, signal);
        if (status != base::Status::ok) [[unlikely]]
            return failed(status, bytes);
        if (this->end_.window().last_is_signaled()) this->cover();
        return this->tell();
    }
    [[gnu::noinline]] base::Status push_and_ring(std::uint64_t offset, std::uint64_t bytes,
                                                 std::uint64_t laid) noexcept;
    /// The last `bytes` were not sent.
    [[gnu::noinline]] base::Status failed(base::Status status, std::uint64_t bytes) noexcept;
    base::Status send_run(std::uint64_t run, std::uint64_t last) noexcept;
    [[nodiscard]] std::uint64_t units_within(std::uint64_t limit,
                                             std::uint64_t& last) const noexcept;
    friend class TransmitterBase<D>;
    [[nodiscard]] std::uint64_t data_posted() const noexcept { return data_.posted(); }
    Push1 data_;
};

/// DataFlow::push2: a SEND for each chunk.
template <Design D>
class Push2Transmitter final : public TransmitterBase<D> {
  public:
    Push2Transmitter(connect::Link link, const Terms& terms, const verbs::RegisteredBuffer& memory,
                     Design design, const RingOptions& options);
    void meet(const Places& theirs, PeerMemory& peer, const verbs::RegisteredBuffer& memory,
              const RingOptions& options, const verbs::RegisteredBuffer* ring,
              std::shared_ptr<std::byte> peer_ring);

    /// `only_whole`: what does not fill a batch waits. Else the rest of its chunk counts as laid,
    /// and laid() tells.
    base::Status push(bool only_whole) noexcept;
    base::Status settle() noexcept;
    [[nodiscard]] std::uint64_t reachable() const noexcept { return this->intransit_; }
    [[nodiscard]] std::uint64_t next_run(std::uint64_t waiting,
                                         std::uint64_t /*piece*/) const noexcept {
        return waiting;
    }

  private:
    friend class TransmitterBase<D>;
    [[nodiscard]] std::uint64_t data_posted() const noexcept { return data_.posted(); }
    Push2 data_;
};

/// DataFlow::pull: nothing is sent; the consumer is told what is there.
template <Design D>
class PullTransmitter final : public TransmitterBase<D> {
  public:
    PullTransmitter(connect::Link link, const Terms& terms, const verbs::RegisteredBuffer& memory,
                    Design design, const RingOptions& options);
    void meet(const Places& theirs, PeerMemory& peer, const verbs::RegisteredBuffer& memory,
              const RingOptions& options, const verbs::RegisteredBuffer* ring,
              std::shared_ptr<std::byte> peer_ring);

    base::Status push(bool only_whole) noexcept;
    /// The same; where the items lie does not matter.
    base::Status push_straight(std::uint64_t /*offset*/, std::uint64_t /*bytes*/,
                               std::uint64_t laid) noexcept {
        this->laid_ = laid;
        return push(false);
    }
    base::Status settle() noexcept;
    /// It may find an item by its mark before it is told; with a mover, before that sees it: then
    /// at most a ring beyond what is known to be pulled.
    [[nodiscard]] std::uint64_t reachable() const noexcept {
        return this->is_moved_ ? this->transferred_ + this->terms_->ring_bytes : this->laid_;
    }
    [[nodiscard]] std::uint64_t next_run(std::uint64_t waiting,
                                         std::uint64_t /*piece*/) const noexcept {
        return waiting;
    }

  private:
    friend class TransmitterBase<D>;
    [[nodiscard]] std::uint64_t data_posted() const noexcept { return 0; }
};

#define MILLRACE_EXTERN_PUSH1(D)              \
    extern template class TransmitterBase<D>; \
    extern template class Push1Transmitter<D>;
#define MILLRACE_EXTERN_PUSH2(D)              \
    extern template class TransmitterBase<D>; \
    extern template class Push2Transmitter<D>;
#define MILLRACE_EXTERN_PULL(D)               \
    extern template class TransmitterBase<D>; \
    extern template class PullTransmitter<D>;
MILLRACE_PUSH1_DESIGNS(MILLRACE_EXTERN_PUSH1)
MILLRACE_PUSH2_DESIGNS(MILLRACE_EXTERN_PUSH2)
MILLRACE_PULL_DESIGNS(MILLRACE_EXTERN_PULL)
#undef MILLRACE_EXTERN_PUSH1
#undef MILLRACE_EXTERN_PUSH2
#undef MILLRACE_EXTERN_PULL

}  // namespace millrace::ring::detail
