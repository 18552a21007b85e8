// Suspended requests: those that wait for an answer, for a place in the window, for a time.
#include "millrace/kv/coroutine.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "millrace/base/clock.hpp"
#include "millrace/message/detail/pending.hpp"

namespace millrace::kv {

using base::Status;

namespace detail {

class AsyncCore final : public message::detail::AwaitingCore {
  public:
    AsyncCore(base::Executor& executor, Client client)
        : AwaitingCore{executor},
          client_{std::move(client)},
          places_{2 * std::size_t{client_.client_.window()}} {
        watch(client_.descriptor());
    }

    /// Takes everything back that would call this; tasks that wait do that for ever.
    void leave() noexcept {
        AwaitingCore::leave();
        while (queued_.first() != nullptr) forget(*queued_.first());
        for (const Place& place : places_.all()) {
            if (place.is_taken()) forget(*place.whose);
        }
    }

    [[nodiscard]] Client& client() noexcept { return client_; }

    /// False: it is over.
    [[nodiscard]] bool begin(Suspended& one) {
        one.is_waiting_ = true;
        ++waiting_;
        times_.add(one.deadline());
        const Status why = one.why_over(base::Clock::now());
        if (why != Status::ok) {
            one.end(why);
        } else if (queued_.first() == nullptr) {
            while (one.has_more() && submit(one) == Status::ok) {
            }
        }
        if (one.is_over()) {
            release(one);
            return false;
        }
        if (one.has_more()) link(one);
        watch(one);
        set_alarm();
        return true;
    }
    /// Its task is destroyed.
    void forget(Suspended& one) noexcept {
        release(one);
        one.core_ = nullptr;
    }
    Status poll() override {
        const auto alive = shared_from_this();
        Suspended* done = nullptr;
        const Status status = client_.poll([&](const Answer& answer) {
            Place* const place = places_.find(answer.id);
            if (place == nullptr) return;
            Suspended& one = *std::exchange(place->whose, nullptr);
            places_.note_free();
            --one.outstanding_;
            one.take(answer, place->index);
            if (one.is_over()) done = &one;
        });
        if (done != nullptr) finish(*done);
        if ((status == Status::closed || status == Status::peer_lost) &&
            (!client_.resumes_ || is_closed_)) {
            end_all(status);
        }
        if (queued_.first() != nullptr) submit_queued();
        return status;
    }
    Status reconnect(const base::Deadline& deadline) {
        const Status status = client_.reconnect(deadline);
        if (status == Status::ok) {
            unwatch();
            watch(client_.descriptor());
        }
        return status;
    }
    Status close(const base::Deadline& deadline) {
        const auto alive = shared_from_this();
        is_closed_ = true;
        unwatch();
        const Status status = client_.close(deadline);
        if (status == Status::timed_out || status == Status::cancelled) {
            watch(client_.descriptor());  // what was sent may be answered still
            while (queued_.first() != nullptr) end(*queued_.first(), Status::closed);
        } else {
            end_all(Status::closed);
        }
        return status;
    }

  private:
    /// A request that has no answer yet.
    struct Place {
        std::uint64_t id = 0;
        Suspended* whose = nullptr;  ///< null: it is free
        std::size_t index = 0;

        [[nodiscard]] bool is_taken() const noexcept { return whose != nullptr; }
    };
    using AwaitingCore::watch;

    // --- tasks that wait

    /// Sends one request of it. `full`: there is no room for it now. `empty`: it had none.
    Status submit(Suspended& one) {
        if (places_.is_full()) return Status::full;
        std::uint64_t id = 0;
        std::size_t index = 0;
        const Status status = one.submit(client_, id, index);
        if (status == Status::ok) {
            places_.free_entry(id) = {id, &one, index};
            places_.note_taken();
            ++one.outstanding_;
        } else if (status != Status::full && status != Status::empty && !one.is_over()) {
            one.end(status);
        }
        return status;
    }
    /// A request of each in turn, as long as there is room.
    void submit_queued() {
        while (queued_.first() != nullptr) {
            Suspended& one = *queued_.first();
            if (submit(one) == Status::full) return;
            unlink(one);
            if (one.is_over()) {
                finish(one);
            } else if (one.has_more()) {
                link(one);
            }
        }
    }
    void link(Suspended& one) noexcept {
        one.is_queued_ = true;
        queued_.insert(one);
    }
    void unlink(Suspended& one) noexcept {
        one.is_queued_ = false;
        queued_.erase(one);
    }
    /// It is over: takes back what it has on its way, and resumes it.
    void finish(Suspended& one) {
        release(one);
        one.go_on();
    }
    void release(Suspended& one) noexcept {
        if (!one.is_waiting_) return;
        one.is_waiting_ = false;
        one.end_watch();
        if (one.is_queued_) unlink(one);
        for (std::size_t i = 0; one.outstanding_ != 0; ++i) {
            Place& place = places_.all()[i];
            if (place.whose != &one) continue;
            place.whose = nullptr;
            places_.note_free();
            --one.outstanding_;
            (void)client_.cancel(place.id);
        }
        times_.remove(one.deadline());
        if (--waiting_ == 0) times_.clear();
    }
    void end(Suspended& one, Status why) {
        one.end(why);
        finish(one);
    }
    void end_all(Status why) {
        while (queued_.first() != nullptr) end(*queued_.first(), why);
        for (const Place& place : places_.all()) {
            if (place.is_taken()) end(*place.whose, why);
        }
    }

    // --- times

    /// True: it was over, and has been resumed, whatever that has done.
    bool expire(Suspended& one, base::Clock::time_point now) {
        const Status why = one.why_over(now);
        if (why == Status::ok) {
            times_.no_later_than(one.deadline().point());
        } else {
            end(one, why);
        }
        return why != Status::ok;
    }
    void expire() {
        const auto now = base::Clock::now();
        if (now < times_.earliest() && !times_.has_cancellable()) return;
        times_.clear();
        for (Suspended* one = queued_.first(); one != nullptr;) {
            one = expire(*one, now) ? queued_.first() : queued_.after(*one);
        }
        for (const Place& place : places_.all()) {
            if (place.is_taken()) (void)expire(*place.whose, now);
        }
    }
    void end_what_is_over() override {
        expire();
        submit_queued();
    }
    Time due() override {
        // Nobody tells of room in the server's ring.
        const Time room =
            queued_.first() == nullptr ? Time::max() : base::Clock::now() + room_slice;
        return std::min({times_.earliest(), room, cancellation_due(times_.has_cancellable())});
    }

    Client client_;
    bool is_closed_ = false;
    message::detail::PendingTable<Place> places_;
    message::detail::PendingTimes times_;  ///< of those that wait
    std::size_t waiting_ = 0;
    message::detail::AwaitingList<Suspended> queued_;
};

Suspended::~Suspended() {
    if (core_ != nullptr && is_waiting_) core_->forget(*this);
}

bool Suspended::begin() { return core_->begin(*this); }

}  // namespace detail

AsyncClient::AsyncClient(base::Executor& executor, Client client)
    : core_{std::make_shared<detail::AsyncCore>(executor, std::move(client))} {}
AsyncClient::AsyncClient(AsyncClient&&) noexcept = default;
AsyncClient& AsyncClient::operator=(AsyncClient&& other) noexcept {
    std::swap(core_, other.core_);
    return *this;
}
AsyncClient::~AsyncClient() {
    if (core_ != nullptr) core_->leave();
}

Status AsyncClient::poll() { return core_->poll(); }
Status AsyncClient::reconnect(const base::Deadline& deadline) { return core_->reconnect(deadline); }
Status AsyncClient::close(const base::Deadline& deadline) { return core_->close(deadline); }
Client& AsyncClient::client() noexcept { return core_->client(); }

}  // namespace millrace::kv
