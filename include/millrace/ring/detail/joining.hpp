// The time between an end's last word of its setup and the other end's: an end that accepts without
// waiting has an end already, which is empty, or full, until the other end has said where its
// memory is. Used by Sender and Receiver.
#pragma once

#include <chrono>
#include <cstddef>
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
enum class Joining : bool {
    at_once,  ///< the constructor waits for the other end's last word
    later,    ///< it comes within later calls of the end
};

namespace detail {

class Join {
  public:
    Join(connect::Link& link, Design asked_design, const RingOptions& asked)
        : design{asked_design}, options{asked}, link_{&link} {}

    /// How often who sleeps elsewhere is to look, so that a peer that says no more is given up.
    static constexpr std::chrono::nanoseconds slice = std::chrono::milliseconds{100};
    /// Says where this end's memory is, after the words about a second queue pair if the link gets
    /// one. `at_once`: waits for the other end's. Throws Error as Link::exchange.
    [[nodiscard]] std::optional<Places> meet(const Places& mine, const Terms& terms,
                                             Joining joining, const base::Deadline& deadline);
    /// Never throws: `empty`, or what ends it, of which failure() tells: 5 s of looks, too, as a
    /// listener gives (the time runs while somebody looks).
    [[nodiscard]] base::Status look(std::optional<Places>& theirs) noexcept;
    void fail(const base::Error& error) noexcept;

    [[nodiscard]] base::Status ended() const noexcept { return ended_; }
    [[nodiscard]] const std::string& failure() const noexcept { return failure_; }

    Design design;
    RingOptions options;
    std::vector<std::byte> nothing;  ///< a consumer's: a ring in which nothing has arrived

  private:
    connect::Link* link_;
    std::optional<Places> mine_;  ///< to be said once the second queue pair is open
    base::Status ended_ = base::Status::ok;
    std::string failure_;
    std::chrono::nanoseconds left_{std::chrono::seconds{5}};
    base::Clock::time_point last_look_ = base::Clock::now();
};

}  // namespace detail
}  // namespace millrace::ring
