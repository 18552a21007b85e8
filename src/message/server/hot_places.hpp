// Who is likely to write next: the clients that a server found behind its last waits. While most
// clients are idle, the next request is of one of these, so who waits looks at them several times
// before it looks at everybody once more. Knows no client; used by the server alone
// (Server::State::has_message), which says when it may.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace millrace::message {

/// One thread: the server's.
class HotPlaces {
  public:
    /// More clients than these that call in turn are none of whom the next one can be told.
    static constexpr std::size_t most = 4;
    /// So many waits in a row must have ended at hot places before these are trusted.
    static constexpr std::uint32_t enough = 8;

    /// A look at everybody, in a wait, has found this one.
    void found(std::size_t place) noexcept {
        const auto known = places();
        if (std::find(known.begin(), known.end(), place) != known.end()) {
            ++in_a_row_;
            return;
        }
        in_a_row_ = 0;
        places_[next_] = static_cast<std::uint32_t>(place);
        next_ = (next_ + 1) % most;
        count_ = std::max(count_, next_ == 0 ? most : next_);
    }
    /// Who is next cannot be told: more were served in a lap, say.
    void forget() noexcept { in_a_row_ = 0; }
    /// Whoever writes next is likely to be one of places().
    [[nodiscard]] bool are_likely() const noexcept { return in_a_row_ >= enough; }
    [[nodiscard]] std::span<const std::uint32_t> places() const noexcept {
        return {places_, count_};
    }

  private:
    std::uint32_t places_[most]{};
    std::size_t count_ = 0;
    std::size_t next_ = 0;  ///< in `places_`: who goes for a new one
    std::uint32_t in_a_row_ = 0;
};

}  // namespace millrace::message
