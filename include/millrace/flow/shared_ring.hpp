// One ring of a consumer into which many producers lay items, and a table of these. SharedFanIn
// (shared_fan_in.hpp) is made of it, SharedProducer (shared_producer.hpp) writes into it. Not for
// use by itself. docs/design/shared-ring.md has the argument.
//
//   the ring, one for all                       of each producer, at the consumer
//
//   0       tail      | owner 16 | position 48 |     0     WakeUpPage
//
//   64      consumed  a PositionWord                 192   attempt   | count 16 | position 48 |
//
//   128 …   slots     | item … | padding | mark |
//
//   word       written by                                   read by
//   tail       producers, by compare-and-swap               producers, consumer
//   attempt    its producer, before each compare-and-swap   consumer, where a place stays empty
//   mark       who owns the place, after the item           consumer
//   consumed   consumer                                     producers, by READ or by a load
//
// Each place has an owner from the moment at which the tail has passed it: a producer that tries to
// pass it has said so before (attempt), and says something else only after the marks of its items.
// So where the tail is past an empty place, and no producer that lives says that it tried for it,
// nobody will ever fill it, and it is passed over.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "millrace/base/deadline.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/status.hpp"
#include "millrace/base/wait.hpp"
#include "millrace/connect/admission.hpp"
#include "millrace/connect/link.hpp"
#include "millrace/end/counter.hpp"
#include "millrace/end/wake_up.hpp"
#include "millrace/flow/listener.hpp"
#include "millrace/flow/queue_end.hpp"
#include "millrace/ring/carrier.hpp"
#include "millrace/ring/detail/stand_back.hpp"
#include "millrace/ring/options.hpp"
#include "millrace/ring/watermark.hpp"
#include "millrace/verbs/memory.hpp"

namespace millrace::flow {

/// Of either end of a shared ring.
struct SharedOptions {
    /// How waiting operations escalate from spinning to sleeping.
    base::WaitPolicy wait{};
    std::shared_ptr<connect::Endpoint> endpoint{};  ///< null: Endpoint::shared()
    connect::Admission admission{};
    /// Producer: what carries its items.
    ring::Carrier carrier = ring::Carrier::automatic;
    /// Producer: told to the consumer (FanInSource::label).
    std::uint32_t label = 0;
};

namespace detail {

// ---- words

inline constexpr std::uint64_t shared_position_bits = 48;
inline constexpr std::uint64_t shared_position_mask =
    (std::uint64_t{1} << shared_position_bits) - 1;
/// Of the tail: the ring has moved, and this memory takes nothing more. No owner has this number.
inline constexpr std::uint64_t shared_moved = ~std::uint64_t{0};
inline constexpr std::uint64_t most_shared_owners = 65'534;
/// Items of one compare-and-swap.
inline constexpr std::uint64_t most_shared_claim = 1024;

/// Of a tail: the position after the last place that has an owner, and whose that is. Of an
/// attempt: the first place, and how many; or none, and the position that its memory begins with.
[[nodiscard]] constexpr std::uint64_t shared_word(std::uint64_t upper,
                                                  std::uint64_t position) noexcept {
    return upper << shared_position_bits | (position & shared_position_mask);
}
[[nodiscard]] constexpr std::uint64_t upper_of(std::uint64_t word) noexcept {
    return word >> shared_position_bits;
}
/// How far the position of a word is ahead of another one; negative: how far it lags.
[[nodiscard]] constexpr std::int64_t shared_ahead(std::uint64_t word,
                                                  std::uint64_t position) noexcept {
    constexpr unsigned unused = 64 - shared_position_bits;
    return static_cast<std::int64_t>((word - position) << unused) >> unused;
}
/// The mark of an item: whose it is, and 48 bits that only who knows the secret of that
/// connection's can say for that position. Never 0, as no owner is.
[[nodiscard]] constexpr std::uint64_t shared_mark(std::uint64_t owner, std::uint64_t secret,
                                                  std::uint64_t position) noexcept {
    std::uint64_t mixed = secret ^ (position + 1) * 0x9e37'79b9'7f4a'7c15U;
    mixed = (mixed ^ mixed >> 32) * 0xd6e8'feb8'6659'fd93U;
    return shared_word(owner, mixed ^ mixed >> 32);
}

/// Where things lie in a ring, of as many slots as both ends have agreed on.
struct SharedShape {
    std::uint64_t slots = 0;
    std::uint64_t slot_bytes = 0;
    std::uint64_t alignment = 1;  ///< of an item

    static constexpr std::uint64_t tail_at = 0;
    static constexpr std::uint64_t consumed_at = end::cache_line;
    [[nodiscard]] constexpr std::uint64_t slots_at() const noexcept {
        return ring::round_up(2 * end::cache_line, alignment);
    }
    [[nodiscard]] constexpr std::uint64_t bytes() const noexcept {
        return slots_at() + slots * slot_bytes;
    }
    [[nodiscard]] constexpr std::uint64_t slot_at(std::uint64_t index) const noexcept {
        return slots_at() + index * slot_bytes;
    }
};

/// Of each producer, in the consumer's memory.
struct SharedMemberPage {
    end::WakeUpPage wake;
    end::CounterLine attempt;
};
/// Where a ring has moved to: told by a WRITE into the producer's page. Its check is the last word.
struct alignas(end::cache_line) SharedNotice {
    std::uint64_t number = 0;  ///< of the move
    std::uint64_t address = 0;
    std::uint64_t rkey = 0;
    std::uint64_t first = 0;  ///< the position that the new memory begins with
    std::uint64_t check = 0;

    [[nodiscard]] constexpr std::uint64_t right_check() const noexcept {
        return shared_mark(1, address ^ first << 1, number ^ rkey << 32);
    }
};

// ---- the consumer's side

class SharedRing;

/// One producer, as its consumer has it. Move-only; one thread at a time.
class SharedMember {
  public:
    using Seen = const std::byte*;

    /// The next producer that has connected, or none yet. Never blocks. Throws Error.
    [[nodiscard]] static std::optional<SharedMember> try_accept(
        Listener& listener, const std::shared_ptr<SharedRing>& ring);
    SharedMember(SharedMember&&) noexcept;
    SharedMember& operator=(SharedMember&&) noexcept;
    ~SharedMember();

    /// `empty`; `closed`, `peer_lost`: all that it has laid was taken.
    base::Status look_around() noexcept;
    /// As look_around(); and falls asleep, where nothing of it is in front.
    base::Status peek(Seen& item) noexcept;
    [[nodiscard]] int descriptor();
    void close() noexcept;

    [[nodiscard]] const std::string& peer() const noexcept;
    [[nodiscard]] std::uint32_t peer_label() const noexcept;
    [[nodiscard]] ring::Crew peer_crew() const noexcept { return {}; }
    [[nodiscard]] std::string explain() const;
    /// What the structure has of it.
    void bind(void* source) noexcept;

    struct State;

  private:
    explicit SharedMember(std::unique_ptr<State> state) noexcept;
    std::unique_ptr<State> state_;
};

/// The ring, and a table of the producers that may own places of it. What looks for items belongs
/// to the consumer's thread; members come and go in the thread that accepts, too.
class SharedRing {
  public:
    struct Plan {
        ItemFacts item;
        std::optional<std::uint64_t> capacity;
        std::uint32_t max_producers = 0;
        std::chrono::nanoseconds patience{};
        SharedOptions options;
    };
    struct Counts {
        std::uint64_t tombstones = 0;  ///< places that were passed over
        std::uint64_t moves = 0;
    };

    /// Throws Error (invalid_argument, resource_exhausted, unsupported).
    explicit SharedRing(Plan plan);
    SharedRing(const SharedRing&) = delete;
    SharedRing& operator=(const SharedRing&) = delete;
    ~SharedRing();

    // ---- the polled path

    /// An item is in front.
    [[nodiscard]] bool has_front() noexcept {
        const std::uint64_t mark = ring::load_word(slot_ + shape_.slot_bytes - ring::mark_bytes);
        const std::uint64_t owner = upper_of(mark);
        if (owner == 0 || owner >= seats_.size()) return false;
        Seat& seat = seats_[owner];
        if (!seat.is_taken.load(std::memory_order_acquire) ||
            mark != shared_mark(owner, seat.secret, front_)) {
            return false;
        }
        in_front_ = &seat;
        return true;
    }
    /// The item; and what the structure has of its producer: null, if that was not taken in yet.
    [[nodiscard]] const std::byte* front() const noexcept { return slot_; }
    [[nodiscard]] void* source_of_front() const noexcept {
        return in_front_->source.load(std::memory_order_acquire);
    }
    /// Gives its place back.
    void release() noexcept {
        ++in_front_->taken;
        pass();
    }
    /// To be called where nothing is in front: returns credit, and looks after an empty place that
    /// has an owner. True: look again, as something was passed over. `expel(void* source)` is
    /// called for each producer that held a place for longer than the patience, which must go then.
    template <class Expel>
    bool look_on(Expel&& expel) noexcept {
        return_credit();
        if (!is_stuck()) return false;
        return resolve([](void* context, void* source) { (*static_cast<Expel*>(context))(source); },
                       &expel);
    }
    /// To be called by a wait that has found nothing: after a long run of items it leaves the
    /// front's line to the producer that fills it, as ring/detail/stand_back.hpp says. A few
    /// microseconds at most.
    void stand_back(const base::Deadline& deadline) noexcept;
    /// A place has an owner and was not taken.
    [[nodiscard]] bool has_claims() const noexcept { return last_claim() != front_; }

    [[nodiscard]] const Plan& plan() const noexcept { return plan_; }
    [[nodiscard]] const SharedShape& shape() const noexcept { return shape_; }
    [[nodiscard]] const Counts& counts() const noexcept { return counts_; }
    [[nodiscard]] std::string explain() const;

  private:
    friend class SharedMember;
    friend struct SharedMember::State;
    /// A number that a producer may have. Its secret is there before it is taken.
    struct Seat {
        std::atomic<bool> is_taken{false};
        std::uint64_t secret = 0;
        std::uint64_t taken = 0;  ///< items
        std::atomic<void*> source{nullptr};
        SharedMember::State* member = nullptr;
        std::uint64_t tries = 0;        ///< its attempt, when it was last looked at
        std::uint64_t tries_since = 0;  ///< ticks
    };
    struct Body {
        verbs::RegisteredBuffer memory;
        std::uint64_t first = 0;  ///< position
        [[nodiscard]] std::atomic_ref<std::uint64_t> tail() const noexcept {
            return std::atomic_ref<std::uint64_t>{
                *reinterpret_cast<std::uint64_t*>(memory.data() + SharedShape::tail_at)};
        }
        [[nodiscard]] end::CounterLine& consumed() const noexcept {
            return *reinterpret_cast<end::CounterLine*>(memory.data() + SharedShape::consumed_at);
        }
    };
    /// A wait for an empty place. Times in ticks.
    struct Stuck {
        bool is_waiting = false;
        std::uint64_t at = 0;
        std::uint64_t since = 0;
        std::uint64_t looked = 0;
        std::uint64_t resolved = 0;
    };
    using Tell = void (*)(void* context, void* source);

    void pass() noexcept {
        ++front_;
        slot_ += shape_.slot_bytes;
        if (slot_ == slots_end_) slot_ = slots_;
        if (front_ - returned_ >= step_) [[unlikely]]
            return_credit();
    }
    void return_credit() noexcept;
    /// By the clock: the front is a place that has an owner, and is empty.
    [[nodiscard]] bool is_stuck() noexcept;
    [[gnu::cold]] bool resolve(Tell tell, void* context) noexcept;
    /// From now on producers lay items elsewhere. False: there is no memory for it just now.
    [[gnu::cold]] bool move() noexcept;
    void finish_move() noexcept;
    /// Where the ring was before, once all producers have followed.
    [[gnu::cold]] void drop_former() noexcept;
    [[nodiscard]] std::unique_ptr<Body> make_body(std::uint64_t first);
    void begin(std::unique_ptr<Body> body) noexcept;
    [[nodiscard]] bool is_moving() const noexcept { return next_ != nullptr; }
    /// Where producers lay items now.
    [[nodiscard]] const Body& target() const noexcept { return is_moving() ? *next_ : *body_; }
    /// Places that have an owner by now end here.
    [[nodiscard]] std::uint64_t last_claim() const noexcept;
    /// Looks at the producers that live and may own an empty place in front, or after it before
    /// `limit`. Where the first place begins that one of them may own. The one that must go is in
    /// `expelled_` then.
    [[nodiscard]] std::uint64_t first_of_the_living(std::uint64_t limit) noexcept;
    /// It has tried for the same place for long. One that tries for a place after the other is as
    /// a rule a moment away from knowing that it has lost; one that does so for ever lies.
    [[nodiscard]] bool holds_up(const Seat& seat, std::uint64_t now) const noexcept;
    /// The place in front is passed over: a producer that is gone and tried for it has laid none of
    /// what it tried for, or its end alone, which may have landed first. Its items are a prefix of
    /// what it sent, so that end is passed over, too.
    void forget_rest_of_claim() noexcept;
    /// A producer that is gone cannot write any more.
    [[nodiscard]] static bool is_fenced(SharedMember::State& member) noexcept;

    // Hot.
    std::byte* slot_ = nullptr;
    std::byte* slots_ = nullptr;
    std::byte* slots_end_ = nullptr;
    std::uint64_t front_ = 0;     ///< position
    std::uint64_t returned_ = 0;  ///< as it was told
    std::uint64_t step_ = 1;
    SharedShape shape_;
    std::vector<Seat> seats_;  ///< by owner; the first is nobody's
    Seat* in_front_ = nullptr;

    Plan plan_;
    std::mutex mutex_;  ///< of members that come and go, and of a move
    std::unique_ptr<Body> body_;
    std::unique_ptr<Body> next_;  ///< where the ring has moved to, while the rest is taken here
    std::vector<std::unique_ptr<Body>> former_;
    std::uint64_t drain_end_ = 0;  ///< then: no place of the former memory lies after it
    bool must_move_ = false;
    Stuck stuck_;
    std::uint64_t look_ticks_;
    std::uint64_t resolve_ticks_;
    std::uint64_t patience_ticks_;
    std::vector<void*> expelled_;  ///< sources
    std::vector<Seat*> gone_;      ///< fenced; each tried for a place that was empty
    ring::detail::StandBack stand_back_;
    Counts counts_;
};

}  // namespace detail
}  // namespace millrace::flow
