// Receiver's slow paths and setup, see the header.
#include "millrace/ring/receiver.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

namespace millrace::ring {

using base::Status;

/// Sleeps for items: news is that the producer has sent more than was consumed.
template <Design D>
    requires(check_design<D>())
class Receiver<D>::DataSleeper final : public Sleeper {
  public:
    DataSleeper(Receiver& receiver, WakeUpPage& own, const verbs::MemoryRegion& region)
        : Sleeper{receiver.link_, receiver.window_, own, region}, receiver_{&receiver} {}

    /// Whoever sleeps owes nothing: the producer may wait for this credit.
    void prepare() override {
        if (receiver_->consumed_ != receiver_->returned_) receiver_->return_credit();
        Sleeper::prepare();
    }
    void park(std::chrono::nanoseconds limit) override {
        Sleeper::park(limit);
        receiver_->looked_ = 0;
    }

  protected:
    /// A torn word counts as news: to look once more is all that news leads to.
    bool is_news(std::uint64_t progress) noexcept override {
        return progress != receiver_->consumed_;
    }

  private:
    Receiver* receiver_;
};

template <Design D>
    requires(check_design<D>())
Receiver<D>::Receiver(std::shared_ptr<connect::Endpoint> endpoint, connect::Link link,
                      const RingOptions& options, const base::Deadline& deadline)
    : endpoint_{std::move(endpoint)}, link_{std::move(link)}, window_{link_} {
    terms_ = agree(link_, Role::consumer, D, options, deadline);
    auto& domain = link_.protection_domain();
    ring_memory_ = domain.allocate(terms_.ring_bytes, verbs::Access::remote_write);
    page_memory_ = domain.allocate(
        sizeof(WakeUpPage), verbs::Access::remote_write | verbs::Access::remote_read);
    auto& page = *reinterpret_cast<WakeUpPage*>(page_memory_.data());
    ring_ = ring_memory_.data();

    initial_ = consumed_ = returned_ = terms_.initial;
    ring_bytes_ = terms_.ring_bytes;
    tag_ = frame_tag(consumed_, terms_.secret);
    credit_step_ = std::max<std::uint64_t>(terms_.ring_bytes / options.credit_parts, 1);
    page.progress.store(PositionWord::pack(terms_.initial));
    look_ticks_ = base::ticks_in(std::chrono::microseconds{5});

    sleeper_ = std::make_unique<DataSleeper>(*this, page, page_memory_.region());
    const Places theirs = exchange_places(
        link_, {.ring = ring_memory_.remote(), .page = page_memory_.remote(), .credit = {}},
        deadline);
    bell_ = Bell{window_, page, theirs.page};
    sleeper_->connect_to(theirs.page);
    if constexpr (D.space == SpaceNotification::push) {
        space_ = SpaceReturn<D.space>{CounterPush{window_, theirs.credit, PositionWord::pack(terms_.initial)}};
    }
}

template <Design D>
    requires(check_design<D>())
Receiver<D>::~Receiver() = default;

template <Design D>
    requires(check_design<D>())
void Receiver<D>::return_credit() noexcept {
    const bool wake = bell_.publish(PositionWord::pack(consumed_));
    ++credit_stores_;
    (void)space_.give(consumed_);  // one in flight: idle() gives what is left
    returned_ = consumed_;
    if (wake) [[unlikely]] (void)bell_.ring();
}

template <Design D>
    requires(check_design<D>())
Status Receiver<D>::look() noexcept {
    if (ended_ != Status::ok) return ended_;
    if (consumed_ != returned_) {
        return_credit();
    } else {
        if (space_.owes(consumed_)) (void)space_.give(consumed_);
        if (bell_.owes()) (void)bell_.ring();
    }
    const connect::PeerState peer = link_.peer();
    if (peer == connect::PeerState::alive) return Status::empty;

    // What the producer sent before its end may have arrived after the caller's look.
    if (!last_look_) {
        last_look_ = true;
        missing_until_ = base::Deadline::after(std::chrono::seconds{2});
        return Status::empty;
    }
    if (peer == connect::PeerState::closed) {
        std::uint64_t total = 0;
        const std::span<const std::byte> words = link_.last_words();
        if (words.size() == sizeof total) {
            std::memcpy(&total, words.data(), sizeof total);
            if (total == consumed_) {
                ended_ = Status::closed;
                return ended_;
            }
            // It flushed before it said so: the rest is on its way to this memory.
            if (!missing_until_.expired()) return Status::empty;
        }
    }
    ended_ = Status::peer_lost;
    return ended_;
}

template <Design D>
    requires(check_design<D>())
void Receiver<D>::close() noexcept {
    if (ended_ == Status::ok) {
        link_.say_goodbye();
        ended_ = Status::closed;
    }
}

template <Design D>
    requires(check_design<D>())
ReceiverCounts Receiver<D>::counts() const noexcept {
    return {.bytes = consumed_ - terms_.initial,
            .credit_writes = space_.posted(),
            .credit_stores = credit_stores_,
            .events = bell_.rung(),
            .work_requests = window_.posted(),
            .sleeps = sleeper_->sleeps(),
            .wake_ups = sleeper_->woken()};
}

template class Receiver<design_1>;
template class Receiver<design_2>;

}  // namespace millrace::ring
