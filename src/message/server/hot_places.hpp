// The clients that are likely to write next: those that a server found after its last waits. While
// most clients are idle, the next request is of one of these, so a server that waits looks at them
// several times before it looks at all clients once more. Knows no client; used by the server alone
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
    /// Of more clients than these that call in turn nobody can tell the next one.
    static constexpr std::size_t most = 4;
    /// So many waits in a row must have ended at hot places before these are trusted.
    static constexpr std::uint32_t enough = 8;

    /// A look at all clients, in a wait, has found this one.
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
    /// Nobody can tell the next one: more were served in a lap, say.
    void forget() noexcept { in_a_row_ = 0; }
    /// The next client that writes is likely to be one of places().
    [[nodiscard]] bool are_likely() const noexcept { return in_a_row_ >= enough; }
    [[nodiscard]] std::span<const std::uint32_t> places() const noexcept {
        return {places_, count_};
    }

  private:
    std::uint32_t places_[most]{};
    std::size_t count_ = 0;
    std::size_t next_ = 0;  ///< in `places_`: the one that a new one replaces
    std::uint32_t in_a_row_ = 0;
};

}  // namespace millrace::message
