// Answers that came while another one was awaited, or that never will: they are handed out before
// what lies in the ring, or in a port's places. Used by a client's answers (answers.hpp) and by a
// port (dispatch/port_state.hpp).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "millrace/message/requester.hpp"
#include "millrace/message/session.hpp"

namespace millrace::message {

/// One thread. An answer is named by its index, the oldest first, until another one is erased.
class KeptAnswers {
  public:
    [[nodiscard]] bool empty() const noexcept { return kept_.empty(); }
    [[nodiscard]] std::size_t size() const noexcept { return kept_.size(); }
    void keep(std::uint64_t id, Outcome outcome, std::vector<std::byte> payload) {
        kept_.push_back({id, outcome, std::move(payload)});
    }
    void keep_as_oldest(std::uint64_t id, Outcome outcome) { kept_.push_front({id, outcome, {}}); }
    /// size(): it is not here.
    [[nodiscard]] std::size_t find(std::uint64_t id) const noexcept {
        const auto found = std::ranges::find(kept_, id, &Kept::id);
        return static_cast<std::size_t>(found - kept_.begin());
    }
    [[nodiscard]] Answer at(std::size_t index) const noexcept {
        const Kept& one = kept_[index];
        return {one.id, one.outcome, one.payload};
    }
    void erase(std::size_t index) {
        kept_.erase(kept_.begin() + static_cast<std::ptrdiff_t>(index));
    }

  private:
    struct Kept {
        std::uint64_t id = 0;
        Outcome outcome = Outcome::ok;
        std::vector<std::byte> payload{};
    };
    std::deque<Kept> kept_;
};

}  // namespace millrace::message
