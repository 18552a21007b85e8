// How items come to a consumer: what Receiver asks for when none is in front. One class for each
// data flow, with the same calls, over the transfer notification that they have in common:
//
//   advance()     takes what has arrived, and does what the design demands to get more
//   is_low()      it is time to advance() before nothing is left, because that takes a round trip
//   pass_rest()   passes over what was left free of a batch
//   replenish()   gets ready for more after what was consumed; how far space may be returned
//   free()        how far it could be
//   end_at()      the producer has said that its last item ends there, and is gone
//   is_moved()    the data mover READs the items and gives their space; see PulledAhead
//
// Where marks in the own ring tell what has arrived, Receiver looks at them by itself.
//
// Everything here belongs to the calling thread. Nothing blocks, throws or allocates, but for the
// constructors and meet(). What the producer says is believed as far as it can be true: a call that
// answers false has found that it cannot.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>

#include "millrace/connect/link.hpp"
#include "millrace/ring/design.hpp"
#include "millrace/ring/detail/front.hpp"
#include "millrace/ring/detail/meeting.hpp"
#include "millrace/ring/detail/pull.hpp"
#include "millrace/ring/detail/push2.hpp"
#include "millrace/ring/detail/space_giver.hpp"
#include "millrace/ring/detail/transfer.hpp"
#include "millrace/ring/every_design.hpp"
#include "millrace/ring/frames.hpp"
#include "millrace/ring/terms.hpp"
#include "millrace/verbs/memory.hpp"

namespace millrace::ring::detail {

template <Design D>
class Push1Intake;
template <Design D>
class Push2Intake;
template <Design D>
class PullIntake;
template <Design D>
using Intake = std::conditional_t<
    D.data == DataFlow::push1, Push1Intake<D>,
    std::conditional_t<D.data == DataFlow::push2, Push2Intake<D>, PullIntake<D>>>;

/// What a mover did to give space.
struct GivenByMover {
    std::uint64_t writes = 0;
    std::uint64_t stores = 0;
    std::uint64_t events = 0;
};

/// What the three have in common: the notification, and that it may have to be asked for.
template <Design D>
class IntakeBase {
  public:
    IntakeBase(const IntakeBase&) = delete;
    IntakeBase& operator=(const IntakeBase&) = delete;

    /// The queue pair has refused a receive, or is broken. After the constructor: it takes fewer
    /// receives than were agreed.
    [[nodiscard]] bool broken() const noexcept { return transfer_.broken(); }

    [[nodiscard]] std::uint64_t transfer_reads() const noexcept { return transfer_.posted(); }
    [[nodiscard]] std::uint64_t data_reads() const noexcept { return 0; }
    static constexpr bool is_moved() noexcept { return false; }
    /// The calling thread sleeps no longer.
    static void awake() noexcept {}
    /// What the mover did to give space, where it does.
    [[nodiscard]] static constexpr GivenByMover given() noexcept { return {}; }
    [[nodiscard]] std::uint64_t receives() const noexcept { return transfer_.receives(); }
    /// In a child made by fork: nothing has come, and nobody takes what comes.
    static void become_copy() noexcept {}
    /// Requests on another queue pair than the window's.
    [[nodiscard]] std::uint64_t posted_elsewhere() const noexcept {
        return transfer_.posted_elsewhere();
    }

  protected:
    /// To ask the producer takes a round trip.
    static constexpr bool asks =
        D.data == DataFlow::pull || D.transfer == TransferNotification::pull;
    using Giver = SpaceGiver<D.space>;

    IntakeBase(connect::Link& link, const Terms& terms);
    void meet(const Meeting& met);

    TransferView<D.transfer> transfer_;
    std::uint64_t low_water_;  ///< of what has arrived
};

/// DataFlow::push1: the producer WRITEs or stores into the ring.
template <Design D>
class Push1Intake final : public IntakeBase<D> {
  public:
    Push1Intake(connect::Link& link, const Terms& terms, const verbs::RegisteredBuffer& ring);
    void meet(const Meeting& met) { IntakeBase<D>::meet(met); }
    /// What is to be returned at once, where `wanted` is asked for.
    [[nodiscard]] static std::uint64_t step(std::uint64_t wanted, const Terms& terms) noexcept;

    [[nodiscard]] bool advance(Front& front, SpaceGiver<D.space>& giver, bool asleep) noexcept;
    [[nodiscard]] bool is_low(const Front& front) const noexcept {
        return IntakeBase<D>::asks && front.arrived - front.consumed < this->low_water_;
    }
    /// Items lie one after the other.
    static constexpr bool in_batches() noexcept { return false; }
    static constexpr bool pass_rest(Front&) noexcept { return false; }
    std::uint64_t replenish(const Front& front) noexcept {
        this->transfer_.replenish();
        return front.consumed;
    }
    [[nodiscard]] std::uint64_t free(const Front& front) const noexcept { return front.consumed; }
    [[nodiscard]] bool end_at(std::uint64_t total, Front& front) noexcept {
        if (!has_marks(D) && total - front.consumed <= front.ring_bytes) front.arrive(total);
        return true;
    }
    /// Something is known to be on its way of which no completion will tell.
    bool is_late(const Front&) noexcept { return false; }
};

/// DataFlow::push2: chunks come into receives that are posted for them.
template <Design D>
class Push2Intake final : public IntakeBase<D> {
  public:
    Push2Intake(connect::Link& link, const Terms& terms, const verbs::RegisteredBuffer& ring);
    void meet(const Meeting& met) { IntakeBase<D>::meet(met); }
    [[nodiscard]] static std::uint64_t step(std::uint64_t wanted, const Terms& terms) noexcept;

    [[nodiscard]] bool advance(Front& front, SpaceGiver<D.space>& giver, bool asleep) noexcept;
    [[nodiscard]] bool is_low(const Front& front) const noexcept {
        return IntakeBase<D>::asks && front.arrived - front.consumed < this->low_water_ &&
               (!in_batches_ || told_ - front.consumed < this->low_water_);
    }
    /// A chunk is several slots, of which some may not have been sent.
    [[nodiscard]] bool in_batches() const noexcept { return in_batches_; }
    /// Where all that was sent of a batch is consumed. True: there was such a rest.
    [[gnu::noinline]] bool pass_rest(Front& front) noexcept;
    std::uint64_t replenish(const Front& front) noexcept {
        return chunks_.replenish(front.consumed);
    }
    [[nodiscard]] std::uint64_t free(const Front& front) const noexcept { return front.consumed; }
    [[nodiscard]] bool end_at(std::uint64_t total, Front& front) noexcept;
    bool is_late(const Front& front) noexcept {
        if (D.transfer == TransferNotification::event) return false;
        chunks_.take();
        return chunks_.arrived() != front.consumed;
    }
    [[nodiscard]] bool broken() const noexcept {
        return chunks_.broken() || IntakeBase<D>::broken();
    }
    [[nodiscard]] std::uint64_t receives() const noexcept { return chunks_.posted(); }
    void become_copy() noexcept { in_batches_ = false; }

  private:
    /// What was sent of the next chunk, if it is told of.
    [[nodiscard]] bool enter_chunk(Front& front) noexcept;

    const Terms* terms_;
    ChunkReceiver chunks_;
    std::uint64_t told_;  ///< in batches: up to where chunks were told of
    bool in_batches_;
};

template <Design D>
class PulledAhead;

/// DataFlow::pull: READs runs of the producer's ring; or, with a mover, has them READ
/// (PulledAhead).
template <Design D>
class PullIntake final : public IntakeBase<D> {
  public:
    PullIntake(connect::Link& link, const Terms& terms, const verbs::RegisteredBuffer& ring);
    PullIntake(const PullIntake&) = delete;
    PullIntake& operator=(const PullIntake&) = delete;
    ~PullIntake();
    void meet(const Meeting& met);
    [[nodiscard]] bool is_moved() const noexcept { return moved_ != nullptr; }
    void awake() noexcept;
    [[nodiscard]] static std::uint64_t step(std::uint64_t wanted, const Terms&) noexcept {
        return wanted;
    }

    [[nodiscard]] bool advance(Front& front, SpaceGiver<D.space>& giver, bool asleep) noexcept;
    [[nodiscard]] bool is_low(const Front& front) const noexcept {
        return front.arrived - front.consumed < this->low_water_;
    }
    static constexpr bool in_batches() noexcept { return false; }
    static constexpr bool pass_rest(Front&) noexcept { return false; }
    std::uint64_t replenish(const Front& front) noexcept { return front.arrived; }
    [[nodiscard]] std::uint64_t free(const Front& front) const noexcept { return front.arrived; }
    /// What was not pulled is gone with the producer.
    [[nodiscard]] bool end_at(std::uint64_t, Front&) noexcept { return true; }
    bool is_late(const Front&) noexcept { return false; }
    [[nodiscard]] bool broken() const noexcept;
    [[nodiscard]] std::uint64_t transfer_reads() const noexcept;
    [[nodiscard]] std::uint64_t data_reads() const noexcept;
    [[nodiscard]] std::uint64_t posted_elsewhere() const noexcept;
    [[nodiscard]] GivenByMover given() const noexcept;

  private:
    friend class PulledAhead<D>;
    /// As meet() and advance(), of the thread that READs.
    void begin(const Meeting& met);
    [[nodiscard]] bool pull(Front& front, SpaceGiver<D.space>& giver, bool asleep) noexcept;
    /// Where there is something to pull beyond `arrived`: told_ says so afterwards. False: not
    /// known yet, or there is nothing.
    [[nodiscard]] bool ask(const Front& front, bool& believable) noexcept;
    [[nodiscard]] bool look_at_probe(const Front& front) noexcept;
    /// The run has arrived. False: it was not what its first word promised, and is READ again.
    [[nodiscard]] bool take_run(Front& front) noexcept;

    const Terms* terms_;
    const verbs::RegisteredBuffer* ring_;
    const std::byte* probed_ = nullptr;  ///< where the word of a probe lands
    Puller puller_;
    std::uint64_t told_;             ///< up to where there is something to pull
    std::uint64_t run_ = 0;          ///< bytes of the run on its way
    std::uint64_t pull_offset_ = 0;  ///< of `arrived` in the ring
    std::uint64_t ahead_ = 1;        ///< slots that the next probe looks ahead
    bool probing_ = false;           ///< what is on its way is a probe
    connect::Link* link_;
    std::unique_ptr<PulledAhead<D>> moved_;
};

#define MILLRACE_EXTERN_PUSH1(D)         \
    extern template class IntakeBase<D>; \
    extern template class Push1Intake<D>;
#define MILLRACE_EXTERN_PUSH2(D)         \
    extern template class IntakeBase<D>; \
    extern template class Push2Intake<D>;
#define MILLRACE_EXTERN_PULL(D)          \
    extern template class IntakeBase<D>; \
    extern template class PullIntake<D>;
MILLRACE_PUSH1_DESIGNS(MILLRACE_EXTERN_PUSH1)
MILLRACE_PUSH2_DESIGNS(MILLRACE_EXTERN_PUSH2)
MILLRACE_PULL_DESIGNS(MILLRACE_EXTERN_PULL)
#undef MILLRACE_EXTERN_PUSH1
#undef MILLRACE_EXTERN_PUSH2
#undef MILLRACE_EXTERN_PULL

}  // namespace millrace::ring::detail
