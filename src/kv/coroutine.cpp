// Suspended requests: who waits for an answer, for a place in the window, for a time.
#include "millrace/kv/coroutine.hpp"

#include <algorithm>
#include <bit>
#include <chrono>

#include "millrace/base/clock.hpp"

namespace millrace::kv {

using base::Status;

namespace detail {

class AsyncCore : public std::enable_shared_from_this<AsyncCore> {
  public:
    AsyncCore(base::Executor& executor, Client client)
        : executor_{&executor},
          client_{std::move(client)},
          places_(2 * std::bit_ceil(std::size_t{client_.client_.window()})) {
        watch();
    }
    AsyncCore(const AsyncCore&) = delete;
    AsyncCore& operator=(const AsyncCore&) = delete;
    ~AsyncCore() = default;  // leave() came before

    /// Takes everything back that would call this; those who wait do so for ever.
    void leave() noexcept {
        take_back(watching_);
        take_back(alarm_);
        while (first_ != nullptr) forget(*first_);
        for (const Place& place : places_) {
            if (place.whose != nullptr) forget(*place.whose);
        }
    }

    [[nodiscard]] Client& client() noexcept { return client_; }

    /// False: it is over.
    [[nodiscard]] bool begin(Suspended& one) {
        one.is_waiting_ = true;
        ++waiting_;
        if (one.deadline_.cancellation() != nullptr) ++cancellable_;
        earliest_ = std::min(earliest_, one.deadline_.point());
        if (one.deadline_.cancelled()) {
            one.end(Status::cancelled);
        } else if (one.deadline_.expired()) {
            one.end(Status::timed_out);
        } else if (first_ == nullptr) {
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
    Status poll() {
        const auto alive = shared_from_this();
        Suspended* done = nullptr;
        const Status status = client_.poll([&](const Answer& answer) {
            Place* const place = find(answer.id);
            if (place == nullptr) return;
            Suspended& one = *std::exchange(place->whose, nullptr);
            --used_;
            --one.outstanding_;
            one.take(answer, place->index);
            if (one.is_over()) done = &one;
        });
        if (done != nullptr) finish(*done);
        if ((status == Status::closed || status == Status::peer_lost) &&
            (!client_.resumes_ || is_closed_)) {
            end_all(status);
        }
        if (first_ != nullptr) submit_queued();
        return status;
    }
    Status reconnect(const base::Deadline& deadline) {
        const Status status = client_.reconnect(deadline);
        if (status == Status::ok) {
            take_back(watching_);
            watch();
        }
        return status;
    }
    Status close(const base::Deadline& deadline) {
        const auto alive = shared_from_this();
        is_closed_ = true;
        take_back(watching_);
        const Status status = client_.close(deadline);
        end_all(Status::closed);
        return status;
    }

  private:
    using Registration = std::optional<base::Executor::Id>;
    /// A request that has no answer yet.
    struct Place {
        std::uint64_t id = 0;
        Suspended* whose = nullptr;  ///< null: it is free
        std::size_t index = 0;
    };

    void watch() {
        watching_ = executor_->add(client_.descriptor(), [this] { readable(); });
    }
    void take_back(Registration& registration) noexcept {
        if (registration.has_value()) (void)executor_->remove(*registration);
        registration.reset();
    }

    // --- places

    [[nodiscard]] Place* find(std::uint64_t id) noexcept {
        const std::size_t mask = places_.size() - 1;
        for (std::uint64_t at = id; at <= id + mask; ++at) {
            Place& place = places_[at & mask];
            if (place.whose != nullptr && place.id == id) [[likely]]
                return &place;
        }
        return nullptr;
    }
    void put(std::uint64_t id, Suspended& whose, std::size_t index) noexcept {
        const std::size_t mask = places_.size() - 1;
        std::uint64_t at = id;
        while (places_[at & mask].whose != nullptr) [[unlikely]]
            ++at;
        places_[at & mask] = {id, &whose, index};
        ++used_;
        ++whose.outstanding_;
    }

    // --- those who wait

    /// Sends one request of it. `full`: there is no room for it now. `empty`: it had none.
    Status submit(Suspended& one) {
        if (used_ == places_.size()) return Status::full;
        std::uint64_t id = 0;
        std::size_t index = 0;
        const Status status = one.submit(client_, id, index);
        if (status == Status::ok) {
            put(id, one, index);
        } else if (status != Status::full && status != Status::empty && !one.is_over()) {
            one.end(status);
        }
        return status;
    }
    /// A request of each in turn, as long as there is room.
    void submit_queued() {
        while (first_ != nullptr) {
            Suspended& one = *first_;
            if (submit(one) == Status::full) return;
            unlink(one);
            if (one.is_over()) {
                finish(one);
            } else if (one.has_more()) {
                link(one);
            }
        }
    }
    /// It is over: takes back what it has on its way, and resumes it.
    void finish(Suspended& one) {
        release(one);
        one.run_->resume(one.frame_);
    }
    void release(Suspended& one) noexcept {
        if (!one.is_waiting_) return;
        one.is_waiting_ = false;
        one.cancellation_.end();
        if (one.is_queued_) unlink(one);
        for (std::size_t i = 0; one.outstanding_ != 0; ++i) {
            Place& place = places_[i];
            if (place.whose != &one) continue;
            place.whose = nullptr;
            --used_;
            --one.outstanding_;
            (void)client_.cancel(place.id);
        }
        if (one.deadline_.cancellation() != nullptr) --cancellable_;
        if (--waiting_ == 0) earliest_ = base::Clock::time_point::max();
    }
    void end(Suspended& one, Status why) {
        one.end(why);
        finish(one);
    }
    void end_all(Status why) {
        while (first_ != nullptr) end(*first_, why);
        for (std::size_t i = 0; i < places_.size(); ++i) {
            if (places_[i].whose != nullptr) end(*places_[i].whose, why);
        }
    }

    // --- times

    void watch(Suspended& one) {
        if (one.deadline_.cancellation() == nullptr) return;
        const bool is_watched = one.cancellation_.begin(
            *executor_, *one.deadline_.cancellation(), [core = weak_from_this()] {
                if (const auto alive = core.lock()) alive->end_what_is_over();
            });
        if (!is_watched) looks_for_cancellations_ = true;
    }

    /// True: it was over, and has been resumed, whatever that has done.
    bool expire(Suspended& one, base::Clock::time_point now) {
        if (one.deadline_.cancelled()) {
            end(one, Status::cancelled);
        } else if (one.deadline_.point() <= now) {
            end(one, Status::timed_out);
        } else {
            earliest_ = std::min(earliest_, one.deadline_.point());
            return false;
        }
        return true;
    }
    void expire() {
        const auto now = base::Clock::now();
        if (now < earliest_ && cancellable_ == 0) return;
        earliest_ = base::Clock::time_point::max();
        for (Suspended* one = first_; one != nullptr;) {
            one = expire(*one, now) ? first_ : one->behind_;
        }
        for (std::size_t i = 0; i < places_.size(); ++i) {
            if (places_[i].whose != nullptr) (void)expire(*places_[i].whose, now);
        }
    }
    void set_alarm() {
        constexpr std::chrono::milliseconds cancellation_slice{50};
        constexpr std::chrono::milliseconds room_slice{1};
        auto due = earliest_;
        if (looks_for_cancellations_ && cancellable_ != 0) {
            due = std::min(due, base::Clock::now() + cancellation_slice);
        }
        // Nobody tells of room in the server's ring.
        if (first_ != nullptr) due = std::min(due, base::Clock::now() + room_slice);
        if (due == base::Clock::time_point::max() || (alarm_.has_value() && alarm_at_ <= due)) {
            return;
        }
        take_back(alarm_);
        alarm_at_ = due;
        alarm_ = executor_->at(due, [this] { alarmed(); });
    }
    void alarmed() {
        const auto alive = shared_from_this();
        alarm_.reset();
        end_what_is_over();
    }
    /// Only while somebody holds this.
    void end_what_is_over() {
        expire();
        submit_queued();
        set_alarm();
    }
    void readable() {
        constexpr int budget = 64;  // others have their turn
        const auto alive = shared_from_this();
        Status status = Status::ok;
        for (int i = 0; i < budget && status == Status::ok; ++i) status = poll();
        // A channel that has ended is readable for ever.
        if (status == Status::closed || status == Status::peer_lost) take_back(watching_);
        set_alarm();
    }

    // --- the queue

    void link(Suspended& one) noexcept {
        one.is_queued_ = true;
        one.before_ = last_;
        one.behind_ = nullptr;
        (last_ != nullptr ? last_->behind_ : first_) = &one;
        last_ = &one;
    }
    void unlink(Suspended& one) noexcept {
        one.is_queued_ = false;
        (one.before_ != nullptr ? one.before_->behind_ : first_) = one.behind_;
        (one.behind_ != nullptr ? one.behind_->before_ : last_) = one.before_;
    }

    base::Executor* executor_;
    Client client_;
    bool is_closed_ = false;
    std::vector<Place> places_;  ///< by their ids, each at its own or behind it
    std::size_t used_ = 0;       ///< of the places
    Registration watching_;
    Registration alarm_;
    base::Clock::time_point alarm_at_{};
    base::Clock::time_point earliest_ = base::Clock::time_point::max();  ///< none is due before
    std::size_t waiting_ = 0;
    std::size_t cancellable_ = 0;           ///< of those
    bool looks_for_cancellations_ = false;  ///< by the clock: there was no descriptor for one
    Suspended* first_ = nullptr;
    Suspended* last_ = nullptr;
};

Suspended::~Suspended() {
    if (core_ != nullptr && is_waiting_) core_->forget(*this);
}

bool Suspended::begin(base::detail::Run& run, std::coroutine_handle<> frame) {
    run_ = &run;
    frame_ = frame;
    return core_->begin(*this);
}

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
