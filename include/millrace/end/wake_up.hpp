// Sleeping without lost wake-ups over one-sided writes. Used by both ends of every protocol whose
// progress the other end may sleep for (items for a consumer, space for a producer).
//
// Each end keeps one WakeUpPage in registered memory:
//
//   offset  field           written by                    read by
//   0       progress        this end, at every progress   the peer, by READ, before it sleeps
//   64      peer_sleeping   the peer, by WRITE            this end, after every progress
//   128     landing         the device (our READ)         this end
//
// The sleeper                                 The bell (the end that makes progress)
//   1 WRITE own generation -> peer_sleeping     1 progress = new value
//   2 READ progress, same queue pair            2 full fence
//   3 news?  -> do not sleep                    3 peer_sleeping != last answered?
//   4 sleep until an event                        -> post an event after the data
//
// Writes in opposite directions are not ordered, so a flag alone is not enough: the bell may look
// before the flag arrives, and the sleeper may look before the data arrives. The READ decides it:
// it is executed after the WRITE of the flag. If the bell's look (3) missed the flag, its store
// (1) came before the flag did, hence before the READ, which sees it.
//
// Over a device of this machine (Terms::far_fences) the sleeper makes the bell's fence, too: after
// the WRITE's completion, and before it posts the READ, it runs far_fence(). A bell that looks (3)
// before that fence has stored (1) before it, and the READ sees the store; one that looks after it
// sees the flag. So 2 need only keep the compiler from exchanging 1 and 3.
//
// Generations: an announcement stands until the event that answers it has arrived, over any
// number of waits and slices of waits; it then takes the next number. The bell answers a number
// once. So there is at most one event per announcement, an awake end posts nothing, and a late
// event is only a spurious wake-up.
//
// Neither word need arrive whole (see position.hpp for why one may be torn). A torn flag differs
// from what was answered, so it is rung for, and again when it is whole: one spurious wake-up. A
// torn progress was stored while the READ ran, hence after the flag: whatever the sleeper makes
// of it, that store's look (3) sees the flag. So torn words cost a nap and lose nothing, as long
// as is_news only decides whether to sleep; an end that also learns a position from it must see it
// whole.
//
// Where both items and room are progress, an announcement may say by its highest bit that its end
// waits for no room: it is not rung for what gives room back, and need not wake for nothing between
// its request and the answer. An end that comes to wait for room announces that anew. Where that is
// so, progress has a part that room leaves alone and that alone tells of items: a word that room
// tears while it is READ is judged by it.
//
// An event is a WRITE with immediate data of no bytes. It takes a receive at the sleeper, which
// the sleeper posts again; these receives serve nothing else.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "millrace/base/error.hpp"
#include "millrace/base/status.hpp"
#include "millrace/connect/link.hpp"
#include "millrace/end/counter.hpp"
#include "millrace/end/far_fence.hpp"
#include "millrace/end/send_window.hpp"
#include "millrace/verbs/memory.hpp"

namespace millrace::end {

/// Lies in memory registered with remote write and remote read. The peer must be told its address.
struct WakeUpPage {
    CounterLine progress;
    CounterLine peer_sleeping;
    CounterLine landing;
};
static_assert(offsetof(WakeUpPage, progress) == 0);
static_assert(offsetof(WakeUpPage, peer_sleeping) == 64);
static_assert(offsetof(WakeUpPage, landing) == 128);
static_assert(sizeof(WakeUpPage) == 192);

/// Of an announcement, with its generation.
inline constexpr std::uint64_t waits_for_no_room = std::uint64_t{1} << 63;

/// The half that makes progress. One thread; never blocks or throws.
class Bell {
  public:
    Bell() noexcept = default;
    /// `event_target`: any address in the peer's WakeUpPage (an event writes nothing there).
    /// `far_fences`: the peer's Sleeper makes them, and this process is registered.
    Bell(SendWindow& window, WakeUpPage& own, verbs::RemoteAddress event_target,
         bool far_fences = false) noexcept
        : window_{&window}, own_{&own}, event_target_{event_target}, far_fences_{far_fences} {}

    /// Publishes `progress`: any value that changes whenever the peer could find something new.
    /// True: the peer sleeps; post what is new (if it is not yet posted), then ring().
    [[nodiscard]] bool publish(std::uint64_t progress) noexcept {
        if (far_fences_) [[likely]] {
            std::atomic_ref<std::uint64_t>{own_->progress.value}.store(progress,
                                                                       std::memory_order_release);
            near_fence();
        } else {
            // Sequentially consistent, as the look is: that is the full fence between them.
            std::atomic_ref<std::uint64_t>{own_->progress.value}.store(progress,
                                                                       std::memory_order_seq_cst);
        }
        return peer_sleeps();
    }
    /// True: an announcement is not answered yet.
    [[nodiscard]] bool peer_sleeps() const noexcept {
        return std::atomic_ref<std::uint64_t>{own_->peer_sleeping.value}.load(
                   std::memory_order_seq_cst) != answered_;
    }
    /// As publish(), after progress that gives room back and nothing else.
    [[nodiscard]] bool peer_waits_for_room() const noexcept {
        const std::uint64_t asked = std::atomic_ref<std::uint64_t>{own_->peer_sleeping.value}.load(
            std::memory_order_seq_cst);
        return asked != answered_ && (asked & waits_for_no_room) == 0;
    }
    /// Sends the event. `full`: no slot; the peer still sleeps, and owes() says so until a later
    /// ring() succeeds. `peer_lost`: broken.
    base::Status ring() noexcept;
    /// True: an event is due that found no slot. To be asked on idle paths.
    [[nodiscard]] bool owes() const noexcept { return owes_; }
    /// Events sent.
    [[nodiscard]] std::uint64_t rung() const noexcept { return rung_; }

  private:
    SendWindow* window_ = nullptr;
    WakeUpPage* own_ = nullptr;
    verbs::RemoteAddress event_target_{};
    std::uint64_t answered_ = 0;
    std::uint64_t rung_ = 0;
    bool owes_ = false;
    bool far_fences_ = false;
};

/// The half that sleeps: a base::Parker for `base::wait_until`. One thread.
class Sleeper : public connect::LinkParker {
  public:
    /// Receives that are kept posted for events.
    static constexpr unsigned receives = 4;
    /// Which code posts them.
    enum class Events : std::uint8_t {
        own_receives,  ///< the sleeper, and it alone polls the link's receive queue
        told,  ///< the protocol, which receives messages on the same queue pair and tells by rang()
    };

    /// Posts the receives for events, so it must be made before the peer can ring: before the
    /// exchange that tells the peer our addresses. Throws Error. `region` covers `own`. All
    /// arguments must outlive it. connect_to() must follow before the first sleep.
    Sleeper(connect::Link& link, SendWindow& window, WakeUpPage& own,
            const verbs::MemoryRegion& region, Events events = Events::own_receives);
    /// `far_fences`: the peer's Bell leaves its fences to us.
    void connect_to(verbs::RemoteAddress peer_page, bool far_fences = false) noexcept;

    void prepare() override;
    Rest settle() override;
    void woken(Rest from) override;
    /// Without limit, once the peer knows that it must ring, and is sure to find a slot for that.
    [[nodiscard]] std::chrono::nanoseconds patience() const noexcept override;
    /// The fences of the peer are made here: whatever it publishes, it rings for.
    [[nodiscard]] bool makes_fences() const noexcept { return far_fences_; }

    /// True: the peer has been told, had no news then, and has not rung yet as far as was looked.
    /// Events are taken in prepare() and park() alone, so this says little outside of a wait.
    [[nodiscard]] bool waits_for_bell() const noexcept {
        return standing_ && confirmed_ && is_wide_enough();
    }
    /// Sleeps that really happened, and events that arrived.
    [[nodiscard]] std::uint64_t sleeps() const noexcept { return sleeps_; }
    [[nodiscard]] std::uint64_t woken() const noexcept { return woken_; }
    [[nodiscard]] std::uint64_t announcements() const noexcept { return generation_; }
    /// True once a receive has failed: the queue pair is broken.
    [[nodiscard]] bool broken() const noexcept { return broken_; }

    /// Only by Events::told: an event came with this immediate; a receive has failed.
    void rang(std::uint32_t immediate) noexcept;
    void failed() noexcept { broken_ = true; }

  protected:
    /// Takes the completions of receives, where they are not this class's; rang() and failed() say
    /// what they were. True: something came.
    virtual bool take_told() noexcept { return false; }
    /// True if `progress`, just READ from the peer, means that there is something to do which this
    /// end has not done or seen yet. It may take note of the value, if it knows that it is whole.
    [[nodiscard]] virtual bool is_news(std::uint64_t progress) noexcept = 0;
    /// False: room counts as no news, and nobody here waits for any until prepare() comes again.
    [[nodiscard]] virtual bool awaits_room() const noexcept { return true; }
    /// False: the peer also publishes without a fence of its own (not by Bell::publish) what is
    /// slept for here, so that it may miss the flag where no far fence is made.
    [[nodiscard]] virtual bool is_rung_for_all() const noexcept { return true; }

  private:
    /// The announcement is of all that is awaited here.
    [[nodiscard]] bool is_wide_enough() const noexcept { return is_for_room_ || !awaits_room(); }
    bool post_receive() noexcept;
    /// True: at least one arrived.
    bool take_events() noexcept;
    void announce() noexcept;
    /// False: the flag has not arrived yet.
    bool fence() noexcept;

    connect::Link* link_;
    SendWindow* window_;
    CounterPull progress_;
    ibv_sge landing_;
    verbs::RemoteAddress flag_{};
    std::uint64_t generation_ = 0;
    bool standing_ = false;   ///< the peer has been sent generation_, and did not answer it yet
    bool confirmed_ = false;  ///< a READ after it found no news
    bool is_for_room_ = true;
    bool far_fences_ = false;
    bool fenced_ = true;             ///< nothing is owed to the peer after the flag
    std::uint64_t flag_ticket_ = 0;  ///< of the WRITE of the flag, where it is waited for
    bool broken_ = false;
    Events events_;
    std::uint64_t sleeps_ = 0;
    std::uint64_t woken_ = 0;
};

}  // namespace millrace::end
