// Suspended calls: those that wait for an answer, for a place in the window, for a time, and for
// another connection. Used by coroutine.cpp.
//
// Another connection is made in a thread of its own (Connecting), as it waits for the server.
// Meanwhile that thread alone uses the client (ClientCore::go_away), calls are queued, and those in
// a session that resumes may be over by their deadlines.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "millrace/base/cancellation.hpp"
#include "millrace/message/detail/awaiting.hpp"
#include "millrace/message/detail/put_off.hpp"
#include "millrace/rpc/coroutine.hpp"

namespace millrace::rpc::detail {

class AsyncCore final : public message::detail::AwaitingCore {
  public:
    AsyncCore(base::Executor& executor, Client client)
        : AwaitingCore{executor}, client_{std::move(client)} {
        watch(client_.descriptor());
    }

    /// Takes everything back that would call this.
    void leave() noexcept {
        stop_connecting();
        AwaitingCore::leave();
        while (queued_.first() != nullptr) {
            SuspendedCall& call = *queued_.first();
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
        watch(call);
        set_alarm();
        return true;
    }
    /// It has ended so. False: that is its last word.
    [[nodiscard]] bool puts_off(SuspendedCall& call, Code code) {
        if (code == Code::ok || has_left()) return false;
        const auto at = core().again_at(code, call.attempt_, call.deadline());
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
        watch(part);
        set_alarm();
    }
    void forget(SuspendedPart& part) noexcept {
        if (!std::exchange(part.is_waiting_, false)) return;
        part.reader_->tell(nullptr);
        part.end_watch();
        std::erase(parts_, &part);
    }
    void cancel(SuspendedCall& call) {
        if (call.state_ == SuspendedCall::State::put_off) std::erase(put_off_, &call);
        if (call.state_ == SuspendedCall::State::queued) unlink(call);
        if (call.state_ == SuspendedCall::State::submitted) (void)core().take_back(call.id_);
    }
    base::Status poll() override {
        if (connecting_ != nullptr) return base::Status::empty;
        const auto alive = shared_from_this();
        const base::Status status = core().poll();
        if (status == base::Status::closed || status == base::Status::peer_lost) core().lose();
        if (queued_.first() != nullptr) submit_queued();
        return status;
    }
    base::Status reconnect(const base::Deadline& deadline) {
        const auto alive = shared_from_this();
        stop_connecting();
        unwatch();
        const base::Status status = core().reconnect(deadline);
        if (status == base::Status::ok) {
            watch(client_.descriptor());
            look_around();
            readable();
        }
        return status;
    }
    base::Status close(const base::Deadline& deadline) {
        const auto alive = shared_from_this();
        stop_connecting();
        unwatch();
        const base::Status status = core().close(deadline);
        const bool is_open = status == base::Status::timed_out || status == base::Status::cancelled;
        if (is_open) watch(client_.descriptor());  // what was sent may be answered still
        while (!put_off_.empty()) {
            SuspendedCall& call = *put_off_.back();
            put_off_.pop_back();
            call.end(Code::closed);
            finish(call);
        }
        while (queued_.first() != nullptr) {
            SuspendedCall& call = *queued_.first();
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
        bool is_connected = false;  ///< after its end
        std::thread thread;
    };

    /// Some call waits for one.
    [[nodiscard]] bool wants_connection() const noexcept {
        return queued_.first() != nullptr || !put_off_.empty() || client_.core_->outstanding() != 0;
    }
    [[nodiscard]] bool may_connect() const noexcept {
        return client_.core_->is_lost() && connecting_ == nullptr && wants_connection();
    }
    void connect_if_due() {
        if (connecting_ != nullptr && !wants_connection()) connecting_->stop.request();
        if (!may_connect() || core().awaits_ends() || base::Clock::now() < core().retry_at())
            return;
        unwatch();
        connecting_ = std::make_unique<Connecting>();
        core().go_away();
        try {
            connecting_->thread = std::thread{
                [its = connecting_.get(), &of = core(), in = &executor(), self = weak_from_this()] {
                    its->is_connected =
                        of.connect_away(base::Deadline::never().cancelled_by(its->stop));
                    in->post([self] {
                        const auto alive = std::static_pointer_cast<AsyncCore>(self.lock());
                        if (alive != nullptr) alive->end_connecting();
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
            if (is_connected) watch(client_.descriptor());
        } catch (const base::Error&) {
            // The server means something else by a name, or there is no descriptor.
            core().lose();
        }
        if (core().is_lost() && !was_stopped) note_vain_attempt();
        look_around();
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
        call.go_on();
    }
    /// It has what it ended with the last time, if it was sent.
    static void give_up(SuspendedCall& call) noexcept {
        if (call.ended_ == Code::not_sent) call.end(Code::not_sent);
    }
    /// Calls that are queued for a connection pay for it as for an attempt of their own.
    void note_vain_attempt() {
        core().note_vain_attempt();
        const std::uint32_t vain = ++vain_attempts_;
        for (SuspendedCall* call = queued_.first(); call != nullptr;) {
            SuspendedCall& one = *call;
            call = queued_.after(one);
            if (std::exchange(one.vain_attempts_, vain) == vain) continue;
            if (core().again_at(Code::not_sent, one.attempt_, one.deadline()).has_value()) continue;
            unlink(one);
            give_up(one);
            finish(one);
            call = queued_.first();  // whatever that has done
        }
    }

    /// False: it found no room, or it is over.
    bool submit(SuspendedCall& call) {
        const base::Status status = call.submit(core());
        switch (status) {
            case base::Status::ok: count_turn(call); return true;
            case base::Status::full: return false;
            case base::Status::timed_out: call.end(Code::late); break;
            case base::Status::too_large: call.end(Code::too_large); break;
            default:
                if (puts_off(call, Code::not_sent)) return false;
                call.end(Code::not_sent);
                break;
        }
        call.state_ = SuspendedCall::State::over;
        return false;
    }
    void submit_queued() {
        while (queued_.first() != nullptr && !core().is_lost()) {
            SuspendedCall& call = is_turn_of_low() ? *first_low_ : *queued_.first();
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
                call.go_on();
            } else {
                if (call.state_ == SuspendedCall::State::put_off) unlink(call);
                return;
            }
        }
    }
    /// Those that wait for a place, and whose time is over.
    void expire_queued() {
        const auto now = base::Clock::now();
        for (SuspendedCall* call = queued_.first(); call != nullptr;) {
            const base::Status why = call->why_over(now);
            if (why == base::Status::ok) {
                call = queued_.after(*call);
                continue;
            }
            const bool was_sent = call->attempt_.made > 1;
            call->end(why == base::Status::cancelled ? Code::cancelled
                      : was_sent                     ? Code::timed_out
                                                     : Code::late);
            unlink(*call);
            finish(*call);
            call = queued_.first();  // whatever that has done
        }
        queued_until_ = Time::max();
        for (const SuspendedCall* call = queued_.first(); call != nullptr;
             call = queued_.after(*call)) {
            queued_until_ = std::min(queued_until_, call->deadline().point());
        }
    }

    /// Those whose time to be made again has come, or is over.
    void expire_put_off() {
        const auto now = base::Clock::now();
        for (std::size_t i = 0; i < put_off_.size();) {
            SuspendedCall& call = *put_off_[i];
            const base::Status why = call.why_over(now);
            if (call.due_ > now && why == base::Status::ok) {
                ++i;
                continue;
            }
            put_off_.erase(put_off_.begin() + static_cast<std::ptrdiff_t>(i));
            if (why != base::Status::ok) {
                call.end(why == base::Status::cancelled ? Code::cancelled : Code::timed_out);
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
        const auto now = base::Clock::now();
        for (std::size_t i = 0; i < parts_.size();) {
            SuspendedPart& part = *parts_[i];
            const base::Status why = part.why_over(now);
            if (why != base::Status::ok) part.status_ = why;
            if (why == base::Status::ok && !(part.reader_->lacks_room() && part.look())) {
                ++i;
                continue;
            }
            part.resume();
            i = 0;  // whatever that has done
        }
    }

    Time due() override {
        const auto room_due = [] { return base::Clock::now() + room_slice; };
        Time due = std::min(core().earliest(), cancellation_due(core().has_cancellable()));
        // Nobody tells that a dispatcher has told of the last call that has ended with its
        // connection.
        if (may_connect()) {
            due = std::min(due, core().awaits_ends() ? room_due() : core().retry_at());
        }
        // Nobody tells of room in the server's ring.
        if (queued_.first() != nullptr && !core().is_lost()) {
            due = std::min(due, room_due());
        } else if (queued_.first() != nullptr) {
            due = std::min({due, queued_until_, cancellation_due(true)});
        }
        for (const SuspendedCall* const call : put_off_) {
            due = std::min({due, call->due_, cancellation_due(call->deadline())});
        }
        for (const SuspendedPart* const part : parts_) {
            due = std::min({due, part->deadline().point(), cancellation_due(part->deadline())});
            if (part->reader_->lacks_room()) due = std::min(due, room_due());
        }
        return due;
    }
    void end_what_is_over() override {
        (void)core().expire();
        expire_queued();
        expire_put_off();
        submit_queued();
        look_at_parts();
        connect_if_due();
    }

    /// Among those that wait for a place: as a server serves what waits there.
    [[nodiscard]] bool is_turn_of_low() const noexcept {
        return first_low_ != nullptr &&
               (queued_.first() == first_low_ ||
                others_sent_ >= message::detail::PuttingOff::others_before);
    }
    [[nodiscard]] bool waits_behind_others(const SuspendedCall& call) const noexcept {
        if (queued_.first() == nullptr) return false;
        const bool others_wait = queued_.first() != first_low_;
        return call.priority_ == Priority::low || others_wait ||
               others_sent_ >= message::detail::PuttingOff::others_before;
    }
    void count_turn(const SuspendedCall& call) noexcept {
        const bool is_counted = call.priority_ != Priority::low && first_low_ != nullptr;
        others_sent_ = is_counted ? others_sent_ + 1 : 0;
    }

    void link(SuspendedCall& call) noexcept {
        call.state_ = SuspendedCall::State::queued;
        queued_until_ = std::min(queued_until_, call.deadline().point());
        // Those of low priority stand after all others.
        const bool is_low = call.priority_ == Priority::low;
        queued_.insert(call, is_low ? nullptr : first_low_);
        if (is_low && first_low_ == nullptr) first_low_ = &call;
    }
    void unlink(SuspendedCall& call) noexcept {
        if (first_low_ == &call) first_low_ = queued_.after(call);
        queued_.erase(call);
    }

    Client client_;
    message::detail::AwaitingList<SuspendedCall> queued_;  ///< for a place in the window
    SuspendedCall* first_low_ = nullptr;                   ///< of low priority: all after it are
    std::uint32_t others_sent_ = 0;  ///< while one of low priority waited for its turn
    /// None of these is over before, by its deadline.
    Time queued_until_ = Time::max();
    std::vector<SuspendedCall*> put_off_;
    std::vector<SuspendedPart*> parts_;  ///< that wait
    std::unique_ptr<Connecting> connecting_;
    std::uint32_t vain_attempts_ = 0;
};

}  // namespace millrace::rpc::detail
