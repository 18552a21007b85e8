// Whether what threads saw of one key can have happened call by call, each between its beginning
// and its end: Wing and Gong's search, with Lowe's memory of the states that led nowhere.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

namespace millrace::kv {

/// One call on the key. Values are numbers; 0 is none.
struct Call {
    enum class Kind : std::uint8_t { get, set, erase, compare_and_set };
    Kind kind = Kind::get;
    std::uint64_t begin = 0;  ///< of one clock for all threads
    std::uint64_t end = 0;
    std::uint64_t value = 0;     ///< set, compare_and_set: the new one. get: what was seen
    std::uint64_t expected = 0;  ///< compare_and_set: if this is there
    bool done = true;            ///< erase: there was one. compare_and_set: it was there
};

/// Whether the call may be seen to happen now; changes what is there.
inline bool happens(const Call& call, std::uint64_t& there) {
    switch (call.kind) {
        case Call::Kind::get: return call.value == there;
        case Call::Kind::set: there = call.value; return true;
        case Call::Kind::erase:
            if (call.done != (there != 0)) return false;
            there = 0;
            return true;
        case Call::Kind::compare_and_set:
            if (call.done != (there == call.expected)) return false;
            if (call.done) there = call.value;
            return true;
    }
    return false;
}

/// Each call that is open beside another may double what is to be searched.
constexpr std::size_t most_open_calls = 16;

/// Of calls of which at most that many are open at once, else std::invalid_argument is thrown;
/// there is nothing at first.
class History {
  public:
    explicit History(std::vector<Call> calls) : calls_{std::move(calls)} {
        happened_.resize(calls_.size());
        for (const Call& one : calls_) {
            const auto open = std::ranges::count_if(calls_, [&](const Call& other) {
                return other.begin <= one.begin && one.begin <= other.end;
            });
            if (open > std::ptrdiff_t{most_open_calls}) {
                throw std::invalid_argument{
                    "too many calls are open at once to search their orders"};
            }
        }
    }
    [[nodiscard]] bool is_linearizable() { return go_on(0, 0); }

  private:
    bool go_on(std::size_t count, std::uint64_t there) {
        if (count == calls_.size()) return true;
        if (!seen_.emplace(happened_, there).second) return false;
        std::uint64_t first_end = ~std::uint64_t{0};
        for (std::size_t i = 0; i < calls_.size(); ++i) {
            if (!happened_[i]) first_end = std::min(first_end, calls_[i].end);
        }
        for (std::size_t i = 0; i < calls_.size(); ++i) {
            // What began after another one's end cannot come before it.
            if (happened_[i] || calls_[i].begin > first_end) continue;
            std::uint64_t next = there;
            if (!happens(calls_[i], next)) continue;
            happened_[i] = true;
            if (go_on(count + 1, next)) return true;
            happened_[i] = false;
        }
        return false;
    }

    std::vector<Call> calls_;
    std::vector<bool> happened_;
    std::set<std::pair<std::vector<bool>, std::uint64_t>> seen_;
};

inline bool is_linearizable(std::vector<Call> calls) {
    return History{std::move(calls)}.is_linearizable();
}

}  // namespace millrace::kv
