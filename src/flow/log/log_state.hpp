// The state of a log's end: its readers come, are served within its calls, and go. Used by LogEnd.
#pragma once

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "log/door.hpp"
#include "log/session.hpp"
#include "log/store.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/log.hpp"
#include "millrace/base/statistics.hpp"
#include "millrace/base/wait.hpp"
#include "millrace/flow/log.hpp"

namespace millrace::flow::detail {

using base::Deadline;
using base::Status;

/// Frames that one reader gets in its turn: within an append, and otherwise.
inline constexpr std::uint32_t frames_of_append = 2;
inline constexpr std::uint32_t frames_of_turn = 16;
/// A reader without room announces nothing that would wake this end: it is looked after by the
/// clock.
inline constexpr std::chrono::milliseconds look_for_room{1};

/// What it counts, for other processes to look at.
[[nodiscard]] base::StatisticsPage log_page(const std::string& name);

struct LogEnd::State {
    State(const ItemFacts& item, const connect::Address& address, LogOptions chosen,
          std::vector<LogFilter> its_filters)
        : options{std::move(chosen)},
          filters{std::move(its_filters)},
          store{log_shape_of(item), options, filters.empty() ? 0 : sizeof(LogChosenHead)},
          door{address, options},
          page{log_page(options.queue.name)},
          spin_ticks{base::ticks_in(options.queue.wait.spin)} {}
    State(const State&) = delete;
    State& operator=(const State&) = delete;
    ~State() {
        if (!door.is_of_this_process()) return;  // what is in the hub is in the parent's, too
        door.hub().adopt();                      // whichever thread ends it
        door.stop_accepting();
        while (!sessions.empty()) remove(sessions.size() - 1);
    }

    // ---- readers come and go

    void accept() {
        while (!is_closing) {
            std::optional<LogRequests> requests = door.try_accept_requests();
            if (!requests.has_value()) break;
            LogSession& session = session_of(requests->peer_crew().number);
            if (session.requests.has_value()) continue;  // a crew has one
            session.requests.emplace(std::move(*requests));
            session.member = door.hub().add(session.requests->descriptor(),
                                            [&session] { session.is_active = true; });
        }
        while (!is_closing) {
            std::optional<LogItems> items = door.try_accept_items();
            if (!items.has_value()) break;
            LogSession& session = session_of(items->peer_crew().number);
            if (!session.items.has_value()) session.items.emplace(std::move(*items));
        }
    }
    LogSession& session_of(std::uint64_t crew) {
        const auto found =
            std::ranges::find(sessions, crew, [](const auto& one) { return one->crew(); });
        if (crew != 0 && found != sessions.end()) return **found;
        sessions.push_back(std::make_unique<LogSession>(crew, filters));
        return *sessions.back();
    }
    void join(LogSession& session) {
        for (std::size_t i = 0; i != sessions.size() && !session.name().empty(); ++i) {
            LogSession& other = *sessions[i];
            if (&other == &session || !other.has_joined() || other.name() != session.name()) {
                continue;
            }
            if (!take_and_look(i)) break;  // it had gone, and nobody had looked
            other.displace(store);
            leave(i, Status::peer_lost);
            break;
        }
        session.number = ++counts.joined;
        ++counts.readers;
        if (watcher) watcher(session.facts(), Status::ok);
    }
    void leave(std::size_t at, Status how) {
        const std::unique_ptr<LogSession> session = remove(at);
        if (!session->has_joined()) return;
        --counts.readers;
        ++(how == Status::closed ? counts.closed : counts.lost);
        if (watcher) watcher(session->facts(), how);
    }
    std::unique_ptr<LogSession> remove(std::size_t at) {
        std::unique_ptr<LogSession> session = std::move(sessions[at]);
        sessions.erase(sessions.begin() + static_cast<std::ptrdiff_t>(at));
        if (session->requests.has_value()) door.hub().remove(session->member);
        return session;
    }
    void dismiss(std::size_t at, const char* fault) {
        base::log(base::LogLevel::warn, "flow", "the log at {} dismisses its reader {}: it {}",
                  door.address().to_string(), sessions[at]->facts().peer, fault);
        leave(at, Status::peer_lost);
    }

    // ---- readers are served

    /// False: the session at `at` is gone.
    bool take(std::size_t at) {
        const LogSession::Taken taken = sessions[at]->take(store);
        counts.acknowledgements += taken.acknowledgements;
        progress += taken.requests;
        if (taken.fault == nullptr) return true;
        dismiss(at, taken.fault);
        return false;
    }
    /// The same, and asks the system whether it is there.
    bool take_and_look(std::size_t at) {
        if (!take(at)) return false;
        const Status how = sessions[at]->look_after();
        if (how == Status::empty) return true;
        leave(at, how);
        return false;
    }
    bool send(std::size_t at, std::uint32_t most) {
        LogSession& session = *sessions[at];
        const LogSession::Sent sent = session.send(store, most);
        counts.frames += sent.frames;
        counts.passed += sent.passed;
        progress += sent.frames;
        if (sent.status == Status::closed || sent.status == Status::peer_lost) {
            // It may have acknowledged something before.
            if (take_and_look(at)) leave(at, sent.status);
            return false;
        }
        if (session.is_welcome()) [[unlikely]]
            join(session);
        return true;
    }
    void send_to_all(std::uint32_t most) {
        for (std::size_t i = 0; i < sessions.size();) {
            LogSession* const session = sessions[i].get();
            // One that joins may displace another one before it.
            if (send(i, most) && i < sessions.size() && sessions[i].get() == session) ++i;
        }
    }
    void serve_once() {
        if (door.is_due()) [[unlikely]]
            keep_house();
        for (std::size_t i = 0; i < sessions.size();) {
            // Each look brings a newcomer a step further; the others are looked after by the clock.
            if (sessions[i]->has_joined() ? take(i) : take_and_look(i)) ++i;
        }
        send_to_all(frames_of_turn);
        for (const auto& session : sessions) (void)session->settle();
    }
    /// By the clock.
    [[gnu::noinline]] void keep_house() {
        if (door.look("serve the readers of a log")) accept();
        for (std::size_t i = 0; i < sessions.size();) {
            if (take_and_look(i) && keep_waiting(i)) ++i;
        }
        store.history().drop_aged();
        show();
    }
    /// False: it did not join for too long, and is gone.
    bool keep_waiting(std::size_t at) {
        LogSession& session = *sessions[at];
        if (session.has_joined() ||
            base::Clock::now() - session.came_at < connect::setup_patience) {
            return true;
        }
        leave(at, Status::peer_lost);
        return false;
    }

    // ---- waiting

    /// Asks all readers for a wake-up. True: none has anything.
    bool fall_asleep() {
        bool is_quiet = true;
        for (const auto& session : sessions) {
            // One that has room is sent more; one that has none is looked after by the clock.
            is_quiet = is_quiet && (session->has_all || session->has_no_room);
            if (!session->requests.has_value() || !session->is_active) continue;
            const LogRequest* request = nullptr;
            session->is_active = session->requests->peek(request) != Status::empty;
            is_quiet = is_quiet && !session->is_active;
        }
        return is_quiet;
    }
    [[nodiscard]] bool lacks_room() const noexcept {
        return std::ranges::any_of(
            sessions, [](const auto& one) { return one->has_no_room || !one->is_settled; });
    }
    class Sleeper final : public base::Parker {
      public:
        explicit Sleeper(State& state) noexcept : state_{&state} {}
        void prepare() override { is_quiet_ = state_->fall_asleep(); }
        void park(std::chrono::nanoseconds limit, const base::Cancellation* cancellation) override {
            ++state_->counts.sleeps;
            if (!is_quiet_) return;
            if (state_->lacks_room())
                limit = std::min<std::chrono::nanoseconds>(limit, look_for_room);
            state_->door.rest("serve the readers of a log",
                              Deadline::after(limit).cancelled_by(cancellation));
        }
        void retract() override {}

      private:
        State* state_;
        bool is_quiet_ = false;
    };
    template <class Ready>
    Status wait(Ready&& ready, const Deadline& deadline) {
        Sleeper sleeper{*this};
        return base::wait_until(
            [&] {
                serve_once();
                return ready();
            },
            deadline, options.queue.wait, sleeper);
    }
    /// A program's own loop may sleep on the descriptor now.
    void keep_loop() {
        const std::uint64_t now = base::ticks();
        if (std::exchange(progress_seen, progress) != progress) busy_at = now;
        const bool may_sleep = now - busy_at >= spin_ticks && fall_asleep();
        if (!may_sleep) return door.hub().post([] {});  // the descriptor stays readable
        if (lacks_room()) come_back();
    }
    /// Makes the descriptor readable before long.
    void come_back() {
        if (std::exchange(is_timed, true)) return;
        door.hub().after(look_for_room, [this] { is_timed = false; });
    }
    /// After an append, which makes no more than a part of the turn of a reader that is behind.
    void keep_loop_after_append() {
        const bool is_behind = std::ranges::any_of(
            sessions, [](const auto& one) { return !one->has_all || !one->is_settled; });
        if (is_behind) come_back();
    }

    // ---- acknowledgements

    /// Names that are there, alive, and have acknowledged everything before `position`; `enough` of
    /// them are looked after.
    [[nodiscard]] std::uint32_t count_acknowledged(std::uint64_t position, std::uint32_t enough) {
        const auto has_it = [&](const auto& one) { return one->has_acknowledged(position); };
        // Without a system call as long as they are too few.
        if (std::ranges::count_if(sessions, has_it) < static_cast<std::ptrdiff_t>(enough)) return 0;
        std::uint32_t count = 0;
        for (std::size_t i = 0; i < sessions.size() && count != enough;) {
            LogSession& session = *sessions[i];
            if (!session.has_acknowledged(position)) {
                ++i;
                continue;
            }
            const Status status = session.items->look_around();
            if (status == Status::closed || status == Status::peer_lost) {
                leave(i, status);
                continue;
            }
            ++count;
            ++i;
        }
        return count;
    }

    // ---- the end

    /// False: not yet.
    bool has_closed(LogSession& session) {
        if (session.closed.has_value()) return true;
        Status status = session.send(store, frames_of_turn).status;
        if (status == Status::ok) {
            if (!session.has_all) return false;
            status = session.tell_position();
        }
        if (status == Status::ok) {
            status = session.items->close(Deadline::now());
        }
        if (status == Status::full || status == Status::timed_out) return false;
        session.closed = status;
        return true;
    }
    Status close(const Deadline& deadline) {
        door.require_owner("close");
        if (closed.has_value()) return *closed;
        is_closing = true;
        door.stop_accepting();
        std::erase_if(sessions, [&](const auto& one) {
            if (!one->has_joined() && one->requests.has_value()) door.hub().remove(one->member);
            return !one->has_joined();
        });
        Sleeper sleeper{*this};
        const Status waited = base::wait_until(
            [&] {
                if (door.is_due()) (void)door.look("close");
                bool are_closed = true;
                for (const auto& session : sessions) {
                    (void)session->take(store);
                    are_closed = has_closed(*session) && are_closed;
                }
                return are_closed;
            },
            deadline, options.queue.wait, sleeper);
        if (waited != Status::ok) return waited;
        closed = Status::ok;
        for (const auto& session : sessions) {
            if (*closed == Status::ok) closed = *session->closed;
            if (session->requests.has_value()) session->requests->close();
            ++(*session->closed == Status::peer_lost ? counts.lost : counts.closed);
        }
        while (!sessions.empty()) (void)remove(sessions.size() - 1);
        counts.readers = 0;
        show();
        return *closed;
    }

    // ---- what it tells

    [[nodiscard]] LogStats now() const noexcept {
        LogStats stats = counts;
        stats.first = store.history().first();
        stats.end = store.history().end();
        return stats;
    }
    void show() {
        const LogStats stats = now();
        const std::uint64_t values[] = {
            stats.items,  stats.first,  stats.end,  stats.readers,
            stats.joined, stats.closed, stats.lost, stats.acknowledgements,
            stats.passed, stats.frames, stats.full, stats.sleeps};
        page.set(values);
    }

    LogOptions options;
    const std::vector<LogFilter> filters;
    LogStore store;
    LogDoor door;
    std::vector<std::unique_ptr<LogSession>> sessions;
    Watcher watcher{};
    LogStats counts;
    base::StatisticsPage page;
    bool is_closing = false;
    std::optional<Status> closed;
    std::uint64_t progress = 0;  ///< requests and frames
    bool is_nested = false;      ///< in a program's own loop
    bool is_timed = false;       ///< a timer makes the descriptor readable
    std::uint64_t progress_seen = 0;
    std::uint64_t busy_at = 0;
    std::uint64_t spin_ticks;
};

}  // namespace millrace::flow::detail
