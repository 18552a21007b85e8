// The time between an end's last word of its setup and the other end's: an end that accepts, or
// connects, without waiting exists already, and is empty, or full, until the other end has said
// where its memory is. Used by Sender and Receiver.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "millrace/base/clock.hpp"
#include "millrace/base/deadline.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/status.hpp"
#include "millrace/connect/link.hpp"
#include "millrace/ring/design.hpp"
#include "millrace/ring/options.hpp"
#include "millrace/ring/terms.hpp"

namespace millrace::ring {

/// How an end is set up.
enum class Joining : std::uint8_t {
    at_once,    ///< the constructor waits for the other end's last word
    later,      ///< it comes within later calls of the end, or 5 s of them
    unhurried,  ///< it comes within later calls; how long is its owner's to say
};

/// What was done before an end is made over a link, and what is left to its later calls.
struct Setup {
    Joining joining = Joining::at_once;
    /// What both have said, of an end that then waits for nothing; none: the constructor exchanges
    /// it.
    std::optional<Proposals> proposals{};
};

namespace detail {

class Join {
  public:
    Join(connect::Link& link, Design asked_design, const RingOptions& asked, Joining joining)
        : design{asked_design}, options{asked}, link_{&link}, joining_{joining} {}

    /// How often who sleeps elsewhere is to look, so that a peer that says no more is given up.
    static constexpr std::chrono::nanoseconds slice = std::chrono::milliseconds{100};
    /// Says where this end's memory is, after the words about a second queue pair if the link gets
    /// one. `at_once`: waits for the other end's. Throws Error as Link::exchange.
    [[nodiscard]] std::optional<Places> meet(const Places& mine, const Terms& terms,
                                             const base::Deadline& deadline);
    /// Never throws: `empty`, or what ends it, of which failure() tells: `later`, 5 s of looks,
    /// too, as a listener gives (the time runs while somebody looks).
    [[nodiscard]] base::Status look(std::optional<Places>& theirs) noexcept;
    base::Status fail(const base::Error& error) noexcept;
    base::Status fail_for_want_of_memory() noexcept;

    [[nodiscard]] base::Status ended() const noexcept { return ended_; }
    [[nodiscard]] std::string failure() const { return error_ ? error_->what() : std::string{}; }
    /// Throws Error: what has ended it; or, of a wait that gave `waited`, that its time is over.
    [[noreturn]] void raise(base::Status waited) const;

    Design design;
    RingOptions options;
    std::vector<std::byte> nothing;  ///< a consumer's: a ring in which nothing has arrived

  private:
    connect::Link* link_;
    Joining joining_;
    std::optional<Places> mine_;  ///< to be said once the second queue pair is open
    base::Status ended_ = base::Status::ok;
    std::optional<base::Error> error_;
    std::chrono::nanoseconds left_{std::chrono::seconds{5}};
    base::Clock::time_point last_look_ = base::Clock::now();
};

}  // namespace detail
}  // namespace millrace::ring
