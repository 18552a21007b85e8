// Suspended calls: who waits for an answer, for a place in the window, for a time, for another
// connection.
//
// That is made in a thread of its own (Connecting), as it waits for the server. Meanwhile the
// client is its (ClientCore::go_away), calls are queued, and those in a session that resumes may be
// over by their deadlines.
#include "millrace/rpc/coroutine.hpp"
#include "millrace/message/detail/put_off.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "millrace/base/cancellation.hpp"
#include "millrace/message/server.hpp"

namespace millrace::rpc {

using base::Status;

namespace detail {

class AsyncCore : public std::enable_shared_from_this<AsyncCore> {
  public:
    AsyncCore(base::Executor& executor, Client client)
        : executor_{&executor}, client_{std::move(client)} {
        watch();
    }
    AsyncCore(const AsyncCore&) = delete;
    AsyncCore& operator=(const AsyncCore&) = delete;
    ~AsyncCore() = default;  // leave() came before

    /// Takes everything back that would call this.
    void leave() noexcept {
        stop_connecting();
        take_back(watching_);
        take_back(alarm_);
        while (first_ != nullptr) {
            SuspendedCall& call = *first_;
            unlink(call);
            call.core_ = nullptr;
            call.state_ = SuspendedCall::State::over;
        }
        for (SuspendedCall* const call : std::exchange(put_off_, {})) {
            call->core_ = nullptr;
            call->state_ = SuspendedCall::State::over;
        }
        for (SuspendedPart* const part : std::exchange(parts_, {})) {
            part->reader_->tell(nullptr);
            part->is_waiting_ = false;
        }
        has_left_ = true;
    }

    [[nodiscard]] Client& client() noexcept { return client_; }
    [[nodiscard]] ClientCore& core() noexcept { return *client_.core_; }

    [[nodiscard]] bool begin(SuspendedCall& call) {
        core().earn();
        if (core().is_lost()) {
            (void)core().number_of(call.attempt_.place);  // one that was not asked for is refused
            if (!core().may_wait_for_connection()) {
                call.end(Code::not_sent);
                call.state_ = SuspendedCall::State::over;
                return false;
            }
        }
        if (core().is_lost() || waits_behind_others(call) || !submit(call)) {
            if (call.state_ == SuspendedCall::State::over) return false;
            if (call.state_ != SuspendedCall::State::put_off) link(call);
        }
        if (call.state_ == SuspendedCall::State::over) return false;
        watch(call.cancellation_, call.deadline_);
        set_alarm();
        return true;
    }
    /// It has ended so. False: that is its last word.
    [[nodiscard]] bool puts_off(SuspendedCall& call, Code code) {
        if (code == Code::ok || has_left_) return false;
        const auto at = core().again_at(code, call.attempt_, call.deadline_);
        if (!at.has_value()) return false;
        if (code == Code::not_sent || code == Code::peer_lost || code == Code::closed) {
            core().lose();
        }
        call.ended_ = code;
        call.due_ = *at;
        call.state_ = SuspendedCall::State::put_off;
        put_off_.push_back(&call);
        set_alarm();
        return true;
    }
    /// A task waits for a part.
    void wait(SuspendedPart& part) {
        part.is_waiting_ = true;
        part.reader_->tell(&part);
        parts_.push_back(&part);
        watch(part.cancellation_, part.deadline_);
        set_alarm();
    }
    void forget(SuspendedPart& part) noexcept {
        if (!std::exchange(part.is_waiting_, false)) return;
        part.reader_->tell(nullptr);
        part.cancellation_.end();
        std::erase(parts_, &part);
    }
    [[nodiscard]] bool has_left() const noexcept { return has_left_; }
    void cancel(SuspendedCall& call) {
        if (call.state_ == SuspendedCall::State::put_off) std::erase(put_off_, &call);
        if (call.state_ == SuspendedCall::State::queued) unlink(call);
        if (call.state_ == SuspendedCall::State::submitted) (void)core().take_back(call.id_);
    }
    Status poll() {
        if (connecting_ != nullptr) return Status::empty;
        const auto alive = shared_from_this();
        const Status status = core().poll();
        if (status == Status::closed || status == Status::peer_lost) core().lose();
        if (first_ != nullptr) submit_queued();
        return status;
    }
    Status reconnect(const base::Deadline& deadline) {
        const auto alive = shared_from_this();
        stop_connecting();
        take_back(watching_);
        const Status status = core().reconnect(deadline);
        if (status == Status::ok) {
            watch();
            end_what_is_over();
            readable();
        }
        return status;
    }
    Status close(const base::Deadline& deadline) {
        const auto alive = shared_from_this();
        stop_connecting();
        take_back(watching_);
        const Status status = core().close(deadline);
        while (!put_off_.empty()) {
            SuspendedCall& call = *put_off_.back();
            put_off_.pop_back();
            call.end(Code::closed);
            finish(call);
        }
        while (first_ != nullptr) {
            SuspendedCall& call = *first_;
            unlink(call);
            call.end(call.attempt_.made > 1 ? Code::closed : Code::not_sent);
            finish(call);
        }
        look_at_parts();  // those that found no room to ask for theirs
        return status;
    }

  private:
    /// Who makes another connection.
    struct Connecting {
        base::Cancellation stop;
        bool is_connected = false;  ///< behind its end
        std::thread thread;
    };

    /// There is who waits for one.
    [[nodiscard]] bool wants_connection() const noexcept {
        return first_ != nullptr || !put_off_.empty() || client_.core_->outstanding() != 0;
    }
    [[nodiscard]] bool may_connect() const noexcept {
        return client_.core_->is_lost() && connecting_ == nullptr && wants_connection();
    }
    void connect_if_due() {
        if (connecting_ != nullptr && !wants_connection()) connecting_->stop.request();
        if (!may_connect() || core().awaits_ends() || base::Clock::now() < core().retry_at())
            return;
        take_back(watching_);
        connecting_ = std::make_unique<Connecting>();
        core().go_away();
        try {
            connecting_->thread = std::thread{
                [its = connecting_.get(), &of = core(), in = executor_, self = weak_from_this()] {
                    its->is_connected =
                        of.connect_away(base::Deadline::never().cancelled_by(its->stop));
                    in->post([self] {
                        if (const auto alive = self.lock()) alive->end_connecting();
                    });
                }};
        } catch (const std::system_error&) {  // there are no more threads
            connecting_.reset();
            core().come_back(false);
            note_vain_attempt();
        }
    }
    /// It has come to an end.
    void end_connecting() {
        if (connecting_ == nullptr) return;  // it was stopped, and that has been seen to
        const bool was_stopped = connecting_->stop.requested();
        const bool is_connected = end_thread();
        try {
            core().come_back(is_connected);
            if (is_connected) watch();
        } catch (const base::Error&) {
            // The server means something else by a name, or there is no descriptor.
            core().lose();
        }
        if (core().is_lost() && !was_stopped) note_vain_attempt();
        end_what_is_over();
        readable();  // what a session that was not resumed has to say lies there already
    }
    [[nodiscard]] bool end_thread() {
        const std::unique_ptr<Connecting> its = std::move(connecting_);
        its->thread.join();
        return its->is_connected;
    }
    /// The connection is this thread's from here on, as far as it came.
    void stop_connecting() noexcept {
        if (connecting_ == nullptr) return;
        connecting_->stop.request();
        const bool is_connected = end_thread();
        try {
            core().come_back(is_connected);
        } catch (const base::Error&) {
            core().lose();  // the server means something else by a name
        }
    }
    static void finish(SuspendedCall& call) {
        call.state_ = SuspendedCall::State::over;
        call.run_->resume(call.frame_);
    }
    /// It has what it ended with the last time, if it was sent.
    static void give_up(SuspendedCall& call) noexcept {
        if (call.ended_ == Code::not_sent) call.end(Code::not_sent);
    }
    /// Calls that are queued for a connection pay for it as for an attempt of their own.
    void note_vain_attempt() {
        (void)core().note_vain_attempt();
        const std::uint32_t vain = ++vain_attempts_;
        for (SuspendedCall* call = first_; call != nullptr;) {
            SuspendedCall& one = *call;
            call = one.behind_;
            if (std::exchange(one.vain_attempts_, vain) == vain) continue;
            if (core().again_at(Code::not_sent, one.attempt_, one.deadline_).has_value()) continue;
            unlink(one);
            give_up(one);
            finish(one);
            call = first_;  // whatever that has done
        }
    }

    using Registration = std::optional<base::Executor::Id>;

    void watch() {
        watching_ = executor_->add(client_.descriptor(), [this] { readable(); });
    }
    void watch(base::CancellationWatch& watch, const base::Deadline& deadline) {
        if (deadline.cancellation() == nullptr) return;
        const bool is_watched =
            watch.begin(*executor_, *deadline.cancellation(), [core = weak_from_this()] {
                if (const auto alive = core.lock()) alive->end_what_is_over();
            });
        if (!is_watched) looks_for_cancellations_ = true;
    }
    void take_back(Registration& registration) noexcept {
        if (registration.has_value()) (void)executor_->remove(*registration);
        registration.reset();
    }

    void readable() {
        constexpr int budget = 64;  // others have their turn
        const auto alive = shared_from_this();
        Status status = Status::ok;
        // A task that is resumed may destroy the client.
        for (int i = 0; i < budget && status == Status::ok && !has_left_; ++i) status = poll();
        // A channel that has ended is readable for ever.
        if (status == Status::closed || status == Status::peer_lost) take_back(watching_);
        set_alarm();
    }

    /// False: it found no room, or it is over.
    bool submit(SuspendedCall& call) {
        const Status status = call.submit(core());
        switch (status) {
            case Status::ok: count_turn(call); return true;
            case Status::full: return false;
            case Status::timed_out: call.end(Code::late); break;
            case Status::too_large: call.end(Code::too_large); break;
            default:
                if (puts_off(call, Code::not_sent)) return false;
                call.end(Code::not_sent);
                break;
        }
        call.state_ = SuspendedCall::State::over;
        return false;
    }
    void submit_queued() {
        while (first_ != nullptr && !core().is_lost()) {
            SuspendedCall& call = is_turn_of_low() ? *first_low_ : *first_;
            bool is_sent = false;
            if (core().has(call.attempt_)) {
                is_sent = submit(call);
            } else {  // another server, which does not have it
                call.end(Code::unknown_procedure);
                call.state_ = SuspendedCall::State::over;
            }
            if (is_sent && call.state_ != SuspendedCall::State::over) {
                unlink(call);
                call.state_ = SuspendedCall::State::submitted;
            } else if (call.state_ == SuspendedCall::State::over) {
                unlink(call);
                call.run_->resume(call.frame_);
            } else {
                if (call.state_ == SuspendedCall::State::put_off) unlink(call);
                return;
            }
        }
    }
    /// Those that wait for a place, and whose time is over.
    void expire_queued() {
        for (SuspendedCall* call = first_; call != nullptr;) {
            const bool is_cancelled = call->deadline_.cancelled();
            if (is_cancelled || call->deadline_.expired()) {
                const bool was_sent = call->attempt_.made > 1;
                call->end(is_cancelled ? Code::cancelled : was_sent ? Code::timed_out : Code::late);
                unlink(*call);
                finish(*call);
                call = first_;  // whatever that has done
            } else {
                call = call->behind_;
            }
        }
        queued_until_ = base::Clock::time_point::max();
        for (const SuspendedCall* call = first_; call != nullptr; call = call->behind_) {
            queued_until_ = std::min(queued_until_, call->deadline_.point());
        }
    }

    /// Those whose time to be made again has come, or is over.
    void expire_put_off() {
        const auto now = base::Clock::now();
        for (std::size_t i = 0; i < put_off_.size();) {
            SuspendedCall& call = *put_off_[i];
            const bool is_over = call.deadline_.cancelled() || call.deadline_.expired();
            if (call.due_ > now && !is_over) {
                ++i;
                continue;
            }
            put_off_.erase(put_off_.begin() + static_cast<std::ptrdiff_t>(i));
            if (is_over) {
                call.end(call.deadline_.cancelled() ? Code::cancelled : Code::timed_out);
            } else if (core().is_lost() || core().knows(call.attempt_)) {
                link(call);
                continue;
            } else {
                give_up(call);
            }
            finish(call);
            i = 0;  // whatever that has done
        }
    }
    /// Tasks whose wait for a part is over, or that could not ask for it.
    void look_at_parts() {
        for (std::size_t i = 0; i < parts_.size();) {
            SuspendedPart& part = *parts_[i];
            const bool is_over = part.deadline_.cancelled() || part.deadline_.expired();
            if (is_over) {
                part.status_ = part.deadline_.cancelled() ? Status::cancelled : Status::timed_out;
            }
            if (!is_over && !(part.reader_->lacks_room() && part.look())) {
                ++i;
                continue;
            }
            part.resume();
            i = 0;  // whatever that has done
        }
    }

    void set_alarm() {
        if (has_left_) return;
        constexpr std::chrono::milliseconds cancellation_slice{50};
        constexpr std::chrono::milliseconds room_slice{1};
        auto due = core().earliest();
        if (looks_for_cancellations_ && core().has_cancellable()) {
            due = std::min(due, base::Clock::now() + cancellation_slice);
        }
        // Nor that a dispatcher has told of the last call that has ended with its connection.
        if (may_connect()) {
            due = std::min(
                due, core().awaits_ends() ? base::Clock::now() + room_slice : core().retry_at());
        }
        // Nobody tells of room in the server's ring.
        if (first_ != nullptr && !core().is_lost()) {
            due = std::min(due, base::Clock::now() + room_slice);
        } else if (first_ != nullptr) {
            due = std::min(due, queued_until_);
            if (looks_for_cancellations_) {
                due = std::min(due, base::Clock::now() + cancellation_slice);
            }
        }
        for (const SuspendedCall* const call : put_off_) {
            due = std::min(due, call->due_);
            if (looks_for_cancellations_ && call->deadline_.cancellation() != nullptr) {
                due = std::min(due, base::Clock::now() + cancellation_slice);
            }
        }
        for (const SuspendedPart* const part : parts_) {
            due = std::min(due, part->deadline_.point());
            if (looks_for_cancellations_ && part->deadline_.cancellation() != nullptr) {
                due = std::min(due, base::Clock::now() + cancellation_slice);
            }
            if (part->reader_->lacks_room()) due = std::min(due, base::Clock::now() + room_slice);
        }
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
        if (has_left_) return;
        (void)core().expire();
        expire_queued();
        expire_put_off();
        submit_queued();
        look_at_parts();
        connect_if_due();
        set_alarm();
    }

    /// Among those that wait for a place: as a server serves what waits there.
    [[nodiscard]] bool is_turn_of_low() const noexcept {
        return first_low_ != nullptr &&
               (first_ == first_low_ || others_sent_ >= message::detail::PuttingOff::others_before);
    }
    [[nodiscard]] bool waits_behind_others(const SuspendedCall& call) const noexcept {
        if (first_ == nullptr) return false;
        const bool others_wait = first_ != first_low_;
        return call.priority_ == Priority::low || others_wait ||
               others_sent_ >= message::detail::PuttingOff::others_before;
    }
    void count_turn(const SuspendedCall& call) noexcept {
        const bool is_counted = call.priority_ != Priority::low && first_low_ != nullptr;
        others_sent_ = is_counted ? others_sent_ + 1 : 0;
    }

    void link(SuspendedCall& call) noexcept {
        call.state_ = SuspendedCall::State::queued;
        queued_until_ = std::min(queued_until_, call.deadline_.point());
        // Those of low priority stand behind all others.
        const bool is_low = call.priority_ == Priority::low;
        call.behind_ = is_low ? nullptr : first_low_;
        SuspendedCall*& before = call.behind_ != nullptr ? call.behind_->before_ : last_;
        call.before_ = before;
        (before != nullptr ? before->behind_ : first_) = &call;
        before = &call;
        if (is_low && first_low_ == nullptr) first_low_ = &call;
    }
    void unlink(SuspendedCall& call) noexcept {
        if (first_low_ == &call) first_low_ = call.behind_;
        (call.before_ != nullptr ? call.before_->behind_ : first_) = call.behind_;
        (call.behind_ != nullptr ? call.behind_->before_ : last_) = call.before_;
    }

    base::Executor* executor_;
    Client client_;
    Registration watching_;
    Registration alarm_;
    base::Clock::time_point alarm_at_{};
    SuspendedCall* first_ = nullptr;
    SuspendedCall* last_ = nullptr;
    SuspendedCall* first_low_ = nullptr;  ///< of low priority: all behind it are
    std::uint32_t others_sent_ = 0;       ///< while one of low priority waited for its turn
    /// None of these is over before, by its deadline.
    base::Clock::time_point queued_until_ = base::Clock::time_point::max();
    std::vector<SuspendedCall*> put_off_;
    std::vector<SuspendedPart*> parts_;  ///< that wait
    std::unique_ptr<Connecting> connecting_;
    std::uint32_t vain_attempts_ = 0;
    bool has_left_ = false;
    bool looks_for_cancellations_ = false;  ///< by the clock: there was no descriptor for one
};

SuspendedCall& SuspendedCall::of(Record& record) noexcept {
    return **std::launder(reinterpret_cast<SuspendedCall**>(record.storage.data()));
}

const Record::Type SuspendedCall::type{
    .take = [](Record& record, const message::Answer& answer) { of(record).take(answer); },
    .end = [](Record& record, Code code) noexcept { of(record).end(code); },
    .finish =
        [](Record& record) {
            SuspendedCall& call = of(record);
            record.type = nullptr;
            if (call.core_->has_left()) {  // together with one whose task destroyed the client
                call.state_ = State::over;
                call.core_ = nullptr;
                return;
            }
            if (call.core_->puts_off(call, call.code())) return;
            call.state_ = State::over;
            call.run_->resume(call.frame_);
        },
    // The client has gone, or the call is taken back.
    .drop =
        [](Record& record) noexcept {
            SuspendedCall& call = of(record);
            record.type = nullptr;
            call.state_ = State::over;
            call.core_ = nullptr;
        },
};

SuspendedCall::~SuspendedCall() {
    if (core_ != nullptr) core_->cancel(*this);
}

void SuspendedCall::put(Record& record) noexcept {
    new (record.storage.data()) SuspendedCall* {this};
    record.type = &type;
    state_ = State::submitted;
}

bool SuspendedCall::begin(base::detail::Run& run, std::coroutine_handle<> frame) {
    run_ = &run;
    frame_ = frame;
    return core_->begin(*this);
}

SuspendedPart::~SuspendedPart() {
    if (core_ != nullptr) core_->forget(*this);
}

bool SuspendedPart::begin(base::detail::Run& run, std::coroutine_handle<> frame) {
    run_ = &run;
    frame_ = frame;
    if (look()) return false;
    if (!core_->has_left()) core_->wait(*this);
    return true;
}

bool SuspendedPart::look() {
    status_ = reader_->take(part_);
    return status_ != Status::empty;
}

void SuspendedPart::resume() {
    core_->forget(*this);
    run_->resume(frame_);
}

void SuspendedPart::came() {
    if (look()) {
        resume();
    } else {
        reader_->tell(this);
    }
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
detail::ClientCore& AsyncClient::core_of_client() noexcept { return core_->core(); }

}  // namespace millrace::rpc
