// The state of a client: its requests and answers, and above them how it waits for the one and the
// other, and how its session begins, goes on over another channel, and ends. Used by client.cpp
// (the public calls) and client_session.cpp (the session).
//
//   Client::State                     waits, connects, resumes, closes
//   ClientAnswers    answers.hpp      finds answers and hands them out
//   ClientRequests   requests.hpp     sends requests, one by one or laid in batches
//   ClientEnd        client_end.hpp   what these share: the lane, CallWindow, ServerByte
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "client/answers.hpp"
#include "millrace/base/clock.hpp"
#include "millrace/base/detail/forks.hpp"
#include "millrace/base/detail/sole_use.hpp"
#include "millrace/base/detail/yielding.hpp"
#include "millrace/message/client.hpp"

namespace millrace::message {

/// When a client that need not sleep for its answers gives its processor away. One whose answers
/// come within some microseconds never waits for so long that it would; where many clients share a
/// processor, the others would wait for the scheduler, each for all before it. So it is offered
/// after each `turn`, less often while nobody takes it, in a moment in which an answer is under way
/// anyhow.
class WaitTurns {
  public:
    /// By rings most waits do not take long enough for a look at the clock.
    void begin(bool has_rings) noexcept { waits_between_ = has_rings ? 7 : 0; }
    /// A wait begins.
    [[gnu::always_inline]] void count(const base::WaitPolicy& policy) noexcept {
        if ((++waits_ & waits_between_) == 0 && policy.yield.count() != 0) end_if_due();
    }

  private:
    [[gnu::noinline]] void end_if_due() noexcept {
        static const std::uint64_t turn = base::ticks_in(std::chrono::microseconds{40});
        std::uint64_t now = base::ticks();
        // Each of the waits between two looks at the clock may have taken most of a turn.
        const bool was_away = now - seen_ > 2 * turn * (waits_between_ + 1);
        if (was_away || turns_.due(now)) {
            if (!was_away) {
                (void)turns_.offer();
                now = base::ticks();
            }
            turns_.begin(now, turn);
        }
        seen_ = now;
    }

    std::uint32_t waits_ = 0;
    std::uint32_t waits_between_ = 0;  ///< two looks at the clock
    base::Yielding turns_{base::yields_of_process()};
    std::uint64_t seen_ = 0;  ///< ticks
};

struct Client::State : ClientAnswers {
    State(const connect::Address& its_server, ClientOptions chosen)
        : ClientAnswers{its_server, std::move(chosen)} {}

    /// Waits for what `attempt()` answers, as long as that is `again`. A session that resumes is
    /// resumed meanwhile.
    template <class Attempt>
    base::Status wait_for(base::Status again, const base::Deadline& deadline, Attempt&& attempt) {
        const base::WaitsByPolicy here;
        while (true) {
            turns.count(options.wait);
            base::Status status = again;
            // An answer that was just asked for is hardly there.
            if (again != base::Status::empty || !is_quiet()) status = attempt();
            if (status == again) {
                // Each piece of a long message ends a wait: a client that receives one is not idle.
                std::uint64_t before = line->progress();
                const auto has_come = [&] {
                    if (again == base::Status::empty && is_quiet()) return false;
                    if (ring() != nullptr) {
                        ring()->wait_for_room(again == base::Status::full || !ring()->is_clear());
                    }
                    status = attempt();
                    return status != again || line->progress() != before;
                };
                if (!has_come() || status == again) {
                    const base::SoleCall call{use, "wait with a message client",
                                              line->link().peer_name()};
                    do {
                        before = line->progress();
                        const base::Status waited = line->wait(has_come, deadline, options.wait);
                        if (waited != base::Status::ok) return waited;
                        if (status == again && deadline.cancelled()) return base::Status::cancelled;
                        if (status == again && deadline.expired()) return base::Status::timed_out;
                    } while (status == again);
                }
            }
            if (!may_resume(status) || !resumes(deadline, status)) return status;
        }
    }
    [[nodiscard]] bool may_resume(base::Status status) const noexcept {
        return options.resumes && !is_closed && !is_copy &&
               (status == base::Status::peer_lost || status == base::Status::closed);
    }
    bool resumes(const base::Deadline& deadline, base::Status& status);

    void connect(const base::Deadline& deadline);
    base::Status connect_again(const base::Deadline& deadline);
    base::Status close(const base::Deadline& deadline);
    [[noreturn, gnu::noinline, gnu::cold]] void refuse_to_pass() const;

    WaitTurns turns;
    base::SoleUse use;                      ///< by a wait, reconnect() or close() that is under way
    std::optional<base::Status> closed_as;  ///< what close() has come to
    std::optional<connect::Transport> instead_of;  ///< that was asked for first
    std::string why_instead;

  private:
    [[nodiscard]] ChannelOptions channel_options() const;
    /// Asks the server for a session, or to go on with this one. Throws Error.
    [[nodiscard]] Welcome join(const base::Deadline& deadline);
    void take_welcome(const Welcome& welcome);

    base::ForkWatch fork_watch_{*this};
};

}  // namespace millrace::message
